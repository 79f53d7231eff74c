"""Execution profiles as the inputs manifest registers them, and what they imply.

The rule of split invariance is that of docs/adr/0003; `kvgraft.profile` states it for the run,
this module states it again so that a run cannot say of itself what its profile denies. A profile
of the portable arithmetic names that arithmetic where another names libraries and a machine. This
module must not read files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit import digests
from kvaudit.errors import printable

PARTS = ("settings", "engine", "machine", "context", "buffers", "environment")
STOCK = "stock"
PORTABLE = "portable"


@dataclass(frozen=True)
class InForce:
    """What a stage of one model must have run under.

    Attributes:
        name: the configured preset.
        digest: of the configured profile.
        stock_digest: of the stock control's profile; empty in a portable run, which has none.
        window: tokens of the model's sliding window, 0 without one.
        split_invariant: whether the configured profile implies it.
        engine: digest of what computes, as `engine_digest`.
    """

    name: str
    digest: str
    stock_digest: str
    window: int
    split_invariant: bool
    engine: str


def problems(inputs: Mapping[str, Any], model: str) -> Iterator[str]:
    """What is wrong with the registered profiles of one model."""
    entries = inputs["profiles"].get(model)
    if not entries:
        yield "none is registered"
        return
    configured = _configured(inputs)
    preset = configured.get("preset")
    if preset == PORTABLE and {*entries} != {PORTABLE}:
        yield "registered is not exactly the configured preset, which has no control"
    elif isinstance(preset, str) and preset != PORTABLE and {*entries} != {preset, STOCK}:
        yield "registered are not exactly the configured preset and stock"
    for name, entry in sorted(entries.items()):
        if not isinstance(entry, dict) or {*entry} != {"digest", "profile"}:
            yield f"{name} is not a digest with its profile"
        elif digests.sha256_json(entry["profile"]) != entry["digest"]:
            yield f"{name}: digest is not that of the profile"
        elif not well_formed(entry["profile"]):
            yield f"{name}: the profile lacks what a profile says"
        else:
            settings = entry["profile"]["settings"]
            if settings["name"] != name:
                yield f"{name}: the profile is named {printable(settings['name'])}"
            if (name == PORTABLE) != is_portable(entry["profile"]):
                yield f"{name}: portable is the name of the portable arithmetic, and of no other"
            if name == preset != STOCK:
                # Threads are the host's: a portable profile does not name them.
                unnamed = {"preset", "n_threads"} if name == PORTABLE else {"preset"}
                for key in sorted({*configured} - unnamed):
                    if settings.get(key) != configured[key]:
                        yield f"{name}: {key} is not what the configuration says"


def in_force(inputs: Mapping[str, Any], model: str) -> InForce | None:
    """The profile in force, or None where `problems` has found that it cannot be known."""
    if any(problems(inputs, model)):
        return None
    name = _configured(inputs).get("preset")
    entries = inputs["profiles"][model]
    if not isinstance(name, str) or name not in entries:
        return None
    profile = entries[name]["profile"]
    return InForce(
        name=name,
        digest=entries[name]["digest"],
        stock_digest=entries[STOCK]["digest"] if STOCK in entries else "",
        window=profile["context"]["window"],
        split_invariant=split_invariant(profile),
        engine=engine_digest(profile["engine"]),
    )


def is_portable(profile: Mapping[str, Any]) -> bool:
    """Whether a well-formed profile is one of the portable arithmetic."""
    return "arithmetic" in profile["engine"]


def engine_digest(engine: Mapping[str, Any]) -> str:
    """Digest of what computes, hex, as block headers hold it.

    Args:
        engine: the part `engine` of a well-formed profile: the digests of libraries, which are
            bound to their names, or the definition of the portable arithmetic.
    """
    if "arithmetic" in engine:
        return digests.sha256_json(engine["arithmetic"])
    return digests.tree_digest(engine["libraries"])


def told_engine(profile: Any) -> str | None:
    """`engine_digest` of what a block tells as its profile, which may be any JSON value; None
    where it names neither libraries nor an arithmetic.
    """
    engine = profile.get("engine") if isinstance(profile, dict) else None
    if not isinstance(engine, dict):
        return None
    libraries = engine.get("libraries")
    named = isinstance(libraries, dict) and all(isinstance(d, str) for d in libraries.values())
    return engine_digest(engine) if named or "arithmetic" in engine else None


def split_invariant(profile: Mapping[str, Any]) -> bool:
    """Whether any batch split gives the same bytes under a well-formed profile."""
    settings = profile["settings"]
    return (
        not profile["context"]["flash_attention"]
        and not settings["tiled"]
        and settings["swa_full"]
        and not any("REPACK" in name or "AMX" in name for name in profile["buffers"]["weights"])
        and settings["n_gpu_layers"] == 0
        and settings["min_rows"] >= _fewest_rows(profile)
        and profile["environment"].get("GGML_CPU_TILED_MM") == "0"
    )


def _fewest_rows(profile: Mapping[str, Any]) -> int:
    """Rows that every matrix kernel takes: the portable arithmetic has one for any number."""
    if is_portable(profile):
        return 1
    return 4 if profile["machine"]["architecture"] in ("aarch64", "arm64") else 2


def differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the fields in which two profiles' JSON forms differ; mappings are entered."""
    found: list[str] = []
    for key in sorted({*a} | {*b}):
        left, right = a.get(key), b.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key}")
    return found


