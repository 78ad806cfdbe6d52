"""$convert and its short forms: one function for each pair of types.

Rule: null converts to null (or `onNull`). A pair without conversion and a value out of range are error 241, which
`onError` catches. Numbers are truncated. A double becomes a decimal of 15 digits.

Rule for binary data: text requires a `format`; numbers are little-endian unless `byteOrder` is big; a UUID is 16 bytes
of subtype 4. Source: MongoDB's manual, "$convert".
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidId

from headrace.errors import CommandError
from headrace.query.expressions.date_format import iso_text
from headrace.query.expressions.date_parse import parse_date
from headrace.query.expressions.dates import date_of
from headrace.query.expressions.expression import Call, Constant, Env, Evaluate, Expression, Operator, ParseContext
from headrace.query.expressions.numbers import (
    CONTEXT,
    INT32_MAX,
    INT32_MIN,
    NUMBERS,
    decimal_of,
    fits_long,
    int32_of,
    is_nan,
    is_nullish,
    truthy,
    wrap,
)
from headrace.query.expressions.operator_parser import NamedArguments, OperatorParser, parse_operands
from headrace.query.expressions.value_text import as_text, double_text
from headrace.query.match.value_tests import ALIASES
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


Convert = Callable[[Any], Any]

_TYPE_NAMES: Final = {number: name for name, number in ALIASES.items()}
_SPACES: Final = " \t\n\v\f\r"
_KNOWN_NAMES: Final = frozenset((*_TYPE_NAMES.values(), "missing"))


_DIGIT_COUNT_MAX: Final = 32
_LEAST_DOUBLE: Final = Context(prec=60).divide(Decimal(2**54 - 1), Decimal(2**1076))
"""The least decimal that is rounded to a normal double. Smaller ones do not convert."""
_NUMBER: Final = re.compile(
    r"[+-]?(0X[0-9A-F]+\.?[0-9A-F]*(P[+-]?[0-9]+)?|[0-9]+\.?[0-9]*(E[+-]?[0-9]+)?|\.[0-9]+(E[+-]?[0-9]+)?"
    r"|INF(INITY)?|NAN)",
    re.IGNORECASE | re.ASCII,
)
"""A double as C reads it, which includes hexadecimal digits. (The server refuses a text that begins with "0x".)"""


def failure(message: str) -> CommandError:
    """The error that `onError` catches: 241 (ConversionFailure)."""
    return CommandError(241, f"{message} in $convert with no onError value")


def _truncated(value: Any) -> int:
    """A number truncated to an integer."""
    number = value.to_decimal() if type(value) is Decimal128 else value
    if is_nan(number):
        raise failure("Attempt to convert NaN value to integer type")
    if number in (math.inf, -math.inf):
        raise failure("Attempt to convert infinity value to integer type")
    return int(number)


def _to_int(value: Any) -> int:
    number = _truncated(value)
    if not INT32_MIN <= number <= INT32_MAX or (type(value) is float and not INT32_MIN <= value <= INT32_MAX):
        raise _overflow(value)
    return number


def _to_long(value: Any) -> Int64:
    number = _truncated(value)
    if not fits_long(number):
        raise _overflow(value)
    return Int64(number)


def _overflow(value: Any) -> CommandError:
    """The error of a number out of range. As in the server, the message ends before a long."""
    found = "" if type(value) is Int64 else as_text(value)
    return CommandError(241, f"Conversion would overflow target type in $convert with no onError value: {found}")


def _decimal_to_double(value: Decimal128) -> float:
    number = value.to_decimal()
    double = float(number)
    if number.is_finite() and (math.isinf(double) or 0 < abs(number) < _LEAST_DOUBLE):
        raise _overflow(value)
    return double


def _unparsed(text: str, why: str) -> CommandError:
    return CommandError(241, f"Failed to parse number '{text}' in $convert with no onError value: {why}")


def _check_hexadecimal(text: str) -> None:
    if text.startswith("0x"):
        raise CommandError(241, f"Illegal hexadecimal input in $convert with no onError value: {text}")


def _parse_integer(low: int, high: int, result: Callable[[int], Any]) -> Convert:
    def parse(text: str) -> Any:
        _check_hexadecimal(text)
        if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
            raise _unparsed(text, "Did not consume whole string." if text else "No digits")
        digits = text.lstrip("+-0") or "0"
        size = int(digits) if len(digits) <= _DIGIT_COUNT_MAX else high + 2  # Python parses no number of more digits
        number = -size if text[0] == "-" else size
        if not low <= number <= high:
            raise _unparsed(text, "Overflow")
        return result(number)

    return parse


def _parse_double(text: str) -> float:
    _check_hexadecimal(text)
    if not text:
        raise _unparsed(text, "Empty string")
    if text[0] in _SPACES:
        raise _unparsed(text, "Leading whitespace")
    found = _NUMBER.match(text)
    if found is None:
        raise _unparsed(text, "Did not consume any digits")
    if found.end() < len(text):
        raise _unparsed(text, "Did not consume whole string.")
    number = _double(text)
    if math.isinf(number) and "inf" not in text.lower():
        raise _unparsed(text, "Out of range")
    return number


def _double(text: str) -> float:
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except OverflowError:
        return math.inf


def _parse_decimal(text: str) -> Decimal128:
    _check_hexadecimal(text)
    try:
        if "_" in text or text != text.strip() or not text.isascii():
            raise InvalidOperation
        number = Decimal(text)
    except InvalidOperation:
        raise _unparsed(text, "Failed to parse string to decimal" if text else "Empty string") from None
    if number.is_finite() and CONTEXT.create_decimal(number).is_infinite():
        raise _unparsed(text, "Conversion from string to decimal would overflow")
    return wrap(number)


def _parse_object_id(text: str) -> ObjectId:
    try:
        if len(text) != 24:
            raise InvalidId
        return ObjectId(text)
    except InvalidId:
        why = f"Invalid character found in hex string: {re.sub('[0-9a-fA-F]', '', text)[:1]}"
        if len(text) != 24:
            why = f"Invalid string length for parsing to OID, expected 24 but found {len(text)}"
        message = f"Failed to parse objectId '{text}' in $convert with no onError value: {why}"
        raise CommandError(241, message) from None


def _same(value: Any) -> Any:
    return value


def _always(value: Any) -> bool:
    return True


def _decimal(value: Any) -> Decimal128:
    return wrap(decimal_of(value))


def _date(value: Any) -> DatetimeMS:
    return DatetimeMS(date_of(value))


def _number_to_date(value: Any) -> DatetimeMS:
    return DatetimeMS(int(_to_long(value)))


_CONVERSIONS: Final[dict[str, dict[type, Convert]]] = {
    "bool": {
        **dict.fromkeys((bool, DatetimeMS, Decimal128, Int64, float, int), truthy),
        **dict.fromkeys((Binary, Code, MaxKey, MinKey, ObjectId, Regex, Timestamp, bytes, dict, list, str), _always),
    },
    "date": {
        DatetimeMS: _same, Decimal128: _number_to_date, Int64: _number_to_date, ObjectId: _date, Timestamp: _date,
        float: _number_to_date, str: lambda value: DatetimeMS(parse_date(value)),
    },
    "decimal": {
        DatetimeMS: lambda value: _decimal(int(value)), Decimal128: _same, Int64: _decimal,
        bool: lambda value: _decimal(int(value)), float: _decimal, int: _decimal, str: _parse_decimal,
    },
    "double": {
        DatetimeMS: lambda value: float(int(value)), Decimal128: _decimal_to_double, Int64: float, bool: float,
        float: _same, int: float, str: _parse_double,
    },
    "int": {
        Decimal128: _to_int, Int64: _to_int, bool: int, float: _to_int, int: _same,
        str: _parse_integer(INT32_MIN, INT32_MAX, int),
    },
    "long": {
        DatetimeMS: lambda value: Int64(int(value)), Decimal128: _to_long, Int64: _same, bool: Int64, float: _to_long,
        int: Int64, str: _parse_integer(-(2**63), 2**63 - 1, Int64),
    },
    "objectId": {ObjectId: _same, str: _parse_object_id},
    "string": {
        DatetimeMS: lambda value: iso_text(int(value)), Decimal128: str, Int64: str, ObjectId: str,
        bool: lambda value: "true" if value else "false", float: double_text, int: str, str: _same,
    },
}  # fmt: skip


def convert(value: Any, target: str, options: ConvertOptions) -> Any:
    """Convert `value`, which is not null, to the type `target`. Raises 241 if it cannot be converted."""
    function = _CONVERSIONS.get(target, {}).get(type(value)) or binary_conversion(type(value), target, options)
    if function is None:
        raise failure(f"Unsupported conversion from {type_name(value)} to {target}")
    return function(value)


def _target(value: Any) -> tuple[str | None, Any]:
    """(type, binary subtype) that a `to` names. The type is None if `to` is null, the subtype is None if it is
    omitted."""
    if type(value) is dict:
        unknown = set(value) - {"type", "subtype"}
        if unknown or "type" not in value:
            raise CommandError(9, "$convert's 'to' argument must be an object with 'type' and optionally 'subtype'")
        if value.get("subtype", 0) is None:
            raise CommandError(4341108, "In $convert, 'subtype' must be a number, found: null")
        return _type_named(value["type"]), value.get("subtype")
    return _type_named(value), None


def _type_named(value: Any) -> str | None:
    if is_nullish(value):
        return None
    if type(value) is str:
        if value not in _KNOWN_NAMES:
            raise CommandError(2, f"Unknown type name: {value}")
        return value
    if type(value) not in NUMBERS:
        raise CommandError(9, f"$convert's 'to' argument must be a string or number, but is {type_name(value)}")
    number = int32_of(value)
    if number is None:
        raise CommandError(9, "In $convert, numeric 'to' argument is not an integer")
    if number == 0:
        return "missing"
    if number not in _TYPE_NAMES:
        raise CommandError(9, f"In $convert, numeric value for 'to' does not correspond to a BSON type: {number}")
    return _TYPE_NAMES[number]


def _make_convert(
    source: Evaluate,
    to: Evaluate,
    on_error: Evaluate | None,
    on_null: Evaluate | None,
    layout: Evaluate | None,
    byte_order: Evaluate | None,
) -> Evaluate:
    def evaluate(env: Env) -> Any:
        wanted, value = to(env), source(env)
        target, subtype = _target(wanted)
        if is_nullish(value):
            return None if on_null is None else on_null(env)
        if target is None:
            return None
        try:
            chosen = None if layout is None else layout(env)
            order = None if byte_order is None else byte_order(env)
            return convert(value, target, ConvertOptions(chosen, order, subtype))
        except CommandError as error:
            if error.code != 241 or on_error is None:
                raise
            return on_error(env)

    return evaluate


_CONVERT: Final = Operator("$convert", _make_convert)


def _short(name: str, target: Any, layout: str | None = None) -> OperatorParser:
    """Parse a short form of `$convert`, whose only operand is the value to convert."""

    def parse(argument: Any, context: ParseContext) -> Expression:
        operands = parse_operands(argument, context)
        if len(operands) != 1:
            raise CommandError(50723, f"{name} requires a single argument, got {len(operands)}")
        shape = Constant(layout) if layout else None
        return Call(_CONVERT, [operands[0], Constant(target), None, None, shape, None])

    return parse


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$convert": NamedArguments(
        _CONVERT, ("input", "to", "onError", "onNull", "format", "byteOrder"), {"input": 9, "to": 9}, 9, 9
    ).parse,
    "$toBool": _short("$toBool", "bool"),
    "$toDate": _short("$toDate", "date"),
    "$toDecimal": _short("$toDecimal", "decimal"),
    "$toDouble": _short("$toDouble", "double"),
    "$toInt": _short("$toInt", "int"),
    "$toLong": _short("$toLong", "long"),
    "$toObjectId": _short("$toObjectId", "objectId"),
    "$toString": _short("$toString", "string", "auto"),
    "$toUUID": _short("$toUUID", {"type": "binData", "subtype": 4}, "uuid"),
}
