"""`$replaceRoot` and `$replaceWith`: replace the document by a computed document."""

from __future__ import annotations

from typing import Any

from headrace.errors import CommandError
from headrace.query.options import ANY, check_object, check_options
from headrace.query.stages.stage import Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import type_name


def parse_replace_root(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$replaceRoot: {newRoot: expression}}`."""
    check_object(spec, 40229, "expected an object as specification for $replaceRoot stage, got")
    check_options(name, spec, {"newRoot": ANY}, ["newRoot"])
    return (_stage(name, spec, spec["newRoot"], context),)


def parse_replace_with(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$replaceWith: expression}`."""
    return (_stage(name, spec, spec, context),)


def _stage(name: str, spec: Any, root: Any, context: PipelineContext) -> Stage:
    evaluate = context.expression(root)
    description = "'newRoot' expression " if name == "$replaceRoot" else "'replacement document' "

    def replace(document: Document) -> Document:
        value = evaluate(document)
        if type(value) is not dict:
            raise CommandError(
                40228,
                f"{description} must evaluate to an object, but resulting value was of type {type_name(value)}",
            )
        return value

    return DocumentStage(name, spec, replace)
