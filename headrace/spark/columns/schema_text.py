"""A table's schema as text that people edit: a line for each column, in the way of Spark's DDL.

    _id objectId
    address struct<city: string, zip: string>
    address.geo.lat double -> lat
    `first name` string -> first_name
    internal rest

The path in the document, the type (`column_types.py`), and the name of the column where it is not the path with `_`
between its names. What begins with `#` is a comment. In a job's file the columns may also be in one line, with commas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from typing import Final

from headrace.spark.columns.column_types import (
    ArrayOf,
    ColumnType,
    MapOf,
    SchemaError,
    StructField,
    StructOf,
    column_name,
    field_text,
    parse_fields,
    path_text,
)

_SIGNED: Final = "# as of "


def schema_text(schema: StructOf) -> str:
    """Return the schema as lines, without comments."""
    return "".join(f"{field_text(field, '_'.join(field.path))}\n" for field in schema.fields)


def parse_schema(text: str, reserved: Collection[str] = frozenset()) -> StructOf:
    """Return the schema that the text describes; no column has a name in `reserved`. Raise SchemaError."""
    fields: list[StructField] = []
    for statement in _statements(text):
        fields += parse_fields(statement)
    _check_paths(fields)
    return StructOf(_named(fields, set(reserved)))


def file_text(schema: StructOf, title: str) -> str:
    """Return the text of a schema's file, with a signature that shows later edits."""
    lines = schema_text(schema)
    return (
        f"# {title}\n# A line for each column: the path, the type, and the column's name after ->. `rest` instead of a "
        "type: no column.\n# Edits hold from the job's next start on; the table is then rewritten where a type has "
        f"changed.\n{_SIGNED}{_signature(lines)}\n\n{lines}"
    )


def is_edited(text: str) -> bool:
    """Whether the text of a schema's file was edited after `file_text` made it."""
    marks = [line for line in text.splitlines() if line.startswith(_SIGNED)]
    lines = "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return not marks or marks[0].removeprefix(_SIGNED).strip() != _signature(lines)


def _signature(lines: str) -> str:
    return sha256(lines.encode()).hexdigest()[:16]


def _statements(text: str) -> list[str]:
    """Return the lines without comments; lines within brackets are joined."""
    statements: list[str] = []
    depth = 0
    for line in text.splitlines():
        bare = _without_comment(line).strip()
        if not bare:
            continue
        if depth:
            statements[-1] += " " + bare
        else:
            statements.append(bare)
        depth += _depth(bare)
    return statements


def _without_comment(line: str) -> str:
    quoted = False
    for number, character in enumerate(line):
        quoted ^= character == "`"
        if character == "#" and not quoted:
            return line[:number]
    return line


def _depth(line: str) -> int:
    bare = "".join(part for number, part in enumerate(line.split("`")) if number % 2 == 0).replace("->", "")
    return bare.count("<") + bare.count("(") - bare.count(">") - bare.count(")")


def _check_paths(fields: list[StructField]) -> None:
    """Raise SchemaError if two columns have the same value."""
    paths = [field.path for field in fields]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if path[: len(other)] == other or other[: len(path)] == path:
                raise SchemaError(f"{path_text(path)} and {path_text(other)} are the same value: it has one column")


def _named(fields: list[StructField], taken: set[str]) -> tuple[StructField, ...]:
    """Return the fields with valid column names. Raise SchemaError if a name is given twice."""
    named = []
    given = {field.column.lower() for field in fields if field.column != "_".join(field.path)}
    for field in fields:
        explicit = field.column != "_".join(field.path)
        if explicit and field.column.lower() in taken:
            raise SchemaError(f"two columns have the name {field.column!r}, whatever its case")
        others = taken if explicit else taken | given
        column = column_name(field.path, others, field.column if explicit else None) if field.type else field.column
        if field.type is not None:
            taken.add(column.lower())
        named.append(replace(field, column=column, type=_nested(field.type)))
    return tuple(named)


def _nested(kind: ColumnType | None) -> ColumnType | None:
    if isinstance(kind, StructOf):
        if len({field.path for field in kind.fields}) < len(kind.fields):
            raise SchemaError(f"{kind} has a field twice")
        return StructOf(_named(list(kind.fields), set()))
    if isinstance(kind, ArrayOf):
        item = _nested(kind.item)
        assert item is not None
        return ArrayOf(item)
    if isinstance(kind, MapOf):
        value = _nested(kind.value)
        assert value is not None
        return MapOf(value)
    return kind
