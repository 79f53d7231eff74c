"""The stage replay on tiny models: what it records conforms, agrees and is what was run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tinywork import N_CTX, REPOSITORY

from kvaudit import claims, digests, schemas
from kvaudit.claims import Evidence
from kvaudit.errors import UnusableInput
from kvaudit.replay.check import check, check_raw
from kvaudit.replay.kind import KIND
from kvaudit.replay.plan import stage_seed
from kvaudit.replay.records import KINDS, Records, typed
from kvaudit.stats import read_logits
from kvgraft import engine_folder, plan, replay, stage
from kvgraft.errors import EngineFailed, EngineNotInstalled, ProfileMismatch
from kvgraft.profile import ProfileSettings, split_invariant
from kvgraft.replay import Experiment, copy_block
from kvgraft.replay_reading import at_origin, on_target
from kvgraft.session import Session
from kvgraft.store import BlockStore

VARIANT = "lower-isa"
OPTIONS: dict[str, Any] = {
    "targets": ["process"],
    "isa": VARIANT,
    "engine": "folder",
    "device_layers": 0,
    "samples": 10,
    "min_tokens": 24,
    "max_tokens": 100,
    "answer_tokens": 4,
    "raw_models": [],
}


@pytest.fixture(scope="session")
def variant() -> Path:
    """The folder of the second build, where it was made."""
    script = REPOSITORY / "envs" / "engine_variant.py"
    done = subprocess.run(
        [sys.executable, str(script), VARIANT, "--if-built"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"{VARIANT} is not built: python envs/engine_variant.py {VARIANT}")
    return Path(done.stdout.strip())


def measured(
    model: Any, folder: Path, options: dict[str, Any], engines: dict[str, Path] | None = None
) -> tuple[Records, dict[str, Any]]:
    """A stage's records, validated, and the inputs manifest's part that they are held against."""
    scratch, kept = folder / "scratch", folder / "stage"
    scratch.mkdir()
    kept.mkdir()
    config = {"profile": {"preset": "split-invariant", "n_ctx": N_CTX}, "seed": "tiny"}
    rows = Experiment(
        model=model,
        settings=stage.settings(config),
        options=options,
        seed=stage_seed("tiny", model.name),
        folder=kept,
        scratch=scratch,
        engines=engines or {},
        note=lambda _line: None,
    ).measure()
    files = {file: rows[Path(file).stem] for file in KINDS}
    for file, kind in KINDS.items():
        for row in files[file]:
            schemas.validate(row, kind, where=file)
    inputs = {
        "configuration": {"value": {**config, "replay": options}},
        "models": [stage.model_entry(model)],
        "profiles": {model.name: stage.profiles_in_force(model, config)},
    }
    return typed(files), inputs


def verdicts(model: Any, records: Records) -> dict[str, claims.Claim]:
    return {c.id: c for c in claims.judge("replay", Evidence(model.name, records, 0, 0))}


def test_a_replay_in_other_processes_diverges_nowhere(models: Any, tmp_path: Path) -> None:
    model = models("gemma3-f32")
    records, inputs = measured(model, tmp_path, OPTIONS)
    assert check(model.name, records, inputs) == []
    KIND.summary_bytes(model.name, records)
    found = verdicts(model, records)
    assert found["R1"].verdict == "holds", found["R1"].measured
    assert found["R2"].verdict == "not run here"
    assert "bytes 10/10 copies, 10/10 recomputed; usable 10/10" in found["R2"].measured
    assert not (tmp_path / "stage" / "logits").exists()


def test_another_instruction_set_gives_other_bytes_and_usable_blocks(
    models: Any, variant: Path, tmp_path: Path
) -> None:
    model = models("llama-q4_k")
    options = {**OPTIONS, "targets": ["isa"], "raw_models": [model.name]}
    records, inputs = measured(model, tmp_path, options, {"isa": variant})
    assert check(model.name, records, inputs) == []
    summary = KIND.summarise(model.name, records)["targets"]["isa"]
    assert (summary["usable"], summary["exact"], summary["copies_equal"]) == (10, 0, 10)
    assert summary["blocks_equal"] < 10
    assert summary["kl"]["fresh_from_origin"]["mean"]["estimate"] > 0.0
    profile = records.profiles[0]["profile"]
    assert "AVX2" not in profile["machine"]["features"]
    assert profile["engine"]["libraries"]["libllama.so"] == digests.sha256_file(
        variant / "libllama.so"
    )

    def read(digest: str) -> Any:
        return read_logits((tmp_path / "stage" / "logits" / f"{digest}.f32").read_bytes())

    assert check_raw(records, read) == []


def test_the_same_build_is_no_other_target(models: Any, tmp_path: Path) -> None:
    import llama_cpp

    own = Path(llama_cpp.__file__).parent / "lib"
    options = {**OPTIONS, "targets": ["isa"], "samples": 1}
    with pytest.raises(ProfileMismatch, match="target isa runs under the profile of the origin"):
        measured(models("llama"), tmp_path, options, {"isa": own})


def test_a_block_damaged_on_its_way_is_refused_there(
    models: Any, sessions: Any, settings: ProfileSettings, tmp_path: Path
) -> None:
    model = models("llama")
    sample = plan.samples(model, OPTIONS, "tiny")[0]
    capture, _ = at_origin(sessions("llama"), sample, 2)
    first, second = BlockStore(tmp_path / "first"), BlockStore(tmp_path / "second")
    block_id = first.put(capture.header, capture.tokens, capture.state.data)
    copy_block(first, second, block_id)
    data = bytearray(second.path(block_id).read_bytes())
    assert bytes(data) == first.path(block_id).read_bytes()
    data[-1] ^= 1
    second.path(block_id).write_bytes(data)
    with pytest.raises(EngineFailed, match="chunk 0 of the state is damaged"):
        on_target(
            model,
            settings,
            sample,
            second,
            block_id,
            n_answer=2,
            exact=True,
            libraries=None,
            scratch=tmp_path,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_tokens": 200}, "min_tokens is at most max_tokens"),
        ({"max_tokens": N_CTX}, "max_tokens, question and continuation fit into n_ctx"),
        ({"targets": ["device"]}, "target device has another number of layers"),
    ],
)
def test_a_section_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        replay.check({**OPTIONS, **change}, split_invariant(n_ctx=N_CTX))


def test_a_note_names_a_folder_with_a_build(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    with pytest.raises(EngineNotInstalled, match="no build of the engine is noted"):
        engine_folder.read_note(note)
    note.write_text(f"{tmp_path}\n")
    with pytest.raises(EngineNotInstalled, match="the build of the engine that is noted is not"):
        engine_folder.read_note(note)
    (tmp_path / "libllama.so").write_bytes(b"library")
    assert engine_folder.read_note(note) == tmp_path


def test_a_process_that_loaded_another_build_is_found(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"library")
    own = {"llama": "2", "binding": "llama-cpp-python 2"}

    def loaded(libraries: dict[str, str], **versions: str) -> None:
        profile = {"engine": {**own, **versions, "libraries": libraries}}
        engine_folder.check_loaded(profile, tmp_path, own)

    sound = {"libllama.so": digests.sha256_bytes(b"library")}
    loaded(sound)
    loaded(sound, llama="1", binding="llama-cpp-python 1")
    for libraries in ({"libllama.so": digests.sha256_bytes(b"other")}, {}):
        with pytest.raises(ProfileMismatch, match=r"the process (did not load|loaded no)"):
            loaded(libraries)
    with pytest.raises(ProfileMismatch, match="through this version's Python part"):
        loaded(sound, llama="1")


def test_every_session_is_closed_before_targets_run(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context at a time: an accelerator has no room for two."""
    opened: list[str] = []
    before = Session.close

    def close(self: Session) -> None:
        opened.append("closed")
        before(self)

    monkeypatch.setattr(Session, "close", close)
    measured(models("llama"), tmp_path, {**OPTIONS, "samples": 1})
    assert opened == ["closed"]
