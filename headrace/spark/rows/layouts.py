"""Reads the documents of one layout from a column of BSON, and writes their texts, all at once and without decoding.

    layout    the names and types of a document's fields in order, including the fields of embedded objects
    offsets   where the values of a field begin in the bytes of the column: an array with a number per document

Most documents of a collection have one of a few layouts. The names and types of a layout are compared for all documents
of a batch at once, word by word. This gives the offsets of each field's values, from which columns are made.

Rule: exact. A document matches a layout if every type and name is equal and its lengths lead to its end. Documents with
duplicate names, DBRefs or rare types have no layout, and are left to the decoder. If a batch has values that tables
cannot hold (`not_held.py`), NotHeldTogether is raised, and all its documents are left to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bson import InvalidBSON
from numpy.typing import NDArray

from headrace import limits
from headrace.spark.rows.extjson import dumps, looks_like_value, plain
from headrace.spark.rows.not_held import NotHeldTogether, check_held
from headrace.values.bson import decode, encode, iter_elements

Numbers: TypeAlias = NDArray[np.int64]

DOUBLE, TEXT, OBJECT, ARRAY, BINARY, OBJECT_ID, BOOL, DATE, NULL = 1, 2, 3, 4, 5, 7, 8, 9, 10
INT, LONG, DECIMAL = 16, 18, 19
_FIXED: Final = {DOUBLE: 8, OBJECT_ID: 12, BOOL: 1, DATE: 8, NULL: 0, INT: 4, LONG: 8, DECIMAL: 16}
# The size of a value without its leading int32.
_COUNTED: Final = {TEXT: 4, ARRAY: 0, BINARY: 5}
_WORD: Final = 8
_NAN: Final = np.uint64(0x7FF8_0000_0000_0000)


@dataclass(frozen=True, slots=True)
class LayoutField:
    """A field of a layout. `index` numbers the values of the document; an object's `fields` are its inner fields."""

    name: str
    kind: int
    index: int
    fields: tuple[LayoutField, ...] = ()


@dataclass(frozen=True, slots=True)
class _Segment:
    """Bytes with the same length in all documents.

    They have the words to compare (offset, value, mask), the offsets of values, and the fixed part of the size of the
    variable-length value that follows; None for the last segment.
    """

    words: tuple[tuple[int, int, int], ...]
    offsets: tuple[int, ...]
    length: int
    counted: int | None


class BsonColumn:
    """The bytes of a column of BSON documents, readable at any offset. `starts` and `ends` are those of its rows."""

    def __init__(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset).astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        # Padding, so that a word can be read at the last byte.
        self.data = np.zeros(last - first + _WORD, np.uint8)
        if data is not None:
            self.data[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
        self.starts, self.ends = bounds[:-1] - first, bounds[1:] - first
        size = last - first
        self._words = np.ndarray((size + 1,), "<u8", self.data, 0, (1,))
        self._ints = np.ndarray((size + 5,), "<i4", self.data, 0, (1,))

    def words(self, at: Numbers) -> NDArray[np.uint64]:
        """The eight bytes at each offset, as little-endian integers."""
        return self._words[at]

    def ints(self, at: Numbers) -> NDArray[np.int32]:
        """The int32 at each offset."""
        return self._ints[at]

    def slices(self, starts: Numbers, ends: Numbers) -> pa.Array:
        """The bytes from each start to its end, in the order of rows."""
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[::2], bounds[1::2] = starts, ends
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        between = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)
        return between.take(pa.array(np.arange(0, len(bounds), 2)))


