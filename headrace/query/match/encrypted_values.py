"""The keywords of `$jsonSchema` for encrypted fields: `encrypt`, and `encryptMetadata`, which all values pass.

    {encrypt: {bsonType: "string", algorithm: "AEAD_AES_256_CBC_HMAC_SHA_512-Random", keyId: [...]}}

An encrypted value is binary data of subtype 6: one byte for its kind, 16 for the id of its key, one for the type of the
plain value, then the encrypted data. Source: MongoDB's documentation of encryption schemas; the answers of its server.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Binary

from headrace.errors import CommandError
from headrace.query.match.type_test import parse_types
from headrace.values.paths import ValueTest

KEYWORDS: Final = frozenset({"encrypt", "encryptMetadata"})
_ALGORITHMS: Final = frozenset(f"AEAD_AES_256_CBC_HMAC_SHA_512-{kind}" for kind in ("Deterministic", "Random"))
_SUBTYPE: Final = 6
_UUID: Final = 4
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
    _check("encrypt", argument, frozenset({"algorithm", "bsonType", "keyId"}))
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
    _check("encryptMetadata", argument, frozenset({"algorithm", "keyId"}))
    return lambda value: True


def is_encrypted(value: Any) -> bool:
    """Whether a value is one that a client has encrypted."""
    return type(value) is Binary and value.subtype == _SUBTYPE


def _check(keyword: str, argument: dict[str, Any], known: frozenset[str]) -> None:
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
            if item.subtype != _UUID:
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
        if name in KEYWORDS or (name != "enum" and _schema_names(inner)):
            return True
    return False