def n_ctx(profile: Any, part: str) -> int | None:
    """The context's length by one part of a profile, `settings` or `context`; None where it has
    no such number. A record's profile may be any object: `derived_problems` says what it lacks.
    """
    found = profile.get(part) if isinstance(profile, dict) else None
    size = found.get("n_ctx") if isinstance(found, dict) else None
    return size if type(size) is int else None


def digests_of(profiles: Any) -> frozenset[str]:
    """Every value under a key `digest` below one model's entry of the inputs' `profiles`."""
    found: set[str] = set()
    pending = [profiles]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if isinstance(value.get("digest"), str):
                found.add(value["digest"])
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return frozenset(found)


def derived_problems(
    rows: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, Any],
    model: str,
    allowed: Iterable[str],
) -> Iterator[str]:
    """What is wrong with the profiles that a stage derived from the configured one.

    Args:
        rows: records of the kind `profile`.
        inputs: the inputs manifest.
        model: the stage's subject.
        allowed: names of the settings that the stage may change.

    A derived profile has the registered engine, machine and variables (but for the variables that
    its own settings ask for), and no other settings than the registered ones but the allowed.
    """
    force = in_force(inputs, model)
    if force is None:
        return
    registered = inputs["profiles"][model][force.name]["profile"]
    free = {"name", *allowed}
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        profile, where = row["profile"], f"line {number}"
        if row["digest"] in seen:
            yield f"{where}: is listed twice"
        seen.add(row["digest"])
        if digests.sha256_json(profile) != row["digest"]:
            yield f"{where}: digest is not that of the profile"
        elif not well_formed(profile):
            yield f"{where}: the profile lacks what a profile says"
        else:
            for key in sorted({*profile["settings"]} | {*registered["settings"]}):
                same = profile["settings"].get(key) == registered["settings"].get(key)
                if key not in free and not same:
                    yield f"{where}: setting {printable(key)} is not the registered one"
            for part in ("engine", "machine", "buffers", "environment"):
                if profile[part] != registered[part]:
                    yield f"{where}: {part} is not the registered one"
            for key in _not_followed(profile, registered):
                yield f"{where}: context {key} does not follow from the settings"


_ASKED = ("n_threads", "flash_attention", "type_k", "type_v")
"""What a context has as its settings ask for it."""
_PADDING = 256
"""The engine rounds n_ctx up to a multiple of it."""


def _not_followed(profile: Mapping[str, Any], registered: Mapping[str, Any]) -> Iterator[str]:
    """Facts of a derived profile's context that its own settings do not lead to."""
    settings, context = profile["settings"], profile["context"]
    for key in _ASKED:
        if context.get(key) != settings.get(key):
            yield key
    asked, given, batch = settings.get("n_ctx"), context.get("n_ctx"), settings.get("n_batch")
    if type(asked) is not int or type(given) is not int or not asked <= given < asked + _PADDING:
        yield "n_ctx"
    elif type(batch) is int:
        for key in ("n_batch", "n_ubatch"):
            if context.get(key) != min(batch, given):
                yield key
    if context["window"] != registered["context"]["window"]:
        yield "window"


def well_formed(profile: Any) -> bool:
    """Whether a profile says everything that is read from it here, in the right types."""
    if not isinstance(profile, dict) or {*profile} != {*PARTS}:
        return False
    if not all(isinstance(profile[part], dict) for part in PARTS):
        return False
    settings, context = profile["settings"], profile["context"]
    weights = profile["buffers"].get("weights")
    integers = [settings.get("n_gpu_layers"), settings.get("min_rows"), context.get("window")]
    return (
        isinstance(settings.get("name"), str)
        and isinstance(settings.get("tiled"), bool)
        and isinstance(settings.get("swa_full"), bool)
        and isinstance(context.get("flash_attention"), bool)
        and all(type(value) is int and value >= 0 for value in integers)
        and (_names_an_arithmetic(profile) if is_portable(profile) else _names_a_host(profile))
        and isinstance(weights, list)
        and len(weights) > 0
        and all(isinstance(value, str) for value in weights)
    )


def _names_a_host(profile: Mapping[str, Any]) -> bool:
    libraries = profile["engine"].get("libraries")
    return (
        "arithmetic" not in profile["settings"]
        and isinstance(profile["machine"].get("architecture"), str)
        and isinstance(libraries, dict)
        and len(libraries) > 0
        and all(isinstance(value, str) for value in libraries.values())
    )


_SHA256 = re.compile(r"[0-9a-f]{64}")


def _names_an_arithmetic(profile: Mapping[str, Any]) -> bool:
    """That a portable profile names its definition and its goldens, and nothing of the host."""
    engine, goldens = profile["engine"], profile["engine"].get("goldens")
    return (
        {*engine} == {"binding", "arithmetic", "goldens"}
        and isinstance(engine["arithmetic"], dict)
        and engine["arithmetic"].get("name") == PORTABLE
        and isinstance(goldens, str)
        and _SHA256.fullmatch(goldens) is not None
        and not profile["machine"]
        and profile["settings"].get("arithmetic") == PORTABLE
        and not any("n_threads" in profile[part] for part in ("settings", "context"))
    )


def _configured(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    profile = inputs["configuration"]["value"].get("profile")
    return profile if isinstance(profile, dict) else {}
