"""`$addFields` and `$set`: add computed fields, or replace fields in their place.

Rule: every expression sees the original document. A dotted path goes into each document of an array. A document
replaces any value on the path that is neither document nor array. A number in a path is a field name.

The fields are kept as a tree: `{"a.b": x, "a.c": y}` becomes `{"a": {"b": x, "c": y}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import CommandError
from headrace.query.expressions.field_paths import check_length, checked_path
from headrace.query.projection.executor import FieldTree, with_fields
from headrace.query.stages.stage import Document, DocumentFunction, DocumentStage, PipelineContext, Stage, invalid
from headrace.values.bson import type_name


def parse_add_fields(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$set: {...}}` or `{$addFields: {...}}`."""
    if type(spec) is not dict:
        raise CommandError(40272, f"{name} specification stage must be an object, got {type_name(spec)}")
    try:
        return (DocumentStage(name, spec, _parse_fields(spec, context)),)
    except CommandError as error:
        raise invalid(name, error) from None


def _parse_fields(spec: Document, context: PipelineContext) -> DocumentFunction:
    """Return a function that adds the fields of `spec` to a document. All paths are checked before any value."""
    _tree(spec, lambda value: None)
    tree = _tree(spec, context.expression)
    return lambda document: with_fields(document, document, tree)


def _tree(spec: Document, parse: Callable[[Any], Any]) -> FieldTree:
    tree: FieldTree = {}
    for path, value in spec.items():
        _add(tree, checked_path(path), value, path, parse)
    return tree


def _add(tree: FieldTree, steps: tuple[str, ...], value: Any, path: str, parse: Callable[[Any], Any]) -> None:
    """Put an expression into the tree. Of a document of fields, put each field's expression."""
    if type(value) is dict and not next(iter(value), "$").startswith("$"):
        for field, inner in value.items():
            if "." in field:
                raise CommandError(40183, f"cannot use dotted field name '{field}' in a sub object: {{ {path}: ... }}")
            if field.startswith("$"):
                raise CommandError(
                    40182, f"Bad projection specification, cannot mix operators and fields: {{ {path}: ... }}"
                )
            _add(tree, (*steps, *checked_path(field)), inner, f"{path}.{field}", parse)
        return
    if value == {}:
        raise CommandError(40180, f"an empty object is not a valid value. Found empty object at path {path}")
    if type(value) is dict and len(value) > 1:
        raise CommandError(
            40181, "an expression specification must contain exactly one field, the name of the expression"
        )
    put_field(tree, steps, parse(value), path, 40176)


def put_field(tree: FieldTree, steps: tuple[str, ...], evaluate: Callable[[Any], Any], path: str, code: int) -> None:
    """Put the function that computes a field into the tree. Raises `code` if a field of the tree contains it."""
    check_length(steps, 5984700)
    *parents, last = steps
    for step in parents:
        tree = tree.setdefault(step, {})
        if type(tree) is not dict:
            break
    if type(tree) is not dict or last in tree:
        raise CommandError(code, f"specification contains two conflicting paths at '{path}'")
    tree[last] = evaluate