@dataclass(frozen=True, slots=True)
class LayoutMatch:
    """Documents of one layout: their rows, ascending, and the offsets of their values by `LayoutField.index`."""

    layout: DocumentLayout
    column: BsonColumn
    rows: Numbers
    offsets: list[Numbers]

    def without(self, rows: NDArray[np.bool_]) -> LayoutMatch:
        """Return the documents for which the mask `rows` is false."""
        retained = (~rows).nonzero()[0]
        return LayoutMatch(self.layout, self.column, self.rows[retained], [offset[retained] for offset in self.offsets])

    def longs(self, field: LayoutField) -> Numbers:
        """Return the values of a field of type int, long or date."""
        at = self.offsets[field.index]
        if field.kind == INT:
            return self.column.ints(at).astype(np.int64)
        return self.column.words(at).view(np.int64)

    def doubles(self, field: LayoutField) -> NDArray[np.float64]:
        """Return the values of a field of type double; raise NotHeldTogether for a NaN with a payload or a sign."""
        words = self.column.words(self.offsets[field.index])
        values = words.view(np.float64)
        if (words[np.isnan(values)] != _NAN).any():
            raise NotHeldTogether
        return values

    def bools(self, field: LayoutField) -> NDArray[np.bool_]:
        """Return the values of a field of type bool; raise InvalidBSON for a byte other than 0 and 1."""
        octets = self.column.data[self.offsets[field.index]]
        if (octets > 1).any():
            raise InvalidBSON("a boolean is neither 0 nor 1")
        return octets.astype(np.bool_)

    def strings(self, field: LayoutField) -> pa.Array:
        """Return the values of a field of type string; raise ArrowInvalid for invalid UTF-8."""
        at = self.offsets[field.index]
        return self.column.slices(at + 4, at + 3 + self.column.ints(at)).cast(pa.string())

    def hexes(self, field: LayoutField) -> pa.Array:
        """Return the values of a field of type objectId, as 24 hexadecimal digits."""
        at = self.offsets[field.index]
        ids = np.empty((len(at), 12), np.uint8)
        ids[:, :8] = self.column.words(at).view(np.uint8).reshape(-1, 8)
        ids[:, 8:] = self.column.ints(at + 8).view(np.uint8).reshape(-1, 4)
        bounds = np.arange(0, 24 * len(at) + 1, 24, dtype=np.int32)
        digits = pa.py_buffer(ids.tobytes().hex().encode())
        return pa.StringArray.from_buffers(len(at), pa.py_buffer(bounds), digits)

    def slices(self, field: LayoutField) -> pa.Array:
        """Return the bytes of each value of a field."""
        at = self.offsets[field.index]
        if field.kind in _FIXED:
            return self.column.slices(at, at + _FIXED[field.kind])
        return self.column.slices(at, at + _COUNTED.get(field.kind, 0) + self.column.ints(at))

    def values(self, field: LayoutField) -> list[Any]:
        """Return the decoded values of a field of any type."""
        return decoded(field.kind, self.slices(field))


class DocumentLayout:
    """The layout of documents with these `fields`."""

    def __init__(self, fields: tuple[LayoutField, ...]) -> None:
        self.fields = fields
        self._segments = tuple(_segments(fields))

    def match(self, column: BsonColumn, rows: Numbers) -> LayoutMatch:
        """Return the rows that have this layout."""
        at, offsets = column.starts[rows], list[Numbers]()
        for segment in self._segments:
            for where, word, mask in segment.words:
                same = (column.words(at + where) & np.uint64(mask)) == np.uint64(word)
                if not same.all():
                    retained = same.nonzero()[0]
                    at, rows, offsets = at[retained], rows[retained], [offset[retained] for offset in offsets]
                    if not len(rows):
                        return LayoutMatch(self, column, rows, offsets)
            offsets.extend(at + offset for offset in segment.offsets)
            at = at + segment.length
            if segment.counted is not None:
                at = at + segment.counted + column.ints(at)
        result = LayoutMatch(self, column, rows, offsets)
        starts, ends = column.starts[rows], column.ends[rows]
        wrong = (at != ends) | (column.ints(starts) != ends - starts)
        return result.without(wrong) if wrong.any() else result


