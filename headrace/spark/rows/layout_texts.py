"""Canonical Extended JSON of documents of one layout, for all of them at once.

Rule: the texts are identical to those of `extjson.dumps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.extjson import dumps, looks_like_value, plain
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
    KnownLayouts,
    LayoutField,
    LayoutMatch,
    Numbers,
    decoded,
)
from headrace.spark.rows.not_held import NotHeldTogether

Piece: TypeAlias = str | pa.Array
"""A text that is the same for all documents, or a column with a text for each document."""

_ESCAPED: Final = r'[\x00-\x1f"\\]'


def texts(match: LayoutMatch, fields: Iterable[LayoutField] | None = None) -> pa.Array:
    """Return the text of each document with these fields (default: all). Raise ArrowInvalid for invalid UTF-8."""
    return _joined(match, _object(match, match.layout.fields if fields is None else fields))


def _joined(match: LayoutMatch, pieces: Iterable[Piece]) -> pa.Array:
    joined: list[Any] = []
    for same, run in groupby(pieces, lambda piece: type(piece) is str):
        some = list(run)
        joined.extend([pa.scalar("".join(some))] if same else some)
    if len(joined) == 1:
        return pa.array([joined[0].as_py()] * len(match.rows), pa.string())
    return pc.binary_join_element_wise(*joined, "")


def _object(match: LayoutMatch, fields: Iterable[LayoutField]) -> Iterator[Piece]:
    members = list(fields)
    if looks_like_value([field.name for field in members]):
        before, _, behind = plain("{}").partition("{}")
        yield from (before, *_members(match, members), behind)
    else:
        yield from _members(match, members)


def _members(match: LayoutMatch, fields: Iterable[LayoutField]) -> Iterator[Piece]:
    yield "{"
    for number, field in enumerate(fields):
        yield f"{',' if number else ''}{dumps(field.name)}:"
        yield from _value(match, field)
    yield "}"


def _fast_arrays(match: LayoutMatch) -> tuple[Numbers, list[pa.Array]]:
    """Return the texts of arrays of one layout; an array is a document without names."""
    return match.rows, [_joined(match, _items(match))]


def _items(match: LayoutMatch) -> Iterator[Piece]:
    if any(field.name != str(number) for number, field in enumerate(match.layout.fields)):
        raise NotHeldTogether
    yield "["
    for number, field in enumerate(match.layout.fields):
        yield "," if number else ""
        yield from _value(match, field)
    yield "]"


def _exact_arrays(column: pa.Array) -> list[pa.Array]:
    return [pa.array(list(map(dumps, decoded(ARRAY, column))), pa.string())]


def _value(match: LayoutMatch, field: LayoutField) -> Iterator[Piece]:
    if field.kind == OBJECT:
        yield from _object(match, field.fields)
    elif field.kind == ARRAY:
        yield KnownLayouts().columns(match.slices(field), _fast_arrays, _exact_arrays)[0]
    elif field.kind in _CONSTANT:
        yield _CONSTANT[field.kind]
    elif field.kind == TIMESTAMP:
        seconds, increments = match.timestamps(field)
        yield from ('{"$timestamp":{"t":', seconds.cast(pa.string()), ',"i":', increments.cast(pa.string()), "}}")
    elif field.kind in _TEMPLATES:
        before, write, behind = _TEMPLATES[field.kind]
        yield from (before, write(match, field), behind)
    else:
        yield pa.array(list(map(dumps, match.values(field))), pa.string())


def _numbers(match: LayoutMatch, field: LayoutField) -> pa.Array:
    return pa.array(match.longs(field)).cast(pa.string())


def _bools(match: LayoutMatch, field: LayoutField) -> pa.Array:
    return pa.array(match.bools(field)).cast(pa.string())


def _doubles(match: LayoutMatch, field: LayoutField) -> pa.Array:
    values = match.doubles(field)
    numerals = list(map(repr, values.tolist()))
    for row in (~np.isfinite(values)).nonzero()[0]:
        numerals[row] = "NaN" if np.isnan(values[row]) else "Infinity" if values[row] > 0 else "-Infinity"
    return pa.array(numerals, pa.string())


def _strings(match: LayoutMatch, field: LayoutField) -> pa.Array:
    strings = match.strings(field)
    marked = pc.match_substring_regex(strings, _ESCAPED)
    if not pc.any(marked).as_py():
        return strings
    escaped = [encode_basestring(text)[1:-1] for text in strings.filter(marked).to_pylist()]
    return pc.replace_with_mask(strings, marked, pa.array(escaped, pa.string()))


_CONSTANT: Final = {MAX_KEY: '{"$maxKey":1}', MIN_KEY: '{"$minKey":1}', NULL: "null"}
_TEMPLATES: Final[dict[int, tuple[str, Callable[[LayoutMatch, LayoutField], pa.Array], str]]] = {
    BOOL: ("", _bools, ""),
    DATE: ('{"$date":{"$numberLong":"', _numbers, '"}}'),
    DOUBLE: ('{"$numberDouble":"', _doubles, '"}'),
    INT: ('{"$numberInt":"', _numbers, '"}'),
    LONG: ('{"$numberLong":"', _numbers, '"}'),
    OBJECT_ID: ('{"$oid":"', LayoutMatch.hexes, '"}'),
    TEXT: ('"', _strings, '"'),
}
