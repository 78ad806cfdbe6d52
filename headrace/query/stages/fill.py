"""`$fill`: replaces null and missing values by a given value, the last value seen, or an interpolated value.

Rule: MongoDB rewrites the stage. Methods become `$setWindowFields` with `$locf` or `$linearFill`, values an
`$addFields` with `$ifNull`. So with values only, it looks at one document at a time, and a change stream allows it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.options import ANY, check_object, check_options, check_type
from headrace.query.stages.add_fields import parse_add_fields
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.stages.window import parse_set_window_fields

_METHODS: Final = {"linear": "$linearFill", "locf": "$locf"}
_TYPES: Final = {"output": "object", "partitionBy": ANY, "partitionByFields": "array", "sortBy": "object"}


def parse_fill(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stages of `{$fill: {partitionBy, partitionByFields, sortBy, output}}`."""
    _check_options(spec)
    windows: Document = {}
    values: Document = {}
    for field, how in spec["output"].items():
        _add_output(field, how, windows, values)
    stages: tuple[Stage, ...] = ()
    if windows:
        stages = parse_set_window_fields("$setWindowFields", _window_spec(spec, windows), context)
    if values:
        stages += parse_add_fields("$addFields", values, context)
    return stages


def _check_options(spec: Any) -> None:
    check_object(spec, 9, "The $fill stage specification must be an object, found")
    check_options("$fill", spec, _TYPES, ["output"])
    if type(spec.get("partitionBy", "")) not in (dict, str):
        check_type("$fill.partitionBy", spec["partitionBy"], "object")
    if "partitionBy" in spec and "partitionByFields" in spec:
        raise CommandError(6050204, "Maximum one of 'partitionBy' and 'partitionByFields' can be specified in '$fill'")
    for field in spec.get("partitionByFields", ()):
        if type(field) is not str or field.startswith("$"):
            raise CommandError(6050201, "'partitionByFields' in '$fill' must be names of fields without '$'")
    if not spec["output"]:
        raise CommandError(6050203, "Each $fill stage must have at least one output field")


def _add_output(field: str, how: Any, windows: Document, values: Document) -> None:
    if type(how) is not dict or not how.keys() & {"method", "value"}:
        raise CommandError(6050200, f"the output field '{field}' must be an object with one of 'method' and 'value'")
    if len(how) != 1:
        raise CommandError(40415, f"BSON field '{field}' has an unknown field, besides 'method' or 'value'")
    if "value" in how:
        values[field] = {"$ifNull": [f"${field}", how["value"]]}
        return
    function = _METHODS.get(how["method"]) if type(how["method"]) is str else None
    if function is None:
        raise CommandError(6050202, "Method must be either 'linear' or 'locf'")
    windows[field] = {function: f"${field}"}


def _window_spec(spec: Document, windows: Document) -> Document:
    built = {"sortBy": spec.get("sortBy"), "output": windows}
    if "partitionBy" in spec:
        built["partitionBy"] = spec["partitionBy"]
    elif "partitionByFields" in spec:
        built["partitionBy"] = {field: f"${field}" for field in spec["partitionByFields"]}
    return built
