"""`$geoNear`: the documents of a collection, the nearest first, with their distance.

    {$geoNear: {near: point, key: "at", query: {a: 1}, distanceField: "metres"}}
    →  find {a: 1, at: {$near: point}}, each document with its distance in `metres`

The stage must be first and makes its own documents: the command reads them through a geospatial index
(`execution/near_documents.py`). In later stages, `{$meta: "geoNearDistance"}` and `"geoNearPoint"` are the values of
the document that left this stage last (`carried_metadata.py`).
Source: MongoDB's documentation, and the messages of its server.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.query.document_metadata import DocumentMetadata
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.expressions.expression import checked_path
from headrace.query.stages.reshaping import with_nested
from headrace.query.stages.server_stage import ServerStage
from headrace.query.stages.stage import JOINING, Document, PipelineContext, Stage
from headrace.values.bson import type_name

_NUMBERS: Final = (Decimal128, Int64, float, int)
_GONE: Final = {
    "collation": (40227, "$geoNear does not accept the 'collation' parameter. Instead, specify a collation for the "
                         "entire aggregation command."),
    "limit": (50858, "$geoNear no longer supports the 'limit' parameter. Use a $limit stage instead."),
    "num": (50857, "$geoNear no longer supports the 'num' parameter. Use a $limit stage instead."),
    "start": (50856, "$geoNear no longer supports the 'start' argument."),
}  # fmt: skip
_DISTANCE: Final = "geoNearDistance"
_POINT: Final = "geoNearPoint"
_SORT_KEY: Final = "sortKey"


@dataclass(frozen=True, slots=True)
class GeoNear(ServerStage):
    """The parsed stage."""

    context: PipelineContext = field(default_factory=PipelineContext)
    near: CompiledExpression | None = None
    least: CompiledExpression | None = None
    most: CompiledExpression | None = None
    query: Document = field(default_factory=dict)
    key: str | None = None
    spherical: bool = False
    distance_field: tuple[str, ...] | None = None
    locations: tuple[str, ...] | None = None
    multiplier: float = 1.0
    live: DocumentMetadata = field(default_factory=lambda: DocumentMetadata(_DISTANCE, _POINT, _SORT_KEY))
    """The distance and point of the document that left the stage last."""

    def filter_on(self, path: str) -> Document:
        """Return the filter of the find on an index's field. Raises 5860401, 5860402, 7555701, 7555702, 14 and 2 for
        arguments whose values, once known, are invalid."""
        near = self._value(self.near, 5860402, "$geoNear requires a constant near argument")
        if type(near) not in (dict, list):
            raise CommandError(
                5860401, "$geoNear requires near argument to be a GeoJSON object or a legacy point(array)"
            )
        condition = {"$nearSphere" if self.spherical else "$near": near}
        for name, code, expression in (("minDistance", 7555701, self.least), ("maxDistance", 7555702, self.most)):
            if expression is None:
                continue
            value = self._value(expression, code, f"$geoNear requires ${name} to evaluate to a constant number")
            if type(value) not in _NUMBERS:
                raise CommandError(14, f"$geoNear requires ${name} to evaluate to a number")
            distance = _number(value)
            if not distance >= 0:
                raise CommandError(2, f"{name} must be nonnegative")
            condition[f"${name}"] = distance
        return {"$and": [self.query, {path: condition}]} if self.query else {path: condition}

    def _value(self, expression: CompiledExpression | None, code: int, message: str) -> Any:
        if expression is None or expression.fields() != set():
            raise CommandError(code, message)
        return expression(Env({}, self.context.bound))

    def placed(self, document: Document, distance: float, point: Any) -> Document:
        """Return a document with its distance. From now on `$meta` returns this distance."""
        distance *= self.multiplier
        self.live.values = {_DISTANCE: distance, _POINT: point, _SORT_KEY: [distance]}
        if self.distance_field is not None:
            document = with_nested(document, self.distance_field, distance)
        return document if self.locations is None else with_nested(document, self.locations, point)


def _number(value: Any) -> float:
    return float(value.to_decimal()) if type(value) is Decimal128 else float(value)


def parse_geo_near(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$geoNear: {near, distanceField, ...}}`. Raises 14, 2, 16606, 16607, 5860400 and more."""
    if type(spec) is list:
        spec = {str(index): value for index, value in enumerate(spec)}
    if type(spec) is not dict:
        raise CommandError(10065, f"invalid parameter: expected an object ({name})")
    for gone, error in _GONE.items():
        if gone in spec:
            raise CommandError(*error)
    if "near" not in spec:
        raise CommandError(5860400, "$geoNear requires a 'near' argument")
    made: dict[str, Any] = {}
    for option, value in spec.items():
        if option in _EXPRESSIONS:
            made[_EXPRESSIONS[option]] = parse_expression(value, context.parse_context())
        elif option in _OPTIONS:
            made |= _OPTIONS[option](value)
        elif option != "uniqueDocs":
            raise CommandError(2, f"Unknown argument to $geoNear: {option}")
    if made.get("query"):
        context.predicate(made["query"])
    stage = GeoNear(name, spec, context=context, **made)
    if context.describe is None or context.inside not in JOINING or context.collection is None:
        return (stage,)
    return (replace(stage, made=partial(context.describe, context.collection, name, stage)),)


def _distance_field(value: Any) -> Document:
    if type(value) is not str:
        raise CommandError(16606, "$geoNear requires that the 'distanceField' option is a String")
    return {"distance_field": checked_path(value)}


def _locations(value: Any) -> Document:
    if type(value) is not str:
        raise CommandError(16607, "$geoNear requires that 'includeLocs' option is a String")
    return {"locations": checked_path(value)}


def _multiplier(value: Any) -> Document:
    if type(value) not in _NUMBERS:
        raise CommandError(14, "distanceMultiplier must be a number")
    if not _number(value) >= 0:
        raise CommandError(2, "distanceMultiplier must be nonnegative")
    return {"multiplier": _number(value)}


def _query(value: Any) -> Document:
    if type(value) is not dict:
        raise CommandError(14, "query must be an object")
    return {"query": value}


def _spherical(value: Any) -> Document:
    from headrace.query.expressions.numbers import truthy

    return {"spherical": truthy(value)}


def _key(value: Any) -> Document:
    if type(value) is not str:
        raise CommandError(14, f"$geoNear parameter 'key' must be of type string but found type: {type_name(value)}")
    if not value:
        raise CommandError(2, "$geoNear parameter 'key' cannot be the empty string")
    checked_path(value)
    return {"key": value}


_EXPRESSIONS: Final = {"maxDistance": "most", "minDistance": "least", "near": "near"}
_OPTIONS: Final = {
    "distanceField": _distance_field,
    "distanceMultiplier": _multiplier,
    "includeLocs": _locations,
    "key": _key,
    "query": _query,
    "spherical": _spherical,
}
