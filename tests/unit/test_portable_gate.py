"""The gate of the portable builds: what would make bits depend on the processor is found."""

from __future__ import annotations

import importlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from envswork import built
from kvaudit import canonical

ENVS = Path(__file__).parents[2] / "envs"
COMPILERS = {"x86": ("cc", "-march=x86-64-v3"), "arm": ("aarch64-linux-gnu-gcc", "-march=armv8-a")}
if platform.machine() == "aarch64":
    COMPILERS = {"arm": ("cc", "-march=armv8-a")}
FUSABLE = "float {name}(float a, float b, float c) {{ return a * b + c; }}\n"
LOOP = (
    "void {name}(float *a, const float *b, int n)\n"
    "{{ for (int i = 0; i < n; i++) a[i] += b[i] * b[i]; }}\n"
)


@pytest.fixture
def envs() -> Iterator[None]:
    """The scripts import their neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield
    finally:
        sys.path.remove(str(ENVS))


@pytest.fixture
def gate(envs: None) -> ModuleType:
    return importlib.import_module("portable_gate")


@pytest.fixture
def maths(envs: None) -> ModuleType:
    return importlib.import_module("portable_math")


def library(folder: Path, name: str, source: str, kind: str, *options: str) -> Path:
    """A shared library of a C text for a kind of processor."""
    command, march = COMPILERS.get(kind, ("", ""))
    if not shutil.which(command):
        pytest.skip(f"no compiler for {kind}: {command or 'cross-compiling'}")
    text = folder / "source.c"
    text.write_text(source, encoding="ascii")
    made = folder / name
    subprocess.run(
        [command, march, "-O3", "-shared", "-fPIC", *options, "-o", str(made), str(text), "-lm"],
        check=True,
        capture_output=True,
    )
    return made


@pytest.mark.parametrize("kind", ["x86", "arm"])
@pytest.mark.parametrize("source", [FUSABLE, LOOP], ids=["scalar", "vectors"])
def test_a_fused_operation_is_found_with_its_function(
    gate: ModuleType, maths: ModuleType, tmp_path: Path, kind: str, source: str
) -> None:
    text = "float whole(float a) { return a + a; }\n" + source.format(name="rotate")
    fused = library(tmp_path, "libggml-cpu.so.0", text, kind, "-ffp-contract=fast")
    found = gate.first_finding(fused, maths.is_ours)
    assert found is not None
    assert (found.library, found.function) == ("libggml-cpu.so.0", "rotate")
    assert re.match(r"vfmadd|fmadd|fmla", found.instruction)
    with pytest.raises(gate.BuildError, match=r"libggml-cpu\.so\.0: rotate holds v?fm"):
        gate.check(tmp_path, maths.is_ours)


@pytest.mark.parametrize("kind", ["x86", "arm"])
def test_the_same_source_without_contraction_passes(
    gate: ModuleType, maths: ModuleType, tmp_path: Path, kind: str
) -> None:
    text = FUSABLE.format(name="rotate") + LOOP.format(name="add")
    plain = library(tmp_path, "libggml-cpu.so.0", text, kind, "-ffp-contract=off")
    assert gate.first_finding(plain, maths.is_ours) is None


@pytest.mark.parametrize("kind", ["x86", "arm"])
def test_the_functions_that_are_linked_in_may_fuse_and_their_callers_may_not(
    gate: ModuleType, maths: ModuleType, tmp_path: Path, kind: str
) -> None:
    inside = FUSABLE.format(name="__llvm_libc_19_1_7_inner")
    own = library(tmp_path, "libggml-cpu.so.0", inside, kind, "-ffp-contract=fast")
    assert gate.first_finding(own, maths.is_ours) is None
    both = inside + FUSABLE.format(name="caller")
    mixed = library(tmp_path, "libggml-cpu.so.0", both, kind, "-ffp-contract=fast")
    assert gate.first_finding(mixed, maths.is_ours).function == "caller"


def test_an_approximate_reciprocal_is_found(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    text = "#include <immintrin.h>\n__m128 norm(__m128 x) { return _mm_rsqrt_ps(x); }\n"
    made = library(tmp_path, "libggml-cpu.so.0", text, "x86")
    found = gate.first_finding(made, maths.is_ours)
    assert (found.function, found.instruction) == ("norm", "vrsqrtps")


@pytest.mark.parametrize("kind", ["x86", "arm"])
@pytest.mark.parametrize(
    ("name", "function", "refused"),
    [
        ("libggml-cpu.so.0", "expf", True),
        ("libggml-base.so.0", "logf", True),
        ("libggml-cpu.so.0", "pow", True),
        ("libggml.so.0", "pow", True),
        ("libllama.so", "powf", True),
        ("libllama.so", "pow", False),
    ],
)
def test_mathematics_of_the_system_is_found_where_it_is_called(
    gate: ModuleType,
    maths: ModuleType,
    tmp_path: Path,
    kind: str,
    name: str,
    function: str,
    refused: bool,
) -> None:
    of = "double" if function == "pow" else "float"
    more = ", x" if function.startswith("pow") else ""
    text = f"#include <math.h>\n{of} soften({of} x) {{ return {function}(x{more}); }}\n"
    made = library(tmp_path, name, text, kind)
    assert gate.imported(made) == [function]
    found = gate.first_finding(made, maths.is_ours)
    assert (found is not None) == refused
    if refused:
        assert str(found) == f"{name} takes {function} from the system's libm"


def test_what_is_said_of_a_sound_folder_is_no_more_than_was_looked_for(
    gate: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "#include <math.h>\ndouble draw(double x) { return pow(x, x); }\n"
    library(tmp_path, "libllama.so", text, next(iter(COMPILERS)))
    assert gate.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.endswith("of the system's mathematics libllama alone takes pow\n")


def test_a_file_that_is_no_library_is_refused(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "libggml-cpu.so.0").write_bytes(b"no library")
    with pytest.raises(gate.BuildError):
        gate.check(tmp_path, maths.is_ours)
    with pytest.raises(gate.BuildError, match="holds no libraries"):
        gate.check(tmp_path / "absent", maths.is_ours)


@pytest.mark.parametrize(
    "name", ["portable", "portable-clang", "portable-generic", "portable-aarch64"]
)
def test_every_build_passes_and_says_what_decides_its_bits(
    gate: ModuleType, maths: ModuleType, name: str
) -> None:
    folder = Path(built(ENVS / "engine_variant.py", name, "--if-built"))
    gate.check(folder, maths.is_ours)
    engine = importlib.import_module("portable_engine")
    assert (folder / "ARITHMETIC.json").read_bytes() == engine.definition()


def test_what_decides_the_bits_is_canonical_and_names_no_processor(envs: None) -> None:
    text = importlib.import_module("portable_engine").definition()
    assert canonical.dumps(json.loads(text)) == text
    assert not re.search(rb"march|avx|sse|neon|x86|aarch64|arm", text, re.IGNORECASE)
    assert b'"GGML_CPU_TILED_MM":"0"' in text
