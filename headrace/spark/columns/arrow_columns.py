"""Typed columns as Arrow: the schema of a table's documents; documents as arrays, and back.

The rest is canonical Extended JSON, the shape is JSON. Both are null for a document that exactly follows the schema.

Most documents of a collection have one of a few layouts. Documents that have the same layout become columns together,
from their texts, without parsing each text as JSON.

    layout    the names and kinds of a document's values in order: a regular expression whose groups are the values

Rule: the columns equal those of `DocumentColumns.split`. A layout converts only documents whose values all fit their
columns, and whose shapes are equal. All other documents are left to the parser. The text of a value is checked by the
layout's expression, so a text that is not as `extjson.dumps` writes it has no layout.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace import limits
from headrace.spark.columns.column_types import ArrayOf, ColumnType, LeafType, Primitive, StructField, StructOf
from headrace.spark.columns.document_columns import (
    DATE_MS_MAX,
    DATE_MS_MIN,
    DocumentColumns,
    FieldColumns,
    Note,
    field_columns,
)
from headrace.spark.rows.exact_numbers import DOUBLE_EXACT
from headrace.spark.rows.extjson import dumps, loads
from headrace.values.bson import MISSING

Mask: TypeAlias = NDArray[np.bool_]
Fitted: TypeAlias = tuple[pa.Array, Mask | None]
"""A column's values, and a mask of the values that do not fit (None: all fit)."""
Texts: TypeAlias = Sequence[str]

ROWS_MIN: Final = 200
"""The least number of rows of a layout: making its expression takes as long as parsing 200 texts."""
_SAMPLE: Final = 16
_SHARED_MIN: Final = 2
_LAYOUT_COUNT_MAX: Final = 16
_NESTED_MAX: Final = 4
"""The depth of arrays, or of objects, in one value that an expression reads."""
_PARSED_COUNT_MAX: Final = 4
"""The most items of an array or a map in a layout. Items are parsed, so with more of them a layout saves nothing."""

_CHARACTERS: Final = r'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+'


def _balanced(opening: str, closing: str, depth: int = _NESTED_MAX) -> str:
    """Return an expression of a text in brackets. What is between the brackets is left to the parser."""
    inner = f"|{_balanced(opening, closing, depth - 1)}" if depth > 1 else ""
    return rf'\{opening}(?:[^"\{opening}\{closing}]++|"{_CHARACTERS}"{inner})*+\{closing}'


_ARRAY: Final = _balanced("[", "]")
_OBJECT: Final = _balanced("{", "}")
_STRINGS: Final = rf'\[(?:"{_CHARACTERS}"(?:,|(?=\])))*+\]'
_VALUES: Final[dict[str, tuple[str, str, str]]] = {
    "$date": (r'\{"\$date":\{"\$numberLong":"', r"-?[0-9]{1,17}", r'"\}\}'),
    "$numberDouble": (r'\{"\$numberDouble":"', r"-?[0-9][0-9.e+-]{0,31}|-?Infinity|NaN", r'"\}'),
    "$numberInt": (r'\{"\$numberInt":"', r"-?[0-9]{1,10}", r'"\}'),
    "$numberLong": (r'\{"\$numberLong":"', r"-?[0-9]{1,19}", r'"\}'),
    "$oid": (r'\{"\$oid":"', r"[0-9a-f]{24}", r'"\}'),
    "array": ("", _ARRAY, ""),
    "bool": ("", "true|false", ""),
    "object": ("", _OBJECT, ""),
    "string": ('"', _CHARACTERS, '"'),
    "strings": ("", _STRINGS, ""),
}
"""The expression of each kind of value: before it, its group, and after it."""


class _NoLayout(Exception):
    """The document has no layout."""


class _LayoutColumn(Protocol):
    """Makes a column from the groups of a layout."""

    def column(self, groups: Sequence[Texts], misfits: Mask) -> pa.Array:
        """Return the column; set `misfits` for documents whose value must be left to the parser."""


@dataclass(frozen=True, slots=True)
class _ColumnOfTexts:
    """A column whose values are the texts of one group."""

    group: int
    read: Callable[[Texts, pa.DataType], Fitted]
    arrow: pa.DataType

    def column(self, groups: Sequence[Texts], misfits: Mask) -> pa.Array:
        values, wrong = self.read(groups[self.group], self.arrow)
        if wrong is not None:
            misfits |= wrong
        return values


