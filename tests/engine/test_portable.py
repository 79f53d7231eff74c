"""The portable arithmetic: one profile, one block and the same bytes in every build of it.

Tests of builds run where they were made (`make portable`), in processes of their own; this process
has loaded the engine that is installed, which is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from portablework import NAMES, Build, build, splits
from tinywork import python

from kvaudit import canonical, digests, profiles
from kvaudit.profiles import differences
from kvgraft import cli_doctor, engine, engine_folder, portable
from kvgraft.errors import EngineUnavailable, NotPortable, ProfileMismatch
from kvgraft.profile import PRESETS, ProfileSettings, split_invariant, stock_control
from kvgraft.profile import portable as preset
from kvgraft.session import Session

N = 300
"""Tokens of a reading: far past the window of the tiny models."""


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flash_attention", "repack", "tiled", "n_gpu_layers"])
def test_what_is_not_of_the_arithmetic_cannot_be_asked_for_with_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is not part of the portable arithmetic"):
        preset(**{name: 1})


def test_an_unknown_arithmetic_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="arithmetic must be native or portable"):
        ProfileSettings(arithmetic="mine")


def test_portable_settings_have_no_stock_control() -> None:
    with pytest.raises(ValueError, match="has no stock control"):
        stock_control(preset())


def test_settings_are_read_back_from_json_and_native_ones_are_as_they_ever_were() -> None:
    for one in PRESETS.values():
        settings = one(rope_freq_scale=0.5)
        assert ProfileSettings.from_json(settings.to_json()) == settings
        assert ProfileSettings(**settings.to_json()) == settings
    assert "arithmetic" not in split_invariant().to_json()
    assert preset(n_threads=2).to_json()["n_threads"] == 2
    without_threads = preset(n_ctx=512).to_json()
    del without_threads["n_threads"]
    assert ProfileSettings.from_json(without_threads) == preset(n_ctx=512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_threads": None}, "n_threads is not of type int"),
        ({"n_ctx": True}, "n_ctx is not of type int"),
        ({"more": 1}, "fields missing or not known: more"),
        ({"arithmetic": "portable"}, "(tiled|repack) is not part of the portable arithmetic"),
        ({"arithmetic": "mine"}, "fields missing or not known: arithmetic"),
    ],
)
def test_settings_that_are_none_are_not_read(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProfileSettings.from_json({**PRESETS["stock"]().to_json(), **change})
    short = split_invariant().to_json()
    del short["n_threads"]
    with pytest.raises(ValueError, match="fields missing or not known: n_threads"):
        ProfileSettings.from_json(short)


# -- folders --------------------------------------------------------------------------------------


def definition(**changes: Any) -> dict[str, Any]:
    return {
        "name": "portable",
        "llama_cpp": {"version": engine.library().python_version},
        "environment": preset().environment,
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the form that a build has; its libraries compute nothing."""
    made = tmp_path / "portable-0123"
    made.mkdir()
    for name in portable.LIBRARIES:
        (made / f"{name}.so").write_bytes(name.encode())
    (made / portable.DEFINITION).write_bytes(canonical.dumps(definition()))
    record(made)
    return made


def record(folder: Path) -> None:
    paths = [path for path in sorted(folder.iterdir()) if path.name != portable.RECORD]
    lines = [f"{digests.sha256_file(path)}  {path.name}\n" for path in paths]
    (folder / portable.RECORD).write_text("".join(lines))


@pytest.mark.parametrize("hint", ["make portable builds it again", None])
def test_doctor_tells_a_damaged_build_from_one_that_is_missing_and_reads_on(
    monkeypatch: pytest.MonkeyPatch, hint: str | None
) -> None:
    def damaged() -> None:
        raise NotPortable("a file is not the one that was built", where="libllama.so", hint=hint)

    repeated = cli_doctor.Determinism("m", 96, "0" * 64, "1" * 64, ())
    monkeypatch.setattr(portable, "loaded", damaged)
    monkeypatch.setattr(cli_doctor, "_chosen", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(cli_doctor, "_repeat", lambda _: repeated)
    found = cli_doctor.examine()
    assert found.exit_code == 1
    assert found.determinism == repeated
    assert [problem for problem in found.problems if problem.wrong] == [
        cli_doctor.Problem(
            "a file is not the one that was built; at libllama.so", hint or "", wrong=True
        )
    ]


def test_a_sound_folder_is_read(folder: Path) -> None:
    found = portable.read(folder)
    assert found.definition == definition()
    assert found.sha256 == digests.sha256_file(folder / portable.DEFINITION)


def redefined(data: bytes) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / portable.DEFINITION).write_bytes(data)
        record(folder)

    return change


