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


ASSEMBLY = """
__asm__(".text\\n.globl rotate\\n.type rotate,%function\\nrotate:\\n{code}\\nret\\n");
"""
X86 = {
    "vfmadd213ss": r".byte 0x67\n vfmadd213ss %xmm2,%xmm1,%xmm0",  # addr32, which changes nothing
    "vfmadd231ps": r".byte 0x3e\n vfmadd231ps %ymm2,%ymm1,%ymm0",  # ds
    "vfmsub213sd": r"{evex} vfmsub213sd %xmm2,%xmm1,%xmm0",
    "tdpbf16ps": "tdpbf16ps %tmm2,%tmm1,%tmm0",
    "tdpbssd": "tdpbssd %tmm2,%tmm1,%tmm0",
    "vdpbf16ps": "vdpbf16ps %zmm2,%zmm1,%zmm0",
    "vexp2ps": "vexp2ps %zmm1,%zmm0",
    "vexp2pd": "vexp2pd %zmm1,%zmm0",
    "vcvtneps2bf16": "vcvtneps2bf16 %zmm1,%ymm0",
    "vcvtne2ps2bf16": "vcvtne2ps2bf16 %zmm2,%zmm1,%zmm0",
    **{name: name for name in ("fsin", "fcos", "fsincos", "fptan", "fpatan", "f2xm1")},
    **{name: name for name in ("fyl2x", "fyl2xp1", "fsqrt")},
    "faddp": "faddp %st,%st(1)",
    "fmull": "fmull (%rdi)",
    "fdivrp": "fdivrp %st,%st(1)",
    "(bad)": ".byte 0x06",  # no instruction in 64 bits
}
ARM = {
    "fmlal": "fmlal v0.4s, v1.4h, v2.4h",
    "fmlsl2": "fmlsl2 v0.4s, v1.4h, v2.4h",
    "bfmlalb": "bfmlalb v0.4s, v1.8h, v2.8h",
    "bfdot": "bfdot v0.4s, v1.8h, v2.8h",
    "fmlalb": "fmlalb z0.s, z1.h, z2.h",
    "fmlalt": "fmlalt z0.s, z1.h, z2.h",
    "fmlslb": "fmlslb z0.s, z1.h, z2.h",
    "fmlslt": "fmlslt z0.s, z1.h, z2.h",
    "fmad": "fmad z0.s, p0/m, z1.s, z2.s",
    "fmopa": "fmopa za0.s, p0/m, p1/m, z0.s, z1.s",
    "fmops": "fmops za0.s, p0/m, p1/m, z0.s, z1.s",
    "bfmopa": "bfmopa za0.s, p0/m, p1/m, z0.h, z1.h",
    ".inst": ".inst 0xffffffff",  # no instruction
}
_NEEDED = ".arch armv9-a+sve2+sme+bf16+fp16fml"


@pytest.mark.parametrize(
    ("kind", "mnemonic", "code"),
    [
        *(("x86", *one) for one in X86.items()),
        *(("arm", name, rf"{_NEEDED}\n {code}") for name, code in ARM.items()),
    ],
)
def test_what_differs_between_processors_is_found_behind_prefixes_too(
    gate: ModuleType, maths: ModuleType, tmp_path: Path, kind: str, mnemonic: str, code: str
) -> None:
    made = library(tmp_path, "libggml-cpu.so.0", ASSEMBLY.replace("{code}", code), kind)
    found = gate.first_finding(made, maths.is_ours)
    assert (found.function, found.instruction) == ("rotate", mnemonic)


