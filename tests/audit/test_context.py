"""The verifier on made-up records of the stage context: what contradicts the texts or the plan is
found, and every claim can fail.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic

from kvaudit import claims, digests, records, schemas
from kvaudit.context import plan, plots, ranking, summary
from kvaudit.context.kind import KIND
from kvaudit.context.records import (
    ACCESSES,
    ANSWERS,
    BLOCKS,
    GROWTH,
    HEADERS,
    INDEX,
    KINDS,
    MEMORY,
    NEEDLES,
    PROFILES,
    RUN,
)

MODEL, SEED = "tiny", "synthetic/tiny"
SECTION: dict[str, Any] = {
    "scale": "as given",
    "blocks": 5,
    "block_tokens": 300,
    "room": 200,
    "needles": 7,
    "absent": 2,
    "answer_tokens": 6,
    "accesses": 3,
    "memory_questions": 2,
    "growth": 16,
    "growth_tokens": 32,
    "index_entries": [100, 1000],
    "index_words": 8,
    "keep_blocks": False,
}
BYTES = 1000
"""Of state, a token."""

Rows = dict[str, list[dict[str, Any]]]
Change = Callable[[Rows], object]


def digest_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def profile(**changes: Any) -> dict[str, Any]:
    settings = {
        "name": "split-invariant",
        "tiled": False,
        "min_rows": 2,
        "n_gpu_layers": 0,
        "n_ctx": 2048,
        "n_batch": 2048,
        "n_threads": 1,
        "swa_full": True,
        "flash_attention": False,
    }
    settings.update(changes)
    stock = settings["name"] == "stock"
    return {
        "settings": settings,
        "engine": {"libraries": {"libllama.so": digest_of("library")}},
        "machine": {"architecture": "x86_64"},
        "context": synthetic.context_of(settings, 64),
        "buffers": {"weights": ["CPU_Mapped"]},
        "environment": {"GGML_CPU_TILED_MM": "1" if stock else "0"},
    }


DERIVED = profile(n_ctx=512, n_batch=512, n_threads=2)
DIGEST = digests.sha256_json(DERIVED)


def inputs() -> dict[str, Any]:
    both = (profile(), profile(name="stock", tiled=True))
    return {
        "models": [{"name": MODEL, "sha256": digest_of("model")}],
        "profiles": {
            MODEL: {
                one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
                for one in both
            }
        },
        "configuration": {
            "value": {
                "seed": "synthetic",
                "context": SECTION,
                "profile": {"preset": "split-invariant", "n_ctx": 2048, "n_threads": 1},
            }
        },
    }


def common(kind: str, *, profiled: bool = True) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": kind, "version": 1, "model": MODEL}
    return {**made, "profile": DIGEST} if profiled else made


def text_of(block: int, needles: list[plan.Needle]) -> str:
    sentences = [f"Sentence {n} of the chapter {block} says nothing at all." for n in range(30)]
    own = [n for n in needles if n.block == block]
    for needle in sorted(own, key=lambda n: -(n.place or 0)):
        sentences.insert(round((needle.place or 0) * 30), needle.sentence)
    return " ".join(sentences)


def header_of(block: int) -> dict[str, Any]:
    n = SECTION["block_tokens"]
    return {
        "format": "kvb/1",
        "model": {"name": MODEL, "sha256": digest_of("model"), "architecture": "llama"},
        "profile": DIGEST,
        "engine": digests.tree_digest(DERIVED["engine"]["libraries"]),
        "tokens": {"n": n, "sha256": digest_of("tokens", block)},
        "start": 0,
        "parent": None,
        "state": {
            "bytes": BYTES * n,
            "chunk_bytes": 4 * 1024 * 1024,
            "chunks": [digest_of("state", block)],
            "blake3": [digest_of("state", "blake3", block)],
        },
        "provenance": {
            "source": plan.block_source(SEED, block),
            "exact": True,
            "profile": DERIVED,
        },
    }


def said(needle: plan.Needle, block: int, *, code: bool) -> dict[str, Any]:
    return {
        "query_tokens": 20,
        "query_sha256": digest_of("query", needle.number),
        "tokens": [1, 2, 3] if code else [1, 2],
        "text": f" {needle.code}.\n" if code else " unknown",
        "logits_sha256": digest_of("logits", needle.number, block),
    }


def made_rows() -> Rows:
    needles = plan.needles(SECTION, SEED)
    texts = [text_of(block, needles) for block in range(SECTION["blocks"])]
    headers = [header_of(block) for block in range(SECTION["blocks"])]
    ids = [digests.sha256_json(header) for header in headers]
    size = BYTES * SECTION["block_tokens"]
    blocks = [
        {
            **common("context-block"),
            "block": block,
            "tokens": SECTION["block_tokens"],
            "tokens_sha256": digest_of("tokens", block),
            "text": texts[block],
            "block_id": ids[block],
            "state_bytes": size,
            "file_bytes": size + 5000,
            "prefill_seconds": 0.5,
            "deposit_seconds": 0.1,
            "resumed": block == 0,
        }
        for block in range(SECTION["blocks"])
    ]
    answers = []
    for number, arm in plan.questions(SECTION, SEED):
        needle = needles[number]
        ranked = ranking.rank(texts, needle.question, plan.RANKED)
        block = needle.wrong_block if arm == "wrong" else ranked[0][0]
        assert block is not None
        answers.append(
            {
                **common("context-answer"),
                "needle": number,
                "arm": arm,
                "block": block,
                "block_id": ids[block],
                "ranking": ranked,
                "exact": True,
                "restored_tokens": SECTION["block_tokens"],
                "restored_bytes": size,
                **said(needle, block, code=arm == "routed"),
                "seconds": dict.fromkeys(("route", "get", "restore", "query", "generate"), 0.01),
            }
        )
    accesses = [
        {
            **common("context-access"),
            "round": round_,
            "turn": turn,
            "block": block,
            "block_id": ids[block],
            "restored_bytes": size,
            "logits_sha256": digest_of("access", block),
            "seconds": {
                "get": 0.02 + 0.001 * ((7 * block + 3 * round_) % 5),
                "restore": 0.01,
                "token": 0.02,
            },
        }
        for round_ in range(SECTION["accesses"])
        for turn, block in enumerate(plan.access_order(SECTION, SEED, round_))
    ]
    memory = []
    for process, arm in enumerate(("store", "direct"), start=1):
        replies = []
        for number in plan.memory_needles(SECTION):
            needle = needles[number]
            assert needle.block is not None
            reply = said(needle, needle.block, code=True)
            read = reply["query_tokens"] + len(reply["tokens"])
            stored = arm == "store"
            replies.append(
                {
                    "needle": number,
                    "block_id": ids[needle.block] if stored else None,
                    "restored_bytes": size if stored else 0,
                    "decoded_tokens": read if stored else read + SECTION["block_tokens"],
                    **reply,
                }
            )
        memory.append(
            {
                **common("context-memory"),
                "arm": arm,
                "process": process,
                "peak_bytes": 400_000_000 + process * 1_000_000,
                "meter": "VmHWM",
                "answers": replies,
            }
        )
    growth = [
        {
            **common("context-growth"),
            "blocks": n,
            "tokens": SECTION["growth_tokens"],
            "tokens_sha256": digest_of("growth tokens", n),
            "block_id": digest_of("growth", n),
            "disk_bytes": 40_000 * n,
            "index_bytes": 500 * n,
            "postings": 20 * n,
            "seconds": {"prefill": 0.1, "put": 0.02, "index": 0.0001, "route": 1e-5 * n},
        }
        for n in range(1, SECTION["growth"] + 1)
    ]
    index = [
        {
            **common("context-index", profiled=False),
            "entries": entries,
            "words": SECTION["index_words"],
            "different_words": entries,
            "postings": 8 * entries,
            "memory_bytes": 100 * entries,
            "build_seconds": 1e-5 * entries,
            "route_seconds": 1e-6 * entries,
            "route_by_name_seconds": 1e-6,
            "found": True,
        }
        for entries in SECTION["index_entries"]
    ]
    run = {
        **common("context-run"),
        "blocks": SECTION["blocks"],
        "tokens": SECTION["blocks"] * SECTION["block_tokens"],
        "n_ctx": 512,
        "resumed": 1,
        "estimate": {"blocks_left": 3, "seconds": 1.8, "bytes": 3 * size, "free_bytes": 10**10},
        "deposit_seconds": 2.4,
        "disk_bytes": SECTION["blocks"] * (size + 5000),
        "fsck": {"ok": SECTION["blocks"], "damaged": 0, "seconds": 0.01},
    }
    return {
        BLOCKS: blocks,
        HEADERS: [
            {"kind": "block-header", "version": 1, "id": id_, "header": header}
            for id_, header in zip(ids, headers, strict=True)
        ],
        NEEDLES: [
            {**common("context-needle", profiled=False), **needle.to_json()} for needle in needles
        ],
        ANSWERS: answers,
        ACCESSES: accesses,
        MEMORY: memory,
        GROWTH: growth,
        INDEX: index,
        RUN: [run],
        PROFILES: [{"kind": "profile", "version": 1, "digest": DIGEST, "profile": DERIVED}],
    }


PRISTINE = made_rows()


@pytest.fixture
def rows() -> Rows:
    return copy.deepcopy(PRISTINE)


def problems(rows: Rows) -> list[str]:
    return [f"{p.file}: {p.message}" for p in KIND.check(MODEL, rows, inputs())]


def judged(rows: Rows) -> dict[str, claims.Claim]:
    return {c.id: c for c in claims.judge("context", claims.Evidence(MODEL, rows, 0, 0))}


def test_made_records_conform_and_nothing_is_found(rows: Rows, tmp_path: Path) -> None:
    for file, kind in KINDS.items():
        for number, row in enumerate(rows[file]):
            schemas.validate(row, kind, where=f"{file}, {number}")
        records.write(tmp_path / Path(file).name, kind, rows[file])
    assert problems(rows) == []
    assert {c.verdict for c in judged(rows).values()} == {"holds"}
    assert set(judged(rows)) == {"C4", "C4-time", "C4-memory"}
    assert KIND.summary_bytes(MODEL, rows) == KIND.summary_bytes(MODEL, copy.deepcopy(rows))


def edit(file: str, line: int, **changes: Any) -> Change:
    return lambda rows: rows[file][line].update(changes)


def move_block_name(rows: Rows) -> None:
    rows[BLOCKS][1]["text"] += " The Bralandra." + f" {rows[NEEDLES][0]['name']}."


def own_header(change: Callable[[dict[str, Any]], object]) -> Change:
    """A header changed, with its id everywhere: digests alone tell nothing."""

    def forge(rows: Rows) -> None:
        old = rows[HEADERS][2]["id"]
        change(rows[HEADERS][2]["header"])
        new = digests.sha256_json(rows[HEADERS][2]["header"])
        for file in (HEADERS, BLOCKS, ANSWERS, ACCESSES):
            for row in rows[file]:
                for key in ("id", "block_id"):
                    if row.get(key) == old:
                        row[key] = new
        for row in rows[MEMORY]:
            for answer in row["answers"]:
                if answer["block_id"] == old:
                    answer["block_id"] = new

    return forge


FORGERIES: dict[str, tuple[Change, str]] = {
    "a block dropped": (lambda rows: rows[BLOCKS].pop(), "4 blocks recorded, 5 planned"),
    "a block renumbered": (edit(BLOCKS, 1, block=2), "block 2 stands in its place"),
    "a shorter block": (edit(BLOCKS, 1, tokens=299), "tokens is not that of its record"),
    "tokens of another block": (
        edit(BLOCKS, 1, tokens_sha256="0" * 64),
        "tokens_sha256 is not that of its record",
    ),
    "another model's row": (edit(ACCESSES, 3, model="other"), "line 4: model is not tiny"),
    "a needle taken out": (
        lambda rows: rows[BLOCKS][0].update(
            text=rows[BLOCKS][0]["text"].replace(rows[NEEDLES][0]["sentence"], "")
        ),
        "its sentence is not in the text, once",
    ),
    "a needle planted twice": (
        lambda rows: rows[BLOCKS][0].update(
            text=f"{rows[BLOCKS][0]['text']} {rows[NEEDLES][0]['sentence']}"
        ),
        "its sentence is not in the text, once",
    ),
    "a needle's name elsewhere": (move_block_name, "in another block's text"),
    "an absent needle planted": (
        lambda rows: rows[BLOCKS][2].update(
            text=f"{rows[BLOCKS][2]['text']} {rows[NEEDLES][-1]['sentence']}"
        ),
        "needle 8: its name or its code is in another block's text",
    ),
    "an easier code": (edit(NEEDLES, 3, code="11111"), "needle 3: code not as planned"),
    "another question": (edit(NEEDLES, 2, question="What?"), "needle 2: question not as planned"),
    "a needle moved": (edit(NEEDLES, 5, block=0), "needle 5: block not as planned"),
    "an answer dropped": (lambda rows: rows[ANSWERS].pop(2), "not the planned questions"),
    "an answer doubled": (
        lambda rows: rows[ANSWERS].append(rows[ANSWERS][-1]),
        "not the planned questions",
    ),
    "arms exchanged": (edit(ANSWERS, 0, arm="wrong"), "not the planned questions"),
    "a ranking made up": (edit(ANSWERS, 0, ranking=[[0, 9]]), "not that of the texts"),
    "an answer from another block": (
        edit(ANSWERS, 0, block=3, block_id=PRISTINE[BLOCKS][3]["block_id"]),
        "not answered from the block that ranks first",
    ),
    "the wrong block was the right one": (
        edit(ANSWERS, 1, block=0, block_id=PRISTINE[BLOCKS][0]["block_id"]),
        "not answered from the needle's wrong block",
    ),
    "nothing restored": (edit(ANSWERS, 0, restored_bytes=1), "not its block's state"),
    "restored in part": (edit(ANSWERS, 0, restored_tokens=1), "restored_tokens is not its"),
    "a longer answer": (edit(ANSWERS, 0, tokens=[1] * 7), "the answer is longer than planned"),
    "an access left out": (lambda rows: rows[ACCESSES].pop(4), "not the planned accesses"),
    "accesses sorted": (
        lambda rows: rows[ACCESSES].sort(key=lambda row: (row["round"], row["block"])),
        "not the planned accesses",
    ),
    "a slow access made the warm-up": (edit(ACCESSES, 9, round=0), "not the planned accesses"),
    "an access of nothing": (
        edit(ACCESSES, 5, logits_sha256="0" * 64),
        "gave other logits before",
    ),
    "one process": (edit(MEMORY, 1, process=1), "two arms ran in one process"),
    "two meters": (edit(MEMORY, 1, meter="ru_maxrss"), "not measured with one meter"),
    "memory arms exchanged": (lambda rows: rows[MEMORY].reverse(), "not the two planned arms"),
    "a direct answer that was restored": (
        lambda rows: rows[MEMORY][1]["answers"][0].update(restored_bytes=5),
        "restored or decoded something else",
    ),
    "a paged answer without a restore": (
        lambda rows: rows[MEMORY][0]["answers"][0].update(restored_bytes=0),
        "restored or decoded something else",
    ),
    "fewer memory questions": (
        lambda rows: rows[MEMORY][0]["answers"].pop(),
        "store: are not the planned questions",
    ),
    "a deposit left out": (lambda rows: rows[GROWTH].pop(3), "line 4: has 5 blocks"),
    "the last deposits left out": (lambda rows: rows[GROWTH].pop(), "15 deposits recorded"),
    "a store that shrinks": (edit(GROWTH, 6, disk_bytes=1), "store or index did not grow"),
    "an index size left out": (lambda rows: rows[INDEX].pop(), "are not the planned sizes"),
    "an index that finds nothing": (edit(INDEX, 0, found=False), "does not find an entry"),
    "tokens made up": (edit(RUN, 0, tokens=10**6), "tokens is 1000000, by the blocks 1500"),
    "resumed denied": (edit(RUN, 0, resumed=0), "resumed is 0, by the blocks 1"),
    "no estimate": (edit(RUN, 0, estimate=None), "an estimate if and only if"),
    "damage found": (
        edit(RUN, 0, fsck={"ok": 4, "damaged": 1, "seconds": 0.1}),
        "exactly the blocks, all sound",
    ),
    "a larger context": (edit(RUN, 0, n_ctx=2048), "n_ctx is not that of the profile"),
    "a profile of another length": (
        lambda rows: rows[PROFILES][0]["profile"]["settings"].update(n_ctx=1024),
        "n_ctx is not the planned 512",
    ),
    "another setting": (
        lambda rows: rows[PROFILES][0]["profile"]["settings"].update(swa_full=False),
        "digest is not that of the profile",
    ),
    "an unknown profile": (edit(GROWTH, 0, profile="0" * 64), "its profile is not in"),
    "a header's source": (
        own_header(lambda header: header["provenance"].update(source="elsewhere")),
        "block 2: its source is not the planned one",
    ),
    "a header's model": (
        own_header(lambda header: header["model"].update(sha256="0" * 64)),
        "block 2: its model is not the registered one",
    ),
    "a header's engine": (
        own_header(lambda header: header.update(engine="0" * 64)),
        "block 2: engine is not the registered one",
    ),
    "an inexact block": (
        own_header(lambda header: header["provenance"].update(exact=False)),
        "does not say that it is exact",
    ),
    "a header's id": (edit(HEADERS, 0, id="0" * 64), "are not those of the blocks"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(rows: Rows, name: str) -> None:
    change, message = FORGERIES[name]
    change(rows)
    found = problems(rows)
    assert any(message in text for text in found), found


# -- claims that fail -------------------------------------------------------------------------


def answer_of(rows: Rows, arm: str) -> dict[str, Any]:
    return next(row for row in rows[ANSWERS] if row["arm"] == arm)


def test_one_missed_needle_fails(rows: Rows) -> None:
    answer_of(rows, "routed")["text"] = " 1"
    claim = judged(rows)["C4"]
    assert claim.verdict == "fails"
    assert claim.measured.startswith("6/7 found, 7/7 routed right")


@pytest.mark.parametrize("arm", ["wrong", "absent"])
def test_a_code_that_nobody_could_know_fails(rows: Rows, arm: str) -> None:
    row = answer_of(rows, arm)
    row["text"] = f"it is {rows[NEEDLES][row['needle']]['code']}"
    assert judged(rows)["C4"].verdict == "fails"


def test_a_needle_answered_from_a_block_that_ranked_second_fails(rows: Rows) -> None:
    row = answer_of(rows, "routed")
    row["ranking"] = [[4, 9], [0, 8]]
    assert judged(rows)["C4"].verdict == "fails"


def test_an_inexact_graft_and_too_few_needles_fail(rows: Rows) -> None:
    answer_of(rows, "wrong")["exact"] = False
    assert "not exact" in judged(rows)["C4"].measured
    assert judged(rows)["C4"].verdict == "fails"
    few = copy.deepcopy(PRISTINE)
    few[ANSWERS] = [row for row in few[ANSWERS] if row["needle"] != 3]
    assert "too few needles" in judged(few)["C4"].measured
    assert judged(few)["C4"].verdict == "fails"


def test_a_text_that_fits_into_the_context_fails(rows: Rows) -> None:
    rows[RUN][0]["n_ctx"] = 1500
    assert judged(rows)["C4"].verdict == "fails"


def test_access_time_that_grows_with_depth_fails(rows: Rows) -> None:
    for row in rows[ACCESSES]:
        row["seconds"]["get"] += 0.01 * row["block"]
    claim = judged(rows)["C4-time"]
    assert claim.verdict == "fails"
    assert "10 accesses" in claim.measured


def test_the_warm_up_does_not_count(rows: Rows) -> None:
    before = summary.access(rows[ACCESSES])
    for row in rows[ACCESSES]:
        if row["round"] == 0:
            row["seconds"]["get"] += row["block"]
    assert summary.access(rows[ACCESSES]) == before


def test_two_blocks_have_no_slope(rows: Rows) -> None:
    rows[ACCESSES] = [row for row in rows[ACCESSES] if row["block"] < 2]
    assert judged(rows)["C4-time"].verdict == "not run here"


@pytest.mark.parametrize(("peak", "verdict"), [(421, "holds"), (423, "fails"), (380, "fails")])
def test_memory_is_compared_in_both_directions(rows: Rows, peak: int, verdict: str) -> None:
    rows[MEMORY][0]["peak_bytes"] = peak * 1_000_000
    assert judged(rows)["C4-memory"].verdict == verdict


def test_memory_of_processes_that_answer_differently_is_no_comparison(rows: Rows) -> None:
    rows[MEMORY][1]["answers"][0]["tokens"] = [9]
    assert judged(rows)["C4-memory"].verdict == "fails"
    rows[MEMORY].pop()
    assert judged(rows)["C4-memory"].verdict == "fails"


# -- plan, summary, figures -------------------------------------------------------------------


def test_needles_stand_evenly_from_the_first_block_to_the_last() -> None:
    def homes(blocks: int, needles: int) -> list[int | None]:
        section = {**SECTION, "blocks": blocks, "needles": needles}
        return [needle.block for needle in plan.needles(section, SEED)][:needles]

    assert homes(8, 7) == [0, 1, 2, 4, 5, 6, 7]
    assert homes(88, 7)[::6] == [0, 87]
    assert homes(2, 3) == [0, 1, 1]
    assert homes(8, 1) == [0]


def test_every_draw_follows_from_the_seed() -> None:
    first, again = plan.needles(SECTION, SEED), plan.needles(SECTION, SEED)
    other = plan.needles(SECTION, "another")
    assert first == again
    assert first != other
    assert len({n.name for n in first}) == len({n.code for n in first}) == 9
    assert all(n.wrong_block != n.block for n in first if n.block is not None)
    assert all(n.code not in n.question for n in first)
    assert plan.access_order(SECTION, SEED, 1) != plan.access_order(SECTION, SEED, 2)


def test_the_papers_scale_is_its_own_size() -> None:
    paper = {**SECTION, "scale": "paper", "room": 256}
    assert plan.sized(paper)["blocks"] * plan.sized(paper)["block_tokens"] == 2_854_808
    assert plan.n_ctx(paper) == 32_768
    assert list(plan.section_problems(paper)) == []


def test_a_section_that_cannot_be_checked_is_named() -> None:
    assert list(plan.section_problems({})) != []
    assert list(plan.section_problems(SECTION)) == []
    for changes in (
        {"blocks": 1},
        {"accesses": 10**6},
        {"needles": 10**4},
        {"index_entries": [100, 10]},
    ):
        assert len(list(plan.section_problems({**SECTION, **changes}))) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [("12345", True), (" 12345.", True), ("912345", False), ("123456 12345", True), ("", False)],
)
def test_a_code_counts_as_a_number_of_its_own(text: str, found: bool) -> None:
    assert summary.says(text, "12345") is found


def test_growth_is_fitted_at_halvings_and_a_square_is_seen(rows: Rows) -> None:
    made = summary.growth(rows[GROWTH])
    assert [mark["blocks"] for mark in made["marks"]] == [2, 4, 8, 16]
    assert made["laws"]["disk_bytes"]["exponent"] == pytest.approx(1.0)
    for row in rows[GROWTH]:
        row["disk_bytes"] = 1000 * row["blocks"] ** 2
    square = summary.growth(rows[GROWTH])["laws"]["disk_bytes"]
    assert square["low"] <= 2.0 <= square["high"] + 1e-9
    assert square["low"] > 1.9


def test_figures_are_drawn_from_records_and_are_the_same_twice(rows: Rows, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    other = copy.deepcopy(rows)
    drawn = plots.draw({"tiny": rows, "other": other}, tmp_path / "a")
    again = plots.draw({"tiny": rows, "other": other}, tmp_path / "b")
    assert [path.name for path in drawn] == ["context-access.svg", "context-growth.svg"]
    for one, two in zip(drawn, again, strict=True):
        text = one.read_text()
        assert text == two.read_text()
        assert re.search(r">access time \(ms\)<|>blocks on disk \(MB\)<", text)
        assert ">tiny" in text