def removed(*names: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / f"{name}.so").unlink()
        record(folder)

    return change


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no definition": (
        lambda folder: (folder / portable.DEFINITION).unlink(),
        "holds no portable build of the engine",
    ),
    "no record": (
        lambda folder: (folder / portable.RECORD).unlink(),
        "holds no portable build of the engine",
    ),
    "a record in another tongue": (
        lambda folder: (folder / portable.RECORD).write_bytes(b"\xff\xfe"),
        "holds no portable build of the engine",
    ),
    "a changed library": (
        lambda folder: (folder / "libggml.so").write_bytes(b"other"),
        r"a file of the build is not the one that was built; at libggml\.so",
    ),
    "a missing library": (
        lambda folder: (folder / "libllama.so").unlink(),
        r"a file of the build is not the one that was built; at libllama\.so",
    ),
    "a library too many": (
        lambda folder: (folder / "libgomp.so").write_bytes(b"more"),
        r"a file of the build is not the one that was built; at libgomp\.so",
    ),
    "an empty record": (
        lambda folder: (folder / portable.RECORD).write_text(""),
        "is not the one that was built",
    ),
    "a changed definition": (
        lambda folder: (folder / portable.DEFINITION).write_bytes(canonical.dumps({})),
        r"a file of the build is not the one that was built; at ARITHMETIC\.json",
    ),
    "a folder for a library": (
        lambda folder: (folder / "libx").mkdir(),
        "an entry of the build is no file that can be read; at libx; .*found a directory",
    ),
    "a link to nowhere": (
        lambda folder: (folder / "libx").symlink_to("/nowhere"),
        "an entry of the build is no file that can be read; at libx; .*found a symbolic link",
    ),
    "a library that never ends": (
        lambda folder: (folder / "libx").symlink_to("/dev/zero"),
        "an entry of the build is no file that can be read; at libx",
    ),
    "a library that is waited for": (
        lambda folder: os.mkfifo(folder / "libx"),
        "an entry of the build is no file that can be read; at libx; .*found a fifo",
    ),
    "a library longer than any": (
        lambda folder: os.truncate(folder / "libggml.so", 1 << 40),
        r"an entry of the build is no file that can be read; at libggml\.so; expected at most",
    ),
    "a definition that is waited for": (
        instead(portable.DEFINITION, os.mkfifo),
        "holds no portable build of the engine.*a fifo",
    ),
    "a definition that never ends": (
        instead(portable.DEFINITION, lambda path: path.symlink_to("/dev/zero")),
        "holds no portable build of the engine.*a symbolic link",
    ),
    "a definition longer than any": (
        lambda folder: os.truncate(folder / portable.DEFINITION, 1 << 40),
        "holds no portable build of the engine.*too long",
    ),
    "a record that is waited for": (
        instead(portable.RECORD, os.mkfifo),
        "holds no portable build of the engine.*a fifo",
    ),
    "a record that is a folder": (
        instead(portable.RECORD, Path.mkdir),
        "holds no portable build of the engine.*a directory",
    ),
    "a record that never ends": (
        instead(portable.RECORD, lambda path: path.symlink_to("/dev/zero")),
        "holds no portable build of the engine.*a symbolic link",
    ),
    "a library less": (removed("libggml"), "holds other libraries than the engine's"),
    "no libraries at all": (removed(*portable.LIBRARIES), "holds other libraries than the"),
    "a definition that is no JSON": (redefined(b"{"), "definition of the arithmetic is unreadable"),
    "a definition with spaces": (
        redefined(b'{"name": "portable"}'),
        "is not one, or not in canonical form",
    ),
    "a list": (redefined(b"[]"), "is not one, or not in canonical form"),
    "another name": (redefined(b'{"name":"mine"}'), "is not one, or not in canonical form"),
    "other variables": (
        redefined(b'{"environment":{},"name":"portable"}'),
        "the build was made for other variables",
    ),
}
"""What may be wrong with a folder, and what is said of it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_is_not_as_it_was_built_is_refused(folder: Path, name: str) -> None:
    change, message = BROKEN[name]
    change(folder)
    with pytest.raises(NotPortable, match=message):
        portable.read(folder)


@pytest.mark.parametrize(
    "path", ["a\0b", "a\nb", "\udcff", "/nowhere", "a" * 5000, "/dev/null", __file__]
)
def test_a_path_that_is_no_folder_is_refused(path: str) -> None:
    with pytest.raises(NotPortable, match="holds no portable build of the engine") as caught:
        portable.read(path)
    assert str(caught.value).isprintable()


def test_no_folder_is_activated_after_another_engine_was_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.library()
    monkeypatch.delenv(portable.FOLDER_VARIABLE, raising=False)
    with pytest.raises(EngineUnavailable, match="the engine was loaded before, and is not"):
        portable.activate(folder)
    assert portable.FOLDER_VARIABLE not in os.environ


def test_the_installed_engine_is_not_portable() -> None:
    engine.library()
    assert portable.loaded() is None


REFUSED = """
import sys
from kvgraft import pins
from kvgraft.errors import NotPortable
from kvgraft.model import FrozenModel
from kvgraft.profile import portable
from kvgraft.session import Session
with FrozenModel.open(pins.for_file(sys.argv[1])) as model:
    try:
        Session(model, portable(n_ctx=256))
    except NotPortable as error:
        print(error)
