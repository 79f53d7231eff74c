"""What an expression comes to over the summaries of a run, and whether it can come to anything.

The summaries are those of a run that the verifier has accepted: it makes each from the records
again and compares every byte, so that a summary of such a run says what its records say. This
module must not read files.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kvaudit.errors import TypedError
from kvaudit.prereg.errors import ExpressionInvalid, FieldMissing
from kvaudit.prereg.expression import (
    COMPARISONS,
    Call,
    Every,
    Literal,
    Node,
    Path,
    Prefix,
    Step,
    Where,
)
from kvaudit.stagekind import SUMMARY

Summaries = Mapping[str, Mapping[str, Any]]
"""stage/model -> its summary."""

_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class NotMeasured(TypedError):
    """A value is null, a list is empty, or a stage was not run: nothing can be said."""


def statement(node: Node, summaries: Summaries) -> bool:
    """Whether a criterion is true.

    Raises:
        FieldMissing: a summary has no such field; names it and the file.
        NotMeasured: a field is null, or its stage was not run.
        ExpressionInvalid: the values do not fit the signs between them.
    """
    value = _value(node, summaries)
    if not isinstance(value, bool):
        raise ExpressionInvalid("a criterion is true or false", found=_kind(value))
    return value


def quantity(node: Node, summaries: Summaries) -> int | float:
    """The number that a prediction is about.

    Raises:
        FieldMissing, NotMeasured, ExpressionInvalid: as `statement`.
    """
    return _number(_value(node, summaries))


def look_up(path: Path, summaries: Summaries) -> Any:
    """What lies at a path; a list where the path has `[*]`.

    Raises:
        FieldMissing: there is no such field.
        NotMeasured: the stage was not run.
    """
    if path.subject not in summaries:
        raise NotMeasured(f"{path.subject} was not run")
    return _walk(summaries[path.subject], path.steps, path)


def _walk(value: Any, steps: tuple[Step, ...], path: Path) -> Any:
    for at, step in enumerate(steps):
        if isinstance(step, Every):
            items = _items(value, path)
            return [_walk(item, steps[at + 1 :], path) for item in items]
        value = _step(value, step, path)
    return value


def _items(value: Any, path: Path) -> list[Any]:
    if isinstance(value, dict):
        return [value[key] for key in sorted(value)]
    if isinstance(value, list):
        return value
    raise _missing(path, "a list or an object", value)


def _step(value: Any, step: Step, path: Path) -> Any:
    if value is None:
        raise NotMeasured(f"{path} was not measured")
    if isinstance(step, Where):
        found = [
            item
            for item in _items(value, path)
            if isinstance(item, dict) and _same(item.get(step.field), step.value)
        ]
        if len(found) != 1:
            raise _missing(path, f"one element whose {step.field} is {step.value}", len(found))
        return found[0]
    if isinstance(step, str):
        if not isinstance(value, dict) or step not in value:
            raise _missing(path, f"a field {step}", value)
        return value[step]
    if not isinstance(step, int) or not isinstance(value, list) or step >= len(value):
        raise _missing(path, f"an element {step}", value)
    return value[step]


def _missing(path: Path, expected: str, found: Any) -> FieldMissing:
    shown = ", ".join(sorted(found)[:20]) if isinstance(found, dict) else _kind(found)
    return FieldMissing(
        f"a summary lacks the field of a criterion: {str(path).split(': ', 1)[1]}",
        where=f"{path.subject}/{SUMMARY}",
        expected=expected,
        found=found if isinstance(found, int) else shown,
    )


def _value(node: Node, summaries: Summaries) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Path):
        return look_up(node, summaries)
    if isinstance(node, Call):
        return _call(node, summaries)
    if isinstance(node, Prefix):
        value = _value(node.operand, summaries)
        if node.sign == "not":
            return not _truth(value)
        return _spread(lambda x: -_number(x), value)
    if node.sign in ("and", "or"):
        # Both sides are always looked at: a missing field is not hidden by the other side.
        left, right = (_truth(_value(side, summaries)) for side in (node.left, node.right))
        return (left and right) if node.sign == "and" else (left or right)
    left, right = _value(node.left, summaries), _value(node.right, summaries)
    function = _comparison if node.sign in COMPARISONS else _arithmetic
    return _spread(lambda x, y: function(node.sign, x, y), left, right)


def _call(node: Call, summaries: Summaries) -> Any:
    values = [_value(argument, summaries) for argument in node.arguments]
    first = values[0]
    if node.name == "measured":
        return all(item is not None for item in (first if isinstance(first, list) else [first]))
    if node.name == "len":
        if not isinstance(first, dict | list | str):
            raise ExpressionInvalid("len is of a list, an object or a text", found=_kind(first))
        return len(first)
    if node.name == "abs":
        return _spread(lambda x: abs(_number(x)), first)
    if node.name in ("all", "any", "count"):
        truths = [_truth(item) for item in _list(first, node.name)]
        return {"all": all(truths), "any": any(truths), "count": sum(truths)}[node.name]
    items = values if len(values) > 1 else _list(first, node.name)
    numbers = [_number(item) for item in items]
    if node.name == "sum":
        return _finite(
            math.fsum(numbers) if any(isinstance(n, float) for n in numbers) else sum(numbers)
        )
    return (max if node.name == "max" else min)(numbers)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ExpressionInvalid(f"{name} is of a list, e.g. a path with [*]", found=_kind(value))
    if not value:
        raise NotMeasured(f"{name} of an empty list says nothing")
    return value


def _spread(function: Callable[..., Any], *values: Any) -> Any:
    """Applies a function to each element where an operand is a list."""
    lengths = {len(value) for value in values if isinstance(value, list)}
    if not lengths:
        return function(*values)
    if len(lengths) > 1:
        raise ExpressionInvalid("two lists have different lengths", found=sorted(lengths))
    size = lengths.pop()
    columns = [value if isinstance(value, list) else [value] * size for value in values]
    return [_spread(function, *row) for row in zip(*columns, strict=True)]


def _arithmetic(sign: str, left: Any, right: Any) -> int | float:
    try:
        value = _ARITHMETIC[sign](_number(left), _number(right))
    except ZeroDivisionError:
        raise NotMeasured("a quantity is divided by zero") from None
    except OverflowError:
        raise ExpressionInvalid("a quantity is out of range") from None
    return _finite(value)


def _comparison(sign: str, left: Any, right: Any) -> bool:
    for value in (left, right):
        if value is None:
            raise NotMeasured("a value that is compared was not measured")
    kinds = {_kind(left), _kind(right)}
    if len(kinds) > 1 or not kinds <= {"a number", "a text", "a truth value"}:
        raise ExpressionInvalid(
            "two values cannot be compared", found=f"{_kind(left)} {sign} {_kind(right)}"
        )
    if sign not in ("==", "!=") and kinds != {"a number"}:
        raise ExpressionInvalid("only numbers have an order", found=f"{sign} of {kinds.pop()}")
    return _COMPARE[sign](left, right)


def _same(value: Any, literal: int | float | str) -> bool:
    return _kind(value) == _kind(literal) and bool(value == literal)


def _number(value: Any) -> int | float:
    if value is None:
        raise NotMeasured("a number was not measured")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionInvalid("a number was wanted", found=_kind(value))
    return value


def _truth(value: Any) -> bool:
    if value is None:
        raise NotMeasured("a truth value was not measured")
    if not isinstance(value, bool):
        raise ExpressionInvalid("a truth value was wanted", found=_kind(value))
    return value


def _finite(value: int | float) -> int | float:
    if abs(value) > 1e300:  # NaN cannot arise below that bound
        raise ExpressionInvalid("a quantity is out of range")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "an object or a list"