@dataclass(frozen=True, slots=True)
class _ColumnOfParsed:
    """A column whose values are parsed and stored one by one. `note` is the note that all of them have."""

    group: int
    field: FieldColumns
    note: Note
    arrow: pa.DataType

    def column(self, groups: Sequence[Texts], misfits: Mask) -> pa.Array:
        held = []
        for row, value in enumerate(loads(f"[{','.join(groups[self.group])}]")):
            into: dict[str, Any] = {}
            left, note = self.field.put(value, into)
            misfits[row] |= left is not MISSING or note != self.note
            held.append(into.get(""))
        return pa.array(held, self.arrow)


@dataclass(frozen=True, slots=True)
class _ColumnOfStructs:
    """A column of structs; None stands for a field that no document has."""

    fields: tuple[_LayoutColumn | None, ...]
    arrow: pa.StructType

    def column(self, groups: Sequence[Texts], misfits: Mask) -> pa.Array:
        made = [
            pa.nulls(len(misfits), held.type) if reader is None else reader.column(groups, misfits)
            for reader, held in zip(self.fields, self.arrow, strict=True)
        ]
        return pa.StructArray.from_arrays(made, fields=list(self.arrow))


class _LayoutMaker:
    """Makes the expression of a document, and the readers of its columns."""

    def __init__(self) -> None:
        self.group_count = 0

    def object(
        self, document: dict[str, Any], fields: Sequence[StructField], arrow: Iterable[pa.Field], depth: int = 0
    ) -> tuple[str, dict[str, _LayoutColumn]]:
        """Return the expression of an object, and the readers by the names of their columns. Raise _NoLayout."""
        members: list[str] = []
        readers: dict[str, _LayoutColumn] = {}
        types = {each.name: each.type for each in arrow}
        for name, value in document.items():
            own = [each for each in fields if each.path[depth] == name and each.type is not None]
            column = next((each for each in reversed(own) if len(each.path) == depth + 1), None)
            if not own or name.startswith("$"):
                raise _NoLayout
            if column is not None:
                text, reader = self._value(value, column, types[column.column])
                if reader is not None:
                    readers[column.column] = reader
            else:
                # The fields of a flattened object.
                if type(value) is not dict:
                    raise _NoLayout
                text, below = self.object(value, own, arrow, depth + 1)
                readers |= below
            members.append(f"{re.escape(dumps(name))}:{text}")
        return rf"\{{{','.join(members)}\}}", readers

    def _value(self, value: Any, field: StructField, arrow: pa.DataType) -> tuple[str, _LayoutColumn | None]:
        assert field.type is not None
        if value is None:
            return "null", None
        if isinstance(field.type, StructOf) and type(value) is dict:
            if not arrow.num_fields:
                raise _NoLayout
            text, readers = self.object(value, field.type.fields, arrow)
            return text, _ColumnOfStructs(tuple(readers.get(each.name) for each in arrow), arrow)
        kind = _kind(value)
        if kind in {"array", "object"} and len(value) > _PARSED_COUNT_MAX:
            raise _NoLayout
        before, group, after = _VALUES[kind]
        number, self.group_count = self.group_count, self.group_count + 1
        read = _READERS.get((kind, field.type.stored.name)) if isinstance(field.type, LeafType) else None
        if read is not None:
            return f"{before}({group}){after}", _ColumnOfTexts(number, read, arrow)
        if kind == "strings" and str(field.type) == "array<string>":
            return f"({group})", _ColumnOfTexts(number, _string_arrays, arrow)
        column = field_columns("", field.type)
        _, note = column.put(loads(json.dumps(value)), {})
        return f"({before}(?:{group}){after})", _ColumnOfParsed(number, column, note, arrow)


def _kind(value: Any) -> str:
    """Return the key of `_VALUES` for parsed JSON. Raise _NoLayout."""
    if type(value) is str or type(value) is bool:
        return "string" if type(value) is str else "bool"
    if type(value) is list:
        return "strings" if all(type(item) is str for item in value) else "array"
    if type(value) is not dict:
        raise _NoLayout
    name, inner = next(iter(value.items()), ("", None))
    if name == "$date" and type(inner) is dict and inner.keys() == {"$numberLong"}:
        inner = inner["$numberLong"]
    known = len(value) == 1 and type(inner) is str and name.startswith("$") and name in _VALUES
    return name if known else "object"