"""


def test_a_portable_session_on_the_installed_engine_is_refused(models: Any) -> None:
    done = python(REFUSED, models("llama").path, unset=("LLAMA_CPP_LIB_PATH",))
    assert done.stdout.startswith("the engine that is loaded is not a portable build"), done.stderr
    assert "make portable, and name the folder it prints in LLAMA_CPP_LIB_PATH" in done.stdout


# -- builds ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fast() -> Build:
    """The build that is meant for this machine."""
    return build("portable")


@pytest.fixture(scope="session", params=NAMES[1:])
def other(request: pytest.FixtureRequest) -> Build:
    """The builds by Clang, without vector instructions, and for the other architecture."""
    return build(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "llama-f32", "gemma3-q4_k", "llama-q4_0"])
def test_threads_and_splits_from_one_row_on_change_no_byte(
    models: Any, fast: Build, name: str
) -> None:
    def read(cuts: Any, **changes: Any) -> set[tuple[str, str]]:
        found = fast.read(models(name).path, n=N, splits=cuts, changes=changes)
        assert found["invariant"]
        return {(logits, state) for logits, state in found["read"]}

    whole = read(splits(N))
    assert len(whole) == 1
    # Few batches: on a machine that is busy elsewhere, threads wait for each other at length.
    assert read([None, 100], n_threads=2) == whole
    assert read([None, 1], min_rows=2, n_batch=64) == whole
    assert len(read([None, 7], type_k="q8_0")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_two_builds_give_one_profile_one_block_and_the_same_bytes(
    models: Any, fast: Build, other: Build, tmp_path: Path, name: str
) -> None:
    path = models(name).path
    two = {} if other.is_emulated else {"n_threads": 2}
    here = fast.read(path, n=N, splits=[None, 7], capture=str(tmp_path / "here"))
    there = other.read(path, n=N, splits=[None, 16], capture=str(tmp_path / "there"), changes=two)
    assert differences(here["profile"], there["profile"]) == []
    assert profiles.well_formed(here["profile"])
    assert profiles.split_invariant(here["profile"])
    assert here["read"] == there["read"]
    assert here["block"][1:] == there["block"][1:]
    assert here["block"][2] == profiles.engine_digest(here["profile"]["engine"])


@pytest.mark.slow
def test_a_block_of_one_build_grafts_exactly_in_another_and_back(
    models: Any, fast: Build, other: Build, tmp_path: Path
) -> None:
    path = models("gemma3").path
    for number, (maker, user) in enumerate(((fast, other), (other, fast))):
        made = maker.read(path, n=N, splits=[None], capture=str(tmp_path / str(number)))
        used = user.read(path, n=N, splits=[None], graft=made["block"][0])
        assert used["exact"]
        assert used["grafted"] == used["read"][0] == made["read"][0]


@pytest.mark.slow
def test_a_folder_that_is_activated_is_the_one_that_is_loaded(fast: Build) -> None:
    code = """
