"""Decoding long documents piece by piece, with a tick between them: a megabyte takes the codec up to 30 ms.

    elements of a document      grouped into documents of `PIECE_BYTES`, each decoded by the codec
    a longer array or document  likewise, by itself
    a longer text or binary     by itself

Rule: the result is the codec's, except that nothing is said of a field before what stands behind it is read.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final

from bson import InvalidBSON

from headrace import limits
from headrace.long_bytes import AT_ONCE_BYTES, cut, slices
from headrace.turns import current_turn, freed_in_pieces, tick
from headrace.values.bson.elements import SHORT_RUN, value_size

PIECE_BYTES: Final = 64 * 1024
STRING, DOCUMENT, ARRAY, BINARY = 0x02, 0x03, 0x04, 0x05


_int32: Final = Struct("<i")
Decode = Callable[[bytes], dict[str, Any]]


def decode_in_pieces(data: bytes, decode: Decode) -> dict[str, Any]:
    """The document of `data`; `decode` is that of a short one. Raises `bson.InvalidBSON`."""
    _check_size(data, 0, len(data))
    if (turn := current_turn()) is not None:
        turn.decoded_bytes = 0
    return _document(data, 0, decode)


def _document(data: bytes, start: int, decode: Decode) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for first, end, long_type in _counted_groups(data, start):
        tick()
        if long_type:
            name_end = data.index(b"\0", first + 1)
            document[data[first + 1 : name_end].decode()] = _value(long_type, data, name_end + 1, decode)
        else:
            document.update(decode(_int32.pack(end - first + 5) + data[first:end] + b"\0"))
    return freed_in_pieces(document)


def _array(data: bytes, start: int, decode: Decode) -> list[Any]:
    array: list[Any] = []
    for first, end, long_type in _counted_groups(data, start):
        tick()
        if long_type:
            array.append(_value(long_type, data, data.index(b"\0", first + 1) + 1, decode))
        else:  # names of elements do not count, and may be equal: only as an array are they all read
            inside = _int32.pack(end - first + 5) + data[first:end] + b"\0"
            array += decode(_int32.pack(len(inside) + 7) + b"\x04\0" + inside + b"\0")[""]
    return freed_in_pieces(array)


def _value(bson_type: int, data: bytes, start: int, decode: Decode) -> Any:
    if bson_type == DOCUMENT:
        return _document(data, start, decode)
    if bson_type == ARRAY:
        return _array(data, start, decode)
    (size,) = _int32.unpack_from(data, start)
    return _text(data, start + 4, size) if bson_type == STRING else cut(data, start + 5, start + 5 + size)


def _text(data: bytes, start: int, size: int) -> str:
    if data[start + size - 1]:
        raise InvalidBSON("bad string length")
    decoder = getincrementaldecoder("utf-8")()
    try:
        pieces = [decoder.decode(piece) for piece in slices(memoryview(data)[start : start + size - 1])]
        return "".join((*pieces, decoder.decode(b"", final=True)))
    except UnicodeDecodeError as error:
        raise InvalidBSON(str(error)) from error


def _counted_groups(data: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """As `_groups`; the turn counts what they take."""
    turn = current_turn()
    for first, end, long_type in _groups(data, start):
        if turn is not None and long_type not in (DOCUMENT, ARRAY):
            turn.decoded_bytes += (end - first) * (1 if long_type else limits.DECODED_FACTOR)
        yield first, end, long_type


def _groups(data: bytes, start: int) -> Iterator[tuple[int, int, int]]:
    """(first, end, 0) of neighbouring elements that are decoded together; with its type for a long one by itself."""
    last = start + int(_int32.unpack_from(data, start)[0]) - 1
    first = at = start + 4
    while at < last:
        bson_type = data[at]
        if run := SHORT_RUN(data, at, last):
            at = run.end()
            if at - first > PIECE_BYTES:
                yield first, at, 0
                first = at
            continue
        value = data.find(b"\0", at + 1, last) + 1
        if not value:
            raise InvalidBSON("a field name does not end")
        end = value + value_size(bson_type, data, value)
        if end > last or end <= at:
            raise InvalidBSON("a value lies beyond the end of its document")
        if bson_type in (DOCUMENT, ARRAY) and end - value > PIECE_BYTES:
            if first < at:
                yield first, at, 0
            _check_size(data, value, end - value)
            yield at, end, bson_type
            first = end
        elif end - value > AT_ONCE_BYTES and (bson_type == STRING or (bson_type == BINARY and not data[value + 4])):
            if first < at:
                yield first, at, 0
            yield at, end, bson_type
            first = end
        elif end - first > PIECE_BYTES:
            yield first, end, 0
            first = end
        at = end
    if at != last:
        raise InvalidBSON("an element lies beyond the end of its document")
    if first < last:
        yield first, last, 0


def _check_size(data: bytes, start: int, size: int) -> None:
    if size < 5 or _int32.unpack_from(data, start)[0] != size or data[start + size - 1] != 0:
        raise InvalidBSON("invalid object")
