"""Whether the deposits of a flywheel stage follow from problems, programs, headers and generations.

A deposit's text is written again, its source is looked up among the attempts, its admission is
counted again, and so is its id in the library. This module must not know an engine, nor the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvaudit import digests
from kvaudit.flywheel import plan, prompts
from kvaudit.flywheel.known import Known, Row
from kvaudit.flywheel.records import (
    DEPOSITS,
    ENTRIES,
    GATED,
    HEADERS,
    PROBLEMS,
    PROFILES,
)
from kvaudit.problems.solved import METHOD_CARD
from kvaudit.stagekind import Rows

AUTHOR = "contest set"
"""Who supplies what no attempt found."""

_SUFFIXES = {"templated": "/templated", "solved": "", "examples": "/examples"}


# -- headers ----------------------------------------------------------------------------------


def headers(subject: str, rows: Rows, inputs: Mapping[str, Any]) -> Iterator[str]:
    """What in the blocks' headers contradicts deposits, profile or inputs."""
    model: Row = next((m for m in inputs["models"] if m["name"] == subject), {})
    listed = [row["id"] for row in rows[HEADERS]]
    named = {row["block_id"] for row in rows[DEPOSITS]}
    children = {r["demonstration"]["block_id"] for r in rows[DEPOSITS] if r["demonstration"]}
    if len(set(listed)) != len(listed) or {*listed} != named | children:
        yield "are not exactly those of the deposits' blocks, each once"
    known = {row["digest"] for row in rows[PROFILES]}
    for number, row in enumerate(rows[HEADERS], start=1):
        header, where = row["header"], f"line {number}"
        state, provenance = header["state"], header["provenance"]
        if digests.sha256_json(header) != row["id"]:
            yield f"{where}: id is not the digest of the header"
        if any(header["model"][key] != model.get(key) for key in ("name", "sha256")):
            yield f"{where}: its model is not the registered one"
        if header["profile"] not in known:
            yield f"{where}: its profile is not in {PROFILES}"
        if (header["start"] == 0) != (header["parent"] is None):
            yield f"{where}: stands behind nothing, or at the beginning with a parent"
        if len(state["chunks"]) != -(-state["bytes"] // state["chunk_bytes"]):
            yield f"{where}: the number of chunks does not fit the state's length"
        if digests.sha256_json(provenance.get("profile")) != header["profile"]:
            yield f"{where}: the profile in its provenance is not that of its digest"
        if provenance.get("exact") is not True:
            yield f"{where}: its provenance does not say that it is exact"


# -- deposits ---------------------------------------------------------------------------------


def deposits(subject: str, rows: Rows) -> Iterator[str]:
    """What in the deposits contradicts the other records."""
    known = Known(subject, rows)
    lengths: dict[str, str] = {}
    for number, row in enumerate(rows[DEPOSITS], start=1):
        where = f"line {number} ({row['name']})"
        if not {*row["problems"]} <= {*known.problems}:
            yield f"{where}: no such problem is recorded"
            continue
        own = (_named, _text, _demonstration, _source, _template, _admission)
        for check in (_block,) if row["variant"] == "file" else (_block, *own):
            yield from (f"{where}: {text}" for text in check(row, known))
        header = known.headers.get(row["block_id"])
        if (
            header
            and lengths.setdefault(row["text"], header["tokens"]["sha256"])
            != (header["tokens"]["sha256"])
        ):
            yield f"{where}: the same text has other tokens in another deposit"
    if len(set(lengths.values())) != len(lengths):
        yield "two texts have the same tokens"
    yield from _chosen(known)


def _named(row: Row, known: Known) -> Iterator[str]:
    name, family = row["name"], row["family"]
    if row["variant"] == "deposited":
        if name not in (family, f"{family}/supplied"):
            yield "its name is not that of its family"
    elif row["variant"] != "card" and name != f"{family}{_SUFFIXES[row['variant']]}":
        yield "its name is not that of its family and variant"
    for problem in row["problems"]:
        if known.problems[problem]["family"] != family:
            yield f"holds {problem}, which is of another family"
    program = known.programs.get(row["program_sha256"])
    if (row["program_sha256"] is None) != (row["variant"] == "card"):
        yield "has a program if and only if it is no card"
    elif program is not None and program["answer"] != row["answer"]:
        yield "its program did not print its answer"
    if (row["template"] is not None) < (row["variant"] == "templated"):
        yield "is templated, but has no template"


def _text(row: Row, known: Known) -> Iterator[str]:
    """Every block's text follows from the problems that it holds and their programs."""
    held = [known.problems[name] for name in row["problems"]]
    if row["variant"] == "card":
        if row["text"] != METHOD_CARD:
            yield "its text is not the card's"
        return
    role = "solved-known" if row["variant"] == "solved" else "contest"
    own = known.family(row["family"], role)[:1]
    if row["variant"] == "examples":
        own += known.family(row["family"], "known")[: plan.EXAMPLES - 1]
        if sorted(one["name"] for one in held) != sorted(one["name"] for one in own):
            yield f"does not hold the family's {plan.EXAMPLES} planned instances"
            return
    elif held != own:
        yield f"does not hold its family's {role} instance"
        return
    if not own:
        yield f"no {role} instance of its family is recorded"
        return
    first = own[0]
    if (row["statement"], row["answer"]) != (first["statement"], first["answer"]):
        yield "statement and answer are not its problem's"
    if row["program_sha256"] not in known.programs:
        return  # `consistency` reports that it is not listed
    if row["variant"] == "examples":
        yield from _examples(row, held)
        return
    program = known.programs[row["program_sha256"]]["program"]
    if row["text"] != prompts.block_text(first["statement"], program, first["answer"]):
        yield "its text is not that of its problem, program and answer"


def _examples(row: Row, held: Sequence[Row]) -> Iterator[str]:
    """Several worked instances: each with its statement, its numbers and its answer, once."""
    at = -1
    for problem in held:
        head = f"Problem: {problem['statement']}\n{prompts.numbers_line(problem['statement'])}"
        found = row["text"].find(head)
        if found <= at or row["text"].count(head) != 1:
            yield f"its text does not hold {problem['name']} in its place, once"
            return
        at = found
        answer = f"\nVerified answer: {problem['answer']}\n"
        if answer not in row["text"][at : _next(row["text"], at)] + "\n":
            yield f"its text does not give the answer of {problem['name']}"


def _next(text: str, at: int) -> int:
    """Where the next problem of a text begins; its end behind the last."""
    found = text.find("Problem: ", at + 1)
    return len(text) if found < 0 else found


def _block(row: Row, known: Known) -> Iterator[str]:
    header = known.headers.get(row["block_id"])
    if header is None:
        return  # `headers` reports it
    if (header["start"], header["parent"]) != (0, None):
        yield "its block does not stand at the beginning"
    size, tokens = header["state"]["bytes"], header["tokens"]["n"]
    yield from _origin(row, header, row["statement"] or row["text"])
    if row["demonstration"] is not None:
        child = known.headers.get(row["demonstration"]["block_id"])
        if child is not None:
            size += child["state"]["bytes"]
            tokens += child["tokens"]["n"]
            shown = known.problems.get(row["demonstration"]["problem"])
            yield from _origin(row, child, shown["statement"] if shown else "")
            if (child["start"], child["parent"]) != (header["tokens"]["n"], row["block_id"]):
                yield "its demonstration's block does not continue its own"
    if row["tokens"] != tokens:
        yield "tokens is not that of its blocks"
    if row["file_bytes"] < size:
        yield "its files are shorter than the states in them"


def _origin(row: Row, header: Row, statement: str) -> Iterator[str]:
    """A header's provenance names the statement and the source."""
    digest = digests.sha256_bytes(statement.encode("utf-8"))
    said = {"statement_sha256": digest, "source": row["source"]}
    if header["provenance"].get("deposit") != said:
        yield "its block's provenance names another statement or source"


def _demonstration(row: Row, known: Known) -> Iterator[str]:
    shown = row["demonstration"]
    if shown is None:
        return
    first = known.family(row["family"], "known")[:1]
    if row["variant"] not in ENTRIES or [shown["problem"]] != [one["name"] for one in first]:
        yield "its demonstration is not the family's first known instance"
        return
    program, base = (known.programs.get(one["program_sha256"]) for one in (shown, row))
    if program is None or base is None:
        return
    if program["answer"] != first[0]["answer"]:
        yield "its demonstration's program did not print the known answer"
    if row["template"] is None:
        yield "has a demonstration, but no template"
    elif program["program"] != _filled(row["template"], first[0]["statement"]):
        yield "its demonstration's program is not its template with other numbers"


# -- where it comes from ----------------------------------------------------------------------


def _source(row: Row, known: Known) -> Iterator[str]:
    source, family = row["source"], row["family"]
    if row["variant"] == "templated":
        others = known.siblings(family, "deposited")
        if source["kind"] != "supplied" or not any(source == other["source"] for other in others):
            yield "is not made from a supplied deposit of its family"
        return
    if source["kind"] == "supplied":
        if source["author"] != AUTHOR:
            yield f"its author is not the {AUTHOR}"
        if row["variant"] == "deposited":
            yield from _supplied(row, known)
        return
    if row["variant"] != "deposited":
        yield "only a deposit of a contest problem comes from an attempt"
    elif row["name"] != family:
        yield "is not named after its family alone"
    attempts = known.arm("code").get(row["problems"][0], []) if row["problems"] else []
    found = [one for one in attempts if one["outcome"] == "answer"]
    same = row["template"] is not None or (
        found and found[0]["program_sha256"] == row["program_sha256"]
    )
    if not found or found[0]["attempt"] != source["attempt"] or not same:
        yield "its source is not the first attempt that printed the answer"
        return
    spent = sum(one["decoded_tokens"] for one in attempts if one["attempt"] <= source["attempt"])
    if source["tokens"] != spent:
        yield f"its source took {source['tokens']} tokens, by the attempts {spent}"
    if source["model"] != known.subject:
        yield f"its source's model is not {known.subject}"


def _supplied(row: Row, known: Known) -> Iterator[str]:
    """A supplied deposit takes the place of a solver's that is missing or was refused."""
    solver = [
        one
        for one in known.siblings(row["family"], "deposited")
        if one["source"]["kind"] == "solver"
    ]
    solved = row["problems"] and any(
        one["outcome"] == "answer" for one in known.arm("code").get(row["problems"][0], [])
    )
    if solved and not solver:
        yield "is supplied, although an attempt printed the answer"
    if any(one["admitted"] for one in solver):
        yield "is supplied, although a solver's deposit was admitted"
    if row["name"] != (f"{row['family']}/supplied" if solver else row["family"]):
        yield "is not named after its family, as one that stands alone or for a refused one"


_HEAD = re.compile(rf"([A-Za-z_]\w*) = (-?[0-9]{{1,{prompts.MAX_DIGITS}}})")


def _bound(template: Row, statement: str) -> dict[str, int]:
    """The names of a template with the numbers that a statement gives them."""
    pairs = zip(template["shape"], prompts.numbers(statement), strict=False)
    return {part: number for part, number in reversed([*pairs]) if isinstance(part, str)}


def _filled(template: Row, statement: str) -> str:
    """A template's program with the numbers of a statement, in the order of its first lines."""
    bound = _bound(template, statement)
    names = dict.fromkeys(part for part in template["shape"] if isinstance(part, str))
    body: str = template["program"].split("\n", len(names))[-1]
    return "".join(f"{name} = {bound.get(name)}\n" for name in names) + body


def _template(row: Row, known: Known) -> Iterator[str]:
    """A template's first lines set the numbers of its statement, and no other number varies."""
    template = row["template"]
    if template is None:
        return
    if row["variant"] not in ENTRIES:
        yield "has a template, but is no entry of a library"
    program = known.programs.get(row["program_sha256"])
    if program and program["program"] != template["program"]:
        yield "its program is not its template's"
    found, shape = prompts.numbers(row["statement"]), template["shape"]
    if len(found) != len(shape):
        yield "its template has another count of numbers than its statement"
        return
    bound = _bound(template, row["statement"])
    lines = [_HEAD.fullmatch(line) for line in template["program"].split("\n")[: len(bound)]]
    if {m[1]: int(m[2]) for m in lines if m} != bound:
        yield "its template's first lines do not set the numbers of its statement"
    if any(part != n for part, n in zip(shape, found, strict=True) if isinstance(part, int)):
        yield "its template has another number than its statement, where all have one"
    for other in known.family(row["family"], "known"):
        numbers = prompts.numbers(other["statement"])
        fixed = [(part, n) for part, n in zip(shape, numbers, strict=False) if type(part) is int]
        if len(numbers) != len(shape) or any(part != n for part, n in fixed):
            yield f"its template does not fit {other['name']}"
            return


# -- admission --------------------------------------------------------------------------------


def _admission(row: Row, known: Known) -> Iterator[str]:
    made, variant = row["admission"], row["variant"]
    if made is None:
        # Without those arms nothing is tested; whether they were planned is for `expected`.
        if variant != "examples" and not (variant in ENTRIES and not known.arm("admission-with")):
            yield "was not tested for admission"
        if row["admitted"]:
            yield "is admitted without a test"
        return
    roles = {"solved": "solved-with", "card": "solved-card"}
    if variant in ENTRIES:
        asked, arms = (
            known.family(row["family"], "admission"),
            ("admission-with", "admission-alone"),
        )
    elif variant in roles:
        asked, arms = known.family(row["family"], "solved"), (roles[variant], "solved-alone")
        if variant == "card":  # one text for all families
            asked = [one for one in known.rows[PROBLEMS] if one["role"] == "solved"]
    else:
        yield "was tested for admission, but is of another kind"
        return
    counts = []
    for arm in arms:
        right = 0
        for problem in asked:
            rows = known.arm(arm).get(problem["name"], [])
            if arm == arms[0]:
                rows = [one for one in rows if one["deposits"] == [row["name"]]]
            if arm in GATED:
                rows = [one for one in rows if one["gate"] == "passed"]
            right += bool(rows) and rows[0]["outcome"] == "answer"
        counts.append(right)
    wanted = {"instances": len(asked), "with_block": counts[0], "alone": counts[1]}
    differing = [key for key, value in wanted.items() if made[key] != value]
    if differing:
        said = ", ".join(f"{key} is {made[key]}, counted {wanted[key]}" for key in differing)
        yield f"admission: {said}"
    if row["admitted"] != plan.admitted(counts[0], counts[1], len(asked), made["margin"]):
        yield f"admitted is {row['admitted']}, by the counts it is not"


def _chosen(known: Known) -> Iterator[str]:
    """One deposit of a family is chosen: the first admitted one, or the last that was supplied."""
    rows = known.rows[DEPOSITS]
    for family in dict.fromkeys(row["family"] for row in rows if row["variant"] in ENTRIES):
        mine = [row for variant in ENTRIES for row in known.siblings(family, variant)]
        best = next((row for row in mine if row["admitted"]), None)
        if best is None:
            plain = known.siblings(family, "deposited")
            best = plain[-1] if plain else None
        if [row["name"] for row in mine if row["chosen"]] != ([best["name"]] if best else []):
            yield f"{family}: chosen is not the deposit that its admissions lead to"
    for row in rows:
        if row["chosen"] and row["variant"] not in ENTRIES:
            yield f"{row['name']}: is chosen, but is no entry of a library"
        if (row["entry_id"] is not None) != (row["admitted"] and row["variant"] in ENTRIES):
            yield f"{row['name']}: is in the library if and only if it was admitted"
        elif row["entry_id"] is not None and row["entry_id"] != _entry_id(row, known):
            yield f"{row['name']}: entry_id is not that of its content"


def _entry_id(row: Row, known: Known) -> str | None:
    """A deposit's id in a library: the digest of its content, as library-entry.v1.json says."""
    shown, made = row["demonstration"], _verified(row, known)
    if made is None:
        return None
    own = {key: row[key] for key in ("statement", "answer", "text", "source", "template")}
    demonstration = None
    if shown is not None:
        problem, again = known.problems.get(shown["problem"]), _verified(shown, known)
        if problem is None or again is None:
            return None
        asked = {key: problem[key] for key in ("statement", "answer")}
        text = prompts.demonstration_text(**asked, program=again["program"])
        demonstration = {**asked, **again, "text": text}
    return digests.sha256_json({**own, **made, "demonstration": demonstration})


def _verified(part: Row, known: Known) -> dict[str, Any] | None:
    """A program as an entry states it: with its block, and how it ended."""
    program = known.programs.get(part["program_sha256"])
    if program is None:
        return None
    return {
        "program": program["program"],
        "block_id": part["block_id"],
        "verification": {key: program[key] for key in ("ending", "answer", "output_sha256")},
    }
