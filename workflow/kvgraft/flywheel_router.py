"""The router's part of the stage flywheel: calibration, test queries, and cost against size.

What is decided by a score is `kvaudit.flywheel.routing`, the threshold `calibration`; this module
measures and writes rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvaudit.flywheel import calibration, prompts, routing
from kvaudit.flywheel.check_deposits import AUTHOR
from kvaudit.flywheel.plan import OWN, Plan, Query
from kvaudit.kvb_map import MappedBlock
from kvgraft import library_deposit
from kvgraft.energy import Meter
from kvgraft.flywheel_deposits import Deposit, Shelf
from kvgraft.flywheel_rows import Row
from kvgraft.library_entry import Proposal, Router, Source
from kvgraft.router import BlockRouter, Candidate, Routed
from kvgraft.session import Session

Note = Callable[[str], None]


@dataclass
class Routing:
    """Routes all queries of a plan over the admitted deposits of a shelf."""

    session: Session
    shelf: Shelf
    plan: Plan
    note: Note
    routes: list[Row] = field(default_factory=list)
    growth: list[Row] = field(default_factory=list)
    calibration: Row = field(default_factory=dict)
    _blocks: dict[str, str] = field(default_factory=dict)

    def measure(self) -> None:
        """All queries, the calibration split first, then growth; none where none is planned."""
        deposits = self.shelf.admitted()
        self._family = {deposit.name: deposit.family.name for deposit in deposits}
        router = self._router(
            [Candidate(d.name, d.known.statement, _opener(self.shelf, d)) for d in deposits]
        )
        found = [(query, router.route(query.statement)) for query in self.plan.queries]
        split = [routed for query, routed in found if query.split == "calibration"]
        bests = [routing.best(routed.scores) for routed in split]
        n, alpha = len(split), float(self.plan.section["alpha"])
        threshold = calibration.threshold_of([best and best[1] for best in bests], alpha)
        self.calibration = {
            **self._common("flywheel-calibration"),
            "statistic": routing.STATISTIC,
            "alpha": alpha,
            "n": n,
            "threshold": threshold,
        }
        self.shelf.library.route_by(Router(routing.STATISTIC, threshold, alpha, n))
        self.routes = [self._route(query, routed, threshold) for query, routed in found]
        if not found:
            return
        right = sum(row["right"] for row in self.routes if row["split"] == "test")
        self.note(f"{right} queries of the test split are routed right")
        self._grow()

    def _router(self, candidates: list[Candidate]) -> BlockRouter:
        section = self.plan.section
        return BlockRouter(self.session, candidates, section["shortlist"], section["scored_tokens"])

    def _common(self, kind: str) -> Row:
        return {"kind": kind, "version": 1, "model": self.session.model.name}

    def _route(self, query: Query, routed: Routed, threshold: float | None) -> Row:
        best = routing.best(routed.scores)
        if routed.exact is not None:
            decision, name = "recall", routed.exact
        else:
            decision = routing.decide(best, threshold)
            name = best[0] if best else ""
        mine = query.family if query.kind in OWN else None
        held = mine in self._family.values()
        right = not held if decision == "abstain" else held and self._family[name] == mine
        tokens = routed.scored_tokens // max(1, len(routed.scores))
        return {
            **self._common("flywheel-route"),
            "query": query.number,
            "split": query.split,
            "query_kind": query.kind,
            "statement": query.statement,
            "family": query.family,
            "shortlist": [list(entry) for entry in routed.shortlist],
            "scores": [
                {"deposit": deposit, "score": score, "tokens": tokens}
                for deposit, score in routed.scores.items()
            ],
            "best": name or None,
            "score": best[1] if best else None,
            "decision": decision,
            "right": right,
            "seconds": {
                "rank": round(routed.rank_s, 6),
                "graft": round(routed.graft_s, 6),
                "score": round(routed.score_s, 6),
            },
        }

    # -- growth -------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Cost of a query against the number of entries.

        Blocks of the further entries are computed when a shortlist first names them, apart from the
        time that is measured: what a query costs does not depend on blocks that it does not open.
        """
        section = self.plan.section
        queries = [q for q in self.plan.queries if q.split == "test" and q.kind == "new"]
        for entries in section["growth"]:
            candidates = self._many(entries)
            router = self._router(candidates)
            for number, query in enumerate(queries[: section["growth_queries"]]):
                router.route(query.statement)  # computes what is missing, warms what is not
                routed = router.route(query.statement)
                self.growth.append(
                    {
                        **self._common("flywheel-growth"),
                        "entries": entries,
                        "query": number,
                        "candidates": len(routed.scores),
                        "scored_tokens": routed.scored_tokens,
                        "seconds": {
                            "rank": round(routed.rank_s, 6),
                            "graft": round(routed.graft_s, 6),
                            "score": round(routed.score_s, 6),
                        },
                    }
                )
            self.note(f"routing over {entries} entries measured")

    def _many(self, entries: int) -> list[Candidate]:
        made = []
        for one in self.plan.further(entries):
            program = one.family.program(one.params)
            text = prompts.block_text(one.statement, program, one.answer)
            proposal = Proposal(one.statement, program, one.answer, Source.supplied(AUTHOR), text)
            made.append(Candidate(one.name, one.statement, self._computed(one.name, proposal)))
        return made

    def _computed(self, name: str, proposal: Proposal) -> Callable[[], MappedBlock]:
        def open_() -> MappedBlock:
            if name not in self._blocks:
                made = library_deposit.captured(self.session, proposal)[0]
                self._blocks[name] = self.shelf.store.put(made.header, made.tokens, made.state.data)
            return self.shelf.store.get(self._blocks[name])

        return open_


def _opener(shelf: Shelf, deposit: Deposit) -> Callable[[], MappedBlock]:
    return lambda: shelf.block(deposit)


def energy(meter: Meter | None = None) -> Row:
    """What a meter read over the stage and what that covers, or why there are no joules."""
    return (meter or Meter()).reading().to_json()
