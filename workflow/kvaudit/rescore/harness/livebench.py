r"""The rules of LiveBench's tasks (livebench/process_results), in our words.

| task | right is |
|---|---|
| math_comp/aime | the gold, three digits, stands in the last fifty characters |
| math_comp/amc | the letter four times in a row, alone in a box, or its choice's text at the end |
| AMPS_Hard | the last box, or else the last `$…$`, equals the gold, or to a thousandth |
| olympiad | the share of the list that need not be edited, of the longer of the two lists |
| zebra_puzzle/one | the last word in `***bold***`, or of the text, in digits or letters |
| zebra_puzzle | half for all of `<solution>`, half for the share of it that is right |
| spatial | one of the last three texts in bold |
| web_of_lies_v2 | the last three words of yes, no, unknown in bold, or in `<solution>` or a box |

Other tasks have no rule here. Not carried over: its LaTeX parsers (ours is used).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kvaudit.rescore import answers, exact, expression, extract
from kvaudit.rescore.equality import Oracle
from kvaudit.rescore.harness import AsPublished
from kvaudit.rescore.rows import Row

_MARKS = ("<solution>", "</solution>")
MAX_QUESTION = 20_000
_WORDS = ("yes", "no", "unknown")
_COUNTED = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)
_NUMBERS = {word: str(number) for number, word in enumerate(_COUNTED.split())}
MAX_LIST = 400


def score(row: Row, oracle: Oracle) -> AsPublished:
    """The score of a row."""
    if row.task == "AMPS_Hard":
        return _amps(row, oracle)
    rule = _RULES.get(row.task or "")
    if rule is None or not row.golds:
        return AsPublished(None, "", f"no rule for the task {row.task}")
    return rule(row.golds[0], row.generation, row)


def _aime(gold: str, text: str, row: Row) -> AsPublished:
    return AsPublished(
        float(gold in text[-50:]), text[-50:], "the gold in the last fifty characters"
    )


def _amc(gold: str, text: str, row: Row) -> AsPublished:
    solution = next(iter(_solutions(text)[-1:]), None)
    inside = _box(text)
    choice = _choice(row.question or "", gold)
    right = (
        (solution is not None and set(solution.lower()) == {gold.lower()})
        or gold * 4 in text
        or (inside is not None and inside.lower() == gold.lower())
        or choice in text[-20 - len(choice) :]
    )
    return AsPublished(
        float(right), text[-50:], "the letter repeated, marked or boxed, or its text"
    )


def _choice(question: str, letter: str) -> str:
    r"""The text of a choice, which the questions write as \textbf{(A) }…\qquad."""
    found = re.findall(r"\\textbf{\(([A-E])\)\s?}(.*?)(?:\\qquad|\$)", question[:MAX_QUESTION])
    return dict(found).get(letter, "").strip().strip("$").strip("~") or "FAILURE"


def _amps(row: Row, oracle: Oracle) -> AsPublished:
    text = re.sub(r"\+ ?[Cc]", "", row.generation).replace("\n", "")
    inside = extract.boxed(text)
    if inside is None:
        spans = re.findall(r"\$([^$]+)\$", text)
        inside = spans[-1] if spans else None
    gold = row.golds[0] if row.golds else ""
    if inside is None:
        ends = text.removesuffix(".").endswith(gold)
        return AsPublished(float(ends), text[-len(gold) :], "the text ends with the gold")
    answer = inside.split("=")[-1].replace("$", "")
    same = _equal(gold, answer, oracle)
    return AsPublished(None if same is None else float(same), answer, "by algebra")


def _equal(gold: str, answer: str, oracle: Oracle) -> bool | None:
    try:
        trees = [
            expression.parse(answers.tidy(side.replace("\\ ", "*"))) for side in (gold, answer)
        ]
        values = [exact.value(tree) for tree in trees]
    except (expression.Unreadable, exact.TooLarge, RecursionError):
        return False
    if values[0] is not None and values[1] is not None:
        return abs(values[0] - values[1]) < 0.001
    found = oracle.ask(trees[0], trees[1])
    if found.values[0] is not None and found.values[1] is not None:
        return bool(found.same) or abs(float(found.values[0]) - float(found.values[1])) < 0.001
    return found.same


def _olympiad(gold: str, text: str, row: Row) -> AsPublished:
    right = [number.strip() for number in gold.split(",")][:MAX_LIST]
    given = _numbers(text)[:MAX_LIST]
    longest = max(len(right), len(given))
    share = 1.0 - _distance(given, right) / longest if longest else 0.0
    return AsPublished(share, ", ".join(given), "the share that need not be edited")


def _numbers(text: str) -> list[str]:
    """The list of numbers: behind the last «answer:», in the last box, or in the last line."""
    lines = text.lower().strip().split("\n")
    marked = [index for index, line in enumerate(lines) if "answer:" in line]
    if marked:
        rest = re.sub(r"\*\*|\.", "", lines[marked[-1]].split("answer:")[1]).strip()
        if not rest and marked[-1] + 1 < len(lines):
            rest = re.sub(r"\*\*|\.|answer:", "", lines[marked[-1] + 1]).strip()
        cut = [
            re.sub(r"[${}\\<>]|boxed", "", part.strip().split(" ")[-1]) for part in rest.split(",")
        ]
        if any(_integer(part) for part in cut):
            return [str(int(part)) if _integer(part) else "-" for part in cut]
    inside = _box(text)
    if inside is not None:
        cut = [part.strip() for part in inside.split(",")]
        if any(_integer(part) for part in cut):
            return [str(int(part)) if _integer(part) else "-" for part in cut]
    found = [re.search(r"\d+", part) for part in lines[-1].split(",")]
    return [str(int(match.group())) for match in found if match and len(match.group()) < 10]


def _integer(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,9}", text) is not None


def _distance(first: list[str], second: list[str]) -> int:
    """How many insertions, deletions and exchanges make one list the other."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(second, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def _zebra(gold: str, text: str, row: Row) -> AsPublished:
    right = [part.strip().lower().replace("-", " ") for part in gold.split(",")]
    found = _solutions(text) or _solutions(text, twice=True)
    if not found:
        inside = _box(text)
        last = text.strip().split("\n")[-1]
        found = (
            [inside] if inside is not None else [last] if last.count(",") == len(right) - 1 else []
        )
    if not found:
        return AsPublished(0.0, "", "no solution is marked")
    parts = [part for match in found for part in match.split(",")]
    given = parts[-len(right) :] if len(found) > 1 else parts
    words = [part.strip().lower().replace("-", " ").replace("position", "") for part in given]
    hits = sum(a in b for a, b in zip(right, words, strict=False))
    whole = hits == len(right)
    return AsPublished(
        (whole + hits / len(right)) / 2, ", ".join(given), "half for all, half for each"
    )


