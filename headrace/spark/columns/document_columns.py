"""A document as the values of typed columns, a rest and a shape, and the same document out of them.

    columns   what fits a column, by the column's name
    rest      fields without a column, and values that do not fit theirs, at their paths
    shape     what these do not say: {"t": {name: note}, "o": [names]}; nothing if the document is as the schema says

The notes in `t` are the BSON types that are not the natural ones of their columns (`storing`), `null`, for
arrays and objects the shapes of what is in them ("*" for all items of an array). `o` is the order of the fields, where
it is another than: first those that are in columns, in the order of the schema, then those of the rest in its order.

These values fit a column:

    boolean                  bool
    tinyint … bigint         int and long in range
    float, double            double, int and long, if represented exactly
    decimal(p,s)             decimal, int, long and double, if represented exactly (a double by its shortest digits)
    string                   string, objectId, uuid; numbers, if the column was one of numbers
    binary                   binary of the common subtype
    timestamp                date, in the years 1 to 9999

A note is the value's BSON type: `int`; of a decimal also its number of decimal places, `decimal:2`, since 1.5 and 1.50
are two values. What does not fit is MISSING here, and goes to the rest.

Rule: what a row means does not depend on columns that were added after it. A column that is null says nothing; a column
that a schema gains comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final, Protocol
from uuid import UUID

from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.spark.columns.column_types import (
    NUMBERS,
    ArrayOf,
    ColumnType,
    LeafType,
    MapOf,
    Primitive,
    StructField,
    StructOf,
)
from headrace.spark.rows.exact_numbers import decimals, double, integers, single
from headrace.values.bson import MISSING

Values = dict[str, Any]
Shape = dict[str, Any]
Note = str | Shape | None

NULL_NOTE: Final = "null"
_EVERY: Final = "*"


class FieldColumns(Protocol):
    """One field in the columns of its struct or table."""

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        """Store the value. Return its rest, MISSING if there is none, and its note."""

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        """Return the value from the columns, merged with its part of the rest; MISSING if the columns have none."""


class DocumentColumns:
    """Splits documents of a schema into columns, and joins them again."""

    def __init__(self, schema: StructOf) -> None:
        self._members = _ObjectColumns(schema.fields)

    def split(self, document: dict[str, Any]) -> tuple[Values, dict[str, Any] | None, Shape | None]:
        """Return the values of the columns, the rest and the shape."""
        values: Values = {}
        rest, shape, _ = self._members.split(document, values)
        return values, None if rest is MISSING else rest, shape

    def joined(self, values: Values, rest: dict[str, Any] | None, shape: Shape | None) -> dict[str, Any]:
        """Return the document that `split` split into these, by this schema or an earlier one that it extends."""
        return self._members.joined(values, rest or {}, shape or {})


class _ObjectColumns:
    """The fields of an object with known names: a struct, a table's documents, or a group of flattened columns."""

    def __init__(self, fields: tuple[StructField, ...], depth: int = 0) -> None:
        self._members: dict[str, FieldColumns] = {}
        groups: dict[str, list[StructField]] = {}
        for field in fields:
            name = field.path[depth]
            if field.type is None:
                continue
            if len(field.path) == depth + 1:
                self._members[name] = field_columns(field.column, field.type)
            elif name not in self._members:
                # The fields of a group may be far apart in the schema.
                groups[name] = [each for each in fields if each.path[: depth + 1] == field.path[: depth + 1]]
                self._members[name] = _FlattenedObject(_ObjectColumns(tuple(groups[name]), depth + 1))
        self._names = list(self._members)

    def split(self, document: dict[str, Any], into: Values) -> tuple[Any, Shape | None, bool]:
        """Return the rest and the shape of the document, and whether any column has a value of it."""
        rest: dict[str, Any] = {}
        notes: dict[str, Any] = {}
        put = []
        members = self._members
        for name, value in document.items():
            member = members.get(name)
            if member is None:
                rest[name] = value
                continue
            left, note = member.put(value, into)
            if left is not value:
                put.append(name)
            if left is not MISSING:
                rest[name] = left
            if note is not None:
                notes[name] = note
        shape: Shape = {"t": notes} if notes else {}
        names = list(document)
        if not put == names == self._names:
            order = [name for name in self._names if name in put]
            order += [name for name in rest if name not in put]
            if order != names:
                shape["o"] = names
        return rest or MISSING, shape or None, bool(put)

    def joined(self, values: Values, rest: dict[str, Any], shape: Shape) -> dict[str, Any]:
        """Return the document."""
        return _complete(self.placed(values, rest, shape), rest, shape)

    def placed(self, values: Values, rest: dict[str, Any], shape: Shape) -> dict[str, Any]:
        """Return the fields that have values in columns, merged with the rest."""
        notes = shape.get("t", {})
        document = {}
        for name, member in self._members.items():
            value = member.get(values, rest.get(name, MISSING), notes.get(name))
            if value is not MISSING:
                document[name] = value
        return document


