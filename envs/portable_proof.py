"""Shows that every portable build gives the same bytes: logits, states, blocks, records.

The builds are the fastest one for this processor, the same by Clang (where it is installed), the
generic one, and the one for aarch64, which runs under emulation on x86-64 and natively on Arm.
Under each, a text is read in one batch, in odd batches and token by token, with one thread and with
two; its block is captured under each and grafted under every other. So is a text past the sliding
window, in batches alone. A run of the stage exactness on tiny models is made natively and under the
other architecture, and compared by `kvaudit diff`; a run with generations is made natively and
rechecked there.

    python envs/portable_proof.py                      both embedded models, and the tiny runs
    python envs/portable_proof.py --models tiny        tiny models of every quantisation alone
    python envs/portable_proof.py --json > mine.json   for a machine of another architecture:
    python envs/portable_proof.py --expect mine.json   the same digests, or exit status 1

Exit status 1 says that something differs; the table says what. 2 says that nothing was shown:
something needed is missing or failed, or there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import portable_runs
from emulated_python import emulated
from engine_variant import folder_name, folder_of, output_to_stderr
from engine_wheel import ENVS, BuildError
from portable_engine import NAMES

sys.path.insert(0, str(ENVS.parent / "workflow"))

from kvaudit import canonical
from kvaudit.errors import TypedError, printable
from kvgraft import pins, remote, texts
from kvgraft.model import FrozenModel, ModelPin
from kvgraft.profile import portable
from kvgraft.tiny import make_tiny_gguf

CASES: tuple[tuple[int, int | None], ...] = ((1, None), (2, None), (1, 7), (2, 16), (1, 1))
"""(threads, batch size) of the readings; None is one batch."""
SPAN_TOKENS, QUERY_TOKENS = 40, 8
LONG_CASES: tuple[tuple[int, int | None], ...] = ((1, None), (2, 97))
LONG_SPAN_TOKENS = 600
"""Past the 512 tokens that Gemma's local layers see, and past two steps of attention's padding."""
EMBEDDED = ("gemma-3-270m", "smollm2-135m")
QUANTISATIONS = ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
TIMEOUT_S = 4 * 3600.0
FOREIGN = "portable-aarch64"
"""The build of the other architecture than x86-64, preferred for the second of two tiny runs."""
GRAFT = "graft of "
"""How the names of digests begin that depend on which other builds there are."""

Digests = Mapping[str, Mapping[str, Mapping[str, str]]]
"""{text: {build: {what: digest}}}"""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Build:
    """A portable build, and the Python that can load it.

    Attributes:
        name: of the variant.
        folder: of its libraries.
        interpreter: of its architecture; emulated where that is not this machine's.
    """

    name: str
    folder: Path
    interpreter: Path


@dataclass(frozen=True)
class Text:
    """What is read under every build: so many tokens, by one model, in so many ways.

    Attributes:
        name: as in the table; no two texts of a proof have the same.
        model: with the path of its file.
        span_tokens: length of the part that is kept as a block.
        cases: (threads, batch size) of each reading; None is one batch.
    """

    name: str
    model: ModelPin
    span_tokens: int
    cases: Sequence[tuple[int, int | None]]

    def job(self) -> dict[str, Any]:
        """What `kvgraft.portable_reading` is told of it."""
        passage = texts.passage("portable proof", n_words=self.span_tokens + 40)
        # A multiple of the padding that holds the tokens.
        n_ctx = -(-(self.span_tokens + QUERY_TOKENS) // 256) * 256
        return {
            "pin": self.model.to_json(),
            "settings": portable(n_ctx=n_ctx, n_batch=n_ctx).to_json(),
            "span": passage.text,
            "query": f"\nQuestion: {passage.facts[0].question}\nAnswer:",
            "span_tokens": self.span_tokens,
            "query_tokens": QUERY_TOKENS,
            "cases": self.cases,
        }


def distinct(names: Sequence[str]) -> list[str]:
    """One name for each build: on Arm several are one, but Clang's. Nothing is compiled.

    Raises:
        BuildError: a compiler is missing, or the machine is not one that can build them.
    """
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(folder_name(name), name)
    return list(found.values())


def builds(names: Sequence[str]) -> list[Build]:
    """The builds of these names, compiled if need be.

    Raises:
        BuildError: one cannot be built, or not be run.
    """
    native = Path(sys.executable)
    arm = platform.machine().lower() in ("aarch64", "arm64")
    return [
        Build(name, folder_of(name), emulated() if name == FOREIGN and not arm else native)
        for name in names
    ]


def places(used: Sequence[Build]) -> tuple[portable_runs.Place, portable_runs.Place] | None:
    """Where the tiny runs are made: natively, for programs cannot be isolated under emulation, and
    by another build, of the other architecture if there is one. None where there is no other.
    """
    here = next((one for one in used if one.interpreter == Path(sys.executable)), used[0])
    others = [one for one in used if one.folder != here.folder]
    if not others:
        return None
    there = next((one for one in others if one.name == FOREIGN), others[-1])
    return (here.folder, here.interpreter), (there.folder, there.interpreter)


def possible() -> list[str]:
    """All builds, but for Clang's where there is no Clang, which is said."""
    without = set() if shutil.which("clang++") else {"portable-clang"}
    for name in without:
        print(f"{name} is left out: clang++ is not on PATH", file=sys.stderr)
    return [name for name in NAMES if name not in without]


