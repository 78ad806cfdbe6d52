"""`encryptedFields` of `create`: the fields that clients encrypt, and how they may be queried.

The server stores and shows these fields, and refuses unencrypted values. Drivers create the metadata collections.
Source: MongoDB's manual, "Queryable Encryption", and its drivers' specification.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Binary

from headrace.dispatch.arguments import Field, Fields, FieldType, any_type, array, boolean, document, number, string
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS
from headrace.store.catalog import ENCRYPTED as OPTION
from headrace.values.bson import type_name
from headrace.values.order import compare

_TEXT: Final = ("prefixPreview", "substringPreview", "suffixPreview")
_TYPES: Final = ("equality", "range", *_TEXT)
_NEVER: Final = frozenset({"double", "decimal", "object", "array"})
_RANGES: Final = frozenset({"date", "decimal", "double", "int", "long"})
_LENGTHS: Final = ("strMinQueryLength", "strMaxQueryLength")


def _is_uuid(path: str, value: Any) -> None:
    if type(value) is not Binary or value.subtype != 4 or len(value) != 16:
        raise CommandError(14, f"BSON field '{path}' is the wrong type 'binData', expected type 'UUID'")


QUERY: Final = Fields(
    string("queryType", choices=_TYPES, required=True), number("contention", least=0), number("sparsity"),
    any_type("min"), any_type("max"), number("trimFactor"), number("precision"), number("strMaxLength", least=1),
    number("strMinQueryLength", least=1), number("strMaxQueryLength", least=1), boolean("caseSensitive", strict=True),
    boolean("diacriticSensitive", strict=True), path="create.encryptedFields.fields.queries",
)  # fmt: skip
FIELD: Final = Fields(
    Field("keyId", "binData", None, required=True, check=_is_uuid), string("path", required=True), string("bsonType"),
    Field("queries", FieldType(("object", "array")), None), path="create.encryptedFields.fields",
)  # fmt: skip


def _check_fields(path: str, value: list[Any]) -> None:
    for index, item in enumerate(value):
        FIELD.check(f"{path}.{index}", item)


ENCRYPTED: Final = document(OPTION, Fields(
    string("escCollection"), string("ecocCollection"), number("strEncodeVersion"),
    array("fields", "object", required=True, check=_check_fields),
))  # fmt: skip


def check_encrypted(config: dict[str, Any], body: dict[str, Any], *, has_oplog: bool) -> None:
    """Raise the errors of invalid `encryptedFields` in a `create`, or of options that do not go with them."""
    if body.get("viewOn") is not None or body.get("timeseries") is not None:
        raise CommandError(6346401, "Encrypted collections cannot be views or time-series collections")
    if body.get("capped"):
        raise CommandError(6367301, "Encrypted collections cannot be capped")
    if not has_oplog:
        raise CommandError(6346402, "Encrypted collections are not supported on standalone")
    seen: list[str] = []
    for field in config["fields"]:
        _check_path(field["path"], seen)
        queries = field.get("queries")
        if queries is None:
            if field.get("bsonType") in ("minKey", "maxKey", "null", "undefined"):
                raise CommandError(6338405, f"Type '{field['bsonType']}' is not a supported type for encryption")
            continue
        given = [queries] if type(queries) is dict else queries
        if not given:
            raise CommandError(9783412, "'queries' must have at least one query type")
        for query in given:
            if type(query) is not dict:
                raise CommandError(14, f"'queries' is the wrong type '{type_name(query)}', expected type 'object'")
            QUERY.check("queries", query)
        _check_together([query["queryType"] for query in given])
        for query in given:
            _check_query(field, query)


def _check_path(path: str, seen: list[str]) -> None:
    if not path:
        raise CommandError(6316402, "Encrypted field path cannot be empty")
    if path == "_id" or path.startswith("_id."):
        raise CommandError(6316403, "Cannot encrypt _id or its subfields")
    for other in seen:
        if other == path or other.startswith(f"{path}.") or path.startswith(f"{other}."):
            raise CommandError(6338402, f"Duplicate paths are not allowed: '{other}' and '{path}'")
    seen.append(path)


def _check_together(types: list[str]) -> None:
    if len(types) > 2:
        raise CommandError(9783413, "A field has at most two query types")
    if len(types) == 2 and set(types) != {"prefixPreview", "suffixPreview"}:
        raise CommandError(9783414, "Only prefix and suffix queries can be combined on a field")


def _check_query(field: dict[str, Any], query: dict[str, Any]) -> None:
    kind, bson_type = query["queryType"], field.get("bsonType")
    if bson_type is None:
        raise CommandError(6412601, "The 'bsonType' of an encrypted field that can be queried is required")
    if kind == "equality" and (bson_type in _NEVER or bson_type in ("minKey", "maxKey", "null", "undefined")):
        raise CommandError(6338406, f"Type '{bson_type}' is not a supported equality indexed type")
    if kind == "range":
        _check_range(bson_type, query)
    elif kind in _TEXT:
        _check_text(bson_type, query)


def _check_range(bson_type: str, query: dict[str, Any]) -> None:
    if bson_type not in _RANGES:
        raise CommandError(6775201, f"Type '{bson_type}' is not a supported range indexed type")
    ends = [query[name] for name in ("min", "max") if query.get(name) is not None]
    if any(type_name(end) != bson_type for end in ends):
        raise CommandError(7018200, f"'min' and 'max' must be of type '{bson_type}'")
    if len(ends) == 2 and compare(ends[0], ends[1], None) >= 0:
        raise CommandError(6720005, "'min' must be less than 'max'")
    factor = query.get("trimFactor")
    if factor is not None and type(factor) in NUMBERS and not 0 <= factor < (64 if bson_type != "int" else 32):
        raise CommandError(8574000, f"'trimFactor' is out of range for type '{bson_type}'")


def _check_text(bson_type: str, query: dict[str, Any]) -> None:
    if bson_type != "string":
        raise CommandError(9783400, f"Type '{bson_type}' is not a supported type of text queries")
    for code, name in ((9783402, _LENGTHS[0]), (9783403, _LENGTHS[1]), (9783404, "caseSensitive"),
                       (9783405, "diacriticSensitive")):  # fmt: skip
        if query.get(name) is None:
            raise CommandError(code, f"'{name}' is required for {query['queryType']} queries")
    if query[_LENGTHS[0]] > query[_LENGTHS[1]]:
        raise CommandError(9783406, "'strMinQueryLength' must not exceed 'strMaxQueryLength'")