def _complete(document: dict[str, Any], rest: dict[str, Any], shape: Shape) -> dict[str, Any]:
    for name, value in rest.items():
        document.setdefault(name, value)
    return {name: document[name] for name in shape["o"]} if "o" in shape else document


class _FlattenedObject:
    """An object whose fields are columns of the table, or groups of columns. No column says that the object exists."""

    def __init__(self, members: _ObjectColumns) -> None:
        self._members = members

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        if type(value) is not dict:
            return value, None
        rest, shape, put = self._members.split(value, into)
        return (rest, shape) if put else (value, None)

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        merged, shape = rest if type(rest) is dict else {}, note or {}
        document = self._members.placed(values, merged, shape)
        return _complete(document, merged, shape) if document else MISSING


class _LeafColumn:
    def __init__(self, column: str, kind: LeafType) -> None:
        self._column, self._stored = column, kind.stored
        self._store = storing(kind)
        self._natural = natural_note(kind.natural)
        self._type = unchanged_type(kind)

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        if type(value) is self._type:
            into[self._column] = value
            return MISSING, None
        if value is None:
            return MISSING, NULL_NOTE
        held = self._store(value)
        if held is MISSING:
            return value, None
        into[self._column] = held
        note = note_of(value)
        return MISSING, None if note == self._natural else note

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        held = values.get(self._column)
        if held is None:
            return None if note == NULL_NOTE else MISSING
        return restored(held, note or self._natural, self._stored)


class _StructColumn:
    def __init__(self, column: str, kind: StructOf) -> None:
        self._column, self._members = column, _ObjectColumns(kind.fields)

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        if value is None:
            return MISSING, NULL_NOTE
        if type(value) is not dict:
            return value, None
        mine: Values = {}
        into[self._column] = mine
        rest, shape, _ = self._members.split(value, mine)
        return rest, shape

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        held = values.get(self._column)
        if held is None:
            return None if note == NULL_NOTE else MISSING
        return self._members.joined(held, {} if rest is MISSING else rest, note or {})


class _ArrayColumn:
    """An array. It fits if each of its items fits without a rest."""

    def __init__(self, column: str, kind: ArrayOf) -> None:
        self._column, self._item = column, field_columns("", kind.item)

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        if value is None:
            return MISSING, NULL_NOTE
        if type(value) is not list:
            return value, None
        held: list[Any] = []
        notes: dict[str, Note] = {}
        for number, item in enumerate(value):
            if item is None:
                held.append(None)
                continue
            one: Values = {}
            left, note = self._item.put(item, one)
            if left is not MISSING:
                return value, None
            held.append(one[""])
            if note is not None:
                notes[str(number)] = note
        into[self._column] = held
        if len(notes) == len(held) > 1 and all(note == notes["0"] for note in notes.values()):
            notes = {_EVERY: notes["0"]}
        return MISSING, {"t": notes} if notes else None

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        held = values.get(self._column)
        if held is None:
            return None if note == NULL_NOTE else MISSING
        notes = note["t"] if note else {}
        every = notes.get(_EVERY)
        return [
            None if item is None else self._item.get({"": item}, MISSING, notes.get(str(number), every))
            for number, item in enumerate(held)
        ]


class _MapColumn:
    """An object with any names: the fitting fields in the object's order, and the rest."""

    def __init__(self, column: str, kind: MapOf) -> None:
        self._column, self._value = column, field_columns("", kind.value)

    def put(self, value: Any, into: Values) -> tuple[Any, Note]:
        if value is None:
            return MISSING, NULL_NOTE
        if type(value) is not dict:
            return value, None
        entries: list[tuple[str, Any]] = []
        rest: dict[str, Any] = {}
        notes: dict[str, Note] = {}
        for name, item in value.items():
            one: Values = {"": None}
            left, note = (MISSING, None) if item is None else self._value.put(item, one)
            if left is not MISSING:
                rest[name] = item
                continue
            entries.append((name, one[""]))
            if note is not None:
                notes[name] = note
        into[self._column] = entries
        shape: Shape = {"t": notes} if notes else {}
        if [*(name for name, _ in entries), *rest] != list(value):
            shape["o"] = list(value)
        return rest or MISSING, shape or None

    def get(self, values: Values, rest: Any, note: Any) -> Any:
        held = values.get(self._column)
        if held is None:
            return None if note == NULL_NOTE else MISSING
        shape = note or {}
        notes = shape.get("t", {})
        document = {
            name: None if item is None else self._value.get({"": item}, MISSING, notes.get(name)) for name, item in held
        }
        if rest is not MISSING:
            document |= rest
        return {name: document[name] for name in shape["o"]} if "o" in shape else document


