"""Parses updates: of a command, with its `arrayFilters`, and of an oplog entry that is applied again.

Rule: a list is a pipeline, whose diff is computed from the two documents. A document whose first field begins with a
dollar sign has operators, which record the diff while they are applied. Any other document is a replacement. Each
array filter has fields that all begin with the same identifier, which denotes the element: {"i.a": {$gt: 1}}.

Rule of oplog entries: a diff, `{$v: 2, diff: {...}}`, is input from a client and is checked before it is applied. It
may have been applied already or may be older than the document. Later entries then still correct the document, so that
a replay of all entries gives the original documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bson import Timestamp
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.diff import apply_diff, compute_diff, identical
from headrace.query.operation_memory import size_above
from headrace.query.update.operators import MODIFIERS
from headrace.query.update.raw_updates import SplicedField, spliced, spliced_fields
from headrace.query.update.update import REPLACED, Applied, Diff, Update, UpdateContext
from headrace.query.update.update_tree import (
    NO_OP,
    ApplyParams,
    ArrayFilters,
    UpdateLeafNode,
    UpdateObjectNode,
    add,
    depth,
    element_text,
    parse_field_path,
    parse_rename,
)
from headrace.query.update.walk import Walk
from headrace.time_limit import limited_call
from headrace.values.bson import MISSING, encode, to_string, type_name, value_size
from headrace.values.order import equal


class Replacement(Update):
    """A new document. It gets the old `_id` if it has none. A top-level Timestamp(0, 0) becomes the cluster time.

    Only a replacement with an `_id` can be a no-op: MongoDB compares the document as the client sent it.
    """

    __slots__ = ("_document", "_stamped")
    kind = "replacement"

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._stamped = any(value == Timestamp(0, 0) for value in document.values() if type(value) is Timestamp)

    def apply_raw(self, document: bytes, context: UpdateContext) -> tuple[bytes, bytes] | None:
        if self._stamped or "_id" in self._document or not document.startswith(b"_id\0", 5):
            return None
        identity = document[4 : 9 + value_size(document[4], document, 9)]
        fields = encode(self._document)[4:]
        new = b"".join(((4 + len(identity) + len(fields)).to_bytes(4, "little"), identity, fields))
        return new, new

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        new = self._document
        if self._stamped:
            new = {name: context.timestamp if _is_blank(name, value) else value for name, value in new.items()}
        if identical(document, new):
            return Applied(document, None)
        return Applied(with_old_id(document, new), REPLACED)


def _is_blank(name: str, value: Any) -> bool:
    return type(value) is Timestamp and name != "_id" and value == Timestamp(0, 0)


def parse_replacement(document: dict[str, Any]) -> Replacement:
    """The replacement. Raises 52 for a top-level name with a dollar sign, 15 for a document nested too deeply."""
    for name in document:
        if name.startswith("$"):
            raise dollar_prefixed(name)
    check_depth(document)
    return Replacement(document)


def dollar_prefixed(name: str) -> CommandError:
    """The error of a top-level field that an update may not set."""
    return CommandError(
        52,
        f"The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's "
        "replacement document. Consider using an aggregation pipeline with $replaceWith.",
    )


def check_depth(document: dict[str, Any]) -> None:
    """Raise 15 for a document nested deeper than `limits.NESTING_MAX`. The document itself is level 0."""
    if depth(document) - 1 > limits.NESTING_MAX:
        raise CommandError(15, f"Document exceeds maximum nesting depth of {limits.NESTING_MAX}")


def with_old_id(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new document with `_id` first: its own `_id` or the old one. Raises 66 if the `_id` changed."""
    before, after = old.get("_id", MISSING), new.get("_id", MISSING)
    if before is MISSING and after is MISSING:
        return new
    if before is not MISSING and after is not MISSING and not equal(before, after):
        raise CommandError(
            66,
            "After applying the update, the (immutable) field '_id' was found to have been altered to "
            f"{element_text('_id', after)}",
        )
    if after is not MISSING and next(iter(new)) == "_id":
        return new
    return {"_id": before if after is MISSING else after, **{key: value for key, value in new.items() if key != "_id"}}


