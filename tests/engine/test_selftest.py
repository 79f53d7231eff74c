"""The self-test: what it computes follows from names alone, and a build of other bytes is refused.

Tests of builds run where they were made (`make portable`; `tests/engine/doctored.py` for those that
must be refused), in processes of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from portablework import NAMES, Build, build, built
from tinywork import REPOSITORY, python

from kvaudit import canonical, schemas
from kvgraft import selftest, selftest_ops
from kvgraft.gguf_types import TENSOR_TYPES
from kvgraft.selftest_ggml import draw, floats, positive, signed

DOCTORED = REPOSITORY / "tests" / "engine" / "doctored.py"


# -- values ---------------------------------------------------------------------------------------


def test_draws_are_those_of_splitmix64() -> None:
    mask = (1 << 64) - 1

    def following(seed: int, count: int) -> list[int]:
        out = []
        for _ in range(count):
            seed = (seed + 0x9E3779B97F4A7C15) & mask
            z = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
            out.append(z ^ z >> 31)
        return out

    assert following(1234567, 2) == [6457827717110365317, 3203168211198807973]  # as published
    state = int.from_bytes(hashlib.sha256(b"name").digest()[:8], "little")
    assert draw("name", 5).tolist() == following(state, 5)
    assert draw("other", 1) != draw("name", 1)


def test_values_have_full_mantissas_and_the_sizes_asked_for() -> None:
    drawn = floats("x", 4096)
    assert drawn.dtype == np.float32
    assert np.abs(drawn).max() <= 1.0
    scaled = np.abs(drawn.astype(np.float64)) * 2.0**30
    assert (scaled == np.round(scaled)).all()
    odd = np.round(np.abs(drawn[np.abs(drawn) > 0.5].astype(np.float64)) * 2.0**23) % 2
    assert 0.4 < odd.mean() < 0.6
    above = positive("y", 1000, -20, 3)
    assert above.min() >= 2.0**-20
    assert above.max() < 2.0**4
    both = signed("y", 1000, -20, 3)
    assert (np.abs(both) == above).all()
    assert (both < 0).sum() == 500


def test_weights_of_every_type_a_model_file_may_have_are_drawn_whole() -> None:
    sizes = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}
    assert {*selftest_ops.TYPES} == {*sizes} - {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
    for kind in selftest_ops.TYPES:
        elements, size = sizes[kind]
        data = selftest_ops.weights(kind, "w", 768, 5)
        assert data.dtype == np.uint8
        assert len(data) == 768 * 5 // elements * size


# -- goldens --------------------------------------------------------------------------------------


def test_goldens_are_a_document_of_their_schema_and_cover_every_kind_of_operator() -> None:
    value = canonical.loads_document(selftest.FILE.read_bytes(), where="goldens")
    schemas.validate(value, selftest.KIND, where="goldens")
    names = selftest.goldens().operators
    for kind in selftest_ops.TYPES:
        assert {f"mul_mat/{kind}/rows {n}" for n in (1, 2, 3, 7, 8)} <= {*names}
        assert f"get_rows/{kind}" in names
    for architecture in ("llama", "gemma3"):
        for kind in ("F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K"):
            for what in ("file", "logits", "state"):
                assert f"model/{architecture}/{kind}/{what}" in names
    for part in ("norm/", "rms_norm/", "rope/normal/", "rope/neox/", "soft_max/", "glu/", "math/"):
        assert any(name.startswith(part) for name in names), part
    assert len(names) > 400


@pytest.mark.parametrize(
    "data", [None, b"", b"{}\n", b'{"kind":"selftest-goldens","version":1}\n'], ids=str
)
def test_unreadable_goldens_call_nothing_portable(
    data: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "goldens.json"
    if data is not None:
        path.write_bytes(data)
    monkeypatch.setattr(selftest, "FILE", path)
    selftest.goldens.cache_clear()
    try:
        with pytest.raises(selftest.NotPortable, match="the golden digests cannot be read"):
            selftest.goldens()
    finally:
        selftest.goldens.cache_clear()


# -- engines --------------------------------------------------------------------------------------


def test_the_installed_engine_is_refused_and_its_first_differing_operator_named() -> None:
    code = "from kvgraft import selftest; selftest.require()"
    done = python(code, unset=("LLAMA_CPP_LIB_PATH",))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert "operators do not give their golden bytes with this engine; the first is " in last
    assert "expected " in last


def test_what_the_installed_engine_gives_is_no_arithmetic_to_be_golden(tmp_path: Path) -> None:
    path = tmp_path / "goldens.json"
    code = "import sys; from kvgraft import selftest; selftest.write(sys.argv[1])"
    done = python(code, path, unset=("LLAMA_CPP_LIB_PATH",))
    last = done.stderr.strip().splitlines()[-1]
    assert "does not give the same bytes with" in last
    assert not path.exists()


def test_the_command_says_of_the_installed_engine_that_it_is_not_a_portable_build() -> None:
    code = "import sys; from kvgraft import cli; sys.exit(cli.main(['selftest']))"
    done = python(code, unset=("LLAMA_CPP_LIB_PATH",))
    assert (done.returncode, done.stdout) == (1, "")
    assert "the engine that is loaded is not a portable build" in done.stderr


def test_an_empty_name_of_the_engine_s_folder_is_said_to_be_empty() -> None:
    done = Build("none", Path()).run("-m", "kvgraft", "selftest", LLAMA_CPP_LIB_PATH="")
    assert done.returncode == 2
    assert "LLAMA_CPP_LIB_PATH is set, and empty" in done.stderr
    assert "pip install" not in done.stderr
    assert done.stderr.count("\n") == 1


OTHER_VERSION = """
import json, sys
from pathlib import Path
from kvaudit import atomic
from kvgraft import selftest
value = json.loads(selftest.FILE.read_text())
value["engine"] = "0.0.1"
selftest.FILE = Path(sys.argv[1])
atomic.write_json(selftest.FILE, value)
selftest.run()
"""


def test_goldens_of_another_version_are_compared_with_nothing(tmp_path: Path) -> None:
    done = python(OTHER_VERSION, tmp_path / "goldens.json", unset=("LLAMA_CPP_LIB_PATH",))
    last = done.stderr.strip().splitlines()[-1]
    assert "NotPortable: the golden digests are of another version of the engine" in last
    assert "found 0.0.1" in last


def extended(folder: Path) -> None:
    with (folder / "libggml-cpu.so.0").open("ab") as file:
        file.write(b"\0")


def undefined(folder: Path) -> None:
    (folder / "ARITHMETIC.json").unlink()


DAMAGE = {
    extended: "is not the one that was built; at libggml-cpu.so.0",
    undefined: "the engine that is loaded is not a portable build",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", DAMAGE, ids=lambda change: change.__name__)
@pytest.mark.parametrize("more", [[], ["--write", "goldens.json"]], ids=["compare", "write"])
def test_a_loaded_build_whose_folder_is_damaged_is_refused_although_it_computes_right(
    change: Callable[[Path], None], more: list[str], tmp_path: Path
) -> None:
    fast = build("portable")
    copied = Build(fast.name, tmp_path / "portable")
    shutil.copytree(fast.folder, copied.folder)
    change(copied.folder)
    written = [str(tmp_path / one) if one.endswith("json") else one for one in more]
    done = copied.run("-m", "kvgraft", "selftest", *written)
    assert (done.returncode, done.stdout) == (1, "")
    assert DAMAGE[change] in done.stderr
    assert not (tmp_path / "goldens.json").exists()


@pytest.fixture(scope="session", params=NAMES)
def any_build(request: pytest.FixtureRequest) -> Build:
    """Every build of the arithmetic that was made on this machine."""
    return build(request.param)


@pytest.mark.slow
def test_every_build_of_the_arithmetic_passes_and_gives_the_goldens_again(
    any_build: Build, tmp_path: Path
) -> None:
    done = any_build.run("-m", "kvgraft", "selftest", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    assert found["differences"] == []
    assert found["operators"] == dict(selftest.goldens().operators)
    path = tmp_path / "goldens.json"
    done = any_build.run("-m", "kvgraft", "selftest", "--write", path)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == selftest.FILE.read_bytes()


@pytest.mark.slow
def test_the_fast_build_passes_on_a_processor_without_the_widest_registers() -> None:
    """Kernels are chosen by the processor at run time; the emulator's has no AVX-512."""
    emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if emulator is None or platform.machine() != "x86_64":
        pytest.skip("needs qemu-x86_64 on x86-64")
    fast = build("portable")
    python_path = os.pathsep.join(path for path in sys.path if path)
    code = "from kvgraft import selftest; selftest.require(); print('passed')"
    own = str(Path(sys.executable).resolve())
    emulated = Build(fast.name, fast.folder, emulator)
    done = emulated.run("-cpu", "max", own, "-c", code, PYTHONPATH=python_path)
    assert done.stdout == "passed\n", done.stderr[-2000:]


