"""The self-test of the portable arithmetic: what every operator gives, against committed digests.

`run` computes the operators of `selftest_ops` and the models of `selftest_models` with the engine
that is loaded; `goldens` are the digests that they must have, on every processor, with any number
of threads and any split into batches. They are written again (`kvgraft selftest --write`) when the
arithmetic itself changes: another version of the engine, or another definition of its build. Then
every supported build must give the new ones before they are committed.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvaudit import atomic, canonical, digests, schemas
from kvaudit.errors import TypedError
from kvgraft import engine, selftest_models, selftest_ops
from kvgraft.errors import NotPortable
from kvgraft.profile import portable
from kvgraft.selftest_ggml import Graph, extra_buffers

FILE = Path(__file__).with_name("selftest-goldens.json")
KIND = "selftest-goldens"
REPACKING = "repacking of weights"
"""Stands for all kernels of weights in another layout than the file's, of which there is none."""

_SHARED = (
    *("norm/640", "rms_norm, mul, add/640", "soft_max/515/", "rope/neox/F32/yarn", "unary/silu"),
    *("glu/geglu/F32", "get_rows/Q4_0", "attention/full/f16 f16", "mul_mat/F32/", "mul_mat/F16/"),
    *("mul_mat/Q8_0/", "mul_mat/Q4_0/", "mul_mat/Q4_K/", "mul_mat/Q6_K/", "mul_mat_id/Q8_0"),
)
"""Beginnings of the names of what two threads compute again: one of each way to share work."""


@dataclass(frozen=True)
class Goldens:
    """What the portable arithmetic must give.

    Attributes:
        engine: version of llama-cpp-python whose source they belong to.
        operators: SHA-256 by the operator's name.
        sha256: of the file.
    """

    engine: str
    operators: Mapping[str, str]
    sha256: str


@dataclass(frozen=True)
class Difference:
    """An operator that does not give its golden bytes.

    Attributes:
        operator: its name.
        expected: the golden digest; None where there is none of it.
        found: the digest; None where it was not computed.
        how: "" as a rule, else what makes the difference: threads, batches, another layout.
    """

    operator: str
    expected: str | None
    found: str | None
    how: str = ""


@dataclass(frozen=True)
class SelfTest:
    """What the loaded engine gives.

    Attributes:
        engine: version of llama-cpp-python.
        architecture: of the processor.
        operators: SHA-256 by name, in the order in which they were computed.
        differences: from the goldens, in that order.
        seconds: that it took.
    """

    engine: str
    architecture: str
    operators: Mapping[str, str]
    differences: tuple[Difference, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """As printed by --json."""
        return {
            "engine": self.engine,
            "architecture": self.architecture,
            "passed": self.passed,
            "seconds": round(self.seconds, 3),
            "operators": dict(self.operators),
            "differences": [dict(vars(one)) for one in self.differences],
        }


@lru_cache(maxsize=1)
def goldens() -> Goldens:
    """The committed digests.

    Raises:
        NotPortable: the file is missing or not in its one form.
    """
    try:
        data = FILE.read_bytes()
        value = canonical.loads_document(data, where=FILE.name)
        schemas.validate(value, KIND, where=FILE.name)
    except (OSError, TypedError) as error:
        raise NotPortable(f"the golden digests cannot be read: {error}", where=FILE.name) from error
    return Goldens(value["engine"], value["operators"], digests.sha256_bytes(data))


def run() -> SelfTest:
    """Compute everything with the engine that is loaded, or loads now.

    Raises:
        EngineUnavailable: the engine is missing, or loaded under other variables.
        EngineFailed: the engine does not compute an operator.
        NotPortable: there are no goldens to compare with, or they are of another version's source.
    """
    begin = time.perf_counter()
    version = engine.load(portable().environment).python_version
    if (of := goldens().engine) != version:
        raise NotPortable(
            "the golden digests are of another version of the engine",
            where=FILE.name,
            expected=version,
            found=of,
            hint="kvgraft selftest --write makes them anew",
        )
    found, unequal = _computed()
    expected = goldens().operators
    differences = [
        Difference(name, expected.get(name), digest, "" if expected.get(name) != digest else how)
        for name, digest in found.items()
        if expected.get(name) != digest or (how := unequal.get(name, ""))
    ]
    absent = [name for name in {**expected, **unequal} if name not in found]
    differences += [Difference(n, expected.get(n), None, unequal.get(n, "")) for n in absent]
    seconds = time.perf_counter() - begin
    return SelfTest(version, platform.machine(), found, tuple(differences), seconds)


def _computed() -> tuple[dict[str, str], dict[str, str]]:
    """Digests by name, and what it is that makes a difference to some of them."""
    found: dict[str, str] = {}
    unequal: dict[str, str] = {}
    with Graph() as graph:
        selftest_ops.build(graph)
        for name, data in graph.compute(1).items():
            found[name] = digests.sha256_bytes(data)
        shared = [name for name in found if name.startswith(_SHARED)]
        for name, data in graph.compute(2, shared).items():
            if digests.sha256_bytes(data) != found[name]:
                unequal[name] = "2 threads"
        if (strange := graph.first_nan()) is not None:
            unequal[strange] = "another processor, because it holds no number"
    for one in selftest_models.run():
        found[one.name] = one.sha256
        if one.split_sha256 != one.sha256:
            unequal[one.name] = "several batches"
    if extra := extra_buffers():
        unequal[REPACKING] = ", ".join(extra)
    return found, unequal


def require() -> None:
    """Compute everything and compare it.

    Raises:
        NotPortable: something differs, and the first operator that does is named; or as `run`.
        EngineUnavailable, EngineFailed: as `run`.
    """
    found = run()
    if found.passed:
        return
    first = found.differences[0]
    raise NotPortable(
        f"{len(found.differences)} of {len(found.operators)} operators do not give their golden "
        f"bytes with this engine; the first is {first.operator}"
        + (f" with {first.how}" if first.how else ""),
        where=first.operator,
        expected=first.expected,
        found=first.found,
        hint="kvgraft selftest lists them; make portable builds an engine that gives them",
    )


def write(path: str | Path) -> Goldens:
    """Write the digests that the loaded engine gives as goldens; `FILE` is the committed one.

    Raises:
        NotPortable: threads or batches make a difference, or there are kernels of other places
            than plain memory: then it is no arithmetic to be golden.
        EngineUnavailable, EngineFailed: as `run`.
    """
    version = engine.load(portable().environment).python_version
    found, unequal = _computed()
    if unequal:
        name, how = next(iter(unequal.items()))
        raise NotPortable(f"{name} does not give the same bytes with {how}", where=name)
    value = {"kind": KIND, "version": 1, "engine": version, "operators": found}
    schemas.validate(value, KIND, where=str(path))
    atomic.write_json(path, value)
    goldens.cache_clear()
    return Goldens(version, found, digests.sha256_file(path))


def main() -> int:
    """The child of `kvgraft doctor`: the result to standard output, as JSON."""
    try:
        found = run()
    except TypedError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    json.dump(found.to_json(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
