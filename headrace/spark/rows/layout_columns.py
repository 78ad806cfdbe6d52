"""Typed columns of documents of one layout, and their rest, as in `typed.py`, but for whole columns at once.

Rule: the results equal those of `typed.py`. Decisions that depend only on types are made once for the layout. Documents
with a value outside its column's range are left to the decoder.
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
from headrace.spark.rows.layouts import LayoutField, LayoutMatch, Numbers
from headrace.spark.rows.typed import DATE_MS_MAX, DOUBLE_EXACT, INTEGERS, Fit, fit_type
from headrace.values.bson import MISSING

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
    """Makes the column of a struct, and the column of the rest."""

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
