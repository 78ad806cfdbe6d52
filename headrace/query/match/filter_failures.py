"""Explains operator by operator why a document does not match a validator, as the `errInfo` of a write shows it.

Inside `$not` and `$nor` it explains why the document does match; for `$jsonSchema`, keyword by keyword why a value does
not. Nothing here runs before a document has failed.
Source: MongoDB's manual, "Document validation error output"; the recorded answers; the errors that MongoDB's own tests
expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

from headrace import limits
from headrace.errors import CommandError
from headrace.query.match.filter_parser import is_operator_object, parse_filter
from headrace.query.match.json_schema import KEYWORDS, is_encrypted, parse_schema, unordered
from headrace.query.patterns import compile_pattern
from headrace.time_limit import OutOfMemory, TookTooLong
from headrace.values.bson import MISSING, type_name
from headrace.values.order import hash_key
from headrace.values.paths import located_values, split_path

Details = dict[str, Any]
Document = dict[str, Any]


def failure_details(validator: dict[str, Any], document: dict[str, Any], variables: Mapping[str, Any]) -> Details:
    """Explain why the validator refuses a document. The validator must be valid. It may refer to `variables`."""
    return _failure(validator, _RefusedDocument(document, variables), matching=False) or {}


def complies(matches: Callable[[Document], bool], document: Document) -> bool:
    """Whether a document matches a validator. It does not if an expression of the validator cannot be evaluated."""
    try:
        return matches(document)
    except CommandError as error:
        if isinstance(error, OutOfMemory | TookTooLong):
            raise
        return False


class _RefusedDocument(NamedTuple):
    """A refused document and the variables of the command."""

    document: dict[str, Any]
    variables: Mapping[str, Any]


def _failure(filter_: dict[str, Any], failed: _RefusedDocument, *, matching: bool) -> Details | None:
    """Explain why a filter does not match (or, if `matching`, why it matches); None if that is not the case."""
    clauses = list(_clauses(filter_))
    if len(clauses) == 1:
        return _clause(clauses[0], failed, matching=matching)
    return _logical("$and", clauses, failed, matching=matching)


def _clauses(filter_: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The conditions of a filter, each as a filter of its own."""
    for name, value in filter_.items():
        if name == "$comment":
            continue
        if name.startswith("$") or type(value) is not dict or not is_operator_object(value):
            yield {name: value}
            continue
        for operator, argument in value.items():
            if operator == "$regex" and "$options" in value:
                yield {name: {"$regex": argument, "$options": value["$options"]}}
            elif operator not in ("$options", "$comment"):
                yield {name: {operator: argument}}


def _clause(clause: dict[str, Any], failed: _RefusedDocument, *, matching: bool) -> Details | None:
    ((name, value),) = clause.items()
    if complies(parse_filter(clause, variables=failed.variables), failed.document) is not matching:
        return None
    if name in ("$and", "$nor", "$or"):
        return _logical(name, value, failed, matching=matching)
    if name == "$jsonSchema":
        return _schema(value, failed, matching=matching)
    if name == "$expr":
        return _expression(value, failed, matching=matching)
    if name.startswith("$"):
        reason = f"expression always evaluates to {str(matching).lower()}"
        return {"operatorName": name, "specifiedAs": clause, "reason": reason}
    if type(value) is dict and is_operator_object(value) and "$not" in value:
        return _negated(name, value["$not"], failed, matching=matching)
    return _field(name, clause, failed, matching=matching)


def _logical(name: str, clauses: list[dict[str, Any]], failed: _RefusedDocument, *, matching: bool) -> Details | None:
    """`$and`, `$or` and `$nor`: the clauses that decide the result, by index."""
    satisfied = matching if name != "$nor" else not matching
    blamed = [
        {"index": index, "details": details}
        for index, clause in enumerate(clauses)
        if (details := _failure(clause, failed, matching=satisfied)) is not None
    ]
    if not blamed:
        return None
    return {"operatorName": name, "clausesSatisfied" if satisfied else "clausesNotSatisfied": blamed}


def _schema(schema: dict[str, Any], failed: _RefusedDocument, *, matching: bool) -> Details:
    if matching:
        return {"operatorName": "$jsonSchema", **labels(schema), "reason": "schema matched"}
    if refuses_objects(schema):
        reason = "expression always evaluates to false"
        return {"operatorName": "$jsonSchema", "specifiedAs": {"$jsonSchema": schema}, "reason": reason}
    return {
        "operatorName": "$jsonSchema", **labels(schema),
        "schemaRulesNotSatisfied": schema_failures(schema, failed.document),
    }  # fmt: skip


def _expression(expression: Any, failed: _RefusedDocument, *, matching: bool) -> Details:
    from headrace.query.expressions import Env, ParseContext, parse_expression

    try:
        result = parse_expression(expression, ParseContext(failed.variables)).evaluate(Env(failed.document))
    except CommandError as error:
        if isinstance(error, OutOfMemory | TookTooLong):
            raise
        return {
            "operatorName": "$expr", "specifiedAs": {"$expr": expression},
            "reason": "failed to evaluate aggregation expression",
            "details": {"code": error.code, "codeName": error.code_name, "errmsg": error.message},
        }  # fmt: skip
    details = {
        "operatorName": "$expr", "specifiedAs": {"$expr": expression},
        "reason": "expression did match" if matching else "expression did not match",
    }  # fmt: skip
    return details if result is MISSING else {**details, "expressionResult": result}


def _negated(path: str, inner: Any, failed: _RefusedDocument, *, matching: bool) -> Details:
    condition = {path: inner}
    details = _failure(condition, failed, matching=not matching)
    return {"operatorName": "$not", "details": details or {}}


