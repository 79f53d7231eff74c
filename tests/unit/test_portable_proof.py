"""The proof's table: one other digest anywhere is named, and nothing else is.

Whole proofs are run with digests that are given instead of read, so that no engine is needed.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ENVS = Path(__file__).parents[2] / "envs"
Found = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def proof() -> Iterator[ModuleType]:
    """The script, which imports its neighbours by their plain names."""
    sys.path.insert(0, str(ENVS))
    try:
        yield importlib.import_module("portable_proof")
    finally:
        sys.path.remove(str(ENVS))


@pytest.fixture
def found() -> Found:
    """Two builds that agree in everything."""
    one = {
        "tokens": "t" * 64,
        "logits: one batch, 1 thread": "a" * 64,
        "state: one batch, 1 thread": "b" * 64,
        "logits: batches of 7, 1 thread": "a" * 64,
        "block: file": "c" * 64,
        "fresh: logits": "a" * 64,
        "graft of portable: logits": "a" * 64,
        "graft of portable: state": "b" * 64,
    }
    return {"portable": dict(one), "portable-aarch64": dict(one)}


def test_builds_that_agree_are_equal(proof: ModuleType, found: Found) -> None:
    assert proof.differences(found) == []
    assert "DIFFERS" not in proof.table("m", found)
    assert proof.table("m", found).count("same") == len(found["portable"])


@pytest.mark.parametrize("what", ["tokens", "block: file", "graft of portable: state"])
def test_one_other_digest_is_named_with_its_build(
    proof: ModuleType, found: Found, what: str
) -> None:
    found["portable-aarch64"][what] = "0" * 64
    wrong = proof.differences(found)
    assert f"{what}: portable-aarch64 has {'0' * 64}" in wrong
    assert "0" * 12 + " DIFFERS" in proof.table("m", found)


def test_a_missing_reading_is_no_agreement(proof: ModuleType, found: Found) -> None:
    del found["portable-aarch64"]["fresh: logits"]
    assert "fresh: logits: portable-aarch64 has nothing" in proof.differences(found)


def test_a_reading_that_the_first_build_lacks_is_no_agreement(
    proof: ModuleType, found: Found
) -> None:
    del found["portable"]["block: file"]
    assert proof.differences(found) == [f"block: file: portable-aarch64 has {'c' * 64}"]
    assert f"{'c' * 12} DIFFERS" in proof.table("m", found)


def test_builds_that_agree_on_bits_of_the_batch_split_do_not_pass(
    proof: ModuleType, found: Found
) -> None:
    for build in found.values():
        build["logits: batches of 7, 1 thread"] = "0" * 64
    assert proof.differences(found) == [
        "logits of portable depend on how the text is read",
        "logits of portable-aarch64 depend on how the text is read",
    ]


def test_another_machine_s_digests_are_compared_by_model(proof: ModuleType, found: Found) -> None:
    there = {"m": {"elsewhere": dict(found["portable"])}}
    assert proof.unexpected({"m": found}, there) == []
    there["m"]["elsewhere"]["fresh: logits"] = "0" * 64
    assert proof.unexpected({"m": found}, there) == [
        "m, fresh: logits: aaaaaaaaaaaa here, 000000000000 there (elsewhere)"
    ]
    assert proof.unexpected({"other": found}, there) == ["other: the file does not have it"]


def test_every_build_of_the_other_machine_is_compared(proof: ModuleType, found: Found) -> None:
    there = {
        "m": {"one": dict(found["portable"]), "two": {**found["portable"], "tokens": "0" * 64}}
    }
    assert proof.unexpected({"m": found}, there) == [
        "m, tokens: tttttttttttt here, 000000000000 there (two)"
    ]


def test_a_digest_that_one_machine_alone_has_is_a_difference_and_a_graft_is_none(
    proof: ModuleType, found: Found
) -> None:
    there = {"m": {"elsewhere": dict(found["portable"])}}
    for what in ("block: file", "graft of portable: state"):
        del there["m"]["elsewhere"][what]
    there["m"]["elsewhere"] |= {"profile": "d" * 64, "graft of another: state": "e" * 64}
    assert proof.unexpected({"m": found}, there) == [
        "m, block: file: cccccccccccc here, nothing there (elsewhere)",
        "m, profile: nothing here, dddddddddddd there (elsewhere)",
    ]


# -- whole proofs ---------------------------------------------------------------------------------

OWN = {"tokens": "1" * 64, "fresh: logits": "2" * 64, "fresh: state": "3" * 64}
HERE = Path(sys.executable)


class Proof:
    """A proof on a machine where one folder holds each name, of one text `m`.

    Attributes:
        folders: {name: folder}; change it to make several names one build.
        digests: what each build gives.
        places: with which builds the tiny runs were made, if they were.
        run: runs the command in this process; returns its exit status.
    """

    def __init__(self, proof: ModuleType, patch: pytest.MonkeyPatch) -> None:
        self.folders = {name: f"folder of {name}" for name in proof.NAMES}
        self.digests: dict[str, str] = dict(OWN)
        self.places: list[tuple[Path, Path]] = []
        self.run: Callable[[list[str]], int] = proof.main

        @contextlib.contextmanager
        def answer() -> Iterator[Any]:
            yield sys.stdout

        def compared(_work: Path, *places: tuple[Path, Path]) -> dict[str, Any]:
            self.places = list(places)
            return {"a run": {"same": True, "said": "the same"}}

        patch.setattr(proof, "output_to_stderr", answer)
        patch.setattr(proof, "possible", lambda: list(proof.NAMES))
        patch.setattr(proof, "folder_name", lambda name: self.folders[name])
        patch.setattr(proof, "folder_of", lambda name: Path(self.folders[name]))
        patch.setattr(proof, "emulated", lambda: Path("emulated"))
        patch.setattr(proof.platform, "machine", lambda: "x86_64")
        patch.setattr(proof, "texts_of", lambda *_: [])
        patch.setattr(
            proof,
            "digests_of",
            lambda _texts, used, *_: {"m": {one.name: dict(self.digests) for one in used}},
        )
        patch.setattr(proof.portable_runs, "compared", compared)


@pytest.fixture
def whole(proof: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Proof:
    return Proof(proof, monkeypatch)


GOOD = {"models": {"m": {"elsewhere": OWN}}}


def changed(change: Callable[[Any], object]) -> bytes:
    value = copy.deepcopy(GOOD)
    change(value)
    return json.dumps(value).encode()


UNUSABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "not UTF-8": (b'{"models": "\xff"}', "not UTF-8"),
    "not JSON": (b"DIFFERENT", "not JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "nested"),
    "a key twice": (b'{"models": {}, "models": {}}', "models"),
    "a list": (b"[]", "holds no texts"),
    "no key": (b'{"runs": {}}', "holds no texts"),
    "no texts": (b'{"models": {}}', "holds no texts"),
    "texts in a list": (b'{"models": [1]}', "holds no texts"),
    "no builds": (changed(lambda value: value["models"].update(m={})), "no build has read m"),
    "a digest for builds": (changed(lambda value: value["models"].update(m="1" * 64)), "no build"),
    "an empty build": (
        changed(lambda value: value["models"]["m"].update(elsewhere={})),
        "elsewhere of m has no digests",
    ),
    "a build in a list": (
        changed(lambda value: value["models"]["m"].update(elsewhere=["1" * 64])),
        "elsewhere of m has no digests",
    ),
    "its own differences": (
        changed(lambda value: value.update(wrong=["m: tokens: portable-clang has nothing"])),
        "its own proof found differences",
    ),
    "no list of them": (changed(lambda value: value.update(wrong=None)), "found differences"),
    "a number": (
        changed(lambda value: value["models"]["m"]["elsewhere"].update(tokens=1)),
        "tokens is no digest",
    ),
    "a short digest": (
        changed(lambda value: value["models"]["m"]["elsewhere"].update({"to\x1bkens": "1" * 12})),
        "to\\x1bkens is no digest",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_file_that_is_no_expectation_is_refused_before_anything_is_read(
    proof: ModuleType,
    whole: Proof,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
) -> None:
    data, message = UNUSABLE[name]
    (tmp_path / "there.json").write_bytes(data)
    monkeypatch.setattr(proof, "distinct", lambda _: pytest.fail("builds were looked for"))
    assert whole.run(["--expect", str(tmp_path / "there.json")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("portable proof: ")
    assert message in err
    assert "there.json" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_what_is_no_file_is_refused_before_anything_is_read(
    whole: Proof, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert whole.run(["--expect", str(tmp_path / name)]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_what_the_proof_writes_is_what_another_machine_can_expect(
    whole: Proof, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert whole.run(["--json"]) == 0
    file = tmp_path / "mine.json"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert whole.run(["--expect", str(file)]) == 0
    assert "all equal" in capsys.readouterr().out
    whole.digests["fresh: state"] = "0" * 64
    assert whole.run(["--expect", str(file)]) == 1
    assert f"fresh: state: {'0' * 12} here, {'3' * 12} there" in capsys.readouterr().out


def test_a_file_of_fewer_rows_is_no_agreement(whole: Proof, tmp_path: Path) -> None:
    file = tmp_path / "there.json"
    file.write_bytes(changed(lambda value: value["models"]["m"]["elsewhere"].pop("tokens")))
    assert whole.run(["--expect", str(file)]) == 1


def test_a_text_that_was_not_read_here_is_said_to_be_left_out(
    whole: Proof, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "there.json"
    file.write_bytes(changed(lambda value: value["models"].update(other=value["models"]["m"])))
    assert whole.run(["--expect", str(file)]) == 0
    assert "other of --expect is not compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [["portable"], ["portable", "portable"], ["portable", "portable-generic"]]
)
def test_one_build_is_compared_with_nothing_and_that_is_no_proof(
    whole: Proof, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    whole.folders["portable-generic"] = whole.folders["portable"]  # as on Arm
    assert whole.run(["--builds", *names]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "portable is one build, and is compared with nothing" in err
    assert "--expect" in err


def test_one_build_is_compared_with_a_file_and_the_tiny_runs_are_left_out(
    whole: Proof, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "there.json"
    file.write_text(json.dumps(GOOD), encoding="utf-8")
    assert whole.run(["--builds", "portable", "--expect", str(file)]) == 0
    assert whole.places == []
    assert "the tiny runs are left out: they need two builds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "other"),
    [
        (["portable", "portable-clang", "portable-generic", "portable-aarch64"], "aarch64"),
        (["portable", "portable-aarch64", "portable-generic"], "aarch64"),
        (["portable-aarch64", "portable"], "aarch64"),
        (["portable", "portable-generic"], "generic"),
    ],
)
def test_the_tiny_runs_are_native_and_of_the_other_architecture_whatever_the_order(
    whole: Proof, names: list[str], other: str
) -> None:
    assert whole.run(["--builds", *names]) == 0
    there = Path("emulated") if other == "aarch64" else HERE
    assert whole.places == [
        (Path("folder of portable"), HERE),
        (Path(f"folder of portable-{other}"), there),
    ]


def test_on_arm_clang_s_build_is_the_other(
    proof: ModuleType, whole: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof.platform, "machine", lambda: "aarch64")
    for name in ("portable-generic", "portable-aarch64"):
        whole.folders[name] = whole.folders["portable"]
    assert whole.run([]) == 0
    assert whole.places == [
        (Path("folder of portable"), HERE),
        (Path("folder of portable-clang"), HERE),
    ]


def test_two_models_of_one_name_are_refused(
    proof: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proof, "tiny_models", lambda _: [SimpleNamespace(name="tiny-llama-f32")])
    assert [text.name for text in proof.texts_of(["tiny"], tmp_path)] == ["tiny-llama-f32"]
    with pytest.raises(proof.BuildError, match="tiny-llama-f32 more than once"):
        proof.texts_of(["tiny", "tiny"], tmp_path)


def test_no_process_side_by_side_is_refused(whole: Proof) -> None:
    assert whole.run(["--jobs", "0"]) == 2
