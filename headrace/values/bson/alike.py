"""A check of many documents of one layout: all have the fields, types and lengths of the first.

Telemetry, orders of one form and other records that a program writes have it. The first document is decoded. Many short
ones are compared with it *column by column*: a slice with a step takes one byte of all documents, and one operation
compares it, in a tenth of the time of a decode. For few or long ones a *mask* selects the bits that must be equal, as
two long integers, and one operation compares some documents: a fifth of the time.

    lengths, types, names, zeros   equal to the first document's
    text                           ASCII, which is valid UTF-8
    boolean                        0 or 1
    numbers, dates, ObjectIds      not compared: all bytes are valid
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Final

from headrace.values.bson.elements import iter_elements
from headrace.values.rows import as_rows

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
