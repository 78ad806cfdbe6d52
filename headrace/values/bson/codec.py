"""BSON bytes to Python values and back, preserving the types of all values.

Rule: inside Headrace a value has exactly one of these Python types, wherever it comes from:

    double float · string str · object dict · array list · binary Binary (subtype 0 is bytes)
    objectId ObjectId · bool bool · date DatetimeMS · null None · regex Regex · int int (fits 32 bits)
    timestamp Timestamp · long Int64 · decimal Decimal128 · minKey MinKey · maxKey MaxKey
    javascript Code · an absent field MISSING (never stored)

A plain `int` is a 32-bit integer; a 64-bit one is an `Int64`, also when it is small. A plain `int`
that does not fit 32 bits is encoded as 64 bits by the codec, but code that computes must wrap it.
Not distinguished, because the codec cannot: undefined decodes to None, symbol to str.

Many documents of one layout are checked without a decode: all have the fields, types and lengths of the first.
Telemetry, orders of one form and other records that a program writes have it. The first document is decoded. Many
short ones are compared with it *column by column*: a slice with a step takes one byte of all documents, and one
operation compares it, in a tenth of the time of a decode. For few or long ones a *mask* selects the bits that must be
equal, as two long integers, and one operation compares some documents: a fifth of the time.

    lengths, types, names, zeros   equal to the first document's
    text                           ASCII, which is valid UTF-8
    boolean                        0 or 1
    numbers, dates, ObjectIds      not compared: all bytes are valid

A client that inserts one document at a time mostly sends documents of one layout, too. It is learned from them.

Raw BSON is also walked without decoding it. Rule: documents stay bytes where only the range of a field is needed.

    document   int32 total | element* | 00
    element    type (1 byte) | name 00 | value

An element is `(type, name, start, end)`: the type byte (255 is minKey), the name as bytes and the half-open range of
its value in `data`. The input was validated here or written by Headrace. A malformed document raises
`bson.InvalidBSON`, but not every malformed document is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct, error
from typing import Any, Final, TypeAlias

import bson
from bson import DBRef, InvalidBSON
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion

from headrace import limits
from headrace.errors import CommandError
from headrace.values.rows import as_rows

RawElement: TypeAlias = tuple[int, bytes, int, int]

# The size of a value: (fixed bytes, whether an int32 at its start adds to them).
_SIZES: Final[dict[int, tuple[int, bool]]] = {
    0x01: (8, False), 0x02: (4, True), 0x03: (0, True), 0x04: (0, True), 0x05: (5, True), 0x06: (0, False),
    0x07: (12, False), 0x08: (1, False), 0x09: (8, False), 0x0A: (0, False), 0x0C: (16, True), 0x0D: (4, True),
    0x0E: (4, True), 0x0F: (0, True), 0x10: (4, False), 0x11: (8, False), 0x12: (8, False), 0x13: (16, False),
    0x7F: (0, False), 0xFF: (0, False),
}  # fmt: skip
FIXED: Final = [-1] * 256
"""The size of a value, for each type with a fixed size; -1 for other types."""
COUNTED: Final = [-1] * 256
"""The bytes of a value that the int32 at its start does not include; -1 for types without that int32."""
for _type, (_base, _counted) in _SIZES.items():
    (COUNTED if _counted else FIXED)[_type] = _base

_REGEX: Final = 0x0B
_int32_at: Final = Struct("<i").unpack_from


def value_size(bson_type: int, data: bytes, offset: int) -> int:
    """The size in bytes of the value of this type that starts at `offset`. Raises `bson.InvalidBSON`."""
    size = FIXED[bson_type]
    if size >= 0:
        return size
    base = COUNTED[bson_type]
    if base >= 0:
        try:
            return base + int(_int32_at(data, offset)[0])
        except error:
            raise InvalidBSON("a length lies beyond the end of its document") from None
    if bson_type != _REGEX:
        raise InvalidBSON(f"unknown BSON type {bson_type}")
    return _end_of_name(data, _end_of_name(data, offset)) - offset


def iter_elements(data: bytes, start: int = 0) -> Iterator[RawElement]:
    """The elements of the document (or array) that starts at `start` in `data`, in order. Raises `bson.InvalidBSON`."""
    at = start + 4
    while bson_type := _type_at(data, at):
        name_end = data.find(b"\0", at + 1)
        if name_end < 0:
            raise InvalidBSON("a field name does not end")
        value = name_end + 1
        size = FIXED[bson_type]
        end = value + (size if size >= 0 else value_size(bson_type, data, value))
        yield bson_type, data[at + 1 : name_end], value, end
        at = end


def find_element(data: bytes, name: bytes, start: int = 0) -> tuple[int, int, int] | None:
    """`(type, start, end)` of the first field named `name` in the document at `start`, or None."""
    at = start + 4
    wanted = name + b"\0"
    try:
        while bson_type := data[at]:
            at += 1
            if data.startswith(wanted, at):
                value = at + len(wanted)
                return bson_type, value, value + value_size(bson_type, data, value)
            value = data.find(b"\0", at) + 1
            if not value:
                raise InvalidBSON("a field name does not end")
            size = FIXED[bson_type]
            if size >= 0:
                at = value + size
            elif (base := COUNTED[bson_type]) >= 0:
                at = value + base + _int32_at(data, value)[0]
            else:
                at = value + value_size(bson_type, data, value)
    except (IndexError, error):
        raise InvalidBSON("a value lies beyond the end of its document") from None
    return None


def first_element(data: bytes, start: int = 0) -> RawElement | None:
    """The first element of the document at `start`, or None if it is empty."""
    bson_type = _type_at(data, start + 4)
    if not bson_type:
        return None
    value = _end_of_name(data, start + 5)
    return bson_type, data[start + 5 : value - 1], value, value + value_size(bson_type, data, value)


def _type_at(data: bytes, at: int) -> int:
    try:
        return data[at]
    except IndexError:
        raise InvalidBSON("a value lies beyond the end of its document") from None


def _end_of_name(data: bytes, at: int) -> int:
    """The offset after the 00 that ends the name (or any C string) starting at `at`."""
    end = data.find(b"\0", at)
    if end < 0:
        raise InvalidBSON("a C string does not end")
    return end + 1


ALIKE_COUNT_MIN: Final = 64
"""The number of documents from which on the check is quicker than a decode, also for documents of numbers only."""
_DOCUMENT_BYTES_MAX: Final = 4096
_COMPARED_BYTES: Final = 8 * 1024
"""The size of the documents that one operation compares by a mask."""
_COLUMN_DOCUMENT_BYTES_MAX: Final = 1024
_COLUMN_BYTES_EACH: Final = 4
"""A batch is compared by columns if a document has at most this many bytes per document of the batch: 400 in 100."""
_LONG_TEXT_BYTES: Final = 64
"""The size of a text from which on cutting it out is quicker than its columns."""
_LEVEL_COUNT_MAX: Final = 8
_STRING, _BOOLEAN = 0x02, 0x08
_MASKS: Final = {_STRING: 0x80, _BOOLEAN: 0xFE}
"""The bits of a value's bytes that must be 0, by type."""
_CONTAINERS: Final = frozenset({0x03, 0x04})
_ANY_BYTES: Final = frozenset({0x01, 0x07, 0x09, 0x0A, 0x10, 0x11, 0x12, 0x13, 0x7F, 0xFF})
"""The types whose values have a fixed size, and no invalid bytes."""


