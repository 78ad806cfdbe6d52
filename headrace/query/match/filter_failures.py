"""Explains operator by operator why a document does not match a validator, as the `errInfo` of a write shows it.

Inside `$not` and `$nor` it explains why the document does match. Nothing here runs before a document has failed.
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
from headrace.query.match.schema_failures import labels, refuses_objects, schema_failures
from headrace.time_limit import OutOfMemory, TookTooLong
from headrace.values.bson import MISSING, type_name
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