def decoded(kind: int, column: pa.Array) -> list[Any]:
    """Return the values of BSON type `kind` whose bytes the column holds, decoded as one array instead of one by one.

    Raise NotHeldTogether for a value that its text would change (`not_held.py`).
    """
    values = column.to_pylist()
    items = b"".join([b"%c%d\0%b" % (kind, number, value) for number, value in enumerate(values)])
    array = (len(items) + 5).to_bytes(4, "little") + items + b"\0"
    data = (len(array) + 8).to_bytes(4, "little") + b"\x04a\0" + array + b"\0"
    document = decode(data)
    if encode(document) != data:
        raise NotHeldTogether
    check_held(kind, values, data)
    result: list[Any] = document["a"]
    return result


def layout_of(document: bytes) -> DocumentLayout | None:
    """Return the document's layout; None if it has none. Raise bson.InvalidBSON if it is malformed."""
    numbers = iter(range(limits.LAYOUT_FIELD_COUNT_MAX))
    fields = _fields(document, 0, numbers)
    return None if fields is None else DocumentLayout(fields)


def _fields(document: bytes, start: int, numbers: Iterator[int]) -> tuple[LayoutField, ...] | None:
    result: dict[str, LayoutField] = {}
    for kind, raw, value, _ in iter_elements(document, start):
        index = next(numbers, None)
        inner: tuple[LayoutField, ...] | None = ()
        if kind == OBJECT:
            inner = _fields(document, value, numbers)
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return None
        known = kind in _FIXED or kind in _COUNTED or kind == OBJECT
        if index is None or inner is None or name in result or name == "$ref" or not known:
            return None
        result[name] = LayoutField(name, kind, index, inner)
    return tuple(result.values())


def _segments(fields: tuple[LayoutField, ...]) -> Iterator[_Segment]:
    pattern: bytes = bytes(4)
    mask: bytes = bytes(4)
    offsets: list[int] = []
    for token in _tokens(fields):
        if type(token) is bytes:
            pattern, mask = pattern + token, mask + b"\xff" * len(token)
            continue
        assert isinstance(token, int)
        offsets.append(len(pattern))
        if token in _COUNTED:
            yield _Segment(_words(pattern, mask), tuple(offsets), len(pattern), _COUNTED[token])
            pattern, mask, offsets = b"", b"", []
        else:
            size = 4 if token == OBJECT else _FIXED[token]
            pattern, mask = pattern + bytes(size), mask + bytes(size)
    yield _Segment(_words(pattern, mask), tuple(offsets), len(pattern), None)


def _tokens(fields: tuple[LayoutField, ...]) -> Iterator[bytes | int]:
    """Yield the bytes that are the same in all documents, and the types of the values between them, in order."""
    for field in fields:
        yield bytes([field.kind]) + field.name.encode() + b"\0"
        yield field.kind
        if field.kind == OBJECT:
            yield from _tokens(field.fields)
    yield b"\0"


def _words(pattern: bytes, mask: bytes) -> tuple[tuple[int, int, int], ...]:
    result = []
    for where in range(0, len(pattern), _WORD):
        expected, under = (int.from_bytes(part[where : where + _WORD], "little") for part in (pattern, mask))
        if under:
            result.append((where, expected, under))
    return tuple(result)


ROWS_MIN = 200
"""The least number of rows of a layout. Comparing takes two milliseconds; decoding fewer rows is faster."""
_SAMPLE: Final = 256

Fast = Callable[[LayoutMatch], tuple[Numbers, list[pa.Array]]]
"""Converts documents of one layout. Returns the rows that could be converted, and their columns."""
Exact = Callable[[pa.Array], list[pa.Array]]
"""Converts any documents to the same columns, through the decoder."""