ALLOWED_STAGES: Final = frozenset({"$addFields", "$project", "$replaceRoot", "$replaceWith", "$set", "$unset"})


class PipelineUpdate(Update):
    """An update by stages. `_bound` holds NOW and CLUSTER_TIME, which are set before each run.

    So two threads must not apply one `PipelineUpdate` at the same time.
    """

    __slots__ = ("_bound", "_steps")
    kind = "pipeline"

    def __init__(self, steps: tuple[Callable[[dict[str, Any]], Any], ...], bound: dict[str, Any]) -> None:
        self._steps = steps
        self._bound = bound

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        self._bound["NOW"] = DatetimeMS(context.now_ms)
        self._bound["CLUSTER_TIME"] = context.timestamp
        new = document
        for step in self._steps:
            new = step(new)
        if size_above(limits.DOCUMENT_BYTES_MAX, new):
            raise CommandError(17419, f"Resulting document after update is larger than {limits.DOCUMENT_BYTES_MAX}")
        new = with_old_id(document, new)
        if identical(document, new):
            return Applied(document, None)
        check_depth(new)
        if context.inserting:
            return Applied(new, REPLACED)
        diff = compute_diff(document, new)
        return Applied(new, REPLACED if diff is None else Diff({"$v": 2, "diff": diff}))


def parse_pipeline_update(pipeline: list[Any], variables: Mapping[str, Any] | None, collation: Any) -> PipelineUpdate:
    """The update of a list of stages. Raises the errors of stages, and 72 for a stage not allowed in updates."""
    from headrace.query.expressions import less_bound
    from headrace.query.pipeline import PipelineContext, parse_pipeline

    bound: dict[str, Any] = {"NOW": None, "CLUSTER_TIME": None}
    constants = less_bound(variables or {}, bound)
    context = PipelineContext(variables=constants, collation=collation, bound=bound)
    stages = parse_pipeline(pipeline, context=context)
    for stage in stages:
        if stage.name not in ALLOWED_STAGES:
            raise CommandError(72, f"{stage.name} is not allowed to be used within an update")
    return PipelineUpdate(tuple(stage.each for stage in stages), bound)  # type: ignore[attr-defined]