def tiny_models(folder: Path) -> list[ModelPin]:
    """Models of random weights, one of each architecture and quantisation."""
    made = []
    for architecture in ("llama", "gemma3"):
        for kind in QUANTISATIONS:
            path = folder / f"tiny-{architecture}-{kind.lower().replace('_', '-')}.gguf"
            width = 256 if kind.endswith("_K") else 64
            make_tiny_gguf(path, architecture, quantisation=kind, n_embd=width, window=32)
            made.append(pins.for_file(path))
    return made


def texts_of(names: Sequence[str], folder: Path) -> list[Text]:
    """A short text for each model, and a long one but for the tiny, whose window is 32 tokens.

    Args:
        names: of models; `tiny` stands for all tiny ones.
        folder: where these are made.

    Raises:
        BuildError: two models have one name, whose digests could not be told apart.
        TypedError: a model is not there, or not the pinned one.
    """
    made: list[Text] = []
    for name in names:
        if name == "tiny":
            made += [Text(one.name, one, SPAN_TOKENS, CASES) for one in tiny_models(folder)]
            continue
        with FrozenModel.open(pins.resolve(name)) as model:
            given = {**model.pin.to_json(), "source": {"path": str(model.path)}}
        pin = ModelPin.from_json(given)
        long = f"{pin.name}, {LONG_SPAN_TOKENS + QUERY_TOKENS} tokens"
        made.append(Text(pin.name, pin, SPAN_TOKENS, CASES))
        made.append(Text(long, pin, LONG_SPAN_TOKENS, LONG_CASES))
    called = [text.name for text in made]
    if twice := sorted({name for name in called if called.count(name) > 1}):
        raise BuildError(f"--models names {', '.join(twice)} more than once")
    return made


