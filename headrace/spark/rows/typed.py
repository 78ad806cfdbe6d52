"""Converts columns of BSON to columns of Spark's schema: documents as Extended JSON, as BSON, or typed.

    extjson   canonical Extended JSON, text that keeps the order of fields and every type (the default)
    bson      the bytes, without a conversion
    columns   `fullDocument` and `fullDocumentBeforeChange` as structs by `documentSchema`; fields that do not fit or
              are not in the schema as Extended JSON in `fullDocumentRest` and `fullDocumentBeforeChangeRest`

Workers convert only the requested columns. Documents of the same layout are converted all at once (`layouts.py`), the
others one by one. Rule: both ways give identical results. A mark replaces a document that Extended JSON cannot hold
(`not_held.py`).

Rule of typed columns: nothing is dropped or changed. A value is either in its column or in the rest, at the same path,
never in both.

These values fit:

    BOOLEAN          bool
    BYTE … LONG      int and long in range
    FLOAT, DOUBLE    double, int and long, if represented exactly
    DECIMAL(p, s)    decimal, int and long, if represented exactly
    STRING           string; objectId, as 24 digits
    BINARY           binary of the common subtype
    TIMESTAMP        date
    STRUCT           object; each of its fields fits or goes to the rest
    ARRAY, MAP       array, object, if every item fits completely; null items fit

A null goes to the rest, because NULL in a column means that the field is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from numpy.typing import NDArray
from pyspark.sql import types as spark
from pyspark.sql.types import StructType

from headrace.spark.errors import OptionError
from headrace.spark.rows import layouts
from headrace.spark.rows.events import REST, TYPED_COLUMNS, arrow_schema
from headrace.spark.rows.exact_numbers import DOUBLE_EXACT, decimals, double, integers, single
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.layouts import KnownLayouts, LayoutField, LayoutMatch, Numbers, texts
from headrace.spark.rows.layouts import texts as layout_texts
from headrace.spark.rows.not_held import held_or_marked
from headrace.values.arrow.event_columns import COLUMNS
from headrace.values.bson import MISSING

Fit = Callable[[Any], tuple[Any, Any]]
"""Fits a value: returns the column's value and the rest. MISSING: the value fits; (None, value): it does not.
"""

INTEGERS: Final[dict[type[spark.DataType], int]] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
DATE_MS_MAX: Final = 1 << 52


def fit_struct(struct: spark.StructType) -> Fit:
    """Return the function that fits documents to a struct; raise OptionError for a type without BSON values."""
    fits = {field.name: fit_type(field.dataType, field.name) for field in struct.fields}
    if required := [field.name for field in struct.fields if not field.nullable]:
        raise OptionError(f"documentSchema: {required[0]!r} cannot be NOT NULL: any document may lack it")

    def fit(value: Any) -> tuple[Any, Any]:
        if type(value) is not dict:
            return None, value
        typed, rest = {}, {}
        for name, item in value.items():
            known = fits.get(name)
            if known is None:
                rest[name] = item
                continue
            held, left = known(item)
            if held is not None:
                typed[name] = held
            if left is not MISSING:
                rest[name] = left
        return typed, rest or MISSING

    return fit


def fit_type(kind: spark.DataType, name: str) -> Fit:
    """Return the function that fits values to a type; raise OptionError with `name` for a type without BSON values."""
    if isinstance(kind, spark.StructType):
        return fit_struct(kind)
    if isinstance(kind, spark.ArrayType):
        return _fit_array(fit_type(kind.elementType, name))
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return _fit_map(fit_type(kind.valueType, name))
    if isinstance(kind, spark.DecimalType):
        return _fit_number(decimals(kind.precision, kind.scale, doubles=False))
    if type(kind) in INTEGERS:
        return _fit_number(integers(INTEGERS[type(kind)]))
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise OptionError(f"documentSchema: {name!r} is {kind.simpleString()}, which no BSON value is")
    return simple


def _fit_array(item_fit: Fit) -> Fit:
    def fit(value: Any) -> tuple[Any, Any]:
        if type(value) is not list:
            return None, value
        held = _fit_items(value, item_fit)
        return (None, value) if held is None else (held, MISSING)

    return fit


def _fit_map(item_fit: Fit) -> Fit:
    def fit(value: Any) -> tuple[Any, Any]:
        if type(value) is not dict:
            return None, value
        held = _fit_items(list(value.values()), item_fit)
        return (None, value) if held is None else (list(zip(value, held)), MISSING)

    return fit


def _fit_items(items: list[Any], fit: Fit) -> list[Any] | None:
    """Return the column's values of the items if every item fits completely, otherwise None."""
    held = []
    for item in items:
        one, left = (None, MISSING) if item is None else fit(item)
        if left is not MISSING:
            return None
        held.append(one)
    return held