@dataclass(frozen=True, slots=True)
class _LayoutPlan:
    """A layout whose expression is not compiled yet."""

    expression: str
    shape: str | None
    readers: dict[str, _LayoutColumn]


class TextLayout:
    """Documents of one layout."""

    def __init__(self, plan: _LayoutPlan, arrow: pa.Schema) -> None:
        self.match = re.compile(plan.expression, re.DOTALL).fullmatch
        self._shape, self._readers, self._arrow = plan.shape, plan.readers, arrow

    def arrays(self, matches: Sequence[re.Match[str]]) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the documents that must be left to the parser. Raise ValueError."""
        misfits = np.zeros(len(matches), np.bool_)
        groups = list(zip(*[match.groups() for match in matches], strict=True))
        arrays = [
            self._readers[field.name].column(groups, misfits)
            if field.name in self._readers
            else pa.nulls(len(matches), field.type)
            for field in list(self._arrow)[:-2]
        ]
        shapes = pa.nulls(len(matches), pa.string()) if self._shape is None else pa.array([self._shape] * len(matches))
        return [*arrays, pa.nulls(len(matches), pa.string()), shapes], misfits


Rows: TypeAlias = NDArray[np.int64]
Piece: TypeAlias = tuple[Rows, list[pa.Array]]
"""Rows, and their columns."""
Parsed: TypeAlias = tuple[list[pa.Array], list[dict[str, Any]]]
"""The columns of parsed documents, and their rests that are not empty."""


class TextLayouts:
    """The layouts of the documents of one schema, remembered between batches.

    `parsed` converts any documents. `arrow` has the columns, then the rest and the shape.
    """

    def __init__(
        self, schema: StructOf, arrow: pa.Schema, parsed: Callable[[Iterable[dict[str, Any] | None]], Parsed]
    ) -> None:
        self._schema, self._arrow, self._parsed = schema, arrow, parsed
        self._known: list[TextLayout] = []

    def split(self, texts: Sequence[str | None]) -> Parsed:
        """Return the columns of the documents with these texts (nulls for None), and the rests that are not empty."""
        if len(texts) < ROWS_MIN:
            return self._parsed(None if text is None else loads(text) for text in texts)
        there = np.array([row for row, text in enumerate(texts) if text is not None], np.int64)
        pieces, left = self._pieces(texts, there) if len(there) >= ROWS_MIN else ([], there)
        arrays, rests = self._parsed(loads(texts[row] or "") for row in left)
        if len(left):
            pieces.append((left, arrays))
        if len(there) < len(texts):
            nulls = np.setdiff1d(np.arange(len(texts)), there, assume_unique=True)
            pieces.append((nulls, [pa.nulls(len(nulls), field.type) for field in self._arrow]))
        if len(pieces) == 1:
            return pieces[0][1], rests
        order = pa.array(np.argsort(np.concatenate([rows for rows, _ in pieces])))
        together = zip(*(made for _, made in pieces), strict=True)
        return [pa.concat_arrays(list(each)).take(order) for each in together], rests

    def _pieces(self, texts: Sequence[Any], left: Rows) -> tuple[list[Piece], Rows]:
        """Return the rows that layouts convert, with their columns, and all other rows."""
        pieces: list[Piece] = []
        used: list[tuple[int, TextLayout]] = []
        known, parsed = list(self._known), list[Rows]()
        for _ in range(len(known) + limits.LAYOUT_FAILURE_COUNT_MAX):
            layout = known.pop(0) if known else self._learned(texts, left)
            if layout is None:
                break
            matches = [layout.match(texts[row]) for row in left]
            fits = np.array([match is not None for match in matches], np.bool_)
            rows, left = left[fits], left[~fits]
            if len(rows):
                used.append((len(rows), layout))
                arrays, misfits = self._converted(layout, [match for match in matches if match])
                parsed.append(rows[misfits])
                if not misfits.all():
                    pieces.append((rows[~misfits], arrays))
            if len(left) < ROWS_MIN:
                break
        used.sort(key=lambda each: -each[0])
        self._known = [layout for _, layout in used][:_LAYOUT_COUNT_MAX]
        return pieces, np.sort(np.concatenate([left, *parsed]))

    def _converted(self, layout: TextLayout, matches: Sequence[re.Match[str]]) -> tuple[list[pa.Array], Mask]:
        """Return the columns without the documents that must be parsed, and a mask of these documents."""
        try:
            arrays, misfits = layout.arrays(matches)
        except (ArithmeticError, IndexError, ValueError):
            # A value is invalid, and the parser decides what becomes of it.
            return [], np.ones(len(matches), np.bool_)
        if misfits.any():
            fitting = pa.array(~misfits)
            arrays = [array.filter(fitting) for array in arrays]
        return arrays, misfits

    def _learned(self, texts: Sequence[Any], left: Rows) -> TextLayout | None:
        """Return the layout that most of a sample of the remaining rows have; None if hardly any two rows share one."""
        plans = [self._plan(texts[row]) for row in left[:: 1 + len(left) // _SAMPLE]]
        found = {plan.expression: plan for plan in plans if plan is not None}
        counts = Counter(plan.expression for plan in plans if plan is not None)
        if not counts or max(counts.values()) < _SHARED_MIN:
            return None
        return TextLayout(found[counts.most_common(1)[0][0]], self._arrow)

    def _plan(self, text: str) -> _LayoutPlan | None:
        """Return the layout of a document; None if it has none."""
        arrays, rests = self._parsed([loads(text)])
        document = json.loads(text)
        if rests or type(document) is not dict:
            return None
        try:
            expression, readers = _LayoutMaker().object(document, self._schema.fields, list(self._arrow)[:-2])
        except _NoLayout:
            return None
        return _LayoutPlan(expression, arrays[-1][0].as_py(), readers)


def _strings(texts: Texts, arrow: pa.DataType) -> Fitted:
    if "\\" in "".join(texts):
        texts = json.loads('["' + '","'.join(texts) + '"]')
    return pa.array(texts, arrow), None


def _string_arrays(texts: Texts, arrow: pa.DataType) -> Fitted:
    return pa.array(json.loads(f"[{','.join(texts)}]"), arrow), None


def _unchanged(texts: Texts, arrow: pa.DataType) -> Fitted:
    return pa.array(texts, arrow), None


def _bools(texts: Texts, arrow: pa.DataType) -> Fitted:
    return pa.array([text == "true" for text in texts], arrow), None


def _doubles(texts: Texts, arrow: pa.DataType) -> Fitted:
    return pa.array(list(map(float, texts)), arrow), None


def _integers(texts: Texts, arrow: pa.DataType) -> Fitted:
    values = np.array(list(map(int, texts)), np.int64)
    if arrow.bit_width == 64:
        return pa.array(values), None
    beyond = 1 << (arrow.bit_width - 1)
    wrong = (values < -beyond) | (values >= beyond)
    return pa.array(np.where(wrong, 0, values)).cast(arrow), wrong


def _integers_as_doubles(texts: Texts, arrow: pa.DataType) -> Fitted:
    values = np.array(list(map(int, texts)), np.int64)
    return pa.array(values.astype(np.float64)), (values < -DOUBLE_EXACT) | (values > DOUBLE_EXACT)


def _moments(texts: Texts, arrow: pa.DataType) -> Fitted:
    values = np.array(list(map(int, texts)), np.int64)
    wrong = (values < DATE_MS_MIN) | (values > DATE_MS_MAX)
    return pa.array(np.where(wrong, 0, values) * 1000).cast(arrow), wrong


_READERS: Final[dict[tuple[str, str], Callable[[Texts, pa.DataType], Fitted]]] = {
    ("$date", "timestamp"): _moments,
    ("$numberDouble", "double"): _doubles,
    ("$numberInt", "double"): _integers_as_doubles,
    ("$numberLong", "double"): _integers_as_doubles,
    ("$oid", "string"): _unchanged,
    ("bool", "boolean"): _bools,
    ("string", "string"): _strings,
} | {
    (number, stored): _integers
    for number in ("$numberInt", "$numberLong")
    for stored in ("bigint", "int", "smallint", "tinyint")
}
"""Reads the values of a kind, by the kind and the name of the stored type. Each of these has the same note always."""


REST: Final = "_rest"
SHAPE: Final = "_shape"
_SCHEMA_COUNT: Final = 32
"""The number of schemas whose columns are remembered."""
_TYPES: Final[dict[str, Callable[[], pa.DataType]]] = {
    "bigint": pa.int64,
    "binary": pa.binary,
    "boolean": pa.bool_,
    "double": pa.float64,
    "float": pa.float32,
    "int": pa.int32,
    "smallint": pa.int16,
    "string": pa.string,
    "timestamp": lambda: pa.timestamp("us", "UTC"),
    "tinyint": pa.int8,
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column."""
    if isinstance(kind, LeafType):
        return _primitive(kind.stored)
    if isinstance(kind, StructOf):
        return pa.struct([(field.column, arrow_type(field.type)) for field in kind.fields if field.type is not None])
    if isinstance(kind, ArrayOf):
        return pa.list_(arrow_type(kind.item))
    return pa.map_(pa.string(), arrow_type(kind.value))