class OperatorUpdate(Update):
    """An update tree."""

    __slots__ = ("_fields", "_has_dollar", "_has_rename", "_needs_position", "_spliced", "_tree")
    kind = "operators"

    def __init__(self, tree: UpdateObjectNode, has_rename: bool, needs_position: bool) -> None:
        self._tree = tree
        self._fields = frozenset(tree.children)
        self._spliced: tuple[SplicedField, ...] | None = None  # made when first needed
        self._has_rename = has_rename
        self._needs_position = needs_position
        self._has_dollar = "$" in {name[:1] for name in self._fields}
        """Whether the update changes top-level fields whose names begin with a dollar sign."""

    @property
    def needs_position(self) -> bool:
        """Whether a path contains `$`."""
        return self._needs_position

    @property
    def fields(self) -> frozenset[str]:
        """The first names of the update's paths."""
        return self._fields

    def apply_raw(self, document: bytes, context: UpdateContext) -> tuple[bytes, bytes] | None:
        fields = self._spliced
        if fields is None:
            fields = self._spliced = spliced_fields(self._tree)
        return spliced(fields, document, context) if fields else None

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        applied = self._applied(document, context)
        if self._has_dollar and not context.inserting and type(applied.change) is Diff:
            _check_names(applied.change.entry["diff"])
        return applied

    def _applied(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        walk = Walk(document, ApplyParams(document, context), self._has_rename)
        if not walk.fields(self._tree, walk.document, ()):
            return Applied(document, None)
        return Applied(walk.document, Diff({"$v": 2, "diff": walk.log.diff() if walk.log is not None else {}}))


def _check_names(diff: dict[str, Any]) -> None:
    """Raise 52 if an update sets a top-level field whose name begins with a dollar sign. An upsert may insert one.

    Source: MongoDB's documentation of dollar-prefixed field names, and its message.
    """
    for name in (*diff.get("u", ()), *diff.get("i", ())):
        if name.startswith("$"):
            raise dollar_prefixed(name)


def parse_operators(update: Mapping[str, Any], filters: ArrayFilters, collation: Any) -> OperatorUpdate:
    """The update of `{$operator: {path: argument}}`. `filters` are its parsed arrayFilters.

    Raises 9, 40, 52, 56 and the errors of operators; the first error in the order of the document.
    """
    tree = UpdateObjectNode()
    used: set[str] = set()
    needs_position = False
    for operator, fields in update.items():
        parse = MODIFIERS.get(operator)
        if parse is None and operator != "$rename":
            raise CommandError(
                9,
                f"Unknown modifier: {operator}. Expected a valid update modifier or pipeline-style update "
                "specified as an array",
            )
        if type(fields) is not dict:
            raise CommandError(
                9,
                f"Modifiers operate on fields but we found type {type_name(fields)} instead. For example: "
                f"{{$mod: {{<field>: ...}}}} not {{{element_text(operator, fields)}}}",
            )
        for path, argument in fields.items():
            if parse is None:
                _add_rename(tree, path, argument, filters, used)
            else:
                components = (path,) if path.isidentifier() else parse_field_path(path)  # mostly a plain name
                needs_position = needs_position or "$" in components
                add(tree, components, parse(path, argument, collation), filters, used)
    for identifier in filters:
        if identifier not in used:
            raise CommandError(
                9,
                f"The array filter for identifier '{identifier}' was not used in the update {to_string(update)}",
            )
    tree.close()
    return OperatorUpdate(tree, "$rename" in update, needs_position)


def _add_rename(tree: UpdateObjectNode, path: str, argument: Any, filters: ArrayFilters, used: set[str]) -> None:
    """Add a $rename, which occupies two paths. The placeholder at its source only reveals conflicts with other
    operators."""
    add(tree, parse_field_path(path), ConflictPlaceholderNode(), filters, used)
    if type(argument) is not str:
        raise CommandError(2, f"The 'to' field for $rename must be a string: {element_text(path, argument)}")
    target = parse_field_path(argument)
    add(tree, target, parse_rename(path, argument), filters, used)


class ConflictPlaceholderNode(UpdateLeafNode):
    """Occupies the source path of a $rename so that no other operator may use the path. It changes nothing."""

    __slots__ = ()
    creates = False
    insert_only = True
    lenient = True

    def change(self, old: Any, params: ApplyParams, path: Any) -> Any:
        return NO_OP


@limited_call
def parse_update(
    update: dict[str, Any] | list[Any],
    *,
    array_filters: list[dict[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    collation: Any = None,
    multi: bool = False,
) -> Update:
    """The parsed update. It can be reused for the same arguments, and references values of `update`.

    Pipelines may refer to `variables`. Raises `CommandError` for every error that does not depend on a
    document: 2, 9, 14, 40, 52, 56, 72, ….
    """
    if type(update) is list:
        if array_filters:
            raise CommandError(9, "arrayFilters may not be specified for pipeline-syle updates")
        return parse_pipeline_update(update, variables, collation)
    first = next(iter(update), "")  # type: ignore[call-overload]
    if not first.startswith("$"):
        if array_filters:
            raise CommandError(9, "arrayFilters may not be specified for replacement-style updates")
        if multi:
            raise CommandError(9, "multi update is not supported for replacement-style update")
        return parse_replacement(update)  # type: ignore[arg-type]
    filters = parse_array_filters(array_filters, collation) if array_filters else {}
    return parse_operators(update, filters, collation)  # type: ignore[arg-type]


_IDENTIFIER: Final = re.compile(r"[a-z][a-zA-Z0-9]*")
_LOGICAL: Final = frozenset({"$and", "$nor", "$or"})


def parse_array_filters(filters: list[dict[str, Any]], collation: Any) -> ArrayFilters:
    """The predicates on `{identifier: element}`, by identifier.

    Raises 9 for a filter without exactly one identifier and for a repeated one, 2 for an invalid identifier, 224 for
    `$expr` and `$jsonSchema`, and the errors of the filters.
    """
    from headrace.query.match import parse_filter

    tests: ArrayFilters = {}
    for document in filters:
        try:
            test = parse_filter(document, collation=collation, plain=True)
        except CommandError as failure:
            raise failure.behind("Error parsing array filter :: caused by :: ") from None
        identifier = _identifier(document)
        if identifier in tests:
            raise CommandError(9, f"Found multiple array filters with the same top-level field name {identifier}")
        tests[identifier] = test.node.compiled()  # the whole update is limited
    return tests


def _identifier(document: dict[str, Any]) -> str:
    names = list(dict.fromkeys(_top_level(document)))
    if not names:
        raise CommandError(
            9,
            "Cannot use an expression without a top-level field name in arrayFilters"
            if document
            else f"Cannot use an expression without a top-level field name in arrayFilters: {to_string(document)}",
        )
    if len(names) > 1:
        raise CommandError(
            9,
            "Error parsing array filter :: caused by :: Expected a single top-level field name, "
            f"found '{names[0]}' and '{names[1]}'",
        )
    if not _IDENTIFIER.fullmatch(names[0]):
        raise CommandError(
            2,
            "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric "
            f"string beginning with a lowercase letter, found '{names[0]}'",
        )
    return names[0]


def _top_level(document: dict[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if not name.startswith("$"):
            yield name.split(".", 1)[0]
        elif name in _LOGICAL and type(value) is list:
            for item in value:
                if type(item) is dict:
                    yield from _top_level(item)


# Changes of oplog entries.


_LENGTH_MAX: Final = limits.DOCUMENT_BYTES_MAX // 2
"""More elements than an array in a document can have."""
_DIGITS_MAX: Final = len(str(_LENGTH_MAX))


class DiffUpdate(Update):
    """A diff, and the entry that the oplog records when the diff is applied again."""

    __slots__ = ("_diff",)
    kind = "operators"

    def __init__(self, diff: dict[str, Any]) -> None:
        self._diff = diff

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        after = apply_diff(document, self._diff)
        if identical(document, after):
            return Applied(document, None)
        after = with_old_id(document, after)
        check_depth(after)
        return Applied(after, Diff({"$v": 2, "diff": self._diff}))


def parse_entry(change: dict[str, Any]) -> Update:
    """Parse the `o` of an update's entry: a diff, the operators of releases before 5.0, or a new document.

    Raises 9 for any other value, and 4772600 for an unknown version.
    """
    if "_id" in change or not next(iter(change), "").startswith("$"):
        return Replacement(change)
    version = change.get("$v", 1)
    if version == 2:
        diff = change.get("diff")
        _check_document_diff(diff)
        assert type(diff) is dict
        return DiffUpdate(diff)
    operators = {name: value for name, value in change.items() if name != "$v"}
    if version != 1 or not operators or not operators.keys() <= {"$set", "$unset"}:
        raise CommandError(4772600, f"Unsupported $v value in the oplog entry of an update: {to_string(version)}")
    return parse_update(operators)


def _check_document_diff(diff: Any) -> None:
    if type(diff) is not dict:
        raise _malformed("a diff must be a document")
    for section, content in diff.items():
        if section not in ("d", "u", "i") and not section.startswith("s"):
            raise _malformed(f"unknown section '{section}'")
        if type(content) is not dict:
            raise _malformed(f"section '{section}' must be a document")
        if section.startswith("s"):
            _check_child(content)


def _check_child(diff: dict[str, Any]) -> None:
    if diff.get("a") is not True:
        _check_document_diff(diff)
        return
    for name, content in diff.items():
        if name == "a":
            continue
        if name == "l":
            if type(content) is not int or not 0 <= content <= _LENGTH_MAX:
                raise _malformed("the length of an array must be a number of elements")
            continue
        digits = name[1:]
        if name[:1] not in ("u", "s") or not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise _malformed(f"unknown section '{name}' of an array")
        if int(digits) >= _LENGTH_MAX:
            raise _malformed(f"the array is too long for '{name}'")
        if name[0] == "s":
            if type(content) is not dict:
                raise _malformed(f"section '{name}' must be a document")
            _check_child(content)


def _malformed(reason: str) -> CommandError:
    return CommandError(9, f"malformed diff in an oplog entry: {reason}")
