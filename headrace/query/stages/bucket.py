"""`$bucket`: groups by given boundaries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions import parse_expression
from headrace.query.expressions.expression import Env
from headrace.query.expressions.field_paths import AT_EVALUATION
from headrace.query.stages.group import Group, parse_fields
from headrace.query.stages.sort_stage import parse_sort_stage
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import MISSING, type_name
from headrace.values.bson.to_string import to_string
from headrace.values.order import compare, rank, sort_key

COUNT = {"count": {"$sum": 1}}
_OPTIONS = frozenset({"boundaries", "default", "groupBy", "output"})


def parse_bucket(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `{$bucket: {groupBy, boundaries, default, output}}`: a group and a sort."""
    if type(spec) is not dict:
        raise CommandError(40201, f"Argument to $bucket stage must be an object, but found type: {type_name(spec)}.")
    for option in spec:
        if option not in _OPTIONS:
            raise CommandError(40197, f"Unrecognized option to $bucket: {option}.")
    if "groupBy" in spec:
        require_group_by(name, spec["groupBy"], 40202)
    boundaries = _boundaries(spec["boundaries"], context) if "boundaries" in spec else []
    default = _constant(spec["default"], context, 40195, "default") if "default" in spec else MISSING
    output = spec.get("output", COUNT)
    if type(output) is not dict:
        raise CommandError(40196, f"The $bucket 'output' field must be an object, but found type: {type_name(output)}.")
    if "groupBy" not in spec or "boundaries" not in spec:
        raise CommandError(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.")
    if "_id" in output:
        raise CommandError(15948, "The $bucket 'output' field cannot contain '_id', which has the lower boundary")
    _check_default(default, boundaries, context)
    key = _bucket_key(context.expression(spec["groupBy"]), boundaries, default, context)
    group = Group("$group", spec, key, parse_fields(output, context), context)
    return (group, *parse_sort_stage("$sort", {"_id": 1}, context))


def require_group_by(name: str, value: Any, code: int) -> None:
    """Raise `code` unless the value is a path or an expression object."""
    is_path = type(value) is str and value.startswith("$")
    is_expression = type(value) is dict and next(iter(value), "").startswith("$")
    if not (is_path or is_expression):
        raise CommandError(
            code,
            f"The {name} 'groupBy' field must be defined as a $-prefixed path or an expression, but found: "
            f"{to_string(value)}.",
        )


def _boundaries(value: Any, context: PipelineContext) -> list[Any]:
    if type(value) is not list:
        raise CommandError(
            40200, f"The $bucket 'boundaries' field must be an array, but found type: {type_name(value)}."
        )
    boundaries = [_constant(item, context, 40191, "boundaries") for item in value]
    if len(boundaries) < 2:
        raise CommandError(
            40192, f"The $bucket 'boundaries' field must have at least 2 values, but found {len(boundaries)} value(s)."
        )
    for lower, upper in pairwise(boundaries):
        if rank(lower) != rank(upper):
            raise CommandError(40193, "All values in the the 'boundaries' option to $bucket must have the same type.")
        if compare(lower, upper, context.collation) >= 0:
            raise CommandError(40194, "The 'boundaries' option to $bucket must be sorted in ascending order.")
    return boundaries


def _constant(value: Any, context: PipelineContext, code: int, option: str) -> Any:
    expression = parse_expression(value, context.parse_context().binding(*AT_EVALUATION))
    if not expression.is_constant:
        found = to_string(value)
        raise CommandError(code, f"The $bucket '{option}' field must be a constant expression, but found: {found}.")
    return expression(Env({}))


def _check_default(default: Any, boundaries: list[Any], context: PipelineContext) -> None:
    if default is MISSING:
        return
    at_or_after_first = compare(default, boundaries[0], context.collation) >= 0
    if at_or_after_first and compare(default, boundaries[-1], context.collation) < 0:
        raise CommandError(
            40199,
            "The $bucket 'default' field must be less than the lowest boundary or not less than the highest.",
        )


def _bucket_key(
    evaluate: Callable[[Document], Any], boundaries: list[Any], default: Any, context: PipelineContext
) -> Callable[[Document], Any]:
    """Return a function from a document to the lower boundary of its bucket, or to the default."""
    collation = context.collation
    keys = [sort_key(boundary, collation) for boundary in boundaries]
    bucket_count = len(boundaries) - 1

    def key(document: Document) -> Any:
        index = bisect_right(keys, sort_key(evaluate(document), collation)) - 1
        if 0 <= index < bucket_count:
            return boundaries[index]
        if default is MISSING:
            raise CommandError(
                40066, "$switch could not find a matching branch for an input, and no default was specified."
            )
        return default

    return key