def read(build: Build, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What one build gives for each job, in a process of its own.

    Raises:
        EngineFailed: the process ended without an answer; its message is in the error.
    """
    begin = time.perf_counter()
    answers = remote.run_child(
        "kvgraft.portable_reading",
        jobs,
        portable(),
        TIMEOUT_S,
        libraries=build.folder,
        interpreter=build.interpreter,
    )
    took = time.perf_counter() - begin
    print(f"{build.name}, {jobs[0]['do']}: {took:.0f} s", file=sys.stderr, flush=True)
    return [answer["found"] for answer in answers]


def digests_of(
    given: Sequence[Text], used: Sequence[Build], work: Path, n_jobs: int
) -> dict[str, dict[str, dict[str, str]]]:
    """{text: {build: {what: digest}}}: own readings, then grafts of every build's blocks.

    Args:
        given: the texts.
        used: the builds.
        work: a folder for the blocks.
        n_jobs: processes side by side.

    Raises:
        EngineFailed: a build gave no answer; its message is in the error.
    """
    own: dict[str, list[dict[str, Any]]] = {}
    behind: dict[str, list[dict[str, Any]]] = {}
    for do, into in (("readings", own), ("grafts", behind)):
        jobs = {
            build.name: [
                {
                    **text.job(),
                    "do": do,
                    "store": str(work / text.name / build.name),
                    "stores": {
                        name: [str(work / text.name / name), found[number]["block: id"]]
                        for name, found in own.items()
                    },
                }
                for number, text in enumerate(given)
            ]
            for build in used
        }
        with ThreadPoolExecutor(n_jobs) as pool:
            # The last is the one that may be emulated, and takes longest.
            begun = [(one.name, pool.submit(read, one, jobs[one.name])) for one in reversed(used)]
            into.update({name: future.result() for name, future in reversed(begun)})
    return {
        text.name: {b.name: {**own[b.name][n], **behind[b.name][n]} for b in used}
        for n, text in enumerate(given)
    }


def _rows(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What any of the builds has a digest of, in the order of the readings."""
    return list(dict.fromkeys(what for given in found.values() for what in given))


def differences(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What is not one digest: between builds, and between the ways to read within them."""
    wrong = []
    rows = _rows(found)
    first, *others = found
    for what in rows:
        for name in others:
            if (digest := found[name].get(what)) != found[first].get(what):
                wrong.append(f"{what}: {name} has {digest or 'nothing'}")
    for kind in ("logits", "state"):
        ways = [what for what in rows if what.split(": ")[-1] == kind or what.startswith(kind)]
        for name, given in found.items():
            if len({given.get(what) for what in ways}) > 1:
                wrong.append(f"{kind} of {name} depend on how the text is read")
    return wrong


def table(model: str, found: Mapping[str, Mapping[str, str]]) -> str:
    """One row for every digest, one column for every build."""
    names, rows = list(found), _rows(found)
    width = max(len(what) for what in rows)
    lines = [f"{model:<{width}}  " + "  ".join(f"{name:<16}" for name in names)]
    for what in rows:
        digest = found[names[0]].get(what, "-")
        cells = [digest[:12]]
        for name in names[1:]:
            given = found[name].get(what, "-")
            cells.append("same" if given == digest else f"{given[:12]} DIFFERS")
        lines.append(f"{what:<{width}}  " + "  ".join(f"{cell:<16}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def prove(options: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    """Everything, as one JSON object; `wrong` lists what differs.

    Raises:
        BuildError, TypedError: something needed is not there, or failed, or there is nothing to
            compare with.
    """
    begin = time.perf_counter()
    if options.jobs < 1:
        raise BuildError(f"--jobs is a positive number, not {options.jobs}")
    expected = expectation(options.expect) if options.expect else None
    names = distinct(options.builds or possible())
    if len(names) < 2 and expected is None:
        raise BuildError(
            f"{', '.join(names)} is one build, and is compared with nothing: name another with "
            "--builds (on Arm there is only Clang's), or another machine's digests with --expect"
        )
    made: dict[str, Any] = {"models": {}, "runs": {}, "wrong": []}
    with tempfile.TemporaryDirectory(prefix="kvgraft-proof-") as scratch:
        work = Path(scratch)
        given = texts_of(options.models, work)
        used = builds(names)
        made["models"] = digests_of(given, used, work, options.jobs)
        for name, found in made["models"].items():
            made["wrong"] += [f"{name}: {text}" for text in differences(found)]
            say(table(name, found) + "\n")
        chosen = places(used)
        if options.runs and chosen is None:
            print("the tiny runs are left out: they need two builds", file=sys.stderr)
        elif options.runs and chosen is not None:
            made["runs"] = portable_runs.compared(work / "runs", *chosen)
            for name, one in made["runs"].items():
                say(f"{name}: {one['said']}\n")
                made["wrong"] += [] if one["same"] else [f"{name}: {one['said']}"]
    if expected is not None:
        made["wrong"] += unexpected(made["models"], expected)
        for name in sorted({*expected} - {*made["models"]}):
            print(f"{printable(name)} of --expect is not compared: not read here", file=sys.stderr)
    made["seconds"] = round(time.perf_counter() - begin, 1)
    say("".join(f"DIFFERENT: {text}\n" for text in made["wrong"]))
    say(f"{'different' if made['wrong'] else 'all equal'}, {made['seconds']:.0f} s\n")
    return made


def expectation(path: Path) -> Digests:
    """The digests that another machine has found, from its --json.

    Raises:
        BuildError: the file cannot be read, or does not hold a digest at least of every build of
            every text, or differences in that machine's own proof.
        UnusableInput: it is no JSON that can be read safely.
    """
    where = f"--expect {printable(path)}"
    try:
        if not path.is_file():
            raise BuildError(f"{where}: there is no such file")
        with path.open("rb") as file:
            data = file.read(canonical.MAX_BYTES + 1)
    except OSError as error:
        raise BuildError(f"{where} cannot be read: {error.strerror}") from None
    value = canonical.loads(data, where=where)
    models = value.get("models") if isinstance(value, dict) else None
    if not _filled(models):
        raise BuildError(f'{where}: "models" holds no texts; give what portable_proof --json wrote')
    if value.get("wrong", []) != []:
        raise BuildError(f"{where}: its own proof found differences")
    for text, of_builds in models.items():
        if not _filled(of_builds):
            raise BuildError(f"{where}: no build has read {printable(text)}")
        for build, found in of_builds.items():
            at = f"{where}: {printable(build)} of {printable(text)}"
            if not _filled(found):
                raise BuildError(f"{at} has no digests")
            for what, digest in found.items():
                if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
                    raise BuildError(f"{at}: {printable(what)} is no digest")
    return models


def _filled(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and bool(value)


def unexpected(models: Digests, expected: Digests) -> list[str]:
    """What another machine has found otherwise, or not at all, of the texts that were read here.

    Grafts are left out, for each machine grafts the blocks of its own builds.
    """
    wrong = []
    for text, found in models.items():
        if text not in expected:
            wrong.append(f"{text}: the file does not have it")
            continue
        ours = next(iter(found.values()))
        for name, theirs in expected[text].items():
            for what in _rows({"here": ours, "there": theirs}):
                if not what.startswith(GRAFT) and ours.get(what) != theirs.get(what):
                    here, there = (one.get(what, "nothing")[:12] for one in (ours, theirs))
                    at = f"{text}, {printable(what)}"
                    wrong.append(f"{at}: {here} here, {there} there ({printable(name)})")
    return wrong


def _silent(_text: str) -> None:
    """With --json nothing else is printed."""


def main(arguments: list[str]) -> int:
    """Prove, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="shows that every portable build gives one result")
    parser.add_argument("--models", nargs="+", default=list(EMBEDDED), metavar="NAME")
    parser.add_argument("--builds", nargs="+", choices=NAMES, help="all that can be built here")
    parser.add_argument("--no-runs", dest="runs", action="store_false", help="digests alone")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="another machine's --json")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes side by side")
    options = parser.parse_args(arguments)
    try:
        with output_to_stderr() as answer:
            made = prove(options, _silent if options.json else answer.write)
            if options.json:
                answer.write(json.dumps(made, indent=2, sort_keys=True) + "\n")
    except (BuildError, TypedError, OSError) as error:
        print(f"portable proof: {error}", file=sys.stderr)
        return 2
    return 1 if made["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
