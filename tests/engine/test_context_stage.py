"""Paging runs end to end on tiny models; a killed run goes on without computing anything twice."""

from __future__ import annotations

import copy
import json
import shutil
import signal
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tinywork import python

from kvaudit import digests, records
from kvaudit.context import plan
from kvaudit.context.kind import KIND
from kvaudit.context.records import KINDS
from kvaudit.errors import BlockCorrupt, BlockRefused, UnusableInput
from kvgraft import paged
from kvgraft.context_stage import PagedContext, block_text
from kvgraft.context_work import JOURNAL, WorkFolder
from kvgraft.errors import EngineFailed, StageBusy, StoreFull
from kvgraft.paged import PagedStore
from kvgraft.profile import split_invariant
from kvgraft.session import Session

OPTIONS: dict[str, Any] = {
    "scale": "as given",
    "blocks": 4,
    "block_tokens": 300,
    "room": 200,
    "needles": 3,
    "absent": 1,
    "answer_tokens": 3,
    "accesses": 2,
    "memory_questions": 1,
    "growth": 8,
    "growth_tokens": 24,
    "index_entries": [20, 100],
    "index_words": 6,
    "keep_blocks": False,
}
SETTINGS = split_invariant(n_ctx=1024)
Rows = dict[str, list[dict[str, Any]]]
Make = Callable[..., PagedContext]


@pytest.fixture
def make(models: Any, tmp_path: Path) -> Make:
    def experiment(name: str = "llama", note: Any = None, **options: Any) -> PagedContext:
        model = models(name)
        return PagedContext(
            model=model,
            settings=SETTINGS,
            options={**OPTIONS, **options},
            seed=f"test/{model.name}",
            work=tmp_path / "work",
            note=note or (lambda _line: None),
        )

    return experiment


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def measured(
    request: pytest.FixtureRequest, models: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PagedContext, Rows]:
    """An experiment that ran, and its records as written, validated and read again."""
    folder = tmp_path_factory.mktemp("context")
    model = models(request.param)
    made = PagedContext(
        model, SETTINGS, OPTIONS, f"test/{model.name}", folder / "work", lambda _line: None
    )
    rows = made.measure()
    for path, kind in KINDS.items():
        (folder / path).parent.mkdir(exist_ok=True)
        records.write(folder / path, kind, rows[Path(path).stem])
    return made, records.read_folder(folder, KINDS)


def inputs_of(made: PagedContext) -> dict[str, Any]:
    with Session(made.model, made.settings) as session:
        own = copy.deepcopy(session.profile.to_json())
    stock = {**own, "settings": {**own["settings"], "name": "stock"}}
    pin = made.model.pin
    return {
        "models": [{"name": made.model.name, "sha256": pin.sha256}],
        "profiles": {
            made.model.name: {
                one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
                for one in (own, stock)
            }
        },
        "configuration": {
            "value": {
                "seed": "test",
                "context": dict(made.options),
                "profile": {"preset": "split-invariant", "n_ctx": 1024},
            }
        },
    }


def test_the_auditor_finds_no_contradiction(measured: tuple[PagedContext, Rows]) -> None:
    made, rows = measured
    assert KIND.check(made.model.name, rows, inputs_of(made)) == []
    summary = json.loads(KIND.summary_bytes(made.model.name, rows))
    assert summary["answers"]["routed"]["routed_right"] == OPTIONS["needles"]
    assert summary["pages"]["multiple"] > 2
    assert summary["access"]["counted"] == 4
    assert summary["memory"]["ratio"] > 0.5


def test_a_paged_answer_has_the_bytes_of_a_prefill_in_another_process(
    measured: tuple[PagedContext, Rows],
) -> None:
    _, rows = measured
    store, direct = rows["records/memory.jsonl"]
    routed = {row["needle"]: row for row in rows["records/answers.jsonl"] if row["arm"] == "routed"}
    for a, b in zip(store["answers"], direct["answers"], strict=True):
        assert a["logits_sha256"] == b["logits_sha256"]
        assert a["logits_sha256"] == routed[a["needle"]]["logits_sha256"]
        assert a["tokens"] == b["tokens"]
        assert a["restored_bytes"] > 0 == b["restored_bytes"]
        assert b["decoded_tokens"] == a["decoded_tokens"] + OPTIONS["block_tokens"]