def are_alike(documents: Sequence[bytes]) -> bool:
    """Return whether all documents are like the first, which must have been decoded, and therefore valid.

    False tells nothing: they differ, or have values of other types.
    """
    first = documents[0]
    size = len(first)
    if len(documents[-1]) != size or size > _DOCUMENT_BYTES_MAX:  # quick, and mostly enough
        return False
    if as_rows(documents) is None:
        return False
    values: list[tuple[int, int, int]] = []
    if not _describe(first, 0, values, _LEVEL_COUNT_MAX):
        return False
    if size <= min(_COLUMN_DOCUMENT_BYTES_MAX, _COLUMN_BYTES_EACH * len(documents)):
        return _columns_match(documents, first, values)
    return _bits_match(documents, first, values)


def _columns_match(documents: Sequence[bytes], first: bytes, values: list[tuple[int, int, int]]) -> bool:
    """Compare the documents with the first, whose `values` may differ, by columns."""
    size, count, at = len(first), len(documents), 0
    joined = b"".join(documents)
    for kind, start, end in (*values, (0, size, size)):
        for place in range(at, start):
            if joined[place::size] != first[place : place + 1] * count:
                return False
        if kind == _STRING and not _is_ascii(joined, size, start, end):
            return False
        if kind == _BOOLEAN and joined[start::size].strip(b"\0\1"):
            return False
        at = end
    return True


