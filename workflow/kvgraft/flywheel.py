"""The stage `flywheel`: solve, verify, deposit, route, graft, answer; and every control of it.

The frozen model first tries the contest alone. Verified solutions are deposited, tested on fresh
instances, and those that help make the library. Then: recall and transfer, with their baselines;
the router; families that need no library; a harmful card. The plan is `kvaudit.flywheel.plan`; what
the records amount to is decided by `kvaudit`, not here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit.flywheel import prompts
from kvaudit.flywheel.plan import Plan
from kvaudit.flywheel.records import FILE_ARMS
from kvaudit.problems.family import Family, Instance
from kvaudit.problems.solved import METHOD_CARD, SOLVED
from kvaudit.sandbox import Sandbox
from kvgraft import flywheel_router
from kvgraft.energy import Meter
from kvgraft.flywheel_deposits import Deposit, Shelf
from kvgraft.flywheel_files import FileArms
from kvgraft.flywheel_rows import (
    FLAT_N_CTX,
    N_CTX,
    Cost,
    Ledger,
    Problem,
    Questions,
    Row,
    Setting,
    program_limits,
)
from kvgraft.model import FrozenModel
from kvgraft.profile import ProfileSettings
from kvgraft.session import Session
from kvgraft.solving import Known, Sampling, adapt, ask_all

MAX_BATCH = 512
BRANCHES = 8
OFFSET = 64
"""Positions by which a block is relocated in the arms that do so."""

Note = Callable[[str], None]


@dataclass
class Flywheel:
    """One model under one profile.

    Attributes:
        model: the opened model.
        settings: of the configured profile; context, batch and threads are derived from it.
        options: the configuration's `flywheel` section.
        seed: name from which all draws derive.
        work: folder for blocks and the library, outside the evidence; made anew.
        note: called with one line of progress.
        meter: of energy, not begun yet; that of this machine where None.
    """

    model: FrozenModel
    settings: ProfileSettings
    options: Mapping[str, Any]
    seed: str
    work: Path
    note: Note
    meter: Meter | None = None

    def measure(self) -> dict[str, list[Row]]:
        """All records of the stage, by kind of file.

        Raises:
            InputChanged: a problem file of the user is not the pinned one.
            UnusableInput: it cannot be read, or holds nothing that could be asked.
            SandboxUnavailable: programs cannot be run in isolation here.
            StoreFull: the disk has no room for the blocks.
        """
        self.plan = Plan(self.options, self.seed)
        files = FileArms.opened(self.options, self.model)
        derived = self.settings.with_(n_batch=MAX_BATCH, n_threads=1)
        seconds: dict[str, float] = {}
        limits = program_limits(self.options["program_seconds"])
        devices = self.settings.n_gpu_layers > 0
        with self.meter or Meter(devices=devices) as meter, Sandbox(limits) as sandbox:
            self._joules = meter.joules
            self.ledger = Ledger(self.model.name, sandbox)
            python = sandbox.run("import sys\nprint(sys.version)").output.decode().strip()
            with Session(self.model, derived.with_(n_ctx=N_CTX), BRANCHES) as session:
                self.session = session
                profiles = [session.profile]
                self.shelf = Shelf.made(self.work, session, self.ledger, self.plan)
                for part in (self._alone, self._deposits, self._transfers, self._recalls):
                    self._timed(seconds, part)
                if self._asks("solved-alone"):
                    self._timed(seconds, self._solved)
                if files.rows:
                    self._timed(seconds, lambda: files.measure(self, self.shelf), "files")
                router = flywheel_router.Routing(session, self.shelf, self.plan, self.note)
                self._timed(seconds, router.measure, "router")
            with Session(self.model, derived.with_(n_ctx=FLAT_N_CTX), BRANCHES) as session:
                self.session = session
                profiles.append(session.profile)
                self._timed(seconds, self._flat)
                if files.rows:
                    self._timed(seconds, lambda: files.measure_flat(self, self.shelf), "files-flat")
        generations = self.ledger.generations(joules=meter.reading().joules is not None)
        deposits = self.shelf.rows()
        named = {row["program_sha256"] for row in [*generations, *deposits]}
        named |= {
            row["demonstration"]["program_sha256"] for row in deposits if row["demonstration"]
        }
        return {
            "problems": [
                *(self._problem(p.role, p.instance) for p in self.plan.problems),
                *files.records(),
            ],
            "programs": self.ledger.programs(named - {None}),
            "generations": generations,
            "deposits": deposits,
            "headers": self.shelf.headers(),
            "routes": router.routes,
            "calibration": [router.calibration],
            "growth": router.growth,
            "run": [self._run(seconds, python, meter)],
            "profiles": [
                {"kind": "profile", "version": 1, "digest": p.digest, "profile": p.to_json()}
                for p in profiles
            ],
        }

    def _timed(
        self, seconds: dict[str, float], part: Callable[[], None], name: str | None = None
    ) -> None:
        begin = time.perf_counter()
        part()
        name = name or part.__name__.strip("_")
        seconds[name] = round(time.perf_counter() - begin, 6)
        self.note(f"{name}: {seconds[name]:.0f} s")

    def _problem(self, role: str, one: Instance) -> Row:
        family = one.family
        return {
            "kind": "flywheel-problem",
            "version": 1,
            "model": self.model.name,
            "role": role,
            "name": one.name,
            "family": family.name,
            "category": family.category,
            "tag": family.kind,
            "params": dict(one.params),
            "statement": one.statement,
            "answer": one.answer,
        }

    def _run(self, seconds: Mapping[str, float], python: str, meter: Meter) -> Row:
        entries, size = self.shelf.library_size()
        return {
            "kind": "flywheel-run",
            "version": 1,
            "model": self.model.name,
            "energy": flywheel_router.energy(meter),
            "python": python,
            "seconds": dict(seconds),
            "library": {"entries": entries, "bytes": size},
            **({"arms": [*self.options["arms"]]} if "arms" in self.options else {}),
        }

    def _asks(self, arm: str) -> bool:
        return arm in self.plan.arms or arm in FILE_ARMS

    def _cost(self, begin: float, joules: float | None, n: int) -> Cost:
        """What each of `n` generations took, of those that were made side by side since."""
        now, share = self._joules(), max(1, n)
        spent = None if now is None or joules is None else (now - joules) / share
        return Cost((time.perf_counter() - begin) / share, spent)

    # -- asking -------------------------------------------------------------------------------

    def _sampling(self, arm: str, problem: Problem, attempt: int, limit: str) -> Sampling:
        if attempt == 0:
            return Sampling(self.options[limit])
        return Sampling(
            self.options[limit],
            self.options["temperature"],
            self.plan.attempt_seed(arm, problem.name, attempt),
        )

    def ask(self, what: Questions) -> list[Row]:
        """Ask questions; none of an arm that the configuration leaves out."""
        arm, session = what.arm, self.session
        if not self._asks(arm):
            return []
        asked = [(problem, n) for problem in what.problems for n in range(what.attempts)]
        samplings = [self._sampling(arm, problem, n, what.limit) for problem, n in asked]
        texts = [what.question(problem) for problem, _ in asked]
        begin, before = time.perf_counter(), self._joules()
        said = ask_all(session, texts, samplings, (prompts.stop(arm),), begin=not session.tokens)
        cost = self._cost(begin, before, len(said))
        return [
            self.ledger.add(arm, problem, one, sampling, what.setting, cost, attempt=n)
            for (problem, n), one, sampling in zip(asked, said, samplings, strict=True)
        ]

    def _text(
        self, arm: str, problems: Sequence[Instance], setting: Setting, n: int = 1
    ) -> list[Row]:
        return self.ask(
            Questions(
                arm,
                problems,
                lambda problem: prompts.direct_text(problem.statement),
                "answer_tokens",
                setting,
                n,
            )
        )

    def _code(self, arm: str, problems: Sequence[Instance], n: int = 1) -> list[Row]:
        return self.ask(
            Questions(
                arm,
                problems,
                lambda problem: prompts.code_text(problem.statement),
                "program_tokens",
                Setting(),
                n,
            )
        )

    def _recalls_of(self, arm: str, deposits: Sequence[Deposit], setting: Setting) -> list[Row]:
        """Ask for the deposits' own problems of what the session holds."""
        programs = {deposit.problem.name: deposit.known.program for deposit in deposits}
        return self.ask(
            Questions(
                arm,
                [deposit.problem for deposit in deposits],
                lambda one: prompts.recall_text(one.statement, programs[one.name]),
                "recall_tokens",
                setting,
            )
        )

    def _adapt(
        self,
        arm: str,
        problems: Sequence[Instance],
        known: Sequence[Known],
        setting: Setting,
        attempts: int = 1,
    ) -> list[bool]:
        """Adapt to problems, each from its known one; whether what passed the gate is right."""
        samplings = [
            [self._sampling(arm, problem, attempt, "program_tokens") for attempt in range(attempts)]
            for problem in problems
        ]
        begin, before = time.perf_counter(), self._joules()
        statements = [problem.statement for problem in problems]
        found = adapt(self.session, known, statements, samplings)
        cost = self._cost(begin, before, sum(map(len, found)))
        right = []
        for problem, mine, sampled in zip(problems, found, samplings, strict=True):
            rows = [
                self.ledger.add(
                    arm,
                    problem,
                    one.said,
                    sampled[one.attempt],
                    setting,
                    cost,
                    attempt=one.attempt,
                    judged=one.gate,
                )
                for one in mine
            ]
            right.append(rows[-1]["gate"] == "passed" and rows[-1]["outcome"] == "answer")
        return right

    # -- parts --------------------------------------------------------------------------------

    def _contest(self) -> list[Instance]:
        return [self.plan.of(family, "contest")[0] for family in self.plan.families]

    def _all(self, role: Any) -> list[Instance]:
        return [one for family in self.plan.families for one in self.plan.of(family, role)]

    def _few_of(self, families: Sequence[Family]) -> list[Instance]:
        """The first transfer instances of families, for costly baselines."""
        n = self.options["baselines"]
        return [one for family in families for one in self.plan.of(family, "transfer")[:n]]

    def _alone(self) -> None:
        """The frozen model without any block."""
        self.session.reset()
        self._text("text", self._contest(), Setting(), self.options["attempts"])
        self.tries = self._code("code", self._contest(), self.options["code_attempts"])
        self.alone = self._text("admission-alone", self._all("admission"), Setting())
        self._code("alone", self._few_of(self.plan.families))
        self._text("alone-text", self._all("transfer"), Setting())
        solved = sum(row["outcome"] == "answer" for row in self.tries)
        self.note(f"{solved} of {len(self.tries)} programs for the contest are right")

    def _deposits(self) -> None:
        """Verified solutions as blocks, each tested on fresh instances."""
        for family in self.plan.families:
            problem = self.plan.of(family, "contest")[0]
            mine = [row for row in self.tries if row["problem"] == problem.name]
            for deposit in self.shelf.proposals(family, problem, mine):
                if not self._asks("admission-with"):
                    continue
                with_block = sum(
                    self._adapted("admission-with", deposit, self.plan.of(family, "admission"))
                )
                alone = sum(
                    row["outcome"] == "answer"
                    for row in self.alone
                    if row["problem"] in {p.name for p in self.plan.of(family, "admission")}
                )
                self.shelf.judge(deposit, with_block, alone)
                self.note(
                    f"{deposit.name}: with its block {with_block}/{self.options['admission']}, "
                    f"alone {alone}: {'admitted' if deposit.admitted else 'refused'}"
                )
            self.shelf.choose(family)

    def _adapted(self, arm: str, deposit: Deposit, problems: Sequence[Instance]) -> list[bool]:
        setting = self.shelf.graft(self.session, deposit, demonstrated=True)
        attempts = self.options["adapt_attempts"]
        return self._adapt(arm, problems, [deposit.known] * len(problems), setting, attempts)

    def _transfers(self) -> None:
        """New instances of every family, with the first deposit and with the templated one."""
        right = n = 0
        for family in self.plan.families:
            if not self._asks("adapt"):
                return
            problems = self.plan.of(family, "transfer")
            found = self._adapted("adapt", self.shelf.first(family), problems)
            right, n = right + sum(found), n + len(found)
            if family in self.plan.few:
                self._transfer_baselines(self.shelf.first(family), self._few_of([family]))
        for family in self.plan.families:
            templated = self.shelf.find(f"{family.name}/templated")
            if templated is not None:
                self._adapted("adapt-templated", templated, self.plan.of(family, "transfer"))
        self.note(f"{right} of {n} transfers are right")

    def _transfer_baselines(self, deposit: Deposit, problems: Sequence[Instance]) -> None:
        for arm in filter(self._asks, ("adapt-text", "adapt-relocated")):
            if arm == "adapt-text":
                setting = self.shelf.read(self.session, deposit, demonstrated=True)
            else:
                setting = self.shelf.graft(self.session, deposit, demonstrated=True, offset=OFFSET)
            self._adapt(arm, problems, [deposit.known] * len(problems), setting)

    def _recalls(self) -> None:
        """The deposits' own problems, read back."""
        right = 0
        for deposit in self.shelf.chosen():
            for arm in filter(self._asks, ("recall", "recall-text", "recall-relocated")):
                if arm == "recall-text":
                    setting = self.shelf.read(self.session, deposit)
                else:
                    offset = OFFSET if arm == "recall-relocated" else 0
                    setting = self.shelf.graft(self.session, deposit, offset=offset)
                row = self._recalls_of(arm, [deposit], setting)[0]
                right += arm == "recall" and row["outcome"] == "answer"
        for family in self.plan.half if self._asks("recall-examples") else ():
            deposit = self.shelf.examples(family)
            setting = self.shelf.graft(self.session, deposit)
            self._recalls_of("recall-examples", [deposit], setting)
        if self._asks("recall"):
            self.note(f"{right} of {len(self.shelf.chosen())} recalls are right")

    def _flat(self) -> None:
        """Many blocks in one prefix; all questions of a group side by side."""
        chosen = {deposit.family.name: deposit for deposit in self.shelf.chosen()}
        for group in self.plan.flat_groups([*chosen] if self._asks("recall-flat") else []):
            deposits = [chosen[name] for name in group]
            setting = self.shelf.read_together(self.session, deposits, demonstrated=False)
            self._recalls_of("recall-flat", deposits, setting)
        first = {family.name: self.shelf.first(family) for family in self.plan.families}
        for group in self.plan.flat_groups([*first] if self._asks("adapt-flat") else []):
            deposits = [first[name] for name in group]
            setting = self.shelf.read_together(self.session, deposits, demonstrated=True)
            asked = [(d.known, one) for d in deposits for one in self._few_of([d.family])]
            self._adapt("adapt-flat", [one for _, one in asked], [k for k, _ in asked], setting)

    SOLVED_ARMS = ("solved-alone", "solved-with", "solved-card")

    def _solved(self) -> None:
        """Families that need no library, alone, with a deposit, and behind the method card."""
        problems = {family.name: self.plan.of(family, "solved") for family in SOLVED}
        for arm, family in itertools.product(self.SOLVED_ARMS, SOLVED):
            asked = problems[family.name]
            if arm == "solved-alone":
                self.session.reset()
                setting = Setting()
            elif arm == "solved-with":
                deposit = self.shelf.solved(family)
                setting = self.shelf.graft(self.session, deposit)
                self._adapt(arm, asked, [deposit.known] * len(asked), setting)
                continue
            else:
                setting = self.shelf.graft(self.session, self.shelf.card(METHOD_CARD))
            self._text(arm, asked, setting)
        counts = {arm: self._right(arm, problems) for arm in self.SOLVED_ARMS}
        n = sum(map(len, problems.values()))
        self.shelf.judge(
            self.shelf.card(METHOD_CARD),
            sum(counts["solved-card"].values()),
            sum(counts["solved-alone"].values()),
            n,
        )
        for family in SOLVED:
            with_block, alone = (
                counts[arm][family.name] for arm in ("solved-with", "solved-alone")
            )
            deposit = self.shelf.solved(family)
            self.shelf.judge(deposit, with_block, alone, len(problems[family.name]))
        self.note(f"solved families: {counts} of {n}")

    def _right(self, arm: str, problems: Mapping[str, Sequence[Instance]]) -> dict[str, int]:
        """Right answers of an arm by family; behind the gate, where there is one."""
        right = {
            row["problem"]
            for row in self.ledger.generations()
            if row["arm"] == arm and row["outcome"] == "answer" and row["gate"] in (None, "passed")
        }
        return {name: sum(one.name in right for one in ones) for name, ones in problems.items()}
