"""The size of values whose parts are shared: a stage that refers to a field twice takes no memory, but what it makes is
twice as large once it is written out, and after thirty such stages a thousand million times.

Rule: the value of each expression of a stage, and each document that is encoded, is measured. What shares its parts is
measured in the time that it takes, not in that of what it would be written out. A size is a lower bound of the BSON: no
document is refused that fits.
"""

from __future__ import annotations

from typing import Any, Final

from bson.binary import Binary

from headrace import limits
from headrace.errors import CommandError
from headrace.values.bson import encode, encode_in_order

CONTAINERS: Final = frozenset({dict, list})
_ELEMENT: Final = 3  # type, end of the name, and a name or a value of a byte at least
_ELEMENT_HELD: Final = 24  # about what a short value takes in memory
_SMALL: Final = 64 * 1024  # what is measured without looking for shared parts
_SHORT: Final = 16  # values that are looked at one by one rather than first for whether one of them has a size
_SIZED: Final = frozenset({Binary, bytes, dict, list, str})


def size_above(most: int, value: Any, element: int = _ELEMENT) -> int:
    """The size of a document or an array that exceeds `most` bytes, which are some; 0 of any other. `element`: what
    each value takes besides its text."""
    if _left_of(min(_SMALL, most), value, element) >= 0:
        return 0
    size = _size(value, {}, element)
    return size if size > most else 0


def _left_of(left: int, value: Any, element: int) -> int:
    """The bytes that are left after the value; negative as soon as they do not suffice."""
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
    """The size of the value; `sizes` are those of the parts that were met, by their identity."""
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
    """The value of an expression, a document or an array. Raises 146 where it would be larger than a stage may hold."""
    if size_above(limits.STAGE_BYTES_MAX, value, _ELEMENT_HELD):
        raise CommandError(146, f"an expression makes a value of more than {limits.STAGE_BYTES_MAX} bytes")
    return value


def encoded_between(document: dict[str, Any]) -> bytes:
    """A document between two stages, which may be larger than a stored one. Raises 146."""
    return encode_in_order(check(document))


def encoded(document: dict[str, Any]) -> bytes:
    """A document that was made, as BSON with its fields in their order. Raises 10334 where it is too large."""
    if _left_of(_SMALL, document, _ELEMENT) < 0:
        _check_document(document)
    return encode_in_order(document)


def encoded_for_storage(document: dict[str, Any]) -> bytes:
    """As `encoded`, with `_id` first."""
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