def _bits_match(documents: Sequence[bytes], first: bytes, values: list[tuple[int, int, int]]) -> bool:
    """Compare the documents as `_columns_match` does, by a mask."""
    size = len(first)
    mask, expected = _mask_of(first, values)
    step = min(_COMPARED_BYTES // size, len(documents))
    masks, wanted = int.from_bytes(mask * step, "little"), int.from_bytes(expected * step, "little")
    last = len(documents) - step
    return all(
        int.from_bytes(b"".join(documents[start : start + step]), "little") & masks == wanted
        for start in (*range(0, last, step), last)
    )


def _mask_of(first: bytes, values: list[tuple[int, int, int]]) -> tuple[bytes, bytes]:
    """Return (mask, expected): the bits that are the same in all documents of the layout, and their values."""
    mask, expected = bytearray(b"\xff" * len(first)), bytearray(first)
    for kind, start, end in values:
        mask[start:end] = bytes((_MASKS.get(kind, 0x00),)) * (end - start)
        expected[start:end] = bytes(end - start)
    return bytes(mask), bytes(expected)


def layout_of(document: bytes) -> tuple[int, int] | None:
    """Return (mask, expected) of a valid document as integers: another document of its length is like it, and therefore
    valid, if `int.from_bytes(other, "little") & mask == expected`. None: it is long or has values of other types."""
    values: list[tuple[int, int, int]] = []
    if len(document) > _DOCUMENT_BYTES_MAX or not _describe(document, 0, values, _LEVEL_COUNT_MAX):
        return None
    mask, expected = _mask_of(document, values)
    return int.from_bytes(mask, "little"), int.from_bytes(expected, "little")


def _is_ascii(joined: bytes, size: int, start: int, end: int) -> bool:
    """Return whether [start, end) of all documents is ASCII. `joined`: documents of `size` bytes."""
    if end - start < _LONG_TEXT_BYTES:
        return all(joined[place::size].isascii() for place in range(start, end))
    cut = Struct(f"{start}x{end - start}s{size - end}x").iter_unpack(joined)
    return b"".join(chain.from_iterable(cut)).isascii()


def _describe(document: bytes, start: int, values: list[tuple[int, int, int]], level_count: int) -> bool:
    """Add the (type, start, end) of each value that may differ, in the document at `start`, ascending. Return False if
    it has a value of another type."""
    for kind, _, value, end in iter_elements(document, start):
        if kind in _ANY_BYTES or kind == _BOOLEAN:
            values.append((kind, value, end))
        elif kind == _STRING:
            values.append((kind, value + 4, end - 1))
        elif kind not in _CONTAINERS or level_count == 1 or not _describe(document, value, values, level_count - 1):
            return False
    return True


OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    document_class=dict,
    tz_aware=False,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
)

_to_dict: Final = bson._bson_to_dict  # type: ignore[attr-defined]  # the C decoder, less a call


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """One BSON document as a dict of the types named above. Raises `bson.InvalidBSON` if it is malformed."""
    document = _to_dict(data, OPTIONS)
    if type(data) is not bytes:
        data = bytes(data)
    return _without_dbrefs(document) if b"$ref\0" in data else document