def _field(path: str, clause: dict[str, Any], failed: _RefusedDocument, *, matching: bool) -> Details:
    """A condition on one field: the operator, the condition as written, the reason, and the values that were
    considered."""
    value = clause[path]
    operator = next(iter(value)) if type(value) is dict and is_operator_object(value) else "$eq"
    if type(value) not in (dict, list) and type_name(value) == "regex":
        operator = "$regex"
    argument = value.get(operator) if type(value) is dict else value
    negated = operator in _NEGATIVE or (operator == "$exists" and not argument)
    details: Details = {"operatorName": operator, "specifiedAs": clause}
    reasons = _REASONS.get(operator, _COMPARED)
    if operator == "$exists":
        return {**details, "reason": reasons[matching != negated]}
    considered = _considered(path, failed.document, whole=operator in _OF_ARRAYS)
    if considered is None:
        return {**details, "reason": "field was missing"}
    expected = _EXPECTED.get(operator, ())
    if expected and not any(type_name(item) in expected for item in considered):
        one = {"expectedType": expected[0]} if len(expected) == 1 else {"expectedTypes": list(expected)}
        return {**details, "reason": "type did not match", **_types(considered), **one, **_values(considered)}
    if operator in _GEOMETRIC and not _has_geometry(path, failed.document):
        return {**details, "reason": "could not find a valid geometry at the given path", **_values(considered)}
    details |= {"reason": reasons[matching != negated], **_values(considered)}
    return {**details, **_types(considered)} if operator == "$type" else details


def _considered(path: str, document: Document, *, whole: bool) -> list[Any] | None:
    """The values at a path, up to the first that is missing; None if the path leads nowhere.

    Unless `whole`, the elements of an array at its end stand for the array.
    """
    names = split_path(path)
    there = [item for item, _ in located_values(document, names, enter_last=False)]
    if not there or there[0] is MISSING:
        return None
    there = list(takewhile(lambda item: item is not MISSING, there))
    if whole:
        return there
    entered = [item for item, _ in located_values(document, names)]
    values: list[Any] = []
    position = 0
    for item in there:
        elements = item if type(item) is list and (not item or entered[position] is not item) else None
        values += [item] if elements is None else elements
        position += 1 if elements is None else len(elements) + 1
    return values


def _has_geometry(path: str, document: Document) -> bool:
    from headrace.geo.geojson import BadGeometry, stored_shape  # imported only when a validator has a geometry

    for item, _ in located_values(document, split_path(path)):
        if type(item) in (dict, list):
            try:
                stored_shape(item)
            except BadGeometry:
                continue
            return True
    return False


def _values(values: list[Any]) -> Details:
    if len(values) == 1:
        return {"consideredValue": values[0]}
    if len(values) > limits.VALIDATION_VALUES_MAX:
        return {"consideredValues": values[: limits.VALIDATION_VALUES_MAX], "consideredValuesTruncated": True}
    return {"consideredValues": values}


def _types(values: list[Any]) -> Details:
    names = sorted({type_name(value) for value in values[: limits.VALIDATION_VALUES_MAX]})
    if not names:
        return {}
    return {"consideredType": names[0]} if len(names) == 1 else {"consideredTypes": names}


_NEGATIVE: Final = frozenset({"$ne", "$nin"})
_OF_ARRAYS: Final = frozenset({"$all", "$elemMatch", "$size"})
_COMPARED: Final = ("comparison failed", "comparison succeeded")
_BITS: Final = ("bitwise operator failed to match", "bitwise operator matched successfully")
_GEOMETRIC: Final = frozenset({"$geoIntersects", "$geoWithin", "$within"})
_WITHIN: Final = (
    "none of the considered geometries were contained within the expression’s geometry",
    "at least one of considered geometries was contained within the expression’s geometry",
)
_NUMBERS: Final = ("decimal", "double", "int", "long")
_REASONS: Final[dict[str, tuple[str, str]]] = {
    "$all": ("array did not contain all specified values", "array did contain all specified values"),
    "$bitsAllClear": _BITS,
    "$bitsAllSet": _BITS,
    "$bitsAnyClear": _BITS,
    "$bitsAnySet": _BITS,
    "$elemMatch": ("array did not satisfy the child predicate", "array did satisfy the child predicate"),
    "$exists": ("path does not exist", "path does exist"),
    "$geoIntersects": (
        "none of the considered geometries intersected the expression’s geometry",
        "at least one of considered geometries intersected the expression’s geometry",
    ),
    "$geoWithin": _WITHIN,
    "$in": ("no matching value found in array", "matching value found in array"),
    "$mod": ("$mod did not evaluate to expected remainder", "$mod did evaluate to expected remainder"),
    "$nin": ("no matching value found in array", "matching value found in array"),
    "$regex": ("regular expression did not match", "regular expression did match"),
    "$size": ("array length was not equal to given size", "array length was equal to given size"),
    "$type": ("type did not match", "type did match"),
    "$within": _WITHIN,
}
"""The reasons of each operator: why it does not match, and why it does. Comparisons have other reasons."""
_EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "$bitsAllClear": ("binData", *_NUMBERS),
    "$bitsAllSet": ("binData", *_NUMBERS),
    "$bitsAnyClear": ("binData", *_NUMBERS),
    "$bitsAnySet": ("binData", *_NUMBERS),
    "$elemMatch": ("array",),
    "$mod": _NUMBERS,
    "$regex": ("regex", "string", "symbol"),
    "$size": ("array",),
}
"""The types to which an operator applies, if it does not apply to all types."""


# Schemas.


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