import sys
from kvgraft import portable
given = portable.activate(sys.argv[1])
assert portable.require().definition == given.definition
portable.activate(sys.argv[1])
print(portable.loaded().folder == given.folder.resolve())
"""
    done = python(code, fast.folder, unset=("LLAMA_CPP_LIB_PATH",))
    assert done.stdout == "True\n", done.stderr


@pytest.mark.slow
def test_variables_that_a_portable_build_reads_are_in_its_profile_and_no_others(
    models: Any, fast: Build
) -> None:
    code = """
import json, sys
from kvgraft import pins
from kvgraft.model import FrozenModel
from kvgraft.profile import portable
from kvgraft.session import Session
with FrozenModel.open(pins.for_file(sys.argv[1])) as model, Session(model, portable()) as session:
    print(json.dumps(session.profile.to_json()["environment"]))
"""

    def environment(**variables: str) -> Any:
        done = fast.run("-c", code, models("llama").path, **variables)
        return json.loads(done.stdout)

    without_a_say = {
        **{"OMP_PROC_BIND": "close", "CUDA_VISIBLE_DEVICES": "1", "LLAMA_CACHE": "/x"},
        **{"LLAMA_ARG_CTX_SIZE": "64", "LLAMA_LOG_VERBOSITY": "9", "LLAMA_OFFLINE": "1"},
    }
    assert environment(**without_a_say) == preset().environment
    done = fast.run("-c", code, models("llama").path, LLAMA_ATTN_ROT_DISABLE="1")
    assert "a variable is set that may change what the engine computes" in done.stderr
    assert "unset LLAMA_ATTN_ROT_DISABLE" in done.stderr


@pytest.mark.parametrize(
    "name", ["LLAMA_ATTN_ROT_DISABLE", "GGML_BACKEND_PATH", "GGML_NEW", "LLAMA_CACHE2"]
)
def test_a_variable_whose_effect_is_unknown_is_named_before_a_folder_is_activated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(EngineUnavailable, match=rf"at {name};.*\(unset {name}\)"):
        portable.activate(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("GGML_CPU_TILED_MM", "GGML_CPU_DISABLE_FUSION", "LLAMA_CPP_LIB_PATH", "LLAMA_CACHE"),
        *("LLAMA_ARG_THREADS", "LLAMA_LOG_FILE", "LLAMA_API_KEY", "OMP_NUM_THREADS", "MY_GGML_X"),
    ],
)
def test_a_variable_without_a_say_is_let_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    portable.require_no_variables()


@pytest.mark.slow
def test_what_a_process_loaded_is_held_against_its_folder(
    fast: Build, models: Any, tmp_path: Path
) -> None:
    profile = fast.read(models("llama").path, n=9, splits=[None])["profile"]
    engine_folder.check_loaded(profile, fast.folder, profile["engine"])
    engine_folder.check_loaded(profile, fast.folder, engine.engine_facts())
    other = {**profile["engine"], "arithmetic": {"name": "portable"}}
    with pytest.raises(ProfileMismatch, match="computed another portable arithmetic"):
        engine_folder.check_loaded({**profile, "engine": other}, fast.folder, other)
    copied = tmp_path / "copy"
    shutil.copytree(fast.folder, copied)
    (copied / portable.DEFINITION).unlink()
    with pytest.raises(NotPortable):
        engine_folder.check_loaded(profile, copied, profile["engine"])


def test_a_native_session_beside_a_portable_preset_keeps_its_profile(sessions: Any) -> None:
    profile = sessions("llama").profile.to_json()
    assert "arithmetic" not in profile["settings"]
    assert profile["settings"]["n_threads"] == profile["context"]["n_threads"] == 1
    assert not profiles.is_portable(profile)
    assert isinstance(sessions("llama"), Session)
