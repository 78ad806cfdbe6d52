"""Canonical Extended JSON of documents of one layout: what is the same in all of them is written once.

Rule: the text is that of `extjson.dumps`, character for character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.known_layouts import KnownLayouts
from headrace.spark.rows.layouts import (
    ARRAY,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    LONG,
    MAX_KEY,
    MIN_KEY,
    NULL,
    OBJECT,
    OBJECT_ID,
    TEXT,
    TIMESTAMP,
    Field,
    Found,
    Numbers,
    decoded,
)

Piece: TypeAlias = str | pa.Array
"""Text that is the same in all documents, or each document's own."""

_ESCAPED: Final = r'[\x00-\x1f"\\]'


def texts(found: Found, fields: Iterable[Field] | None = None) -> pa.Array:
    """The text of each document, with these of its fields; all by default. Raises ArrowInvalid for bad UTF-8."""
    return _joined(found, _object(found, found.layout.fields if fields is None else fields))


def _joined(found: Found, pieces: Iterable[Piece]) -> pa.Array:
    joined: list[Any] = []
    for same, run in groupby(pieces, lambda piece: type(piece) is str):
        some = list(run)
        joined.extend([pa.scalar("".join(some))] if same else some)
    if len(joined) == 1:
        return pa.array([joined[0].as_py()] * len(found.rows), pa.string())
    return pc.binary_join_element_wise(*joined, "")


def _object(found: Found, fields: Iterable[Field]) -> Iterator[Piece]:
    yield "{"
    for number, field in enumerate(fields):
        yield f"{',' if number else ''}{dumps(field.name)}:"
        yield from _value(found, field)
    yield "}"


def _fast_arrays(found: Found) -> tuple[Numbers, list[pa.Array]]:
    """Arrays of one layout: documents whose names are not told."""
    return found.rows, [_joined(found, _items(found))]


def _items(found: Found) -> Iterator[Piece]:
    yield "["
    for number, field in enumerate(found.layout.fields):
        yield "," if number else ""
        yield from _value(found, field)
    yield "]"


def _exact_arrays(column: pa.Array) -> list[pa.Array]:
    return [pa.array(list(map(dumps, decoded(ARRAY, column))), pa.string())]


def _value(found: Found, field: Field) -> Iterator[Piece]:
    if field.kind == OBJECT:
        yield from _object(found, field.fields)
    elif field.kind == ARRAY:
        yield KnownLayouts().columns(found.slices(field), _fast_arrays, _exact_arrays)[0]
    elif field.kind in _CONSTANT:
        yield _CONSTANT[field.kind]
    elif field.kind == TIMESTAMP:
        seconds, increments = found.timestamps(field)
        yield from ('{"$timestamp":{"t":', seconds.cast(pa.string()), ',"i":', increments.cast(pa.string()), "}}")
    elif field.kind in _WRITTEN:
        before, write, behind = _WRITTEN[field.kind]
        yield from (before, write(found, field), behind)
    else:
        yield pa.array(list(map(dumps, found.values(field))), pa.string())


def _numbers(found: Found, field: Field) -> pa.Array:
    return pa.array(found.longs(field)).cast(pa.string())


def _bools(found: Found, field: Field) -> pa.Array:
    return pa.array(found.bools(field)).cast(pa.string())


def _doubles(found: Found, field: Field) -> pa.Array:
    values = found.doubles(field)
    told = list(map(repr, values.tolist()))
    for place in (~np.isfinite(values)).nonzero()[0]:
        told[place] = "NaN" if np.isnan(values[place]) else "Infinity" if values[place] > 0 else "-Infinity"
    return pa.array(told, pa.string())


def _strings(found: Found, field: Field) -> pa.Array:
    held = found.strings(field)
    marked = pc.match_substring_regex(held, _ESCAPED)
    if not pc.any(marked).as_py():
        return held
    escaped = [encode_basestring(text)[1:-1] for text in held.filter(marked).to_pylist()]
    return pc.replace_with_mask(held, marked, pa.array(escaped, pa.string()))


_CONSTANT: Final = {MAX_KEY: '{"$maxKey":1}', MIN_KEY: '{"$minKey":1}', NULL: "null"}
_WRITTEN: Final[dict[int, tuple[str, Callable[[Found, Field], pa.Array], str]]] = {
    BOOL: ("", _bools, ""),
    DATE: ('{"$date":{"$numberLong":"', _numbers, '"}}'),
    DOUBLE: ('{"$numberDouble":"', _doubles, '"}'),
    INT: ('{"$numberInt":"', _numbers, '"}'),
    LONG: ('{"$numberLong":"', _numbers, '"}'),
    OBJECT_ID: ('{"$oid":"', Found.hexes, '"}'),
    TEXT: ('"', _strings, '"'),
}
