"""Before a run: could a summary have the field that a criterion reads?

Asked of the summary's schema, so that a slip of the pen is found when a registration is filed and
not when the rented machine is gone. This module must not know what a field means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit import canonical, schemas
from kvaudit.prereg.errors import ExpressionInvalid
from kvaudit.prereg.expression import Every, Path, Step, Where
from kvaudit.stagekinds import KINDS

_ANYTHING: Mapping[str, Any] = {}
_LEVELS = 24


def check(path: Path) -> None:
    """Refuses a path that no summary of its stage can have.

    Raises:
        ExpressionInvalid: there is no such stage or no such field.
    """
    stage = path.subject.split("/")[0]
    if stage not in KINDS:
        raise ExpressionInvalid(
            "a criterion names a stage that does not exist", expected=", ".join(KINDS), found=stage
        )
    kind = KINDS[stage].summary_kind
    root = canonical.loads(schemas.text(kind).encode(), where=f"schema {kind}")
    here = list(_plain(root, root))
    for step in path.steps:
        following = [found for schema in here for found in _after(schema, step, root)]
        if isinstance(step, Where):
            following = [
                one for one in following if any(True for _ in _after(one, step.field, root))
            ]
        if not following:
            known = sorted({name for schema in here for name in schema.get("properties", {})})
            raise ExpressionInvalid(
                "a criterion reads a field that no summary has",
                where=path,
                expected=", ".join(known) or f"nothing below, by schema {kind}",
                found=step if isinstance(step, str | int) else "[...]",
            )
        here = following


def _plain(schema: Any, root: Mapping[str, Any], level: int = 0) -> Iterator[Mapping[str, Any]]:
    """A schema with references and alternatives resolved: all that a value could conform to."""
    if level > _LEVELS or not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from _plain(target, root, level + 1)
        return
    alternatives = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    for one in alternatives:
        yield from _plain(one, root, level + 1)
    if not alternatives or "properties" in schema or "items" in schema:
        yield schema


def _after(
    schema: Mapping[str, Any], step: Step, root: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    if not schema:
        yield _ANYTHING
        return
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", "type" not in schema)
    if isinstance(step, str):
        if step in properties:
            yield from _plain(properties[step], root)
        elif others is not False and _may_be(schema, "object"):
            yield from _plain(_ANYTHING if others is True else others, root)
        return
    if _may_be(schema, "array") and ("items" in schema or "prefixItems" in schema):
        for one in (*schema.get("prefixItems", ()), schema.get("items", False)):
            yield from _plain(one, root)
    if isinstance(step, Every | Where) and _may_be(schema, "object"):
        for one in properties.values():
            yield from _plain(one, root)
        if isinstance(others, Mapping):
            yield from _plain(others, root)


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    types = schema.get("type", kind)
    return kind == types or kind in types
