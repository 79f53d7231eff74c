"""The JSON Schemas (2020-12) of every document kind, and validation against them.

In an installed wheel they are package data in `kvaudit/_schema`; in the repository they are
manifests/schema. This module must not know what any field means.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvaudit import canonical
from kvaudit.errors import UnusableInput

if TYPE_CHECKING:
    from jsonschema import ValidationError

VERSION = 1
NAMED = 5
"""Fields that an error names besides the first."""


def folder() -> Path:
    """Where the schemas are.

    Raises:
        UnusableInput: neither the package's nor the repository's folder exists.
    """
    installed = Path(__file__).parent / "_schema"
    if installed.is_dir():
        return installed
    repository = Path(__file__).parents[2] / "manifests" / "schema"
    if repository.is_dir():
        return repository
    raise UnusableInput("the schemas are not installed", hint="install kvgraft again")


def kinds() -> tuple[str, ...]:
    """The document kinds that have a schema, sorted."""
    suffix = f".v{VERSION}.json"
    return tuple(sorted(path.name[: -len(suffix)] for path in folder().glob(f"*{suffix}")))


@functools.cache
def _text(kind: str) -> str:
    if kind not in kinds():
        raise UnusableInput(
            "there is no schema of this kind", expected=", ".join(kinds()), found=kind
        )
    return (folder() / f"{kind}.v{VERSION}.json").read_text(encoding="utf-8")


def text(kind: str) -> str:
    """The schema of `kind` as it lies in the file.

    Raises:
        UnusableInput: there is no such kind.
    """
    return _text(kind)


@functools.cache
def _validator(kind: str) -> Any:
    # The dialect stands here, not in each schema; only config.v1.json, which Snakemake reads as
    # well, names it itself.
    from jsonschema import Draft202012Validator

    schema = canonical.loads(_text(kind).encode(), where=f"schema {kind}")
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def validate(value: Any, kind: str, *, where: str) -> None:
    """Checks a document against the schema of its kind.

    Args:
        value: what `canonical.loads` returned, so of bounded size and depth.
        kind: a name of `kinds()`.
        where: what to call the document in an error.

    Raises:
        UnusableInput: it does not conform; the error names the first field that does not, and some
            of the others.
    """
    errors = sorted(
        _validator(kind).iter_errors(value),
        key=lambda found: [str(part) for part in found.absolute_path],
    )
    if not errors:
        return
    fields = list(dict.fromkeys(_field(error) for error in errors))
    others = ", ".join(fields[1 : 1 + NAMED])
    raise UnusableInput(
        f"the document does not conform to schema {kind}.v{VERSION}",
        where=f"{where}: {fields[0]}",
        found=errors[0].message,
        hint=f"{len(fields) - 1} more do not conform: {others}" if others else None,
    )


def _field(error: ValidationError) -> str:
    return "/".join(str(part) for part in error.absolute_path) or "the document"
