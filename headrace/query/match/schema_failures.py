"""Explains keyword by keyword why a value does not match a `$jsonSchema`, as the `errInfo` of a write shows it.

Nothing here runs before a document has failed. Source: MongoDB's manual, "Document validation error output"; the
errors that its server's own tests expect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.query.match.encrypted_values import is_encrypted
from headrace.query.match.json_schema import KEYWORDS, parse_schema, unordered
from headrace.query.patterns import compile_pattern
from headrace.values.bson import type_name
from headrace.values.order import hash_key

Details = dict[str, Any]
Describe = Callable[[Any, Any, dict[str, Any]], Details]
"""Describes a failed keyword, without its name, from its argument, the value and the schema."""


def schema_failures(schema: dict[str, Any], value: Any) -> list[Details]:
    """One entry for each keyword of a schema that the value fails, in the order in which MongoDB tests them."""
    failures = []
    for name in _ORDER:
        if name in schema and not KEYWORDS[name](schema[name], schema)(value):
            failures.append({"operatorName": name, **_DESCRIPTIONS[name](schema[name], value, schema)})
    return failures


def refuses_objects(schema: dict[str, Any]) -> bool:
    """Whether the type of a schema refuses all documents."""
    return any(name in schema and not KEYWORDS[name](schema[name], schema)({}) for name in ("type", "bsonType"))


def labels(schema: dict[str, Any]) -> Details:
    """The title and the description of a schema."""
    return {name: schema[name] for name in ("title", "description") if type(schema.get(name)) is str}


def _with_value(reason: str, **more: Callable[[Any], Any]) -> Callable[[str], Describe]:
    """Return the description of a keyword: its argument, this reason, the value, and `more` fields made from it."""

    def named(name: str) -> Describe:
        def describe(argument: Any, value: Any, schema: dict[str, Any]) -> Details:
            details = {"specifiedAs": {name: argument}, "reason": reason, "consideredValue": value}
            return details | {field: made_from(value) for field, made_from in more.items()}

        return describe

    return named


def _compared(name: str, exclusive: str) -> Describe:
    def describe(argument: Any, value: Any, schema: dict[str, Any]) -> Details:
        bound = {name: argument} | ({exclusive: True} if schema.get(exclusive) else {})
        return {"specifiedAs": bound, "reason": "comparison failed", "consideredValue": value}

    return describe


def _property_count(name: str) -> Describe:
    def describe(argument: Any, value: Any, schema: dict[str, Any]) -> Details:
        reason = "specified number of properties was not satisfied"
        return {"specifiedAs": {name: argument}, "reason": reason, "numberOfProperties": len(value)}

    return describe


def _required(argument: list[str], value: Any, schema: dict[str, Any]) -> Details:
    missing = sorted(name for name in argument if name not in value)
    return {"specifiedAs": {"required": argument}, "missingProperties": missing}


def _properties(argument: dict[str, Any], value: Any, schema: dict[str, Any]) -> Details:
    failures = [
        {"propertyName": name, **labels(inner), "details": details}
        for name, inner in argument.items()
        if name in value and (details := schema_failures(inner, value[name]))
    ]
    return {"propertiesNotSatisfied": failures}


def _pattern_properties(argument: dict[str, Any], value: Any, schema: dict[str, Any]) -> Details:
    """The first field that fails, for each pattern."""
    failures = []
    for pattern, inner in argument.items():
        matches = compile_pattern(pattern).matches
        for name, item in value.items():
            details = schema_failures(inner, item) if matches(name) else []
            if details:
                field = {"propertyName": name, **labels(inner), "regexMatched": pattern}
                failures.append({**field, "details": details})
                break
    return {"details": failures}


def _additional_properties(argument: Any, value: Any, schema: dict[str, Any]) -> Details:
    known = schema.get("properties", {})
    patterns = [compile_pattern(pattern).matches for pattern in schema.get("patternProperties", {})]
    names = [name for name in value if name not in known and not any(matches(name) for matches in patterns)]
    if argument is False:
        return {"specifiedAs": {"additionalProperties": False}, "additionalProperties": names}
    for name in names:
        details = schema_failures(argument, value[name])
        if details:
            reason = "at least one additional property did not match the subschema"
            return {**labels(argument), "reason": reason, "failingProperty": name, "details": details}
    return {}


def _encrypt(argument: dict[str, Any], value: Any, schema: dict[str, Any]) -> Details:
    return {"reason": "encrypted value has wrong type" if is_encrypted(value) else "value was not encrypted"}


def _dependencies(argument: dict[str, Any], value: Any, schema: dict[str, Any]) -> Details:
    failures: list[Details] = []
    for name, wanted in argument.items():
        if name not in value:
            continue
        if type(wanted) is dict:
            details = schema_failures(wanted, value)
            if details:
                failures.append({"conditionalProperty": name, "details": details})
        elif missing := [item for item in wanted if item not in value]:
            failures.append({"conditionalProperty": name, "missingProperties": missing})
    return {**labels(argument), "failingDependencies": failures}


def _items(argument: Any, value: list[Any], schema: dict[str, Any]) -> Details:
    if type(argument) is dict:
        return _first_item(argument, value, 0, "At least one item did not match the sub-schema")
    failures = [
        {"itemIndex": index, "details": details}
        for index, (inner, item) in enumerate(zip(argument, value))
        if (details := schema_failures(inner, item))
    ]
    return {"details": failures}


def _additional_items(argument: Any, value: list[Any], schema: dict[str, Any]) -> Details:
    start = len(schema["items"])
    if argument is False:
        return {
            "specifiedAs": {"additionalItems": False}, "reason": "found additional items",
            "additionalItems": value[start:],
        }  # fmt: skip
    return _first_item(argument, value, start, "At least one additional item did not match the sub-schema")


def _first_item(schema: dict[str, Any], value: list[Any], start: int, reason: str) -> Details:
    for index in range(start, len(value)):
        details = schema_failures(schema, value[index])
        if details:
            return {**labels(schema), "reason": reason, "itemIndex": index, "details": details}
    return {}


def _unique_items(argument: Any, value: list[Any], schema: dict[str, Any]) -> Details:
    seen = set()
    for item in value:
        key = hash_key(unordered(item))
        if key in seen:
            return {
                "specifiedAs": {"uniqueItems": True}, "reason": "found a duplicate item", "consideredValue": value,
                "duplicatedValue": item,
            }  # fmt: skip
        seen.add(key)
    return {}


def _schemas(argument: list[dict[str, Any]], value: Any, schema: dict[str, Any]) -> Details:
    failures = [
        {"index": index, **labels(inner), "details": details}
        for index, inner in enumerate(argument)
        if (details := schema_failures(inner, value))
    ]
    return {"schemasNotSatisfied": failures}


def _one_of(argument: list[dict[str, Any]], value: Any, schema: dict[str, Any]) -> Details:
    matching = [index for index, inner in enumerate(argument) if parse_schema(inner)(value)]
    if len(matching) > 1:
        return {"reason": "more than one subschema matched", "matchingSchemaIndexes": matching}
    return _schemas(argument, value, schema)


def _not(argument: Any, value: Any, schema: dict[str, Any]) -> Details:
    return {"reason": "child expression matched"}


_length = _with_value("specified string length was not satisfied")
_array_length = _with_value("array did not match specified length", numberOfItems=len)
_type = _with_value("type did not match", consideredType=type_name)
_DESCRIPTIONS: Final[dict[str, Describe]] = {
    "additionalItems": _additional_items,
    "additionalProperties": _additional_properties,
    "allOf": _schemas,
    "anyOf": _schemas,
    "bsonType": _type("bsonType"),
    "dependencies": _dependencies,
    "encrypt": _encrypt,
    "enum": _with_value("value was not found in enum")("enum"),
    "items": _items,
    "maxItems": _array_length("maxItems"),
    "maxLength": _length("maxLength"),
    "maxProperties": _property_count("maxProperties"),
    "maximum": _compared("maximum", "exclusiveMaximum"),
    "minItems": _array_length("minItems"),
    "minLength": _length("minLength"),
    "minProperties": _property_count("minProperties"),
    "minimum": _compared("minimum", "exclusiveMinimum"),
    "multipleOf": _with_value("considered value is not a multiple of the specified value")("multipleOf"),
    "not": _not,
    "oneOf": _one_of,
    "pattern": _with_value("regular expression did not match")("pattern"),
    "patternProperties": _pattern_properties,
    "properties": _properties,
    "required": _required,
    "type": _type("type"),
    "uniqueItems": _unique_items,
}
_ORDER: Final = (
    "pattern", "maxLength", "minLength", "multipleOf", "maximum", "minimum",
    "minItems", "maxItems", "uniqueItems", "items", "additionalItems", "encrypt",
    "properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties",
    "dependencies",
    "allOf", "anyOf", "oneOf", "not", "enum",
    "bsonType", "type",
)  # fmt: skip
"""The keywords that can fail, in the order in which MongoDB tests them."""