def _primitive(stored: Primitive) -> pa.DataType:
    return pa.decimal128(stored.precision, stored.scale) if stored.name == "decimal" else _TYPES[stored.name]()


class ArrowColumns:
    """Documents of one schema as Arrow columns: the schema's columns, then the rest and the shape."""

    def __init__(self, schema: StructOf) -> None:
        self.schema = schema
        self._documents = DocumentColumns(schema)
        typed = [pa.field(field.column, arrow_type(field.type)) for field in schema.fields if field.type is not None]
        self.arrow = pa.schema([*typed, pa.field(REST, pa.string()), pa.field(SHAPE, pa.string())])
        self._layouts = TextLayouts(schema, self.arrow, self.split)

    def __reduce__(self) -> tuple[Any, ...]:
        return columns_of, (self.schema,)

    def split_texts(self, texts: Sequence[str | None]) -> tuple[list[pa.Array], list[dict[str, Any]]]:
        """Return the same as `split` for the documents with these texts."""
        return self._layouts.split(texts)

    def split(self, documents: Iterable[dict[str, Any] | None]) -> tuple[list[pa.Array], list[dict[str, Any]]]:
        """Return the arrays, with a row for each document (nulls for None), and the rests that are not empty."""
        columns: list[list[Any]] = [[] for _ in self.arrow]
        rests: list[dict[str, Any]] = []
        names = self.arrow.names[:-2]
        for document in documents:
            values, rest, shape = ({}, None, None) if document is None else self._documents.split(document)
            for name, column in zip(names, columns, strict=False):
                column.append(values.get(name))
            columns[-2].append(None if rest is None else dumps(rest))
            columns[-1].append(None if shape is None else _shape_text(shape))
            if rest is not None:
                rests.append(rest)
        return [pa.array(column, field.type) for column, field in zip(columns, self.arrow, strict=True)], rests

    def joined(self, table: pa.Table) -> list[dict[str, Any]]:
        """Return the documents of a table's rows; a column that the table lacks is null."""
        names = [name for name in self.arrow.names if name in table.column_names]
        return [self.document(row) for row in table.select(names).to_pylist()]

    def document(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a row, whose values come from Arrow."""
        rest, shape = row.get(REST), row.get(SHAPE)
        return self._documents.joined(row, loads_rest(rest), None if shape is None else json.loads(shape))


@lru_cache(maxsize=_SCHEMA_COUNT)
def columns_of(schema: StructOf) -> ArrowColumns:
    """Return the columns of a schema, which remember the layouts of the documents that they have split."""
    return ArrowColumns(schema)


def loads_rest(text: str | None) -> dict[str, Any] | None:
    """Return the rest from its text."""
    rest: dict[str, Any] | None = None if text is None else loads(text)
    return rest


def _shape_text(shape: dict[str, Any]) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(",", ":"))


def rest_count(rests: Sequence[dict[str, Any]]) -> int:
    """Return the number of values in the rests; values in objects are counted one by one."""
    return sum(_values_in(rest) for rest in rests)


def _values_in(value: Any) -> int:
    return sum(map(_values_in, value.values())) or 1 if type(value) is dict else 1
