"""Conversions of binary data: to and from text in a format, to and from numbers in a byte order.

Rule: text requires a `format`; numbers are little-endian unless `byteOrder` is big; a UUID is 16 bytes of subtype 4.
Source: MongoDB's manual, "$convert".
"""

from __future__ import annotations

import base64
import binascii
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bson import Binary, Int64

from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, int32_of, is_nullish
from headrace.query.expressions.value_text import as_text
from headrace.values.bson import type_name

_FORMATS: Final = ("auto", "base64", "base64url", "hex", "utf8", "uuid")
_UUID: Final = 4


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The optional operands of $convert, not yet checked; `layout` is its `format`."""

    layout: Any = None
    byte_order: Any = None
    subtype: Any = None


def binary_conversion(source: type, target: str, options: ConvertOptions) -> Callable[[Any], Any] | None:
    """The conversion function of a pair of types; None if there is none. Raises the code of an invalid option."""
    binary = source in (bytes, Binary)
    if target == "binData" and source is str:
        layout, subtype = _format(options), _subtype(options)
        return lambda value: _from_text(value, layout, subtype)
    if target == "binData" and binary:
        subtype = _subtype(options)
        return lambda value: _same_subtype(value, subtype)
    if target == "string" and binary:
        layout = _format(options)
        return lambda value: _to_text(value, layout)
    codes = {int: "i", Int64: "q", float: "d"}
    if target == "binData" and source in codes:
        pack = _order(options) + codes[source]
        subtype = _subtype(options)
        return lambda value: _binary(struct.pack(pack, value), subtype)
    if target in ("int", "long", "double") and binary:
        order = _order(options)
        return lambda value: _to_number(value, target, order)
    return None


def _fail(message: str) -> CommandError:
    return CommandError(241, f"{message} in $convert with no onError value")


def _format(options: ConvertOptions) -> str:
    if is_nullish(options.layout):
        raise CommandError(4341115, "Format must be specified when converting between string and binData")
    if type(options.layout) is not str:
        raise CommandError(4341114, "$convert requires that 'format' be a string")
    if options.layout not in _FORMATS:
        raise CommandError(4341125, f"Invalid 'format' argument for $convert: {options.layout}")
    return options.layout


def _order(options: ConvertOptions) -> str:
    if is_nullish(options.byte_order):
        return "<"
    if type(options.byte_order) is not str:
        raise CommandError(9130001, "$convert requires that 'byteOrder' be a string")
    if options.byte_order not in ("big", "little"):
        raise CommandError(9130002, f"Invalid 'byteOrder' argument for $convert: {options.byte_order}")
    return ">" if options.byte_order == "big" else "<"


def _subtype(options: ConvertOptions) -> int:
    if is_nullish(options.subtype):
        return 0
    if type(options.subtype) not in NUMBERS:
        raise CommandError(4341108, f"In $convert, 'subtype' must be a number, found: {type_name(options.subtype)}")
    number = int32_of(options.subtype)
    if number is None:
        raise CommandError(4341106, f"In $convert, 'subtype' must be an integer, found: {options.subtype}")
    if not (0 <= number <= 9 or 128 <= number <= 255):
        raise CommandError(4341107, f"In $convert, invalid binary data subtype: {options.subtype}")
    return number


def _binary(data: bytes, subtype: int) -> Any:
    return data if subtype == 0 else Binary(data, subtype)


def _subtype_of(value: Any) -> int:
    return value.subtype if type(value) is Binary else 0


def _same_subtype(value: Any, subtype: int) -> Any:
    if _subtype_of(value) != subtype:
        raise _fail("Conversions between different binData subtypes are not supported")
    return value


def _from_text(text: str, layout: str, subtype: int) -> Any:
    if (layout == "uuid") != (subtype == _UUID) and layout != "auto":
        raise _fail("Input is not a valid UUID string, or the subtype is not that of a UUID")
    try:
        if layout == "uuid" or (layout == "auto" and subtype == _UUID):
            if len(text) != 36:
                raise ValueError
            return Binary(uuid.UUID(text).bytes, _UUID)
        if layout == "hex":
            return _binary(bytes.fromhex(text), subtype)
        if layout == "utf8":
            return _binary(text.encode(), subtype)
        plain = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4) if layout == "base64url" else text
        if "=" in plain[:-2]:
            raise ValueError
        return _binary(base64.b64decode(plain, validate=True), subtype)
    except (ValueError, binascii.Error):
        raise _fail(f"Input is not a valid {layout} string") from None


def _to_text(value: Any, layout: str) -> str:
    data, is_uuid = bytes(value), _subtype_of(value) == _UUID
    if layout == "auto":
        is_uuid = is_uuid and len(data) == 16
        layout = "uuid" if is_uuid else "base64"
    if (layout == "uuid") != is_uuid:
        raise _fail("Only binData of the UUID subtype converts to and from the uuid format")
    if layout == "uuid":
        if len(data) != 16:
            raise _fail("A UUID has 16 bytes")
        return str(uuid.UUID(bytes=data))
    if layout == "hex":
        return data.hex().upper()
    if layout == "base64":
        return base64.b64encode(data).decode()
    if layout == "base64url":
        return base64.urlsafe_b64encode(data).decode().rstrip("=")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _fail("BinData does not represent a valid UTF-8 string") from None


def _to_number(value: Any, target: str, order: str) -> Any:
    name, data = "big" if order == ">" else "little", bytes(value)
    sizes: dict[str, tuple[int, ...]] = {"int": (1, 2, 4), "long": (1, 2, 4, 8), "double": (4, 8)}
    if len(data) not in sizes[target]:
        why = f"because of invalid length: {len(data)}"
        raise CommandError(241, f"Failed to convert '{as_text(value)}' to {target} in $convert {why}")
    if target == "double":
        number: float = struct.unpack(order + ("f" if len(data) == 4 else "d"), data)[0]
        return number
    integer = int.from_bytes(data, "big" if name == "big" else "little", signed=True)
    return integer if target == "int" else Int64(integer)