class KnownLayouts:
    """The layouts of a column, remembered between batches: known layouts are tried first, and new ones are learned.

    Rule: every row is converted exactly once. Rows of layouts with few rows go to the decoder. So does a whole column
    if nearly every document has a different layout.
    """

    def __init__(self) -> None:
        self._known: list[DocumentLayout] = []

    def columns(self, column: pa.Array, fast: Fast, exact: Exact) -> list[pa.Array]:
        """Return the columns of all rows, in order. `fast` and `exact` must agree on every document."""
        if len(column) < ROWS_MIN or column.type != pa.binary():
            return exact(column)
        try:
            return self._columns(column, fast, exact)
        except (IndexError, InvalidBSON, UnicodeError, pa.ArrowException):
            # A document is malformed, too large or not held. The decoder raises the error, or marks the document.
            self._known.clear()
            return exact(column)

    def _columns(self, column: pa.Array, fast: Fast, exact: Exact) -> list[pa.Array]:
        pieces: list[tuple[Numbers, list[pa.Array]]] = []
        left = np.ones(len(column), np.bool_)
        for match in self._matches(column):
            rows, made = fast(match)
            if len(rows):
                pieces.append((rows, made))
                left[rows] = False
        rest = left.nonzero()[0]
        if len(rest):
            pieces.append((rest, exact(column.take(pa.array(rest)))))
        if len(pieces) == 1:
            return pieces[0][1]
        order = pa.array(np.argsort(np.concatenate([rows for rows, _ in pieces])))
        return [pa.concat_arrays(list(each)).take(order) for each in zip(*(made for _, made in pieces), strict=True)]

    def _matches(self, column: pa.Array) -> list[LayoutMatch]:
        """Return the documents of each layout that has enough of them."""
        data = BsonColumn(column)
        left = np.asarray(column.is_valid()).nonzero()[0] if column.null_count else np.arange(len(column))
        matches: list[LayoutMatch] = []
        for layout in self._known:
            if len(left) >= ROWS_MIN:
                left = self._take(layout, data, left, matches)
        failures = 0
        while len(left) >= ROWS_MIN and failures < limits.LAYOUT_FAILURE_COUNT_MAX:
            new = layout_of(column[int(left[0])].as_py())
            before = len(matches)
            # Match a sample first: most new layouts have hardly any further rows.
            if new is not None and len(new.match(data, left[:: 1 + len(left) // _SAMPLE]).rows) > 1:
                left = self._take(new, data, left, matches)
            if len(matches) == before:
                failures, left = failures + 1, left[1:]
        matches.sort(key=lambda each: -len(each.rows))
        self._known = [each.layout for each in matches]
        return matches

    @staticmethod
    def _take(layout: DocumentLayout, data: BsonColumn, left: Numbers, matches: list[LayoutMatch]) -> Numbers:
        """Add the rows of the layout to `matches`, if there are enough; return the remaining rows."""
        got = layout.match(data, left)
        if len(got.rows) < ROWS_MIN:
            return left
        matches.append(got)
        return left[~np.isin(left, got.rows, assume_unique=True)]


Piece: TypeAlias = str | pa.Array
"""A text that is the same for all documents, or a column with a text for each document."""

_ESCAPED: Final = r'[\x00-\x1f"\\]'


def texts(match: LayoutMatch, fields: Iterable[LayoutField] | None = None) -> pa.Array:
    """Return the canonical Extended JSON of each document with these fields (default: all).

    Rule: the texts are identical to those of `extjson.dumps`. Raise ArrowInvalid for invalid UTF-8.
    """
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
    elif field.kind == NULL:
        yield "null"
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


_TEMPLATES: Final[dict[int, tuple[str, Callable[[LayoutMatch, LayoutField], pa.Array], str]]] = {
    BOOL: ("", _bools, ""),
    DATE: ('{"$date":{"$numberLong":"', _numbers, '"}}'),
    DOUBLE: ('{"$numberDouble":"', _doubles, '"}'),
    INT: ('{"$numberInt":"', _numbers, '"}'),
    LONG: ('{"$numberLong":"', _numbers, '"}'),
    OBJECT_ID: ('{"$oid":"', LayoutMatch.hexes, '"}'),
    TEXT: ('"', _strings, '"'),
}
