"""Encoding long documents piece by piece, with a tick between them: a megabyte takes the codec some 10 ms.

    fields of a document        grouped into documents that the codec encodes
    a longer array or document  likewise, by itself
    a longer text or binary     by itself

Rule: the bytes are the codec's. Whether a value is long is estimated; the estimate ends where it is. Pieces of
arrays take some times as long as the codec, which cannot number elements from anywhere else than 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct
from typing import Any, Final

from headrace.long_bytes import AT_ONCE_BYTES, joined
from headrace.turns import tick, ticking_if_many

LONG_BYTES: Final = 1024 * 1024
"""Of a document that is encoded in pieces, about;"""
PIECE_BYTES: Final = 256 * 1024
"""and of one of them."""
_AT_ONCE_COUNT: Final = 4096
_ELEMENT_BYTES: Final = 4
_SIZED: Final = frozenset({bytes, dict, list, str})
_SHORT: Final = 16  # values that are looked at one by one rather than first for whether one of them has a size
_pack: Final = Struct("<i").pack

Encode = Callable[[dict[str, Any]], bytes]


def left_of(left: int, value: dict[str, Any] | list[Any]) -> int:
    """What is left of so many bytes behind a document or an array, about; negative as soon as they do not suffice. May
    tick."""
    left -= _ELEMENT_BYTES * len(value)
    items = value if type(value) is list else value.values()  # type: ignore[union-attr]
    if left < 0 or (len(items) > _SHORT and _SIZED.isdisjoint(map(type, items))):
        return left
    for item in ticking_if_many(items):
        kind = type(item)
        if kind is dict or kind is list:
            left = left_of(left, item)
            if left < 0:
                return left
        elif kind is str or isinstance(item, bytes):
            left -= len(item)
    return left


def encode_in_pieces(document: dict[str, Any], encode: Encode) -> bytes:
    """The document as BSON, its fields in their order; `encode` is the codec for a short one. May tick."""
    if left_of(LONG_BYTES, document) >= 0:
        return encode(document)
    return joined(_document(iter(document.items()), encode))


def _document(items: Iterator[tuple[str, Any]], encode: Encode) -> list[bytes]:
    """The document's bytes in pieces."""
    pieces = [b""]
    while some := list(islice(items, _AT_ONCE_COUNT)):
        tick()
        if left_of(PIECE_BYTES, [value for _, value in some]) >= 0:
            pieces.append(encode(dict(some))[4:-1])
            continue
        for name, value in some:
            if _is_long(value):
                pieces += _long(name, value, encode)
            else:
                pieces.append(encode({name: value})[4:-1])
    pieces.append(b"\0")
    pieces[0] = _pack(4 + sum(map(len, pieces)))
    return pieces


def _is_long(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list:
        return left_of(PIECE_BYTES, value) < 0
    return (kind is str or kind is bytes) and len(value) > PIECE_BYTES


def _long(name: str, value: Any, encode: Encode) -> list[bytes]:
    """The element of a long value, in pieces."""
    kind = type(value)
    if kind is dict or kind is list:
        items = iter(value.items()) if kind is dict else _numbered(value)
        return [encode({name: type(value)()})[4:-6], *_document(items, encode)]
    if kind is bytes:
        return [encode({name: b""})[4:-6] + _pack(len(value)) + b"\0", value]
    head = encode({name: ""})[4:-6]
    text = [value[start : start + AT_ONCE_BYTES] for start in range(0, len(value), AT_ONCE_BYTES)]
    pieces = []
    for piece in text:
        tick()
        pieces.append(piece.encode())
    return [head, _pack(sum(map(len, pieces)) + 1), *pieces, b"\0"]


def _numbered(array: list[Any]) -> Iterator[tuple[str, Any]]:
    """The elements with their names."""
    return zip(map(str, range(len(array))), array)