def field_columns(column: str, kind: ColumnType) -> FieldColumns:
    """Return the columns of one field of this type; `column` is the name of its column."""
    if isinstance(kind, LeafType):
        return _LeafColumn(column, kind)
    if isinstance(kind, StructOf):
        return _StructColumn(column, kind)
    return _ArrayColumn(column, kind) if isinstance(kind, ArrayOf) else _MapColumn(column, kind)


Stored = tuple[Any, str]
"""A column's value, or MISSING, and the note with its BSON type."""

_BITS: Final = {"bigint": 64, "int": 32, "smallint": 16, "tinyint": 8}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
DATE_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND
DATE_MS_MAX: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_UUID_SUBTYPE: Final = 4
_WIDE: Final = Context(prec=80)
_NATURAL: Final = {
    "bigint": "long", "binary": "binary", "boolean": "bool", "double": "double", "float": "double",
    "int": "int", "objectId": "objectId", "smallint": "int", "string": "string", "timestamp": "date", "tinyint": "int",
    "uuid": "uuid",
}  # fmt: skip
_UNCHANGED: Final[dict[str, type]] = {"binary": bytes, "boolean": bool, "double": float, "string": str}
_NOTES: Final[dict[type, str]] = {
    DatetimeMS: "date", Int64: "long", ObjectId: "objectId", bool: "bool", bytes: "binary", float: "double", int: "int",
    str: "string",
}  # fmt: skip


def natural_note(natural: Primitive) -> str:
    """Return the note that values of this natural type omit."""
    return f"decimal:{natural.scale}" if natural.name == "decimal" else _NATURAL[natural.name]


def note_of(value: Any) -> str | None:
    """Return the note of a value; None if no column stores values of its type."""
    kind = type(value)
    if kind is Decimal128:
        number = value.to_decimal()
        return f"decimal:{-number.as_tuple().exponent}" if number.is_finite() else "decimal"
    if kind is Binary:
        return "uuid" if value.subtype == _UUID_SUBTYPE and len(value) == 16 else None
    return _NOTES.get(kind)


def unchanged_type(kind: LeafType) -> type | None:
    """Return the Python type of values stored unchanged and without a note; None if each value must be checked."""
    return _UNCHANGED.get(kind.natural.name) if kind.natural == kind.stored else None


def storing(kind: LeafType) -> Callable[[Any], Any]:
    """Return the function from a value to its stored form; it returns MISSING if the value does not fit."""
    stored = kind.stored
    if stored.name in _BITS:
        return integers(_BITS[stored.name])
    if stored.name == "decimal":
        return decimals(stored.precision, stored.scale, doubles=True)
    if stored.name == "string":
        return _number_or_text if kind.natural.name in NUMBERS else _text
    return _SIMPLE[stored.name]


def restored(value: Any, note: str, stored: Primitive) -> Any:
    """Return the BSON value for a column's value, which is not None."""
    kind, _, digits = note.partition(":")
    if kind == "decimal":
        return _decimal_of(value, digits, stored)
    if kind == "date":
        return DatetimeMS((value - _EPOCH) // _MILLISECOND)
    if kind == "uuid":
        return Binary(UUID(value).bytes, _UUID_SUBTYPE)
    return _RESTORED[kind](value)


def _decimal_of(value: Any, digits: str, stored: Primitive) -> Decimal128:
    if stored.name == "string":
        return Decimal128(value)
    exponent = -int(digits)
    unscaled = int(_WIDE.scaleb(Decimal(value), stored.scale))
    coefficient = abs(unscaled) // 10 ** (exponent + stored.scale)
    return Decimal128(Decimal((int(unscaled < 0), tuple(map(int, str(coefficient))), exponent)))


def _text(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value
    if kind is ObjectId:
        return str(value)
    return str(UUID(bytes=bytes(value))) if kind is Binary and note_of(value) == "uuid" else MISSING


def _number_or_text(value: Any) -> Any:
    kind = type(value)
    if kind is int or kind is Int64 or kind is Decimal128:
        return str(value)
    return repr(value) if kind is float else _text(value)


def _timestamp(value: Any) -> Any:
    fits = type(value) is DatetimeMS and DATE_MS_MIN <= int(value) <= DATE_MS_MAX
    return _EPOCH + int(value) * _MILLISECOND if fits else MISSING


_SIMPLE: Final[dict[str, Callable[[Any], Any]]] = {
    "binary": lambda value: value if type(value) is bytes else MISSING,
    "boolean": lambda value: value if type(value) is bool else MISSING,
    "double": double,
    "float": single,
    "timestamp": _timestamp,
}
_RESTORED: Final[dict[str, Callable[[Any], Any]]] = {
    "binary": bytes,
    "bool": bool,
    "double": float,
    "int": int,
    "long": Int64,
    "objectId": ObjectId,
    "string": str,
}
