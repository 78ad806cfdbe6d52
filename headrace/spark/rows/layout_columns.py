"""Typed columns of documents of one layout, and the rest of them: as `typed.py` says, for whole columns at once.

Rule: a document is told here only if `typed.py` would say the same of it. What a type alone decides is known of the
whole layout; documents of which a value is out of its column's range are left out, for the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as spark

from headrace.spark.rows import layouts
from headrace.spark.rows.layout_texts import texts
from headrace.spark.rows.layouts import Field, Found, Numbers
from headrace.spark.rows.typed import DATE_MS_MAX, DOUBLE_EXACT, INTEGERS, Fit, fit_type
from headrace.values.bson import MISSING

Marks: TypeAlias = NDArray[np.bool_]
Told: TypeAlias = tuple[pa.Array, Marks | None]
"""What a column holds, and which of the values do not fit; None: all do."""

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
"""The types of which a value may fit."""


class StructColumns:
    """The column of a struct and that of what is left."""

    def __init__(self, struct: spark.StructType, arrow: pa.StructType) -> None:
        self._struct, self._arrow = struct, arrow
        self._fits: dict[str, Fit] = {}

    def columns(self, found: Found) -> tuple[Numbers, list[pa.Array]]:
        """See `known_layouts.Fast`."""
        marks = np.zeros(len(found.rows), np.bool_)
        whole, left = self._of_struct(found, found.layout.fields, self._struct, self._arrow, "", marks)
        if marks.all():
            return found.rows[:0], []
        if marks.any():
            found = found.without(marks)
            whole = whole.filter(pa.array(~marks))
        rest = texts(found, left) if left else pa.nulls(len(found.rows), pa.string())
        return found.rows, [whole, rest]

    def _of_struct(
        self, found: Found, fields: tuple[Field, ...], struct: spark.StructType, arrow: pa.StructType, path: str,
        marks: Marks,
    ) -> tuple[pa.Array, tuple[Field, ...]]:  # fmt: skip
        """The column, and the fields that are left; marks the documents that do not fit."""
        there = {field.name: field for field in fields}
        children, left = [], dict(there)
        for column, held in zip(struct.fields, arrow, strict=True):
            field = there.get(column.name)
            if field is None or field.kind not in _KINDS.get(type(column.dataType), ()):
                children.append(pa.nulls(len(found.rows), held.type))
                continue
            del left[field.name]
            if isinstance(column.dataType, spark.StructType):
                below = f"{path}{column.name}."
                child, rest = self._of_struct(found, field.fields, column.dataType, held.type, below, marks)
                if rest:
                    left[field.name] = replace(field, fields=rest)
            else:
                child, wrong = self._of_value(found, field, column, held.type, f"{path}{column.name}")
                if wrong is not None:
                    marks |= wrong
            children.append(child)
        ordered = tuple(left[field.name] for field in fields if field.name in left)
        return pa.StructArray.from_arrays(children, fields=list(arrow)), ordered

    def _of_value(self, found: Found, field: Field, column: spark.StructField, arrow: pa.DataType, path: str) -> Told:
        make = _MAKERS.get(type(column.dataType))
        if make is not None:
            return make(found, field, arrow)
        if path not in self._fits:
            self._fits[path] = fit_type(column.dataType, column.name)
        told = [self._fits[path](value) for value in found.values(field)]
        wrong = np.array([left is not MISSING for _, left in told], np.bool_)
        return pa.array([held for held, _ in told], arrow), wrong


def _bools(found: Found, field: Field, arrow: pa.DataType) -> Told:
    return pa.array(found.bools(field)), None


def _integers(found: Found, field: Field, arrow: pa.DataType) -> Told:
    values = found.longs(field)
    if arrow.bit_width == 64:
        return pa.array(values), None
    beyond = 1 << (arrow.bit_width - 1)
    wrong = (values < -beyond) | (values >= beyond)
    return pa.array(np.where(wrong, 0, values)).cast(arrow), wrong


def _doubles(found: Found, field: Field, arrow: pa.DataType) -> Told:
    if field.kind == layouts.DOUBLE:
        return pa.array(found.doubles(field)), None
    values = found.longs(field)
    return pa.array(values.astype(np.float64)), (values < -DOUBLE_EXACT) | (values > DOUBLE_EXACT)


def _floats(found: Found, field: Field, arrow: pa.DataType) -> Told:
    doubles, wrong = _doubles(found, field, pa.float64())
    values = doubles.to_numpy()
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32)
    changed = (singles.astype(np.float64) != values) & ~np.isnan(values)
    return pa.array(singles), changed if wrong is None else wrong | changed


def _strings(found: Found, field: Field, arrow: pa.DataType) -> Told:
    return found.hexes(field) if field.kind == layouts.OBJECT_ID else found.strings(field), None


def _moments(found: Found, field: Field, arrow: pa.DataType) -> Told:
    values = found.longs(field)
    wrong = (values <= -DATE_MS_MAX) | (values >= DATE_MS_MAX)
    return pa.array(np.where(wrong, 0, values) * 1000).cast(arrow), wrong


_MAKERS: Final[dict[type[spark.DataType], Callable[[Found, Field, Any], Told]]] = {
    spark.BooleanType: _bools,
    spark.DoubleType: _doubles,
    spark.FloatType: _floats,
    spark.StringType: _strings,
    spark.TimestampType: _moments,
} | dict.fromkeys(INTEGERS, _integers)