@pytest.mark.parametrize(
    "code",
    [
        "vpdpbusd %zmm2,%zmm1,%zmm0",  # integers, which are exact in any order
        r"lock\n incl (%rdi)",
        r"rep\n stosb",
        "vcvtps2ph $0,%ymm0,%xmm0",
        r"fnstenv (%rdi)\n fldenv (%rdi)",  # around fesetround
        r"call vfmadd213ss@PLT\n jmp 1f\n1:",  # no more than a name
    ],
)
def test_what_is_exact_is_not_taken_for_it(
    gate: ModuleType, maths: ModuleType, tmp_path: Path, code: str
) -> None:
    text = ASSEMBLY.replace("{code}", code) + "float vfmadd213ss(float a) { return a + a; }\n"
    made = library(tmp_path, "libggml-cpu.so.0", text, "x86")
    assert gate.first_finding(made, maths.is_ours) is None


def test_long_doubles_may_be_added_in_libllama_alone_and_no_sine_be_taken_of_them(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    text = "long double draw(long double x) { return x + 1; }\n"
    assert gate.first_finding(library(tmp_path, "libllama.so", text, "x86"), maths.is_ours) is None
    found = gate.first_finding(library(tmp_path, "libggml.so.0", text, "x86"), maths.is_ours)
    assert (found.function, found.instruction) == ("draw", "faddp")
    sine = ASSEMBLY.replace("{code}", "fsin")
    found = gate.first_finding(library(tmp_path, "libllama.so", sine, "x86"), maths.is_ours)
    assert found.instruction == "fsin"


def test_another_library_of_the_system_is_found_by_its_name(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    text = (
        "#include <math.h>\nvoid soften(float *restrict a, const float *restrict b)\n"
        "{ for (int i = 0; i < 64; i++) a[i] = expf(b[i]); }\n"
    )
    made = library(tmp_path, "libggml-cpu.so.0", text, "x86", "-Ofast")
    if "libmvec.so.1" not in gate.needed(made):
        pytest.skip("this compiler knows no libmvec")
    found = gate.first_finding(made, maths.is_ours)
    assert str(found) == "libggml-cpu.so.0 needs libmvec.so.1"


def test_a_library_may_need_another_of_the_build_and_that_is_checked_too(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    kind = next(iter(COMPILERS))
    named = ("-Wl,-soname,libggml-base.so.0",)
    base = library(tmp_path, "libggml-base.so.0", "int half(void) { return 1; }\n", kind, *named)
    text = "int half(void); int whole(void) { return 2 * half(); }\n"
    made = library(tmp_path, "libggml.so.0", text, kind, "-Wl,--no-as-needed", str(base))
    assert gate.needed(made) == ["libc.so.6", "libggml-base.so.0", "libm.so.6"]
    gate.check(tmp_path, maths.is_ours)
    base.unlink()
    with pytest.raises(gate.BuildError, match=r"libggml\.so\.0 needs libggml-base\.so\.0: the bu"):
        gate.check(tmp_path, maths.is_ours)


def test_a_function_that_is_left_to_the_process_to_find_is_refused(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    text = "float tamed(float x); float soften(float x) { return tamed(x); }\n"
    made = library(tmp_path, "libggml-cpu.so.0", text, next(iter(COMPILERS)))
    found = gate.first_finding(made, maths.is_ours)
    assert str(found) == "libggml-cpu.so.0 takes tamed from no library that it names"


def test_a_library_that_does_not_say_where_its_functions_begin_is_refused(
    gate: ModuleType, maths: ModuleType, tmp_path: Path
) -> None:
    # Stripped, the fused function would be taken for a part of the exempt one before it.
    text = (
        "float ceilf(float a) { return a; }\n__attribute__((noipa)) static "
        + FUSABLE.format(name="own")
        + "float user(float a) { return own(a, a, a); }\n"
    )
    kind = next(iter(COMPILERS))
    options = ("-ffp-contract=fast", "-s")
    library(tmp_path, "libggml-cpu.so.0", text, kind, *options)
    with pytest.raises(gate.BuildError, match=r"libggml-cpu\.so\.0 holds no symbol table"):
        gate.check(tmp_path, maths.is_ours)
    library(tmp_path, "libggml-cpu.so.0", text, kind, options[0])
    with pytest.raises(gate.BuildError, match=r"own holds v?fm"):
        gate.check(tmp_path, maths.is_ours)


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