def _fit_number(store: Callable[[Any], Any]) -> Fit:
    def fit(value: Any) -> tuple[Any, Any]:
        held = store(value)
        return (None, value) if held is MISSING else (held, MISSING)

    return fit


def _fit_string(value: Any) -> tuple[Any, Any]:
    if type(value) is str:
        return value, MISSING
    return (str(value), MISSING) if type(value) is ObjectId else (None, value)


def _fit_timestamp(value: Any) -> tuple[Any, Any]:
    fits = type(value) is DatetimeMS and abs(int(value)) < DATE_MS_MAX
    return (int(value) * 1000, MISSING) if fits else (None, value)


_SIMPLE: Final[dict[type[spark.DataType], Fit]] = {
    spark.BinaryType: lambda value: (value, MISSING) if type(value) is bytes else (None, value),
    spark.BooleanType: lambda value: (value, MISSING) if type(value) is bool else (None, value),
    spark.DoubleType: _fit_number(double),
    spark.FloatType: _fit_number(single),
    spark.StringType: _fit_string,
    spark.TimestampType: _fit_timestamp,
}


Mask: TypeAlias = NDArray[np.bool_]
FittedColumn: TypeAlias = tuple[pa.Array, Mask | None]
"""A column's values, and a mask of the values that do not fit (None: all fit)."""

_KINDS: Final[dict[type[spark.DataType], tuple[int, ...]]] = {
    spark.ArrayType: (layouts.ARRAY,),
    spark.BinaryType: (layouts.BINARY,),
    spark.BooleanType: (layouts.BOOL,),
    spark.ByteType: (layouts.INT, layouts.LONG),
    spark.DecimalType: (layouts.DECIMAL, layouts.INT, layouts.LONG),
    spark.DoubleType: (layouts.DOUBLE, layouts.INT, layouts.LONG),
    spark.FloatType: (layouts.DOUBLE, layouts.INT, layouts.LONG),
    spark.IntegerType: (layouts.INT, layouts.LONG),
    spark.LongType: (layouts.INT, layouts.LONG),
    spark.MapType: (layouts.OBJECT,),
    spark.ShortType: (layouts.INT, layouts.LONG),
    spark.StringType: (layouts.TEXT, layouts.OBJECT_ID),
    spark.StructType: (layouts.OBJECT,),
    spark.TimestampType: (layouts.DATE,),
}
"""The BSON types whose values may fit, by Spark's type."""


class StructColumns:
    """Makes the column of a struct, and the column of the rest, of all documents of one layout at once.

    Rule: the results equal those of `fit_struct`. Decisions that depend only on types are made once for the layout.
    Documents with a value outside its column's range are left to the decoder.
    """

    def __init__(self, struct: spark.StructType, arrow: pa.StructType) -> None:
        self._struct, self._arrow = struct, arrow
        self._fits: dict[str, Fit] = {}

    def columns(self, match: LayoutMatch) -> tuple[Numbers, list[pa.Array]]:
        """See `layouts.Fast`."""
        misfits = np.zeros(len(match.rows), np.bool_)
        typed, left = self._of_struct(match, match.layout.fields, self._struct, self._arrow, "", misfits)
        if misfits.all():
            return match.rows[:0], []
        if misfits.any():
            match = match.without(misfits)
            typed = typed.filter(pa.array(~misfits))
        rest = texts(match, left) if left else pa.nulls(len(match.rows), pa.string())
        return match.rows, [typed, rest]

    def _of_struct(
        self, match: LayoutMatch, fields: tuple[LayoutField, ...], struct: spark.StructType, arrow: pa.StructType,
        path: str, misfits: Mask,
    ) -> tuple[pa.Array, tuple[LayoutField, ...]]:  # fmt: skip
        """Return the column, and the fields that remain for the rest; set `misfits` for documents that do not fit."""
        there = {field.name: field for field in fields}
        children, left = [], dict(there)
        for column, held in zip(struct.fields, arrow, strict=True):
            field = there.get(column.name)
            if field is None or field.kind not in _KINDS.get(type(column.dataType), ()):
                children.append(pa.nulls(len(match.rows), held.type))
                continue
            del left[field.name]
            if isinstance(column.dataType, spark.StructType):
                below = f"{path}{column.name}."
                child, rest = self._of_struct(match, field.fields, column.dataType, held.type, below, misfits)
                if rest:
                    left[field.name] = replace(field, fields=rest)
            else:
                child, wrong = self._of_value(match, field, column, held.type, f"{path}{column.name}")
                if wrong is not None:
                    misfits |= wrong
            children.append(child)
        ordered = tuple(left[field.name] for field in fields if field.name in left)
        return pa.StructArray.from_arrays(children, fields=list(arrow)), ordered

    def _of_value(
        self, match: LayoutMatch, field: LayoutField, column: spark.StructField, arrow: pa.DataType, path: str
    ) -> FittedColumn:
        make = _MAKERS.get(type(column.dataType))
        if make is not None:
            return make(match, field, arrow)
        if path not in self._fits:
            self._fits[path] = fit_type(column.dataType, column.name)
        fitted = [self._fits[path](value) for value in match.values(field)]
        wrong = np.array([left is not MISSING for _, left in fitted], np.bool_)
        return pa.array([held for held, _ in fitted], arrow), wrong