def test_every_block_stands_at_its_own_position_with_its_own_begin_token(
    measured: tuple[PagedContext, Rows],
) -> None:
    made, rows = measured
    assert made.folder is not None
    begin = made.model.tokenize("")
    for row in rows["records/blocks.jsonl"]:
        with made.folder.store.get(row["block_id"]) as block:
            assert block.header.start == 0
            assert block.header.parent is None
            assert block.tokens[: len(begin)].tolist() == begin
            assert made.model.detokenize(block.tokens.tolist()) == row["text"]


def test_the_blocks_go_when_the_evidence_is_closed_unless_they_are_to_stay(make: Make) -> None:
    for keep in (True, False):
        made = make(keep_blocks=keep)
        made.measure()
        made.finish()
        assert made.folder is not None
        assert made.folder.path.exists() is keep
    assert make(keep_blocks=True).measure()["run"][0]["resumed"] == 0


# -- a killed run -----------------------------------------------------------------------------

KILLED = """
import json, os, signal, sys
from pathlib import Path
from kvgraft import pins
from kvgraft.context_stage import PagedContext
from kvgraft.model import FrozenModel
from kvgraft.profile import split_invariant

def note(line):
    print(line, flush=True)
    if line.startswith("block 3/"):
        os.kill(os.getpid(), signal.SIGKILL)

model = FrozenModel.open(pins.for_file(Path(sys.argv[1])))
PagedContext(
    model, split_invariant(n_ctx=1024), json.loads(sys.argv[2]), "test/" + model.name,
    Path(sys.argv[3]), note,
).measure()
"""


@pytest.fixture
def killed(make: Make) -> PagedContext:
    """An experiment whose first run, in another process, was killed after three of four blocks."""
    made = make()
    done = python(KILLED, made.model.path, json.dumps(OPTIONS), made.work)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "estimate for 3 blocks" in done.stdout
    return made