def _one(gold: str, text: str, row: Row) -> AsPublished:
    bold = re.findall(r"\*\*\*(\w+)\*\*\*", text) or re.findall(r"\b\w+\b", text)
    word = str(bold[-1]).lower() if bold else ""
    spelled = next((name for name, digit in _NUMBERS.items() if digit == word), word)
    right = gold.lower() in (word, spelled, f"{word} movies")
    return AsPublished(float(right), word, "the last word")


def _spatial(gold: str, text: str, row: Row) -> AsPublished:
    bold = [word.strip().lower() for word in re.findall(r"\*\*([^*]+)\*\*", text)][-3:]
    wanted = gold.strip().lower()
    right = any(
        wanted in (word, _NUMBERS.get(word))
        or (
            wanted in ("tetrahedra", "tetrahedron", "triangle", "square")
            and wanted in word
            and len(word) < 2 * len(wanted) + 5
        )
        for word in bold
    )
    return AsPublished(float(right), ", ".join(bold), "one of the last three in bold")


def _lies(gold: str, text: str, row: Row) -> AsPublished:
    marked = _solutions(text) or _solutions(text, twice=True)
    answer = marked[-1] if marked else None
    if answer is None:
        bold = [w for part in re.findall(r"\*\*(.*?)\*\*", text) for w in part.lower().split()]
        words = [w for w in (re.sub(r"[,.]", "", w) for w in bold) if w in _WORDS]
        answer = ", ".join(words[-3:]) or _box(text.replace("\\textbf{", "\\boxed{"))
    if answer is None:
        found = re.findall(
            r"(?=((?:yes|no|unknown), (?:yes|no|unknown), (?:yes|no|unknown)))", text.lower()
        )
        answer = found[-1] if found else ""
    wanted = gold.lower()
    three = sum(answer.count(word) for word in _WORDS) == 3
    return AsPublished(
        float(answer == wanted or (three and wanted in answer)), answer, "three words"
    )


def _box(text: str) -> str | None:
    inside = extract.boxed(text)
    return None if inside is None else re.sub(r"\\text\{|\}|\\", "", inside)


def _solutions(text: str, *, twice: bool = False) -> list[str]:
    """What is marked as the solution within one line; with `twice`, opened by a closing mark."""
    opening = _MARKS[1] if twice else _MARKS[0]
    lines = [line for line in text.split("\n") if _MARKS[1] in line]
    return [part for line in lines for part in extract.enclosed(line, opening, _MARKS[1])]


_RULES: dict[str, Callable[[str, str, Row], AsPublished]] = {
    "math_comp/aime": _aime,
    "math_comp/amc": _amc,
    "olympiad": _olympiad,
    "zebra_puzzle": _zebra,
    "zebra_puzzle/one": _one,
    "spatial": _spatial,
    "web_of_lies_v2": _lies,
}