def _bools(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    return pa.array(match.bools(field)), None


def _integers(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    values = match.longs(field)
    if arrow.bit_width == 64:
        return pa.array(values), None
    beyond = 1 << (arrow.bit_width - 1)
    wrong = (values < -beyond) | (values >= beyond)
    return pa.array(np.where(wrong, 0, values)).cast(arrow), wrong


def _doubles(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    if field.kind == layouts.DOUBLE:
        return pa.array(match.doubles(field)), None
    values = match.longs(field)
    return pa.array(values.astype(np.float64)), (values < -DOUBLE_EXACT) | (values > DOUBLE_EXACT)


def _floats(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    doubles, wrong = _doubles(match, field, pa.float64())
    values = doubles.to_numpy()
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32)
    changed = (singles.astype(np.float64) != values) & ~np.isnan(values)
    return pa.array(singles), changed if wrong is None else wrong | changed


def _strings(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    return match.hexes(field) if field.kind == layouts.OBJECT_ID else match.strings(field), None


def _moments(match: LayoutMatch, field: LayoutField, arrow: pa.DataType) -> FittedColumn:
    values = match.longs(field)
    wrong = (values <= -DATE_MS_MAX) | (values >= DATE_MS_MAX)
    return pa.array(np.where(wrong, 0, values) * 1000).cast(arrow), wrong


_MAKERS: Final[dict[type[spark.DataType], Callable[[LayoutMatch, LayoutField, Any], FittedColumn]]] = {
    spark.BooleanType: _bools,
    spark.DoubleType: _doubles,
    spark.FloatType: _floats,
    spark.StringType: _strings,
    spark.TimestampType: _moments,
} | dict.fromkeys(INTEGERS, _integers)


class Shaper:
    """Converts batches of BSON columns to a Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = arrow_schema(schema)
        names = [name.removesuffix(REST) for name in self.schema.names]
        self.columns = tuple(name for name in COLUMNS if name in names)
        """The BSON columns that the schema needs, in the order of COLUMNS."""
        self._typed = {
            field.name: TypedColumns(field.dataType, self.schema.field(field.name).type)
            for field in schema.fields
            if field.name in TYPED_COLUMNS and isinstance(field.dataType, StructType)
        }
        self._texts = {name: TextColumn() for name in names}

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in Spark's schema."""
        typed: dict[str, list[pa.Array]] = {}
        arrays = [self._array(field, batch, typed) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, batch: pa.RecordBatch, typed: dict[str, list[pa.Array]]) -> pa.Array:
        name = field.name
        document = name.removesuffix(REST)
        if document in self._typed:
            if document not in typed:
                typed[document] = self._typed[document](batch.column(document))
            return typed[document][name != document]
        column = batch.column(name)
        if pa.types.is_binary(column.type) and not pa.types.is_binary(field.type):
            column = self._texts[name](column)
        return column if column.type == field.type else column.cast(field.type)


class TextColumn:
    """Converts a column of BSON documents to Extended JSON; layouts are remembered between batches."""

    def __init__(self) -> None:
        self._known = KnownLayouts()

    def __call__(self, column: pa.Array) -> pa.Array:
        (texts,) = self._known.columns(column, _fast_texts, exact_texts)
        return texts


class TypedColumns:
    """Converts a column of BSON documents to a struct and the Extended JSON of the rest; remembers layouts."""

    def __init__(self, struct: StructType, arrow: pa.DataType) -> None:
        self._fit, self._arrow = fit_struct(struct), arrow
        self._struct = StructColumns(struct, arrow)
        self._known = KnownLayouts()

    def __call__(self, column: pa.Array) -> list[pa.Array]:
        return self._known.columns(column, self._struct.columns, self.exact)

    def exact(self, column: pa.Array) -> list[pa.Array]:
        """Convert the documents one by one."""
        held: list[Any] = []
        rest: list[str | None] = []
        for data in column.to_pylist():
            value, left = (None, MISSING) if data is None else self._fit(held_or_marked(data))
            held.append(value)
            rest.append(None if left is MISSING else dumps(left))
        return [pa.array(held, self._arrow), pa.array(rest, pa.string())]


def exact_texts(column: pa.Array) -> list[pa.Array]:
    """Return the Extended JSON of a column of documents, converted one by one."""
    texts = [None if data is None else dumps(held_or_marked(data)) for data in column.to_pylist()]
    return [pa.array(texts, pa.string())]


def _fast_texts(match: LayoutMatch) -> tuple[Numbers, list[pa.Array]]:
    return match.rows, [layout_texts(match)]
