"""`$project` and `$unset`: choose, compute or leave out fields."""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.stages.stage import DocumentStage, PipelineContext, Stage, invalid
from headrace.values.bson import type_name


def parse_project(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$project: {...}}`."""
    if type(spec) is not dict:
        raise CommandError(15969, "$project specification must be an object")
    if not spec:
        raise CommandError(
            51272, "Invalid $project :: caused by :: projection specification must have at least one field"
        )
    try:
        return (DocumentStage(name, spec, context.projection(spec)),)
    except CommandError as error:
        raise invalid(name, error) from None


def parse_unset(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$unset: field}` or `{$unset: [field, ...]}`: an exclusion."""
    if type(spec) not in (str, list):
        raise CommandError(31002, "$unset specification must be a string or an array")
    fields = spec if type(spec) is list else [spec]
    if not fields:
        raise CommandError(31119, "$unset specification must be a string or an array with at least one field")
    for field in fields:
        if type(field) is not str:
            raise CommandError(
                31120,
                f"$unset specification must be a string or an array of strings, found {type_name(field)}",
            )
    if any("\0" in field for field in fields):
        raise CommandError(9527900, "$unset specification must not have an embedded null byte")
    excluded = dict.fromkeys(fields, 0)
    projection = context.projection(excluded)
    if len(excluded) < len(fields):
        raise CommandError(31250, "Invalid $project :: caused by :: Path collision in $unset")
    return (DocumentStage(name, spec, projection),)