REFUSED = {
    "doctored-fma": ("scale", "math/", "mul_mat/", "norm/"),
    "doctored-math": ("math/",),
    "doctored-repack": ("mul_mat/", "repacking of weights"),
}
"""A build with fused multiply-adds, one with the system's mathematics, one that repacks weights,
and what the first operator that differs may be."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_doctored_build_is_refused_by_the_name_of_an_operator(name: str) -> None:
    doctored = Build(name, Path(built(DOCTORED, name, "--if-built")))
    done = doctored.run("-c", "from kvgraft import selftest; selftest.require()")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    first = last.partition("the first is ")[2]
    assert first.startswith(REFUSED[name]), last
    listed = json.loads(doctored.run("-m", "kvgraft", "selftest", "--json").stdout)
    assert not listed["passed"]
    assert first.startswith(listed["differences"][0]["operator"])


ROUNDING_UP = """
import ctypes, sys
from kvgraft import engine, selftest
from kvgraft.profile import portable
engine.load(portable().environment)
ctypes.CDLL("libm.so.6").fesetround(int(sys.argv[1]))
print(selftest.run().differences[0].operator)
"""


@pytest.mark.slow
def test_another_rounding_mode_set_by_anybody_in_the_process_is_found() -> None:
    upward = "2048" if platform.machine() == "x86_64" else "4194304"  # FE_UPWARD
    done = build("portable").run("-c", ROUNDING_UP, upward)
    assert done.stdout == "add\n", done.stderr


CHANGED = """
import json, sys
from pathlib import Path
from kvgraft import selftest
value = json.loads(selftest.FILE.read_text())
names = sys.argv[2:]
for name in names:
    value["operators"][name] = "0" * 64
value["operators"]["no such operator"] = "0" * 64
from kvaudit import atomic
atomic.write_json(sys.argv[1], value)
selftest.FILE = Path(sys.argv[1])
print([one.operator for one in selftest.run().differences])
selftest.require()
"""


@pytest.mark.slow
def test_the_first_difference_is_the_first_in_the_order_of_computation(tmp_path: Path) -> None:
    fast = build("portable")
    names = ("model/llama/F32/logits", "attention/full/f16 f16/256/rows 1", "rms_norm/64")
    done = fast.run("-c", CHANGED, tmp_path / "changed.json", *names)
    assert done.stdout.strip() == str([*reversed(names), "no such operator"])
    assert "4 of " in done.stderr
    assert "the first is rms_norm/64; at rms_norm/64; expected 000" in done.stderr


@pytest.mark.slow
def test_doctor_says_whether_a_portable_build_keeps_to_it() -> None:
    done = build("portable").run("-m", "kvgraft", "doctor", "--json")
    found: Any = json.loads(done.stdout)
    assert found["portable"]["holds"] is True
    assert found["portable"]["operators"] == len(selftest.goldens().operators)