def files(made: PagedContext) -> dict[str, tuple[int, int]]:
    """Every block file by name, with what changes if it is written again."""
    found = sorted(made.work.glob("*/store/blocks/*/*.kvb"))
    return {path.stem: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def test_a_killed_run_resumes_without_computing_finished_blocks(
    killed: PagedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(killed)
    assert len(before) == 3
    read: list[int] = []
    prefill = Session.prefill

    def counted(self: Session, tokens: Any, **options: Any) -> None:
        read.append(len(tokens))
        prefill(self, tokens, **options)

    monkeypatch.setattr(Session, "prefill", counted)
    rows = killed.measure()
    assert [row["resumed"] for row in rows["blocks"]] == [True, True, True, False]
    assert rows["run"][0]["resumed"] == 3
    assert read == [300] + [OPTIONS["growth_tokens"]] * OPTIONS["growth"]
    after = files(killed)
    assert {name: after[name] for name in before} == before
    assert KIND.check(killed.model.name, rows_by_file(rows), inputs_of(killed)) == []


def rows_by_file(rows: Rows) -> Rows:
    return {path: rows[Path(path).stem] for path in KINDS}


def test_what_is_resumed_is_what_would_have_been_computed(
    killed: PagedContext, make: Make, tmp_path: Path
) -> None:
    resumed = killed.measure()
    fresh = make()
    fresh.work = tmp_path / "elsewhere"
    ids = [[row["block_id"] for row in one["blocks"]] for one in (resumed, fresh.measure())]
    assert ids[0] == ids[1]


def test_a_damaged_block_is_computed_again(killed: PagedContext) -> None:
    victim = sorted(killed.work.glob("*/store/blocks/*/*.kvb"))[1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(data)
    before = files(killed)
    rows = killed.measure()
    again = {row["block_id"] for row in rows["blocks"] if not row["resumed"]}
    assert victim.stem in again
    assert len(again) == 2
    assert files(killed)[victim.stem] != before[victim.stem]
    assert rows["run"][0]["fsck"]["damaged"] == 0


def test_a_missing_block_and_a_torn_journal_are_computed_again(killed: PagedContext) -> None:
    (journal,) = killed.work.glob(f"*/{JOURNAL}")
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    journal.write_bytes(lines[0] + lines[1] + lines[2][:-20])
    first = json.loads(lines[0])["block_id"]
    next(killed.work.glob(f"*/store/blocks/*/{first}.kvb")).unlink()
    rows = killed.measure()
    assert [row["resumed"] for row in rows["blocks"]] == [False, True, False, False]
    assert len(journal.read_bytes().splitlines()) == 2 + 3


def test_another_plan_takes_up_nothing(killed: PagedContext) -> None:
    killed.seed += "/other"
    killed.needles = plan.needles(killed.options, killed.seed)
    assert killed.measure()["run"][0]["resumed"] == 0


def test_a_line_of_other_tokens_or_another_profile_is_not_taken_up(killed: PagedContext) -> None:
    rows = killed.measure()
    assert killed.folder is not None
    first = rows["blocks"][0]
    with killed.folder as work:
        given = (0, first["tokens_sha256"], first["profile"])
        assert work.finished(*given) is not None
        assert work.finished(0, "0" * 64, first["profile"]) is None
        assert work.finished(0, first["tokens_sha256"], "0" * 64) is None
        assert work.finished(9, first["tokens_sha256"], first["profile"]) is None


# -- refusals ---------------------------------------------------------------------------------


def test_two_runs_at_once_are_refused(make: Make) -> None:
    made = make()
    made.measure()
    assert made.folder is not None
    with (
        WorkFolder(made.work, {"a": 1}),
        pytest.raises(StageBusy, match="another process is at work"),
        WorkFolder(made.work, {"a": 1}),
    ):
        pass
    with made.folder, pytest.raises(StageBusy):
        make().measure()


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_refused_before_the_work_and_finished_blocks_stay(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    made = make(note=lines.append)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9, 0))
    with pytest.raises(StoreFull, match="no room for the blocks"):
        made.measure()
    assert not files(made)
    # Room for the first block, and not for all: measured on it.
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**9, 10**9, 200_000))
    with pytest.raises(StoreFull, match="finished ones are kept"):
        made.measure()
    assert len(files(made)) == 1
    assert any(line.startswith("estimate for 3 blocks: ") for line in lines)
    monkeypatch.undo()
    assert made.measure()["run"][0]["resumed"] == 1


def test_a_damaged_page_is_refused_when_it_is_turned_to(make: Make, sessions: Any) -> None:
    made = make(keep_blocks=True)
    rows = made.measure()
    assert made.folder is not None
    ids = [row["block_id"] for row in rows["blocks"]]
    with Session(made.model, made.derived) as session:
        pages = PagedStore(session, made.folder.store, ids)
        assert pages.turn_to(2).restored_tokens == 300
        path = made.folder.store.path(ids[1])
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        with pytest.raises(BlockCorrupt):
            pages.turn_to(1)
        assert session.tokens == ()
        assert issubclass(BlockCorrupt, BlockRefused)


def test_a_child_that_fails_is_an_error_with_its_reason(models: Any) -> None:
    with pytest.raises(EngineFailed, match="no room for the span"):
        paged.answer_elsewhere(
            models("llama"),
            split_invariant(n_ctx=256),
            [{"prompt": "?", "span": [5] * 300}],
            2,
        )


def test_needles_that_do_not_fit_into_their_block_are_refused(models: Any) -> None:
    model = models("llama")
    short = {"The registry number of the Halduxil clock is 12345.": 0.5}
    made = block_text(model, "test", 200, short)
    assert len(made.tokens) == 200
    assert next(iter(short)) in made.text
    with pytest.raises(UnusableInput, match="too short for the sentences"):
        block_text(model, "test", 20, short)


def test_a_wrong_block_is_answered_from_the_wrong_block(
    measured: tuple[PagedContext, Rows],
) -> None:
    _, rows = measured
    for row in rows["records/answers.jsonl"]:
        if row["arm"] == "wrong":
            assert row["block"] != row["ranking"][0][0]
