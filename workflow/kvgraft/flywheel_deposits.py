"""The deposits of the stage flywheel: proposed, verified, stored, judged, and put into a context.

Every deposit's blocks lie in one store, so that refused ones can be measured too; those that are
admitted lie in a library as well, as any user's would. What is asked of them is `flywheel`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvaudit import kvb
from kvaudit.flywheel import files, prompts
from kvaudit.flywheel import plan as planning
from kvaudit.flywheel.check_deposits import AUTHOR
from kvaudit.flywheel.plan import EXAMPLES, Plan
from kvaudit.flywheel.records import ENTRIES, in_library
from kvaudit.kvb_map import MappedBlock
from kvaudit.problems.family import Family, Instance
from kvaudit.problems.solved import SOLVED
from kvgraft import library_deposit, templates
from kvgraft.flywheel_rows import Ledger, Problem, Row, Setting, digest
from kvgraft.library import Library
from kvgraft.library_deposit import Prepared
from kvgraft.library_entry import Admission, Demonstration, Proposal, Source
from kvgraft.session import Capture, Session
from kvgraft.solving import Known
from kvgraft.store import BlockStore
from kvgraft.templates import Template


@dataclass
class Deposited:
    """What was put into the store, and can be put into a context.

    Attributes:
        name: of a family's deposit the family's, with the variant behind a slash where it is not
            the first.
        texts: of the block, and of its child if there is one.
        headers: of the block and its child.
        row: the record, complete but for what is judged later.
    """

    name: str
    texts: tuple[str, ...]
    headers: tuple[kvb.BlockHeader, ...]
    row: Row


@dataclass
class Deposit(Deposited):
    """A deposit of the contest set.

    Attributes:
        family: whose problem it solves.
        variant: as in the record.
        problem: the instance that is asked for in a recall; a card has none.
        others: further instances that its text holds.
        known: statement and program.
        prepared: for a library to keep; None for what is no deposit of one problem.
    """

    family: Family
    variant: str
    problem: Instance
    others: tuple[Instance, ...]
    known: Known
    prepared: Prepared | None

    @property
    def admitted(self) -> bool:
        """Whether it passed its admission test."""
        return bool(self.row["admitted"])


@dataclass
class Shelf:
    """All deposits of a stage.

    Attributes:
        session: that computes their blocks.
        ledger: of the stage.
        plan: of the stage.
        store: of the blocks.
        library: of the deposits that were admitted.
    """

    session: Session
    ledger: Ledger
    plan: Plan
    store: BlockStore
    library: Library
    _held: dict[str, Deposit] = field(default_factory=dict)
    _of_files: dict[str, Deposited] = field(default_factory=dict)

    @classmethod
    def made(cls, work: Path, session: Session, ledger: Ledger, plan: Plan) -> Shelf:
        """An empty shelf in a folder that is made anew."""
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        store = BlockStore(work / "blocks")
        library = Library.create(work / "library", session.model.pin, session.profile)
        return cls(session, ledger, plan, store, library)

    # -- making -------------------------------------------------------------------------------

    def proposals(
        self, family: Family, problem: Instance, tries: Sequence[Mapping[str, Any]]
    ) -> Iterator[Deposit]:
        """Deposits for a problem, each to be judged before the next is asked for.

        The program of a try that printed the answer comes first; the supplied one takes its place
        where it was refused; the template of a hard-coded one is always measured too.

        Args:
            family: of the problem.
            problem: whose answer is known.
            tries: generations of the frozen model for it, in their order.
        """
        first = [number for number, row in enumerate(tries) if row["outcome"] == "answer"]
        name = family.name
        if first:
            row = tries[first[0]]
            source = Source.solved(
                "code",
                attempt=row["attempt"],
                tokens=sum(one["decoded_tokens"] for one in tries[: first[0] + 1]),
                model=self.ledger.model,
            )
            solved = self._deposit(name, family, problem, prompts.read_program(row["text"]), source)
            yield solved
            name = "" if solved.admitted else f"{family.name}/supplied"
        program = family.program(problem.params)
        if name:
            yield self._deposit(name, family, problem, program, Source.supplied(AUTHOR))
        if family.kind != "hard-coded" or "adapt-templated" not in self.plan.arms:
            return
        template = self._template(family, problem, program)
        if template is not None:
            yield self._deposit(
                f"{family.name}/templated",
                family,
                problem,
                template.program,
                Source.supplied(AUTHOR),
                variant="templated",
            )

    def _template(self, family: Family, problem: Instance, program: str) -> Template | None:
        known = [(one.statement, one.answer) for one in self.plan.of(family, "known")]
        return templates.find(
            problem.statement,
            program,
            known,
            lambda programs: [ran.answer for ran in self.ledger.sandbox.run_all(programs)],
        )

    def _deposit(
        self,
        name: str,
        family: Family,
        problem: Instance,
        program: str,
        source: Source,
        variant: str = "deposited",
    ) -> Deposit:
        """A deposit of one problem. A hard-coded one stands as its author wrote it."""
        template = shown = None
        if family.kind == "parametric" or variant == "templated":
            template = self._template(family, problem, program)
        if template is not None:
            other = self.plan.of(family, "known")[0]
            program = template.program
            shown = Demonstration(
                other.statement, templates.bind(template, other.statement), other.answer
            )
        proposal = Proposal(
            problem.statement,
            program,
            problem.answer,
            source,
            demonstration=shown,
            template=template,
        )
        begin = time.perf_counter()
        # Run by the ledger, so that what was run before is not run again.
        ran = self.ledger.run_all(library_deposit.programs(proposal))
        found = library_deposit.verified(proposal, ran)
        captures = library_deposit.captured(self.session, proposal)
        prepared = Prepared(library_deposit.entry_of(proposal, captures, found), captures)
        return self._shelve(
            name,
            family,
            variant,
            (problem,),
            Known(problem.statement, program),
            library_deposit.texts(proposal),
            captures,
            begin,
            source,
            template=template.to_json() if template else None,
            demonstration=self._shown(family, shown, captures) if shown else None,
            prepared=prepared,
        )

    def _shown(self, family: Family, shown: Demonstration, captures: Sequence[Capture]) -> Row:
        return {
            "problem": self.plan.of(family, "known")[0].name,
            "program_sha256": digest(shown.program),
            "block_id": captures[1].header.id,
        }

    def _shelve(
        self,
        name: str,
        family: Family,
        variant: str,
        problems: tuple[Instance, ...],
        known: Known,
        texts: tuple[str, ...],
        captures: Sequence[Capture],
        begin: float,
        source: Source,
        *,
        template: Row | None = None,
        demonstration: Row | None = None,
        prepared: Prepared | None = None,
    ) -> Deposit:
        row = self._row(
            name,
            family.name,
            variant,
            problems,
            known,
            texts[0],
            captures,
            begin,
            source,
            template=template,
            demonstration=demonstration,
        )
        deposit = Deposit(
            name,
            texts,
            tuple(capture.header for capture in captures),
            row,
            family,
            variant,
            problems[0],
            problems[1:],
            known,
            prepared,
        )
        self._held[name] = deposit
        return deposit

    def _row(
        self,
        name: str,
        family: str,
        variant: str,
        problems: Sequence[Problem],
        known: Known,
        text: str,
        captures: Sequence[Capture],
        begin: float,
        source: Source,
        *,
        template: Row | None = None,
        demonstration: Row | None = None,
    ) -> Row:
        """Store the blocks of a deposit; its record, not judged yet."""
        computed = time.perf_counter()
        ids = [self.store.put(c.header, c.tokens, c.state.data) for c in captures]
        return {
            "kind": "flywheel-deposit",
            "version": 1,
            "model": self.ledger.model,
            "name": name,
            "family": family,
            "variant": variant,
            "problems": [problem.name for problem in problems] if known.statement else [],
            "statement": known.statement,
            "answer": problems[0].answer if known.statement else None,
            "program_sha256": digest(known.program) if known.program else None,
            "source": source.to_json(),
            "template": template,
            "demonstration": demonstration,
            "block_id": ids[0],
            "entry_id": None,
            "text": text,
            "tokens": sum(len(capture.tokens) for capture in captures),
            "file_bytes": sum(self.store.path(block_id).stat().st_size for block_id in ids),
            "seconds": {
                "prefill": round(computed - begin, 6),
                "store": round(time.perf_counter() - computed, 6),
            },
            "admission": None,
            "admitted": False,
            "chosen": False,
        }

    def _written(
        self,
        name: str,
        family: Family,
        variant: str,
        problems: tuple[Instance, ...],
        known: Known,
        text: str,
    ) -> Deposit:
        """A deposit of another text than one problem's, made once."""
        if name in self._held:
            return self._held[name]
        begin = time.perf_counter()
        source = Source.supplied(AUTHOR)
        if known.program:
            self.ledger.run_all([known.program])
        statement = known.statement or text
        captures = library_deposit.captured_texts(self.session, source, [(statement, text)])
        return self._shelve(
            name,
            family,
            variant,
            problems,
            known,
            (text,),
            captures,
            begin,
            source,
        )

    def examples(self, family: Family) -> Deposit:
        """Several worked instances of a family in one block; the first is asked for."""
        problems = (
            *self.plan.of(family, "contest"),
            *self.plan.of(family, "known")[: EXAMPLES - 1],
        )
        programs = [family.program(one.params) for one in problems]
        text = "\n".join(
            prompts.block_text(one.statement, program, one.answer)
            for one, program in zip(problems, programs, strict=True)
        )
        known = Known(problems[0].statement, programs[0])
        return self._written(f"{family.name}/examples", family, "examples", problems, known, text)

    def solved(self, family: Family) -> Deposit:
        """A deposit of a family that needs none."""
        problem = self.plan.of(family, "solved-known")[0]
        program = family.program(problem.params)
        text = prompts.block_text(problem.statement, program, problem.answer)
        known = Known(problem.statement, program)
        return self._written(family.name, family, "solved", (problem,), known, text)

    def card(self, text: str) -> Deposit:
        """A text of a method, which solves no problem."""
        family = SOLVED[0]
        problem = self.plan.of(family, "solved-known")[0]
        return self._written("method-card", family, "card", (problem,), Known("", ""), text)

    def of_file(self, name: str, file: str, problem: Problem) -> Deposited:
        """A problem of a user's file with its answer, made once; no entry of a library."""
        if name not in self._of_files:
            begin = time.perf_counter()
            source = Source.supplied(files.author(file))
            text = prompts.worked_text(problem.statement, problem.answer)
            written = [(problem.statement, text)]
            captures = library_deposit.captured_texts(self.session, source, written)
            known = Known(problem.statement, "")
            row = self._row(name, file, "file", [problem], known, text, captures, begin, source)
            headers = tuple(capture.header for capture in captures)
            self._of_files[name] = Deposited(name, (text,), headers, row)
        return self._of_files[name]

    # -- judging ------------------------------------------------------------------------------

    def judge(self, deposit: Deposit, with_block: int, alone: int, n: int | None = None) -> None:
        """Note what a deposit did for fresh instances; an admitted one goes into the library."""
        n = self.plan.section["admission"] if n is None else n
        margin = float(self.plan.section["margin"])
        admitted = planning.admitted(with_block, alone, n, margin)
        found = {"instances": n, "with_block": with_block, "alone": alone, "margin": margin}
        deposit.row |= {"admission": found, "admitted": admitted}
        if admitted and deposit.prepared is not None:
            entry = self.library.keep(deposit.prepared)
            measured = Admission(n, with_block, alone, planning.needed(n, margin))
            deposit.row["entry_id"] = self.library.admit(entry.id, measured).id

    def choose(self, family: Family) -> None:
        """Mark the deposit that stands for a family: the admitted one, else the first."""
        mine = [d for d in self._of(family) if d.admitted] or [self.first(family)]
        mine[0].row["chosen"] = True

    # -- reading ------------------------------------------------------------------------------

    def _of(self, family: Family) -> list[Deposit]:
        held = self._held.values()
        return [d for d in held if d.family is family and d.variant in ENTRIES]

    def first(self, family: Family) -> Deposit:
        """The deposit whose transfer is measured: the admitted one of those as deposited, else the
        last of them, which is the supplied one.
        """
        mine = [d for d in self._of(family) if d.variant == "deposited"]
        return next((d for d in mine if d.admitted), mine[-1])

    def find(self, name: str) -> Deposit | None:
        """A deposit by its name."""
        return self._held.get(name)

    def chosen(self) -> list[Deposit]:
        """One deposit a family, in the order of the plan."""
        return [d for d in self._held.values() if d.row["chosen"]]

    def admitted(self) -> list[Deposit]:
        """The deposits that the library holds."""
        return [d for d in self._held.values() if in_library(d.row)]

    def rows(self) -> list[Row]:
        """The records, in the order of deposit."""
        return [deposit.row for deposit in self._all()]

    def headers(self) -> list[Row]:
        """The header of every block, each once."""
        found = {h.id: h for deposit in self._all() for h in deposit.headers}
        return [
            {"kind": "block-header", "version": 1, "id": block_id, "header": header.to_json()}
            for block_id, header in found.items()
        ]

    def _all(self) -> list[Deposited]:
        return [*self._held.values(), *self._of_files.values()]

    def library_size(self) -> tuple[int, int]:
        """Entries of the library, and the bytes of its blocks."""
        blocks = self.library.blocks
        return len(self.library), sum(blocks.path(one).stat().st_size for one in blocks)

    # -- putting into a context ---------------------------------------------------------------

    def _chain(self, deposit: Deposited, demonstrated: bool) -> list[MappedBlock]:
        headers = deposit.headers if demonstrated else deposit.headers[:1]
        return [self.store.get(header.id) for header in headers]

    def block(self, deposit: Deposit) -> MappedBlock:
        """A deposit's own block."""
        return self.store.get(deposit.headers[0].id)

    def graft(
        self, session: Session, deposit: Deposited, *, demonstrated: bool = False, offset: int = 0
    ) -> Setting:
        """Restore a deposit's block, and its demonstration if that is asked for."""
        session.reset()
        receipt = session.graft_chain(self._chain(deposit, demonstrated))
        if offset:
            session.relocate(offset, exact=False)
        return Setting((deposit.name,), receipt.restored_tokens, exact=session.is_exact)

    def read(self, session: Session, deposit: Deposited, *, demonstrated: bool = False) -> Setting:
        """Read the text that `graft` restores."""
        return self.read_together(session, [deposit], demonstrated=demonstrated)

    def read_together(
        self, session: Session, deposits: Sequence[Deposited], *, demonstrated: bool
    ) -> Setting:
        """Read the texts of deposits one behind the other."""
        session.reset()
        for deposit in deposits:
            for text in deposit.texts if demonstrated else deposit.texts[:1]:
                begin = not session.tokens
                lead = "" if begin or text.startswith("\n") else "\n"
                session.prefill(session.model.tokenize(lead + text, begin=begin))
        return Setting(tuple(d.name for d in deposits), read=len(session.tokens))
