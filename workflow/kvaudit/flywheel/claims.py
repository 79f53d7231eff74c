"""The claims of the stage flywheel: F1 to F10, templates, and the exact graft.

A configuration that asks too little for a claim leaves it unjudged, and so does a verifier that
could not run the programs again which the claim rests on: on their answers, or on the library
that their answers led to. F-exact rests on neither, for it compares bytes of whatever blocks there
are. What is too little is decided by what
was asked, not by what came out; only where no problem turns out hard is nothing left to compare
with in F3, and no family solved alone in F7 and F8. This module must not read files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvaudit.claims import Evidence, Outcome, holds, rule
from kvaudit.flywheel import blocks, contest, economy, file_tables, routes
from kvaudit.flywheel import wording as say
from kvaudit.flywheel.figures import Found
from kvaudit.flywheel.records import ROUTER

MIN_PROBLEMS = 20
"""Contest problems. With fewer, six differing pairs, the least that McNemar's test can tell apart
at 5%, are a third of all."""

MIN_TRANSFERS = 100
"""New instances of parametric families."""

MIN_BASELINES = 20
"""New instances that the baselines were asked, and those of hard-coded families."""

MIN_QUERIES, MIN_NOT_OWN = 300, 100
"""Queries of the test split, and near misses and foreign ones among them."""

MIN_SOLVED = 20
"""Instances of families that the model solves alone."""

MIN_FAMILIES = 10
"""Families behind an interval that takes a family for a sample."""

RECALLED, MAX_DECODED, MIN_RATIO = 0.95, 10, 10.0
ROUTED_RIGHT, COVERED = 0.95, 0.5
EQUIVALENT = 0.1
"""Largest difference that F7 takes for none."""
GOAL, GOAL_ALONE = 0.9, 0.15
"""What issue and paper have of transfer: the rate with the library, and alone."""

Judge = Callable[[Evidence], tuple[str, Outcome]]


def _asking(*arms: str) -> Callable[[Judge], Judge]:
    """Leaves a claim unjudged where the configuration did not ask what it compares."""

    def wrapped(judge: Judge) -> Judge:
        def judged(evidence: Evidence) -> tuple[str, Outcome]:
            missing = [arm for arm in arms if not _found(evidence).asked(arm)]
            if missing:
                return f"not asked: {', '.join(missing)}", "not run here"
            return judge(evidence)

        return judged

    return wrapped


def _found(evidence: Evidence) -> Found:
    return Found(evidence.subject, evidence.records)


def _too_few(n: int, least: int, what: str) -> tuple[str, Outcome] | None:
    if n >= least:
        return None
    return f"{n} {what}, {least} are needed to judge", "not run here"


# -- F1, F2, F3, F10: the contest problems ------------------------------------------------------


@rule(
    "F1",
    stage="flywheel",
    title="the library on contest problems",
    criterion="confident answers with the library's for the rest solve more than the frozen "
    f"model's first answer; exact McNemar p < {say.LEVEL:g}; at least {MIN_PROBLEMS} problems",
    paper="80.0% (24/30) frozen; 22 confident and 6 of 8 from the library: 93.3%",
    on_programs=True,
)
@_asking("text", "code", "recall", ROUTER)
def _f1(evidence: Evidence) -> tuple[str, Outcome]:
    made = contest.contest(_found(evidence))
    few = _too_few(made["problems"], MIN_PROBLEMS, "contest problems")
    if few:
        return few
    pair, ways = made["comparisons"]["confident_library_pass_at_1"], made["ways"]
    measured = (
        f"{say.rate(ways['confident_library'])} against {say.rate(ways['pass_at_1'])}, "
        f"{say.mcnemar(pair)}; {made['confident']['n']} confident "
        f"({made['confident']['right']} right), of {made['failing']} others "
        f"{made['failing_by_library']['right']} by the library, which has "
        f"{made['in_library']}/{made['problems']}; best-of-n with the key "
        f"{say.rate(ways['best_of_n'])}"
    )
    return measured, holds(say.beats(pair))


@rule(
    "F2",
    stage="flywheel",
    title="ways to answer",
    criterion="code with the library solves more than voting and more than code; exact McNemar "
    f"p < {say.LEVEL:g} both times; at least {MIN_PROBLEMS} problems",
    paper="pass@1 56.7% (~3,300 tokens each), voting 76.7% (~25,000), code 76.7% (~4,100), code "
    "and library 90.0% (~4,360)",
    on_programs=True,
)
@_asking("text", "code", "recall", ROUTER)
def _f2(evidence: Evidence) -> tuple[str, Outcome]:
    made = contest.contest(_found(evidence))
    few = _too_few(made["problems"], MIN_PROBLEMS, "contest problems")
    if few:
        return few
    vote, code = (made["comparisons"][f"code_library_{other}"] for other in ("vote", "code"))
    shown = (
        ("pass@1", "pass_at_1"),
        ("voting", "vote"),
        ("code", "code"),
        ("code and library", "code_library"),
    )
    measured = "; ".join(
        f"{label} {say.rate(made['ways'][way])}, "
        f"{made['ways'][way]['decoded_tokens'] / made['problems']:,.0f} decoded each"
        for label, way in shown
    )
    measured += f"; against voting {say.mcnemar(vote)}, against code {say.mcnemar(code)}"
    return measured, holds(say.beats(vote) and say.beats(code))


@rule(
    "F3",
    stage="flywheel",
    title="recurrence",
    criterion=f"with routing at least {RECALLED:.0%} of the library's problems recalled, each in "
    f"at most {MAX_DECODED} decoded tokens; all own attempts at the hard ones (none right) decoded "
    f"more than {MIN_RATIO:g} times as many; at least {MIN_PROBLEMS} contest problems",
    paper="best-of-5 0/8 in 401,026 tokens; recurrence 8/8 in 61 tokens (6,574x), 2.8 s",
    on_programs=True,
)
@_asking("text", "code", "recall", ROUTER)
def _f3(evidence: Evidence) -> tuple[str, Outcome]:
    found = _found(evidence)
    few = _too_few(len(found.of("contest")), MIN_PROBLEMS, "contest problems")
    if few:
        return few
    made = contest.recurrence(found)
    library, own, back = made["library"], made["hard_own"], made["hard_recall"]
    ratios, energy = made["ratios"], made["energy"]
    measured = (
        f"{say.rate(library)} of the library's, at most {say.number(made['decoded_max'])} decoded, "
        f"{say.number(made['seconds_median'])} s; {made['hard']} hard, of them in the library "
        f"{say.count(made['hard_in_library'])} recalled: decoded "
        f"{own['decoded_tokens']:,} by own attempts, {back['decoded_tokens']:,} by recall, "
        f"{say.number(ratios['decoded'])}x (words alone {say.number(ratios['decoded_text'])}x); "
        f"with tokens read {say.number(ratios['all'])}x; energy {say.energy(energy)}"
    )
    if not library["n"] or made["decoded_max"] is None:
        return f"{measured}; nothing was recalled", "fails"
    if library["right"] < RECALLED * library["n"] or made["decoded_max"] > MAX_DECODED:
        return measured, "fails"
    if not made["hard"]:
        return f"{measured}; no problem is hard, nothing to compare with", "not run here"
    return measured, holds(ratios["decoded"] is not None and ratios["decoded"] > MIN_RATIO)


@rule(
    "F10",
    stage="flywheel",
    title="own attempts and their tokens",
    criterion="tokens read and decoded for one solved problem: fewer by the library than by own "
    f"attempts; at least {MIN_PROBLEMS} contest problems",
    paper="a large mixture model spent 2.44 M tokens against 0.77 M, half its tries unfinished",
    on_programs=True,
)
@_asking("text", "code", "recall", ROUTER)
def _f10(evidence: Evidence) -> tuple[str, Outcome]:
    found = _found(evidence)
    few = _too_few(len(found.of("contest")), MIN_PROBLEMS, "contest problems")
    if few:
        return few
    made = contest.attempts(found)
    own, library = made["own"], made["library"]
    paid = economy.break_even(found)["all"]["recurrences"]
    measured = (
        f"own attempts {say.spent(own)}, {say.share(made['unfinished_share'])} unfinished; library "
        f"{say.spent(library)}; an entry has paid for itself after {say.number(paid)} recurrences"
    )
    if not library["right"]:
        return measured, "fails"
    mine, theirs = library["per_solved"], own["per_solved"]
    # Attempts that solve nothing have no price that could be lower.
    return measured, holds(theirs is None or mine["all_tokens"] < theirs["all_tokens"])


# -- F4, F9 and the exact graft -----------------------------------------------------------------


@rule(
    "F4",
    stage="flywheel",
    title="one block against all in one prefix",
    criterion="recall from the routed block less recall from several in one prefix: 95% interval "
    f"above 0; at least {MIN_PROBLEMS} problems",
    paper="one prefix 5/8, one answer taken from another problem; routed 8/8",
    on_programs=True,
)
@_asking("recall", "recall-flat")
def _f4(evidence: Evidence) -> tuple[str, Outcome]:
    made = blocks.routed(_found(evidence))
    flat = made["recall"]["flat"]
    few = _too_few(flat["first"]["n"], MIN_PROBLEMS, "recalls from one prefix")
    if few:
        return few
    others = (
        f"{name}: {' '.join(say.count(made[arm][key]['second']) for arm in ('recall', 'adapt'))}"
        for name, key in (("relocated", "relocated"), ("text read again", "text"))
    )
    measured = (
        f"{say.rate(flat['first'])} routed, {say.rate(flat['second'])} from one prefix, "
        f"{flat['second_taken']} answers taken from another problem; {say.difference(flat)}, "
        f"p {flat['mcnemar']['p']:.2g}; recall and adaptation {'; '.join(others)}"
    )
    return measured, holds(say.above(flat))


@rule(
    "F9",
    stage="flywheel",
    title="categories, routed against one prefix",
    criterion="adaptation from the routed block less that from several in one prefix: 95% "
    f"intervals above 0, over instances and over families; at least {MIN_BASELINES} instances of "
    f"{MIN_FAMILIES} families; by category and for blocks of several examples as measured",
    paper="43/60 = 71.7% routed, 56.7% flat; logic ~90%, olympiad ~25%; blocks of several examples "
    "recur 5/20",
    on_programs=True,
)
@_asking("adapt", "adapt-flat")
def _f9(evidence: Evidence) -> tuple[str, Outcome]:
    found = _found(evidence)
    made = blocks.categories(found)
    pair, examples = made["routed_flat"], made["examples_recall"]
    few = _too_few(pair["first"]["n"], MIN_BASELINES, "instances asked from one prefix")
    few = few or _too_few(pair["by_family"]["n"], MIN_FAMILIES, "families asked")
    if few:
        return few
    table = ", ".join(f"{row['category']} {_counts(row)}" for row in made["categories"])
    measured = (
        f"{say.rate(pair['first'])} routed, {say.rate(pair['second'])} flat: "
        f"{say.difference(pair)}; routed/flat/alone of n: {table}; blocks of several "
        f"examples recalled {say.count(examples['first'])}, the same problems alone in a block "
        f"{say.count(examples['second'])}{say.files(file_tables.tables(found))}"
    )
    return measured, holds(say.above(pair) and say.above(pair, "by_family"))


def _counts(row: Mapping[str, Any]) -> str:
    rights = "/".join(str(row[key]["right"]) for key in ("routed", "flat", "alone"))
    return f"{rights} of {row['routed']['n']}"


@rule(
    "F-exact",
    stage="flywheel",
    title="a recall is the text's own",
    criterion="every recall from a grafted block has the bytes of the first logits, and the text, "
    "that prefilling the block's text gives; every one is marked exact",
    paper="- (the ground of every row)",
)
@_asking("recall", "recall-text")
def _f_exact(evidence: Evidence) -> tuple[str, Outcome]:
    made = blocks.routed(_found(evidence))["bytes"]
    n = made["recalls"]
    measured = (
        f"{made['equal_logits']}/{n} equal in the bytes of their logits, {made['equal_texts']}/{n} "
        f"in text; {made['exact']}/{n} marked exact"
    )
    same = made["equal_logits"] == made["equal_texts"] == made["exact"] == made["pairs"] == n
    return measured, holds(same and n > 0)


# -- F5: new numbers ----------------------------------------------------------------------------


@rule(
    "F5",
    stage="flywheel",
    title="transfer to new numbers",
    criterion="adapted programs of parametric families less answers that the frozen model gives "
    "alone, in words: 95% intervals above 0, over instances and over families; at least "
    f"{MIN_TRANSFERS} new instances of {MIN_FAMILIES} families",
    paper="12B 5/7, 31B 7/7; failures where a constant was hard-coded",
    on_programs=True,
)
@_asking("adapt", "alone-text")
def _f5(evidence: Evidence) -> tuple[str, Outcome]:
    table = blocks.transfer(_found(evidence))
    made, hard = table["parametric"], table["hard_coded"]
    pair, rate = made["adapt_alone_text"], made["adapt"]
    few = _too_few(pair["first"]["n"], MIN_TRANSFERS, "new instances of parametric families")
    few = few or _too_few(pair["by_family"]["n"], MIN_FAMILIES, "parametric families")
    if few:
        return few
    alone = max(made["alone"], made["alone_text"], key=lambda one: say.part(one))
    reached = say.part(rate) >= GOAL and say.part(alone) <= GOAL_ALONE
    measured = (
        f"{say.rate(rate)}, {made['abstained']} abstained, {made['wrong']} wrong; alone "
        f"{say.rate(made['alone'])} by program, {say.rate(made['alone_text'])} in words; "
        f"{say.difference(pair)}, p {pair['mcnemar']['p']:.2g}; first attempt without the gate "
        f"{say.rate(made['ungated_greedy'])}; {GOAL:.0%} with and at most {GOAL_ALONE:.0%} alone "
        f"are {'reached' if reached else 'not reached'}; hard-coded {say.rate(hard['adapt'])}, "
        f"{hard['abstained']} abstained, {hard['wrong']} wrong"
    )
    return measured, holds(say.above(pair) and say.above(pair, "by_family"))


@rule(
    "F5-templates",
    stage="flywheel",
    title="templates of hard-coded programs",
    criterion="adapted templates less adapted hard-coded programs on the same new instances: 95% "
    f"intervals above 0, over instances and over families; at least {MIN_BASELINES} new instances "
    "of hard-coded families",
    paper="- (an open problem there)",
    on_programs=True,
)
@_asking("adapt-templated")
def _f5_templates(evidence: Evidence) -> tuple[str, Outcome]:
    made = blocks.transfer(_found(evidence))
    few = _too_few(
        made["hard_coded"]["adapt"]["n"], MIN_BASELINES, "new instances of hard-coded families"
    )
    if few:
        return few
    pair, found = made["templated_plain"], made["templates"]["hard_coded"]
    templated = made["templated"]
    measured = (
        f"{found['with_template']}/{found['families']} hard-coded families have a template, "
        f"without a token of the model; {say.rate(pair['first'])} templated, "
        f"{say.rate(pair['second'])} hard-coded: {say.difference(pair)}; "
        f"{templated['abstained']} abstained, {templated['wrong']} wrong"
    )
    return measured, holds(say.above(pair) and say.above(pair, "by_family"))


# -- F6: the router -----------------------------------------------------------------------------


@rule(
    "F6",
    stage="flywheel",
    title="router with calibrated abstention",
    criterion=f"of the new queries that are routed at least {ROUTED_RIGHT:.0%} reach their own "
    f"entry, and at least {COVERED:.0%} of those that have one are routed; every exact query "
    "reaches its own; the false-route rate is not shown to exceed alpha (lower end of its "
    f"Clopper-Pearson interval); at least {MIN_QUERIES} test queries, {MIN_NOT_OWN} of them near "
    "misses or foreign",
    paper="15/15 in library, 4/4 foreign declined; no confidence gate",
    on_programs=True,
)
@_asking(ROUTER)
def _f6(evidence: Evidence) -> tuple[str, Outcome]:
    made = routes.router(_found(evidence))
    few = _too_few(made["queries"], MIN_QUERIES, "test queries")
    few = few or _too_few(made["not_own"], MIN_NOT_OWN, "near misses and foreign queries")
    if few:
        return few
    kinds, false = made["kinds"], made["false_route"]
    new, exact = kinds["new"], kinds["exact"]
    routed = new["right"] + new["wrong"] + new["without_entry_routed"]
    measured = (
        f"{new['right']}/{routed} of the new ones routed right; "
        + ", ".join(_kind(name, kinds[name]) for name in ("exact", "new", "paraphrase"))
        + f"; false routes {false['routed']}/{false['n']} = {false['rate']:.1%} "
        f"[{false['low']:.1%}, {false['high']:.1%}], alpha {say.share(made['alpha'])}; of them "
        f"near misses {kinds['near_miss']['without_entry_routed']}/{kinds['near_miss']['n']}; "
        f"threshold {say.number(made['threshold'])}{_growth(made['growth'])}"
    )
    if made["alpha"] is None or not routed:
        return measured, "fails"
    return measured, holds(
        new["right"] >= max(ROUTED_RIGHT * routed, COVERED * new["with_entry"])
        and exact["right"] == exact["with_entry"]
        and exact["without_entry_routed"] == 0
        and false["low"] <= made["alpha"]
    )


def _kind(name: str, one: Mapping[str, Any]) -> str:
    text = f"{name} {one['right']}/{one['with_entry']}, {one['abstained']} abstained"
    if one["without_entry"]:
        text += f" (without an entry {one['without_entry_routed']}/{one['without_entry']} routed)"
    return text


def _growth(made: Mapping[str, Any]) -> str:
    if not made["sizes"]:
        return ""
    first, last = made["sizes"][0], made["sizes"][-1]
    return (
        f"; a query {first['seconds']:.3g} s at {first['entries']} entries, "
        f"{last['seconds']:.3g} s at {last['entries']}"
    )


# -- F7 and F8: blocks of no use ----------------------------------------------------------------


@rule(
    "F7",
    stage="flywheel",
    title="no gain where the model does not fail",
    criterion=f"families of which at least {blocks.KNOWN_ALONE:.0%} are solved alone: the 95% "
    "interval of with block (what the gate refuses is left to the model alone) less alone lies "
    f"within {EQUIVALENT:.0%} of 0; at least {MIN_SOLVED} instances",
    paper="216/216 both arms",
    on_programs=True,
)
@_asking("solved-alone")
def _f7(evidence: Evidence) -> tuple[str, Outcome]:
    made = blocks.falling_back(_found(evidence))
    pair = made["pair"]
    few = _too_few(pair["first"]["n"], MIN_SOLVED, "instances of families solved alone")
    if few:
        return few
    found = pair["difference"]
    measured = (
        f"{say.rate(pair['second'])} alone, {say.rate(pair['first'])} with block, "
        f"{made['adapted']} of them adapted, the rest refused by the gate and left to the model "
        f"alone: {say.difference(pair)}"
    )
    return measured, holds(found["low"] >= -EQUIVALENT and found["high"] <= EQUIVALENT)


@rule(
    "F8",
    stage="flywheel",
    title="a harmful deposit is refused",
    criterion="on families solved alone the method card does harm: 95% interval of with card less "
    "alone below 0, or that of its decoded tokens for one alone above 1; and the admission test "
    f"refuses every card; at least {MIN_SOLVED} instances",
    paper="-55 points, 10x tokens",
    on_programs=True,
)
@_asking("solved-alone")
def _f8(evidence: Evidence) -> tuple[str, Outcome]:
    made = blocks.solved(_found(evidence))
    pair, ratio = made["card_alone"], made["card_tokens"]
    few = _too_few(pair["first"]["n"], MIN_SOLVED, "instances of families solved alone")
    if few:
        return few
    cards = [one for one in made["admissions"] if one["variant"] == "card"]
    tested = [one for one in cards if one["admission"] is not None]
    refused = len(cards) == len(tested) > 0 and not any(one["admitted"] for one in cards)
    counts = ", ".join(
        f"{one['admission']['with_block']} with and {one['admission']['alone']} alone of "
        f"{one['admission']['instances']}"
        for one in tested
    )
    said = "-" if ratio is None else say.interval(ratio, "{:.3g}x")
    measured = (
        f"{say.rate(pair['first'])} with the card, {say.rate(pair['second'])} alone: "
        f"{say.difference(pair)}; decoded tokens {said}, tokens restored "
        f"{made['card']['cached_tokens']:,}; admission {counts or 'not tested'}: "
        f"{'refused' if refused else 'not refused'}"
    )
    harm = pair["difference"]["high"] < 0.0 or (ratio is not None and ratio["low"] > 1.0)
    return measured, holds(harm and refused)