def decode_many(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """As `decode` for each, in two thirds of the time."""
    if len(documents) == 1:
        return [decode(documents[0])]
    data = b"".join(documents)
    return list(map(decode, documents)) if b"$ref\0" in data else bson.decode_all(data, OPTIONS)


def value_of(bson_type: int, data: bytes, start: int, end: int) -> Any:
    """The value of one element, whose bytes are `data[start:end]`."""
    head = (end - start + 8).to_bytes(4, "little") + bytes((bson_type,)) + b"v\0"
    return decode(head + data[start:end] + b"\0")["v"]


def check_all(documents: Sequence[bytes]) -> None:
    """Check that each document decodes, at every level. Raises `bson.InvalidBSON`, or 15 for a document nested too
    deeply.

    The documents are decoded in batches. A batch takes a third of the time of one by one, and bounded memory. Many
    documents like the first are not decoded: see `are_alike`.
    """
    if len(documents) == 1 and len(documents[0]) < _DEEP_BYTES:
        _to_dict(documents[0], OPTIONS)
        return
    if len(documents) >= ALIKE_COUNT_MIN:
        check_all(documents[:1])
        if are_alike(documents):
            return
    longest = max(map(len, documents), default=1)
    count = _CHECKED_BYTES // longest or 1
    for start in range(0, len(documents), count):
        some = documents[start : start + count]
        decoded = bson.decode_all(b"".join(some), OPTIONS)
        if longest >= _DEEP_BYTES:
            for data, document in zip(some, decoded):
                if len(data) >= _DEEP_BYTES:
                    _check_depth(document)


def _check_depth(document: Mapping[str, Any]) -> None:
    if _nests_deeper(document, limits.NESTING_MAX):
        raise CommandError(15, f"cannot insert document because it exceeds {limits.NESTING_MAX} levels of nesting")


def _nests_deeper(document: Mapping[str, Any], levels: int) -> bool:
    level: list[Any] = [document]
    for _ in range(levels):
        values = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level)
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return False
    return True


_CHECKED_BYTES: Final = 64 * 1024
# A level takes at least 7 bytes: type, the end of its name, length, end.
_DEEP_BYTES: Final = 7 * limits.NESTING_MAX


def encode(document: Mapping[str, Any]) -> bytes:
    """The document as BSON bytes, with `_id` first. A `MISSING` in the document is a bug: `bson.InvalidDocument`."""
    return bson._dict_to_bson(document, False, OPTIONS)  # type: ignore[attr-defined]  # the C encoder, less two calls


def encode_in_order(document: Mapping[str, Any]) -> bytes:
    """The document as BSON bytes, with all fields in their order: `encode` moves `_id` to the front."""
    return bson._dict_to_bson(document, False, OPTIONS, False)  # type: ignore[attr-defined]


def _without_dbrefs(value: Any) -> Any:
    """Turn DBRefs back into documents: the codec makes DBRef objects of {$ref, $id} documents."""
    if isinstance(value, DBRef):
        return {key: _without_dbrefs(item) for key, item in value.as_doc().items()}
    if isinstance(value, dict):
        return {key: _without_dbrefs(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_dbrefs(item) for item in value]
    return value


_PATIENCE_MAX: Final = 1024
"""The most documents decoded between two attempts to learn a layout. Learning takes as long as four decodes."""
_LEARNED_BYTES_MAX: Final = 1024
"""The size of a document up to which a layout is kept: a client of 8 commands makes the server hold 18 KiB."""
_from_bytes: Final = int.from_bytes


class LearnedLayout:
    """Checks documents one by one. It learns the layout of documents that repeat a length."""

    __slots__ = ("_expected", "_last_size", "_mask", "_patience", "_repeated", "_size")

    def __init__(self) -> None:
        self._size = -1
        """The length of the documents of the layout; -1: no layout is known."""
        self._mask = self._expected = 0
        self._last_size = -1  # the length of the last decoded document
        self._repeated = 0  # decoded documents as long as the decoded one before, since a layout was learned
        self._patience = 1

    def check(self, document: bytes) -> None:
        """Check that a document decodes. Raises the errors of `check_all`."""
        size = len(document)
        if size == self._size and _from_bytes(document, "little") & self._mask == self._expected:
            return
        check_all((document,))
        if size == self._last_size:
            self._repeated += 1
            if self._repeated >= self._patience:
                self._learn(document)
        self._last_size = size

    def _learn(self, document: bytes) -> None:
        """Learn the layout of a checked document, and be more patient before the next one."""
        self._repeated = 0
        self._patience = min(2 * self._patience, _PATIENCE_MAX)
        layout = layout_of(document) if len(document) <= _LEARNED_BYTES_MAX else None
        if layout is not None:
            self._mask, self._expected = layout
            self._size = len(document)
