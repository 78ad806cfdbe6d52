"""The shape of a find, distinct, count or aggregate: the command with types in place of its values.

    {find: "c", filter: {a: {$gt: 5}, b: "x"}, $db: "t"}
    → {cmdNs: {db: "t", coll: "c"}, command: "find", filter: {$and: [{a: {$gt: "?number"}}, {b: {$eq: "?string"}}]}}

Commands of one shape have one hash. Field paths, operators and arguments that are names belong to the shape.

Source: MongoDB's manual, "Query Shapes".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.hashing import sha256
from headrace.query.stages.other_collections import joined_collections
from headrace.values.bson import encode, type_name

SHAPED: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""The commands that have a shape."""
_NUMBERS: Final = frozenset({"decimal", "double", "int", "long"})
_LISTS: Final = frozenset({"$and", "$nor", "$or"})
_NESTED: Final = frozenset({"$elemMatch", "$not"})
_NAMES: Final = frozenset({
    "as", "coll", "connectFromField", "connectToField", "db", "depthField", "distanceField", "foreignField", "from",
    "includeArrayIndex", "includeLocs", "into", "key", "localField", "on", "path", "unit",
})  # fmt: skip
"""The stage options whose strings are names."""
_PLAIN: Final = ("allowPartialResults", "oplogReplay", "returnKey", "showRecordId", "singleBatch", "tailable")


def type_of(value: Any) -> str:
    """The type of a value as it is written in a shape."""
    if type(value) is list:
        types = {type_of(item) for item in value}
        return "[]" if not types else f"?array<{types.pop() if len(types) == 1 else ''}>"
    name = type_name(value)
    return "?number" if name in _NUMBERS else f"?{name}"


def shape_of_filter(spec: dict[str, Any]) -> dict[str, Any]:
    """The shape of a filter. Several conditions become one `$and`."""
    parts: list[dict[str, Any]] = []
    for name, value in spec.items():
        if name in _LISTS and type(value) is list:
            parts.append({name: [shape_of_filter(item) if type(item) is dict else type_of(item) for item in value]})
        elif name == "$expr":
            parts.append({name: shape_of_expression(value)})
        elif name != "$comment":
            parts += [{name: condition} for condition in _conditions(value)]
    return parts[0] if len(parts) == 1 else {"$and": parts} if parts else {}


def _conditions(value: Any) -> list[Any]:
    """The shapes of the conditions on one path."""
    if type(value) is not dict or not next(iter(value), "").startswith("$"):
        return [{"$eq": type_of(value)}]
    shapes: list[Any] = []
    for operator, operand in value.items():
        if operator in _NESTED and type(operand) is dict:
            inner = shape_of_filter(operand) if not next(iter(operand), "").startswith("$") else _joined(operand)
            shapes.append({operator: inner})
        elif operator != "$comment":
            shapes.append({operator: type_of(operand)})
    return shapes


def _joined(operand: dict[str, Any]) -> dict[str, Any]:
    return {name: shape for condition in _conditions(operand) for name, shape in condition.items()}


def shape_of_expression(value: Any) -> Any:
    """The shape of an expression: its operators and paths, and types in place of constants."""
    if type(value) is dict:
        if "$literal" in value:
            return type_of(value["$literal"])
        return {name: shape_of_expression(item) for name, item in value.items()}
    if type(value) is list:
        return [shape_of_expression(item) for item in value]
    return value if type(value) is str and value.startswith("$") else type_of(value)


def shape_of_pipeline(pipeline: list[Any]) -> list[Any]:
    """The shapes of a pipeline's stages."""
    return [
        {name: _shape_of_stage(name, spec) for name, spec in stage.items()} if type(stage) is dict else type_of(stage)
        for stage in pipeline
    ]


def _shape_of_stage(name: str, spec: Any) -> Any:
    if name == "$match" and type(spec) is dict:
        return shape_of_filter(spec)
    if name == "$facet" and type(spec) is dict:
        return {key: shape_of_pipeline(item) if type(item) is list else type_of(item) for key, item in spec.items()}
    if name == "$documents":
        return type_of(spec) if type(spec) is list else shape_of_expression(spec)
    if name in ("$sort", "$count", "$out", "$sortByCount", "$unset", "$unwind"):
        return spec
    if name == "$unionWith" and type(spec) is str:
        return {"coll": spec}
    if name in ("$addFields", "$group", "$project", "$replaceRoot", "$replaceWith", "$set"):
        return shape_of_projection(spec)
    return _shape_of_options(spec)


def _shape_of_options(spec: Any) -> Any:
    if type(spec) is not dict:
        return shape_of_expression(spec)
    shape: dict[str, Any] = {}
    for name, value in spec.items():
        if name == "pipeline" and type(value) is list:
            shape[name] = shape_of_pipeline(value)
        elif name == "query" and type(value) is dict:
            shape[name] = shape_of_filter(value)
        elif name in ("sort", "sortBy") or (name in _NAMES and type(value) is str):
            shape[name] = value
        else:
            shape[name] = _shape_of_options(value) if type(value) is dict else shape_of_expression(value)
    return shape


def shape_of_projection(spec: Any) -> Any:
    """The shape of a projection: the fields that it includes and excludes, and its expressions."""
    if type(spec) is not dict:
        return shape_of_expression(spec)
    shape: dict[str, Any] = {}
    for name, value in spec.items():
        if isinstance(value, bool | int | float):
            shape[name] = bool(value)
        else:
            shape[name] = shape_of_projection(value) if type(value) is dict else shape_of_expression(value)
    return shape


_PARTS: Final[dict[str, dict[str, tuple[str, Callable[[Any], Any]]]]] = {
    "aggregate": {"pipeline": ("pipeline", shape_of_pipeline)},
    "count": {"query": ("query", shape_of_filter)},
    "distinct": {"key": ("key", str), "query": ("query", shape_of_filter)},
    "find": {
        "filter": ("filter", shape_of_filter), "projection": ("projection", shape_of_projection),
        "sort": ("sort", dict), "max": ("max", shape_of_projection), "min": ("min", shape_of_projection),
    },
}  # fmt: skip


def command_shape(name: str, database: str, body: dict[str, Any]) -> dict[str, Any]:
    """The shape of a command whose fields have been checked. The first field of `body` is the command's name."""
    collection = body[name]
    shape: dict[str, Any] = {
        "cmdNs": {"db": database, "coll": collection if type(collection) is str else "$cmd.aggregate"},
    }  # fmt: skip
    if body.get("collation"):
        shape["collation"] = body["collation"]
    if body.get("let"):
        shape["let"] = shape_of_expression(body["let"])
    shape["command"] = name
    parts = _PARTS[name]
    if name != "aggregate" and (field := "filter" if name == "find" else "query") not in body:
        body = {**body, field: {}}
    for field, value in body.items():
        if field in parts and value is not None:
            shape[parts[field][0]] = parts[field][1](value)
        elif field in ("limit", "skip") and value:
            shape[field] = "?number"
        elif field in _PLAIN and value is not None:
            shape[field] = bool(value)
    return shape


def hash_of_shape(shape: dict[str, Any]) -> str:
    """The hash of a shape, as 64 hexadecimal digits. The order of the shape's parts does not matter."""
    return sha256(encode({name: shape[name] for name in sorted(shape)})).hex().upper()


def read_namespaces(name: str, database: str, body: dict[str, Any]) -> set[str]:
    """The collections that a command reads."""
    pipeline = body.get("pipeline")
    others = joined_collections(pipeline, database) if name == "aggregate" and type(pipeline) is list else ()
    return {f"{database}.{body[name]}", *(other for other, _ in others)}
