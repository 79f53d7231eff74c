"""Logs of inspect_ai: `.eval`, a ZIP archive of JSON, or the same as one JSON document.

`header.json` has the results; each `samples/*.json` has `id`, `epoch`, `target` (one gold or a
list), `output` and `scores`. The first scorer of the results is the one that is compared; its
`accuracy` or else its `mean` is the published figure. Letters mean what inspect_ai's own
`value_to_float` says: C 1, P ½, I and N 0. The format was learnt from logs of inspect_ai 0.3.285.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kvaudit.errors import UnusableInput
from kvaudit.rescore import lines
from kvaudit.rescore.adapters import Published
from kvaudit.rescore.formats.archive import Archive
from kvaudit.rescore.rows import Row
from kvaudit.safefs import SafeRoot

MAX_LOG_BYTES = 512 * 1024 * 1024
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ATTACHED = "attachment://"


class InspectLog:
    """See the module."""

    name = "inspect"
    summary = "inspect_ai log, .eval or .json"
    rule: str | None = None
    above = 0

    def rows(self, root: SafeRoot, file: str) -> Iterator[Row]:
        """One row a sample and epoch."""
        header, samples = _open(root, file)
        scorer = _scorer(header)
        for number, (place, sample) in enumerate(samples, start=1):
            if not isinstance(sample, dict) or "id" not in sample or "target" not in sample:
                raise UnusableInput("the sample lacks id or target", where=place)
            targets = sample["target"]
            found = [lines.text(t) for t in (targets if isinstance(targets, list) else [targets])]
            golds = tuple(gold for gold in found if gold)
            generation = _generation(sample)
            score = _score(sample, scorer)
            epoch = lines.integer(sample.get("epoch")) or 1
            trouble = None
            if not golds:
                trouble = "no gold"
            elif sample.get("error"):
                trouble = "the sample ended with an error"
            elif generation is None:
                trouble = "no completion"
            yield Row(
                number,
                lines.text(sample["id"]) or f"sample {number}",
                golds,
                generation or "",
                epoch - 1,
                answer=lines.text(score.get("answer")),
                published=_value(score.get("value")),
                task=scorer,
                trouble=trouble,
            )

    def published(self, root: SafeRoot, file: str) -> Published | None:
        """The first scorer's accuracy or mean, in percent."""
        header, _ = _open(root, file)
        for score in _scores(header)[:1]:
            metrics = score.get("metrics")
            for name in ("accuracy", "mean"):
                metric = metrics.get(name) if isinstance(metrics, dict) else None
                value = metric.get("value") if isinstance(metric, dict) else None
                if isinstance(value, lines.Spelled) and lines.score(value) is not None:
                    percent = f"{Decimal(value) * 100:f}"
                    return Published(percent, f"results.scores[0].metrics.{name}")
        return None


def _open(root: SafeRoot, file: str) -> tuple[dict[str, Any], Iterator[tuple[str, Any]]]:
    data = root.read(file, max_bytes=MAX_LOG_BYTES)
    if not data.startswith(b"PK"):
        value = lines.loads(data, where=file)
        if not isinstance(value, dict) or not isinstance(value.get("samples"), list):
            raise UnusableInput("the file is no log of inspect_ai", where=file)
        return value, ((f"{file}, sample {i}", s) for i, s in enumerate(value["samples"], 1))
    archive = Archive(data, file)
    header = lines.loads(archive.read("header.json"), where=f"{file}, header.json")
    names = sorted(name for name in archive.members if name.startswith("samples/"))

    def samples() -> Iterator[tuple[str, Any]]:
        for name in names:
            place = f"{file}, member {name}"
            yield place, lines.loads(archive.read(name), where=place)

    return header if isinstance(header, dict) else {}, samples()


def _scores(header: dict[str, Any]) -> list[dict[str, Any]]:
    results = header.get("results")
    scores = results.get("scores") if isinstance(results, dict) else None
    return [s for s in scores if isinstance(s, dict)] if isinstance(scores, list) else []


def _scorer(header: dict[str, Any]) -> str | None:
    found = _scores(header)
    return lines.text(found[0].get("name")) if found else None


def _score(sample: dict[str, Any], scorer: str | None) -> dict[str, Any]:
    scores = sample.get("scores")
    if not isinstance(scores, dict) or not scores:
        return {}
    found = scores.get(scorer) if scorer in scores else next(iter(scores.values()))
    return found if isinstance(found, dict) else {}


def _value(value: Any) -> float | None:
    if isinstance(value, str) and not isinstance(value, lines.Spelled):
        return _LETTERS.get(value, _WORDS.get(value.lower()))
    return lines.score(value)


def _generation(sample: dict[str, Any]) -> str | None:
    output = sample.get("output")
    if not isinstance(output, dict):
        return None
    text = lines.text(output.get("completion")) or _message(output)
    attachments = sample.get("attachments")
    if text is not None and text.startswith(_ATTACHED) and isinstance(attachments, dict):
        return lines.text(attachments.get(text[len(_ATTACHED) :]))
    return text


def _message(output: dict[str, Any]) -> str | None:
    choices = output.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [lines.text(part.get("text")) for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if part)
    return lines.text(content)


ADAPTER = InspectLog()
