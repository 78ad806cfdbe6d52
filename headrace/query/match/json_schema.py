"""`$jsonSchema`: MongoDB's variant of JSON Schema draft 4, parsed to a test of a document.

Rule: a keyword constrains only values of its own type: `minimum` accepts any string. `bsonType` takes the names of
`$type`, and `type` takes JSON's names. Absent fields pass every keyword except `required`.

The keywords for encrypted fields are `encrypt`, and `encryptMetadata`, which all values pass:

    {encrypt: {bsonType: "string", algorithm: "AEAD_AES_256_CBC_HMAC_SHA_512-Random", keyId: [...]}}

An encrypted value is binary data of subtype 6: one byte for its kind, 16 for the id of its key, one for the type of the
plain value, then the encrypted data.
Source: MongoDB's manual, "$jsonSchema"; its documentation of encryption schemas; the answers of its server.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, Final

from bson import Binary

from headrace.errors import CommandError
from headrace.query.expressions.numbers import EXACT_REMAINDERS, NUMBERS
from headrace.query.match.value_tests import has_type, ordered, parse_types, truncated_int64
from headrace.query.patterns import compile_pattern
from headrace.values.bson import MISSING
from headrace.values.order import NAN_KEY, hash_key, number_key
from headrace.values.paths import ValueTest

ENCRYPTION: Final = frozenset({"encrypt", "encryptMetadata"})
_ALGORITHMS: Final = frozenset(f"AEAD_AES_256_CBC_HMAC_SHA_512-{kind}" for kind in ("Deterministic", "Random"))
_SUBTYPE: Final = 6
_UUID_SUBTYPE: Final = 4
_TYPE_AT: Final = 17
_OF_SCHEMAS: Final = frozenset({"dependencies", "patternProperties", "properties"})
"""Keywords whose argument maps names of fields to schemas."""


def parse_encrypt(argument: Any, schema: dict[str, Any]) -> ValueTest:
    """The test of `encrypt`. Raises 9 beside `type`, 14, 2, 40415, 51065, 51084 and 51088."""
    if type(argument) is not dict:
        raise CommandError(14, "$jsonSchema keyword 'encrypt' must be an object")
    for other in ("type", "bsonType", "encryptMetadata"):
        if other in schema:
            raise CommandError(9, f"$jsonSchema keyword 'encrypt' cannot be used in conjunction with '{other}'")
    _check_encryption("encrypt", argument, frozenset({"algorithm", "bsonType", "keyId"}))
    if "bsonType" not in argument:
        return is_encrypted
    names = argument["bsonType"]
    if not all(type(name) is str for name in (names if type(names) is list else [names])):
        raise CommandError(14, "$jsonSchema keyword 'bsonType' must be a string or an array of strings")
    types = parse_types(names, "bsonType")
    return lambda value: is_encrypted(value) and len(value) > _TYPE_AT and value[_TYPE_AT] in types


def parse_metadata(argument: Any, schema: dict[str, Any]) -> ValueTest:
    """The test of `encryptMetadata`, which all values pass. Raises 9 for an empty argument, otherwise as `encrypt`."""
    if type(argument) is not dict:
        raise CommandError(14, "$jsonSchema keyword 'encryptMetadata' must be an object")
    if not argument:
        raise CommandError(9, "$jsonSchema keyword 'encryptMetadata' cannot be an empty object")
    _check_encryption("encryptMetadata", argument, frozenset({"algorithm", "keyId"}))
    return lambda value: True


def is_encrypted(value: Any) -> bool:
    """Whether a value is one that a client has encrypted."""
    return type(value) is Binary and value.subtype == _SUBTYPE


def _check_encryption(keyword: str, argument: dict[str, Any], known: frozenset[str]) -> None:
    for name, value in argument.items():
        if name not in known:
            raise CommandError(40415, f"BSON field '{keyword}.{name}' is an unknown field.")
        if name == "algorithm" and value not in _ALGORITHMS:
            raise CommandError(2, f"Enumeration value '{value}' for field '{keyword}.algorithm' is not a valid value.")
        if name == "keyId":
            _check_key(value)


def _check_key(value: Any) -> None:
    if type(value) is str:
        if not value.startswith("/"):
            raise CommandError(51065, f"A JSON pointer must begin with '/': {value}")
    elif type(value) is not list:
        raise CommandError(51085, "keyId must be either a string or an array of UUIDs")
    else:
        for item in value:
            if type(item) is not Binary:
                raise CommandError(51088, "Array elements must have type BinData, found another type")
            if item.subtype != _UUID_SUBTYPE:
                raise CommandError(51084, "Array elements must have bindata type UUID, found another type")


def names_encryption(spec: Any) -> bool:
    """Whether a validator has a keyword of encrypted fields in any of its schemas."""
    if type(spec) is list:
        return any(map(names_encryption, spec))
    if type(spec) is not dict:
        return False
    return any(
        _schema_names(value) if name == "$jsonSchema" else names_encryption(value) for name, value in spec.items()
    )


def _schema_names(schema: Any) -> bool:
    if type(schema) is list:
        return any(map(_schema_names, schema))
    if type(schema) is not dict:
        return False
    for name, value in schema.items():
        inner = list(value.values()) if name in _OF_SCHEMAS and type(value) is dict else value
        if name in ENCRYPTION or (name != "enum" and _schema_names(inner)):
            return True
    return False


Keyword = Callable[[Any, dict[str, Any]], ValueTest]
JSON_TYPES: Final = {
    "array": {4}, "boolean": {8}, "null": {10}, "number": {1, 16, 18, 19}, "object": {3}, "string": {2},
}  # fmt: skip


def parse_schema(schema: dict[str, Any]) -> ValueTest:
    """The test of a schema. Raises 9 for unknown keywords and invalid arguments, 14 for wrong types."""
    tests = []
    for name, argument in schema.items():
        if name in REFUSED:
            raise CommandError(9, f"$jsonSchema keyword '{name}' is not currently supported")
        if name not in KEYWORDS:
            raise CommandError(9, f"Unknown $jsonSchema keyword: {name}")
        tests.append(KEYWORDS[name](argument, schema))
    return lambda value: all(test(value) for test in tests)


def _need(holds: bool, name: str, what: str, code: int = 14) -> None:
    if not holds:
        raise CommandError(code, f"$jsonSchema keyword '{name}' must be {what}")


def _for(kinds: Collection[type], test: ValueTest) -> ValueTest:
    """Apply the test to values of these types only. All other values pass."""
    return lambda value: type(value) not in kinds or test(value)


def _schema(name: str, argument: Any) -> ValueTest:
    _need(type(argument) is dict, name, "an object")
    return parse_schema(argument)


def _schemas(name: str, argument: Any) -> list[ValueTest]:
    _need(type(argument) is list, name, "an array")
    _need(bool(argument), name, "a non-empty array", 9)
    return [_schema(name, item) for item in argument]


def _names(name: str, argument: Any) -> frozenset[str]:
    _need(type(argument) is list, name, "an array")
    _need(bool(argument), name, "a non-empty array", 9)
    return _strings(name, argument)


def _strings(name: str, argument: list[Any]) -> frozenset[str]:
    _need(all(type(item) is str for item in argument), name, "an array of strings")
    _need(len(set(argument)) == len(argument), name, "an array of unique strings", 9)
    return frozenset(argument)


def _count(name: str, argument: Any) -> int:
    _need(type(argument) in NUMBERS, name, "a number")
    number = truncated_int64(argument)
    if number is None or number < 0 or number != number_key(argument):
        raise CommandError(9, f"$jsonSchema keyword '{name}' must be a non-negative integer")
    return number


def _counted(name: str, kind: type, holds: Callable[[int, int], bool]) -> Keyword:
    def parse(argument: Any, schema: dict[str, Any]) -> ValueTest:
        bound = _count(name, argument)
        return _for((kind,), lambda value: holds(len(value), bound))

    return parse


def _bound(name: str, plain: str, strict: str, exclusive: str) -> Keyword:
    def parse(argument: Any, schema: dict[str, Any]) -> ValueTest:
        _need(type(argument) in NUMBERS, name, "a number")
        flag = schema.get(exclusive, False)
        _need(type(flag) is bool, exclusive, "a boolean")
        return _for(NUMBERS, ordered(strict if flag else plain, argument))

    return parse


def _exclusive(name: str, bound: str) -> Keyword:
    def parse(argument: Any, schema: dict[str, Any]) -> ValueTest:
        _need(type(argument) is bool, name, "a boolean")
        _need(bound in schema, name, f"accompanied by '{bound}'", 9)
        return lambda value: True

    return parse


def _multiple_of(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) in NUMBERS, "multipleOf", "a number")
    divisor = number_key(argument)
    if divisor is NAN_KEY or divisor <= 0:
        raise CommandError(9, "$jsonSchema keyword 'multipleOf' must have a positive value")
    exact = Decimal(divisor)

    def test(value: Any) -> bool:
        number = number_key(value)
        if number is NAN_KEY or not Decimal(number).is_finite():
            return False
        return bool(EXACT_REMAINDERS.remainder(Decimal(number), exact) == 0)

    return _for(NUMBERS, test)


def _pattern(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is str, "pattern", "a string")
    return _for((str,), compile_pattern(argument).matches)


def _type(argument: Any, schema: dict[str, Any]) -> ValueTest:
    names = argument if type(argument) is list else [argument]
    _need(bool(names), "type", "a non-empty array", 9)
    for name in _strings("type", names):
        _need(name in JSON_TYPES, "type", f"a type of JSON Schema, not {name}", 2 if name != "integer" else 9)
    return has_type(frozenset().union(*(JSON_TYPES[name] for name in names)))


def _bson_type(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need("type" not in schema, "bsonType", "without 'type'", 9)
    _strings("bsonType", argument if type(argument) is list else [argument])
    return has_type(parse_types(argument, "bsonType"))


def _enum(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is list, "enum", "an array")
    _need(bool(argument), "enum", "a non-empty array", 9)
    keys = frozenset(hash_key(unordered(item)) for item in argument)
    _need(len(keys) == len(argument), "enum", "an array of unique values", 9)
    return lambda value: hash_key(unordered(value)) in keys


def _required(argument: Any, schema: dict[str, Any]) -> ValueTest:
    names = _names("required", argument)
    return _for((dict,), lambda value: names <= value.keys())


def _properties(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is dict, "properties", "an object")
    tests = [(name, _schema("properties", item)) for name, item in argument.items()]

    def test(value: dict[str, Any]) -> bool:
        get = value.get
        return all((item := get(name, MISSING)) is MISSING or test(item) for name, test in tests)

    return _for((dict,), test)


def _pattern_properties(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is dict, "patternProperties", "an object")
    items = argument.items()
    tests = [(compile_pattern(pattern).matches, _schema(pattern, item)) for pattern, item in items]
    return _for(
        (dict,),
        lambda value: all(test(item) for matches, test in tests for name, item in value.items() if matches(name)),
    )


def _additional_properties(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) in (bool, dict), "additionalProperties", "an object or a boolean")
    for name in ("properties", "patternProperties"):
        _need(type(schema.get(name, {})) is dict, name, "an object")
    known = frozenset(schema.get("properties", {}))
    patterns = [compile_pattern(pattern).matches for pattern in schema.get("patternProperties", {})]
    rest = _schema("additionalProperties", argument) if type(argument) is dict else lambda value: argument

    def test(value: dict[str, Any]) -> bool:
        return all(
            name in known or any(matches(name) for matches in patterns) or rest(item) for name, item in value.items()
        )

    return _for((dict,), test)


def _dependencies(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is dict, "dependencies", "an object")
    tests = [
        (name, _schema(name, item) if type(item) is dict else _required(item, schema))
        for name, item in argument.items()
        if type(item) is not str or name not in ("title", "description")
    ]
    return _for((dict,), lambda value: all(name not in value or test(value) for name, test in tests))


def _items(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) in (dict, list), "items", "an object or an array")
    if type(argument) is dict:
        test = _schema("items", argument)
        return _for((list,), lambda value: all(map(test, value)))
    tests = [_schema("items", item) for item in argument]
    return _for((list,), lambda value: all(test(item) for test, item in zip(tests, value)))


def _additional_items(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) in (bool, dict), "additionalItems", "an object or a boolean")
    if type(schema.get("items")) is not list:
        return lambda value: True
    start = len(schema["items"])
    rest = _schema("additionalItems", argument) if type(argument) is dict else lambda value: argument
    return _for((list,), lambda value: all(rest(item) for item in value[start:]))


def _unique_items(argument: Any, schema: dict[str, Any]) -> ValueTest:
    _need(type(argument) is bool, "uniqueItems", "a boolean")
    if not argument:
        return lambda value: True

    def test(value: list[Any]) -> bool:
        return len(frozenset(hash_key(unordered(item)) for item in value)) == len(value)

    return _for((list,), test)


def unordered(value: Any) -> Any:
    """The value with the fields of its objects sorted by name: JSON Schema compares objects regardless of order."""
    if type(value) is dict:
        return {name: unordered(value[name]) for name in sorted(value)}
    return [unordered(item) for item in value] if type(value) is list else value


def _all_of(argument: Any, schema: dict[str, Any]) -> ValueTest:
    tests = _schemas("allOf", argument)
    return lambda value: all(test(value) for test in tests)


def _any_of(argument: Any, schema: dict[str, Any]) -> ValueTest:
    tests = _schemas("anyOf", argument)
    return lambda value: any(test(value) for test in tests)


def _one_of(argument: Any, schema: dict[str, Any]) -> ValueTest:
    tests = _schemas("oneOf", argument)
    return lambda value: sum(test(value) for test in tests) == 1


def _not(argument: Any, schema: dict[str, Any]) -> ValueTest:
    test = _schema("not", argument)
    return lambda value: not test(value)


def _text(name: str) -> Keyword:
    def parse(argument: Any, schema: dict[str, Any]) -> ValueTest:
        _need(type(argument) is str, name, "a string")
        return lambda value: True

    return parse


KEYWORDS: Final[dict[str, Keyword]] = {
    "additionalItems": _additional_items,
    "additionalProperties": _additional_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "bsonType": _bson_type,
    "dependencies": _dependencies,
    "description": _text("description"),
    "encrypt": parse_encrypt,
    "encryptMetadata": parse_metadata,
    "enum": _enum,
    "exclusiveMaximum": _exclusive("exclusiveMaximum", "maximum"),
    "exclusiveMinimum": _exclusive("exclusiveMinimum", "minimum"),
    "items": _items,
    "maxItems": _counted("maxItems", list, operator.le),
    "maxLength": _counted("maxLength", str, operator.le),
    "maxProperties": _counted("maxProperties", dict, operator.le),
    "maximum": _bound("maximum", "$lte", "$lt", "exclusiveMaximum"),
    "minItems": _counted("minItems", list, operator.ge),
    "minLength": _counted("minLength", str, operator.ge),
    "minProperties": _counted("minProperties", dict, operator.ge),
    "minimum": _bound("minimum", "$gte", "$gt", "exclusiveMinimum"),
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "properties": _properties,
    "required": _required,
    "title": _text("title"),
    "type": _type,
    "uniqueItems": _unique_items,
}

REFUSED: Final = frozenset({"$ref", "$schema", "default", "definitions", "format", "id"})
