"""Stages that change each document: `$addFields`, `$set`, `$project`, `$unset`, `$replaceRoot`, `$replaceWith`,
`$redact`; and `$unwind`.

Rule of `$addFields` and `$set`: every expression sees the original document. A dotted path goes into each document of
an array. A document replaces any value on the path that is neither document nor array. A number in a path is a field
name. The fields are kept as a tree: `{"a.b": x, "a.c": y}` becomes `{"a": {"b": x, "c": y}}`.

Rule of `$redact`: the expression is evaluated with CURRENT as the level. A level is a document, also one in an array.
`$$KEEP`, `$$PRUNE` and `$$DESCEND` are the strings "keep", "prune" and "descend", as in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions import Env, parse_expression, with_more
from headrace.query.expressions.expression import Evaluate, check_length, checked_path
from headrace.query.expressions.value_text import as_text
from headrace.query.options import ANY, check_object, check_options
from headrace.query.projection.projection import FieldTree, with_fields
from headrace.query.stages.stage import Document, DocumentFunction, DocumentStage, PipelineContext, Stage, invalid
from headrace.values.bson import MISSING, type_name

_NO_INDEX = None


@dataclass(frozen=True, slots=True)
class Unwind(Stage):
    """Unwinds the array at `path`. `index_path` is the path for the element's index, or None."""

    name: str
    spec: Any
    path: tuple[str, ...]
    keeps_empty: bool
    index_path: tuple[str, ...] | None

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """A document for each element. A document without array is kept or dropped."""
        for document in documents:
            value = nested(document, self.path)
            if type(value) is list and value:
                for index, item in enumerate(value):
                    yield self._with_index(with_nested(document, self.path, item), Int64(index))
            elif value is MISSING or value is None or type(value) is list:
                if self.keeps_empty:
                    unchanged = without_nested(document, self.path) if type(value) is list else document
                    yield self._with_index(unchanged, _NO_INDEX)
            else:
                yield self._with_index(document, _NO_INDEX)

    def _with_index(self, document: Document, index: Int64 | None) -> Document:
        return document if self.index_path is None else with_nested(document, self.index_path, index)


def nested(document: Document, path: tuple[str, ...]) -> Any:
    """The value at `path`, which enters documents only, or MISSING."""
    value: Any = document
    for step in path:
        if type(value) is not dict:
            return MISSING
        value = value.get(step, MISSING)
    return value


def with_nested(document: Document, path: tuple[str, ...], value: Any) -> Document:
    """A copy of the document with `value` at `path`. A document replaces any other value on the way."""
    if len(path) == 1:
        return {**document, path[0]: value}
    inner = document.get(path[0])
    return {**document, path[0]: with_nested(inner if type(inner) is dict else {}, path[1:], value)}


def without_nested(document: Document, path: tuple[str, ...]) -> Document:
    """A copy of the document without the field at `path`. The field must exist."""
    copy = dict(document)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = without_nested(copy[path[0]], path[1:])
    return copy


def parse_unwind(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$unwind: "$path"}` or `{$unwind: {path, preserveNullAndEmptyArrays, includeArrayIndex}}`."""
    if type(spec) not in (str, dict):
        raise CommandError(
            15981, f"expected either a string or an object as specification for $unwind stage, got {type_name(spec)}"
        )
    options = spec if type(spec) is dict else {"path": spec}
    path, keeps_empty, index_path = None, False, None
    for option, value in options.items():
        if option == "path":
            path = _unwind_path(value)
        elif option == "preserveNullAndEmptyArrays":
            keeps_empty = _flag(value)
        elif option == "includeArrayIndex":
            index_path = _index_path(value)
        else:
            raise CommandError(28811, f"unrecognized option to $unwind stage: {option}")
    if not path:
        raise CommandError(28812, "no path specified to $unwind stage")
    if "\0" in path:
        raise CommandError(16419, "field path must not contain embedded null characters")
    if path[0] != "$":
        raise CommandError(28818, f"path option to $unwind stage should be prefixed with a '$': {path}")
    return (Unwind(name, spec, checked_path(path[1:]), keeps_empty, index_path),)


def _unwind_path(value: Any) -> str:
    if type(value) is not str:
        raise CommandError(28808, f"expected a string as the path for $unwind stage, got {type_name(value)}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise CommandError(
            28809,
            f"expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {type_name(value)}",
        )
    return value


def _index_path(value: Any) -> tuple[str, ...]:
    if type(value) is not str or not value:
        raise CommandError(
            28810,
            f"expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {type_name(value)}",
        )
    if value[0] == "$":
        raise CommandError(
            28822, f"includeArrayIndex option to $unwind stage should not be prefixed with a '$': {value}"
        )
    return checked_path(value)


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


# $project, $unset.


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


# $replaceRoot, $replaceWith.


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


# $redact.


DECISIONS: Final = {"DESCEND": "descend", "KEEP": "keep", "PRUNE": "prune"}


def parse_redact(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$redact: expression}`."""
    scope = context.parse_context()
    scope = replace(scope, constants=with_more(scope.constants, DECISIONS)).binding("CURRENT")
    redactor = Redactor(parse_expression(spec, scope).evaluate, context)
    return (DocumentStage(name, spec, redactor.redact),)


class Redactor:
    """Applies one decision expression to documents."""

    __slots__ = ("_bound", "_decide")

    def __init__(self, decide: Evaluate, context: PipelineContext) -> None:
        self._decide = decide
        self._bound = context.bound

    def redact(self, document: Document) -> Document | None:
        """Return the rest of the document; None if nothing is left."""
        return self._level(document, document)

    def _level(self, level: Document, root: Document) -> Document | None:
        decision = self._decide(Env(root, {**self._bound, "CURRENT": level}))
        if decision == "keep":
            return level
        if decision == "prune":
            return None
        if decision != "descend":
            raise CommandError(
                17053,
                "$redact's expression should not return anything aside from the variables $$KEEP, $$DESCEND, and "
                f"$$PRUNE, but returned {as_text(decision)}",
            )
        return {k: redacted for k, v in level.items() if (redacted := self._below(v, root)) is not MISSING}

    def _below(self, value: Any, root: Document) -> Any:
        if type(value) is dict:
            redacted = self._level(value, root)
            return MISSING if redacted is None else redacted
        if type(value) is list:
            return [redacted for item in value if (redacted := self._below(item, root)) is not MISSING]
        return value
