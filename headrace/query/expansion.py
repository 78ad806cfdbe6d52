"""The size of values whose parts are shared. A stage that refers to a field twice takes no memory, but its result is
twice as large once it is encoded. After thirty such stages it is a thousand million times as large.

Rule: the value of each expression of a stage, and each document that is encoded, is measured. Each shared part is
measured once, so the time depends on the memory, not on the encoded size. A size is a lower bound of the BSON: a
document that fits is never refused.
"""

from __future__ import annotations

from typing import Any, Final

from bson.binary import Binary

from headrace import limits
from headrace.errors import CommandError
from headrace.values.bson import encode, encode_in_order

CONTAINERS: Final = frozenset({dict, list})
_ELEMENT: Final = 3  # a type, the end of a name, and at least one byte of name or value
_ELEMENT_HELD: Final = 24  # about the memory of a short value
_SMALL: Final = 64 * 1024  # measured without looking for shared parts
_SHORT: Final = 16  # up to this many values are measured one by one; more are first checked for any sized value
_SIZED: Final = frozenset({Binary, bytes, dict, list, str})


def size_above(most: int, value: Any, element: int = _ELEMENT) -> int:
    """Return the size of a document or an array if it exceeds `most` bytes, otherwise 0. `element`: the size of each
    value without its text."""
    if _left_of(min(_SMALL, most), value, element) >= 0:
        return 0
    size = _size(value, {}, element)
    return size if size > most else 0


def _left_of(left: int, value: Any, element: int) -> int:
    """Return the rest of `left` bytes after the value. The result is negative as soon as they do not suffice."""
    left -= element * len(value)
    items = value if type(value) is list else value.values()
    if left < 0 or (len(items) > _SHORT and _SIZED.isdisjoint(map(type, items))):
        return left
    for item in items:
        kind = type(item)
        if kind is str:
            left -= len(item)
        elif kind is dict or kind is list:
            left = _left_of(left, item, element)
            if left < 0:
                return left
        elif kind in _SIZED:
            left -= len(item)
    return left


def _size(value: Any, sizes: dict[int, int], element: int) -> int:
    """Return the size of the value. `sizes` has the sizes of parts that were already measured, by identity."""
    size = element * len(value)
    items = value if type(value) is list else value.values()
    for item in items:
        kind = type(item)
        if kind is dict or kind is list:
            part = sizes.get(id(item))
            if part is None:
                part = sizes[id(item)] = _size(item, sizes, element)
            size += part
        elif kind in _SIZED:
            size += len(item)
    return size


def check(value: Any) -> Any:
    """Return the document or array. Raises 146 if it is larger than `EXPRESSION_BYTES_MAX`."""
    if size_above(limits.EXPRESSION_BYTES_MAX, value, _ELEMENT_HELD):
        raise CommandError(146, f"an expression makes a value of more than {limits.EXPRESSION_BYTES_MAX} bytes")
    return value


def encoded_between(document: dict[str, Any]) -> bytes:
    """Encode a document between two stages. It may be larger than a stored one. Raises 146."""
    return encode_in_order(check(document))


def encoded(document: dict[str, Any]) -> bytes:
    """Encode a computed document as BSON, its fields in order. Raises 10334 if it is too large."""
    if _left_of(_SMALL, document, _ELEMENT) < 0:
        _check_document(document)
    return encode_in_order(document)


def encoded_for_storage(document: dict[str, Any]) -> bytes:
    """Encode a computed document as BSON, with `_id` first. Raises as `encoded`."""
    if _left_of(_SMALL, document, _ELEMENT) < 0:
        _check_document(document)
    return encode(document)


def _check_document(document: dict[str, Any]) -> None:
    most = limits.INTERNAL_DOCUMENT_BYTES_MAX
    size = size_above(most, document)
    if size:
        raise CommandError(
            10334, f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {most}(16MB)"
        )
