"""Decodes keystrings to raw BSON: the inverse of `encoding.py`, given the type bits.

Rule: with its type bits a keystring decodes to exactly the bytes from which it was made. Two values are exceptions: a
NaN becomes the canonical NaN, and a non-canonical decimal becomes zero. Without type bits, integral numbers decode to
int or long, other numbers to double, or to decimal if no double is equal; symbols decode to strings.

Errors that a client can cause: 50811 for an unknown type byte, 15 for a truncated key or a key nested too deeply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace import limits
from headrace.errors import CommandError
from headrace.values.keystring.number_decoding import KeyCursor, TypedValue, read_number

_END: Final = 0x04


def decode_all(key: bytes, type_bits: bytes | None = None) -> list[TypedValue]:
    """All values of a key as (BSON type, raw value), up to the end byte 04 or the end of the key.

    Raises 15 and 50811.
    """
    cursor = KeyCursor(key, type_bits)
    values: list[TypedValue] = []
    while not cursor.at_end():
        type_byte = cursor.byte()
        if type_byte == _END:
            break
        values.append(_value(cursor, type_byte, 0))
    return values


def decode_value(key: bytes, type_bits: bytes | None = None) -> TypedValue:
    """The first value of a key as (BSON type, raw value). Raises 15 and 50811."""
    cursor = KeyCursor(key, type_bits)
    return _value(cursor, cursor.byte(), 0)


def value_end(key: bytes, at: int) -> int:
    """The offset after the value that begins at `at`. Raises 15 and 50811."""
    cursor = KeyCursor(key, None, at)
    _value(cursor, cursor.byte(), 0)
    return cursor.at


def _value(cursor: KeyCursor, type_byte: int, depth: int) -> TypedValue:
    if 0x1E <= type_byte <= 0x33:
        return read_number(cursor, type_byte)
    if depth > limits.KEY_NESTING_MAX:
        raise CommandError(15, "KeyString format error: nested too deeply")
    read = _READERS.get(type_byte)
    if read is None:
        raise CommandError(50811, f"KeyString format error: Unknown type: {type_byte}")
    return read(cursor, depth)


def _string_like(cursor: KeyCursor) -> bytes:
    """Escaped text in the form of BSON: int32 size, text, 00."""
    text = cursor.escaped()
    return (len(text) + 1).to_bytes(4, "little") + text + b"\0"


def _string(cursor: KeyCursor, _: int) -> TypedValue:
    return (0x0E if cursor.bits.read(1) else 0x02), _string_like(cursor)


def _document(cursor: KeyCursor, depth: int) -> bytes:
    pieces: list[bytes] = []
    while cursor.byte():  # The general type byte of a field, or the 00 that closes the object.
        name = cursor.until_zero()
        kind, value = _value(cursor, cursor.byte(), depth + 1)
        pieces += (bytes((kind,)), name, b"\0", value)
    return _framed(pieces)


def _array(cursor: KeyCursor, depth: int) -> TypedValue:
    pieces: list[bytes] = []
    index = 0
    while type_byte := cursor.byte():
        kind, value = _value(cursor, type_byte, depth + 1)
        pieces += (bytes((kind,)), str(index).encode(), b"\0", value)
        index += 1
    return 0x04, _framed(pieces)


def _framed(pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def _binary(cursor: KeyCursor, _: int) -> TypedValue:
    size = cursor.byte()
    if size == 0xFF:
        size = int.from_bytes(cursor.take(4), "big")
    return 0x05, size.to_bytes(4, "little") + cursor.take(size + 1)


def _date(cursor: KeyCursor, _: int) -> TypedValue:
    return 0x09, (int.from_bytes(cursor.take(8), "big") ^ 1 << 63).to_bytes(8, "little")


def _dbpointer(cursor: KeyCursor, _: int) -> TypedValue:
    size = int.from_bytes(cursor.take(4), "big")
    return 0x0C, (size + 1).to_bytes(4, "little") + cursor.take(size) + b"\0" + cursor.take(12)


def _code_with_scope(cursor: KeyCursor, depth: int) -> TypedValue:
    code = _string_like(cursor)
    scope = _document(cursor, depth)
    return 0x0F, (4 + len(code) + len(scope)).to_bytes(4, "little") + code + scope


_READERS: Final[dict[int, Callable[[KeyCursor, int], TypedValue]]] = {
    0x0A: lambda cursor, depth: (0xFF, b""),
    0x0F: lambda cursor, depth: (0x06, b""),
    0x14: lambda cursor, depth: (0x0A, b""),
    0x3C: _string,
    0x46: lambda cursor, depth: (0x03, _document(cursor, depth)),
    0x50: _array,
    0x5A: _binary,
    0x64: lambda cursor, depth: (0x07, cursor.take(12)),
    0x6E: lambda cursor, depth: (0x08, b"\0"),
    0x6F: lambda cursor, depth: (0x08, b"\1"),
    0x78: _date,
    0x82: lambda cursor, depth: (0x11, cursor.take(8)[::-1]),
    0x8C: lambda cursor, depth: (0x0B, cursor.until_zero() + b"\0" + cursor.until_zero() + b"\0"),
    0x96: _dbpointer,
    0xA0: lambda cursor, depth: (0x0D, _string_like(cursor)),
    0xAA: _code_with_scope,
    0xF0: lambda cursor, depth: (0x7F, b""),
}
