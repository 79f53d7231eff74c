"""A small but complete stage flywheel, made up without any model.

What a model would write is copied: programs with other numbers, answers read back. Three families
take the three ways that a deposit can take: a solver's is admitted; a supplied one with its numbers
in the code is refused and its template admitted; a solver's is refused and a supplied one admitted.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

import flywheel_rows
import synthetic
from flywheel_rows import MODEL, digest_of

from kvaudit import digests
from kvaudit.flywheel import calibration, check_deposits, check_routes, gate, plan, prompts, routing
from kvaudit.flywheel import records as names
from kvaudit.flywheel.known import Known
from kvaudit.problems.family import Family, Instance
from kvaudit.problems.solved import METHOD_CARD, SOLVED

SEED = f"synthetic/{MODEL}"
SECTION: dict[str, Any] = {
    "families": 3,
    "attempts": 2,
    "code_attempts": 2,
    "temperature": 0.5,
    "answer_tokens": 8,
    "program_tokens": 60,
    "recall_tokens": 4,
    "adapt_attempts": 2,
    "admission": 2,
    "margin": 0.5,
    "transfers": 2,
    "few_transfers": 1,
    "baselines": 1,
    "flat_blocks": 2,
    "solved": 2,
    "queries": 4,
    "calibration": 15,
    "alpha": 0.1,
    "shortlist": 2,
    "scored_tokens": 12,
    "growth": [4, 8, 16],
    "growth_queries": 2,
    "program_seconds": 2,
}
BYTES = 1000
"""Of state, a token."""

TEMPLATE = """\
a = {0}
b = {1}
c = {2}
from math import comb
t = comb(b + c, a)
t -= comb(b, a)
t -= comb(c, a)
print(t)"""
"""Of the family whose program has its numbers in the code."""

SUPPLIED = {
    "kind": "supplied",
    "author": check_deposits.AUTHOR,
    **dict.fromkeys(("solver", "attempt", "tokens", "model")),
}

Rows = dict[str, list[dict[str, Any]]]
Row = dict[str, Any]


def sha256(text: str) -> str:
    return digests.sha256_bytes(text.encode("utf-8"))


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


DERIVED = [profile(n_batch=512), profile(n_batch=512, n_ctx=4096)]
DIGEST = digests.sha256_json(DERIVED[0])
REGISTERED = {
    one["settings"]["name"]: {"digest": digests.sha256_json(one), "profile": one}
    for one in (profile(), profile(name="stock", tiled=True))
}
CONFIGURATION = {
    "name": "synthetic",
    "seed": "synthetic",
    "models": [MODEL],
    "stages": ["flywheel"],
    "flywheel": SECTION,
    "profile": {"preset": "split-invariant", "n_ctx": 2048, "n_threads": 1},
}


def inputs() -> dict[str, Any]:
    """As much of an inputs manifest as a check of the stage reads."""
    return {
        "models": [{"name": MODEL, "sha256": synthetic.digest_of("model", MODEL)}],
        "profiles": {MODEL: REGISTERED},
        "configuration": {"value": CONFIGURATION},
        "environment": {"python": "3.11.7"},
    }


def tokens_of(text: str) -> int:
    return max(1, len(text) // 3)


class Maker:
    """Makes the records of one stage, part by part."""

    def __init__(self) -> None:
        self.plan = plan.Plan(SECTION, SEED)
        self.runs: dict[str, Row] = {}
        self.headers: dict[str, Row] = {}
        self.deposits: dict[str, Row] = {}
        self.arms: dict[str, list[Row]] = {arm: [] for arm in names.ARMS}

    # -- programs and blocks ------------------------------------------------------------------

    def run(self, program: str) -> Row:
        """How a harmless program ends, run in this process."""
        key = sha256(program)
        if key not in self.runs:
            output = io.StringIO()
            ending = "no answer"
            try:
                with contextlib.redirect_stdout(output):
                    exec(program, {})  # the programs of this file alone
            except Exception:
                ending = "error"
            said = output.getvalue()
            last = said.strip().rpartition("\n")[2]
            answer = int(last) if ending != "error" and last.lstrip("-").isdigit() else None
            self.runs[key] = {
                **flywheel_rows.head("flywheel-program"),
                "sha256": key,
                "program": program,
                "ending": "printed" if answer is not None else ending,
                "answer": answer,
                "output": said,
                "output_sha256": sha256(said),
                "seconds": 0.06,
            }
        return self.runs[key]

    def block(self, text: str, statement: str, source: Row, parent: Row | None = None) -> str:
        n = tokens_of(text)
        header = {
            "format": "kvb/1",
            "model": {
                "name": MODEL,
                "sha256": synthetic.digest_of("model", MODEL),
                "architecture": "llama",
            },
            "profile": DIGEST,
            "engine": digests.tree_digest(DERIVED[0]["engine"]["libraries"]),
            "tokens": {"n": n, "sha256": digest_of("tokens", text)},
            "start": parent["tokens"]["n"] if parent else 0,
            "parent": digests.sha256_json(parent) if parent else None,
            "state": {
                "bytes": BYTES * n,
                "chunk_bytes": 4 * 1024 * 1024,
                "chunks": [digest_of("state", text)],
                "blake3": [digest_of("state", "blake3", text)],
            },
            "provenance": {
                "source": "deposit",
                "exact": True,
                "profile": DERIVED[0],
                "deposit": {"statement_sha256": sha256(statement), "source": source},
            },
        }
        block_id = digests.sha256_json(header)
        self.headers[block_id] = header
        return block_id

    def length(self, name: str, *, child: bool) -> int:
        row = self.deposits[name]
        ids = [row["block_id"]]
        if child and row["demonstration"]:
            ids.append(row["demonstration"]["block_id"])
        return sum(self.headers[one]["tokens"]["n"] for one in ids)

    def deposit(
        self,
        name: str,
        variant: str,
        held: Sequence[Instance],
        program: str | None,
        source: Row,
        template: Row | None = None,
        text: str | None = None,
    ) -> Row:
        first = held[0] if held else None
        statement = first.statement if first else ""
        if text is None:
            assert first is not None
            assert program is not None
            text = prompts.block_text(statement, program, first.answer)
        block_id = self.block(text, statement or text, source)
        size, n, shown = BYTES * tokens_of(text), tokens_of(text), None
        if template is not None:
            assert first is not None
            other = self.plan.of(first.family, "known")[0]
            again = check_deposits._filled(template, other.statement)
            child = prompts.demonstration_text(other.statement, again, other.answer)
            shown = {
                "problem": other.name,
                "program_sha256": self.run(again)["sha256"],
                "block_id": self.block(child, other.statement, source, self.headers[block_id]),
            }
            size, n = size + BYTES * tokens_of(child), n + tokens_of(child)
        self.deposits[name] = flywheel_rows.refused(
            first.family.name if first else SOLVED[0].name,
            first.answer if first else None,
            name=name,
            variant=variant,
            problems=[one.name for one in held],
            statement=statement,
            program_sha256=None if program is None else self.run(program)["sha256"],
            source=source,
            template=template,
            demonstration=shown,
            block_id=block_id,
            text=text,
            tokens=n,
            file_bytes=size + 4000,
            admission=None,
            chosen=False,
        )
        return self.deposits[name]

    # -- generations --------------------------------------------------------------------------

    def say(
        self,
        arm: str,
        one: Instance,
        text: str,
        held: Sequence[str] = (),
        attempt: int = 0,
    ) -> Row:
        """One generation; what it is worth follows from its text."""
        judged = program_sha256 = None
        own = next(
            (self.deposits[n] for n in held if self.deposits[n]["family"] == one.family.name), None
        )
        if arm in names.RUNNING:
            coding = arm in names.CODING
            question = (prompts.code_text if coding else prompts.adapt_text)(one.statement)
            ran = self.run(prompts.read_program(text))
            program_sha256, answer = ran["sha256"], ran["answer"]
            outcome = "answer" if answer == one.answer else "wrong"
            outcome = outcome if ran["ending"] == "printed" else ran["ending"]
            if arm in names.GATED:
                assert own is not None
                base = self.runs[own["program_sha256"]]["program"]
                judged = gate.judge(ran["program"], one.statement, base, own["statement"])
        else:
            question = prompts.direct_text(one.statement)
            read = prompts.first_integer if arm in names.RECALLING else prompts.read_answer
            answer = read(text)
            outcome = "answer" if answer == one.answer else "wrong"
            outcome = outcome if answer is not None else "no answer"
        if arm in names.RECALLING:
            assert own is not None
            program = self.runs[own["program_sha256"]]["program"]
            question = prompts.recall_text(one.statement, program)
        child = names.demonstrated(arm)
        n = sum(self.length(name, child=child) for name in held)
        reads = arm in names.READ or arm.endswith("-flat")
        greedy = attempt == 0
        row = flywheel_rows.said(
            arm,
            {"name": one.name, "family": one.family.name, "answer": one.answer},
            answer,
            attempt,
            deposits=[*held],
            temperature=0 if greedy else SECTION["temperature"],
            seed="" if greedy else self.plan.attempt_seed(arm, one.name, attempt),
            prompt_sha256=sha256(question),
            prompt_tokens=tokens_of(question) + (n if reads else 0),
            cached_tokens=0 if reads else n,
            decoded_tokens=min(4, tokens_of(text)),
            text=text,
            logits_sha256=digest_of("logits", question, held, arm.endswith("-relocated")),
            exact=not arm.endswith("-relocated") if held and not reads else None,
            program_sha256=program_sha256,
            gate=judged,
            outcome=outcome,
            seconds=0.1,
        )
        self.arms[arm].append(row)
        return row

    def adapted(self, name: str, one: Instance) -> str:
        """What a model that copies would write: the deposit's program with new numbers, if its
        template names them; otherwise the program as it is.
        """
        row = self.deposits[name]
        if row["template"] is not None:
            return check_deposits._filled(row["template"], one.statement) + "\n"
        return str(self.runs[row["program_sha256"]]["program"]) + "\n"

    def adapt(self, arm: str, name: str, asked: Sequence[Instance], *, once: bool = False) -> int:
        right = 0
        for one in asked:
            for attempt in range(1 if once else SECTION["adapt_attempts"]):
                row = self.say(arm, one, self.adapted(name, one), (name,), attempt)
                if row["gate"] == "passed":
                    right += row["outcome"] == "answer"
                    break
        return right

    # -- parts --------------------------------------------------------------------------------

    def alone(self) -> None:
        for number, family in enumerate(self.plan.families):
            for one in self.plan.of(family, "contest"):
                for attempt in range(SECTION["attempts"]):
                    said = " The answer is 7." if attempt else " none"
                    self.say("text", one, said, attempt=attempt)
                self.say("code", one, "for\n")
                text = {0: family.program(one.params), 2: f"print({one.answer})"}
                self.say("code", one, text.get(number, "print(3)"), attempt=1)
            for one in self.plan.of(family, "admission"):
                self.say("admission-alone", one, " about 4 or 5")
        for family in self.plan.families:
            asked = self.plan.of(family, "transfer")
            for one in asked[: SECTION["baselines"]]:
                self.say("alone", one, "print('nothing')")
            for one in asked:
                self.say("alone-text", one, " 5")

    def template(self, family: Family, one: Instance) -> Row:
        if family.kind == "parametric":
            shape = [*family.names]
            return {"program": family.program(one.params), "shape": shape}
        program = TEMPLATE.format(*prompts.numbers(one.statement))
        return {"program": program, "shape": ["a", "b", "c"]}

    def judge(self, row: Row, with_block: int, alone: int, n: int) -> None:
        found = {"instances": n, "with_block": with_block, "alone": alone, "margin": 0.5}
        row["admission"] = found
        row["admitted"] = plan.admitted(with_block, alone, n, 0.5)

    def propose(self) -> None:
        for number, family in enumerate(self.plan.families):
            one = self.plan.of(family, "contest")[0]
            asked = self.plan.of(family, "admission")
            tries = [row for row in self.arms["code"] if row["problem"] == one.name]
            solver = {
                "kind": "solver",
                "author": None,
                "solver": "code",
                "attempt": 1,
                "tokens": sum(row["decoded_tokens"] for row in tries),
                "model": MODEL,
            }
            made = self.template(family, one)
            proposals: list[tuple[str, str, str, Row, Row | None]]
            if number == 0:
                proposals = [(family.name, "deposited", made["program"], solver, made)]
            elif number == 1:
                program = family.program(one.params)
                proposals = [
                    (family.name, "deposited", program, SUPPLIED, None),
                    (f"{family.name}/templated", "templated", made["program"], SUPPLIED, made),
                ]
            else:
                supplied = f"{family.name}/supplied"
                proposals = [
                    (family.name, "deposited", f"print({one.answer})", solver, None),
                    (supplied, "deposited", made["program"], SUPPLIED, made),
                ]
            for name, variant, program, source, template in proposals:
                row = self.deposit(name, variant, [one], program, source, template)
                right = self.adapt("admission-with", name, asked)
                self.judge(row, right, 0, len(asked))
                if row["admitted"]:
                    row["chosen"] = True
                    known = Known(MODEL, self.rows())
                    row["entry_id"] = check_deposits._entry_id(row, known)

    def uses(self) -> None:
        chosen = [row for row in self.deposits.values() if row["chosen"]]
        tested = {f.name: self.last(f) for f in self.plan.families}
        for family in self.plan.families:
            asked = self.plan.of(family, "transfer")
            self.adapt("adapt", tested[family.name], asked)
            if f"{family.name}/templated" in self.deposits:
                self.adapt("adapt-templated", f"{family.name}/templated", asked)
            for arm in ("adapt-text", "adapt-relocated") if family in self.plan.few else ():
                self.adapt(arm, tested[family.name], asked[:1], once=True)
        for group in self.plan.flat_groups([*tested]):
            for name in group:
                one = self.plan.of(name, "transfer")[0]
                held = [tested[other] for other in group]
                self.say("adapt-flat", one, self.adapted(tested[name], one), held)
        for row in chosen:
            one = self.plan.of(row["family"], "contest")[0]
            for arm in ("recall", "recall-text", "recall-relocated"):
                said = f" {one.answer}" if arm != "recall-relocated" else " 1"
                self.say(arm, one, said, (row["name"],))
        for family in self.plan.half:
            held = [self.plan.of(family, "contest")[0], *self.plan.of(family, "known")[:2]]
            programs = [family.program(one.params) for one in held]
            text = "\n".join(
                prompts.block_text(one.statement, program, one.answer)
                for one, program in zip(held, programs, strict=True)
            )
            name = f"{family.name}/examples"
            self.deposit(name, "examples", held, programs[0], SUPPLIED, text=text)
            self.say("recall-examples", held[0], f" {held[2].answer}", (name,))
        for group in self.plan.flat_groups([row["name"] for row in chosen]):
            for name in group:
                one = self.plan.of(self.deposits[name]["family"], "contest")[0]
                self.say("recall-flat", one, f" {one.answer}", group)

    def last(self, family: Family) -> str:
        rows = self.deposits.values()
        mine = [r for r in rows if (r["family"], r["variant"]) == (family.name, "deposited")]
        return str(mine[-1]["name"])

    def solved(self) -> None:
        for family in SOLVED:
            known = self.plan.of(family, "solved-known")
            self.deposit(family.name, "solved", known, family.program(known[0].params), SUPPLIED)
        self.deposit("method-card", "card", [], None, SUPPLIED, text=METHOD_CARD)
        right = dict.fromkeys(("solved-alone", "solved-with", "solved-card"), 0)
        for family in SOLVED:
            for one in self.plan.of(family, "solved"):
                self.say("solved-alone", one, f" {one.answer}")
                self.say("solved-with", one, family.program(one.params), (family.name,))
                said = self.say("solved-card", one, " 27", ("method-card",))
                right["solved-card"] += said["outcome"] == "answer"
            self.judge(self.deposits[family.name], SECTION["solved"], SECTION["solved"], 2)
        n = SECTION["solved"] * len(SOLVED)
        self.judge(self.deposits["method-card"], right["solved-card"], n, n)

    # -- router -------------------------------------------------------------------------------

    def routes(self) -> tuple[list[Row], Row]:
        held = [row for row in self.deposits.values() if names.in_library(row)]
        statements = [row["statement"] for row in held]
        rows: list[Row] = []
        for query in self.plan.queries:
            found = routing.shortlist(statements, query.statement, SECTION["shortlist"])
            exact = routing.exact(statements, query.statement)
            scores = []
            for index, _ in found if exact is None else []:
                own = held[index]["family"] == query.family
                far = -5.0 - (query.number % 7) / 10
                score = -0.125 if own else far
                scores.append({"deposit": held[index]["name"], "score": score, "tokens": 11})
            best = routing.best({one["deposit"]: one["score"] for one in scores})
            rows.append(
                flywheel_rows.route(
                    query.number,
                    query.kind,
                    query.family,
                    "recall" if exact is not None else "",
                    split=query.split,
                    statement=query.statement,
                    shortlist=[[held[index]["name"], points] for index, points in found],
                    scores=scores,
                    best=held[exact]["name"] if exact is not None else best and best[0],
                    score=best and best[1],
                    right=False,
                )
            )
        split = [row["score"] for row in rows if row["split"] == "calibration"]
        threshold = calibration.threshold_of(split, SECTION["alpha"])
        for row in rows:
            if not row["decision"]:
                best = None if row["best"] is None else (row["best"], row["score"])
                row["decision"] = routing.decide(best, threshold)
            row["right"] = check_routes._right(row, held)
        made = flywheel_rows.calibrated(
            len(split), threshold, statistic=routing.STATISTIC, alpha=SECTION["alpha"]
        )
        return rows, made

    # -- all ----------------------------------------------------------------------------------

    def rows(self) -> Rows:
        """Problems, programs, deposits, headers and generations, as far as they are made."""
        problems = [
            {
                **flywheel_rows.head("flywheel-problem"),
                "role": problem.role,
                "name": one.name,
                "family": one.family.name,
                "category": one.family.category,
                "tag": one.family.kind,
                "params": dict(one.params),
                "statement": one.statement,
                "answer": one.answer,
            }
            for problem in self.plan.problems
            for one in (problem.instance,)
        ]
        return {
            names.PROBLEMS: problems,
            names.PROGRAMS: [self.runs[key] for key in sorted(self.runs)],
            names.GENERATIONS: [row for arm in names.ARMS for row in self.arms[arm]],
            names.DEPOSITS: [*self.deposits.values()],
            names.HEADERS: [
                {"kind": "block-header", "version": 1, "id": key, "header": header}
                for key, header in self.headers.items()
            ],
        }

    def all(self) -> Rows:
        self.alone()
        self.propose()
        self.uses()
        self.solved()
        routes, calibrated = self.routes()
        entries = [row for row in self.deposits.values() if row["entry_id"]]
        return {
            **self.rows(),
            names.ROUTES: routes,
            names.CALIBRATION: [calibrated],
            names.GROWTH: [
                flywheel_rows.grown(
                    size, query, candidates=2, scored_tokens=22, rank=1e-5 * size, graft=0.01
                )
                for size in SECTION["growth"]
                for query in range(SECTION["growth_queries"])
            ],
            names.RUN: [
                flywheel_rows.run(
                    len(entries), sum(row["file_bytes"] for row in entries), python="3.11.7 (main)"
                )
            ],
            names.PROFILES: [
                {
                    "kind": "profile",
                    "version": 1,
                    "digest": digests.sha256_json(one),
                    "profile": one,
                }
                for one in DERIVED
            ],
        }


def made_rows() -> Rows:
    """All records of a small stage, of which a caller may change whatever it likes."""
    return copy.deepcopy(Maker().all())


def texts(found: Sequence[Any]) -> list[str]:
    """Problems as text."""
    return [f"{one.file}: {one.message}" for one in found]


def by_name(rows: Rows, name: str) -> Mapping[str, Any]:
    return next(row for row in rows[names.DEPOSITS] if row["name"] == name)
