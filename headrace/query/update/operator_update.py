"""Updates by operators: {$set: …, $inc: …}. The diff is recorded while they are applied, never computed from
documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.update.arithmetic import parse_bit, parse_inc, parse_mul
from headrace.query.update.arrays import parse_add_to_set, parse_pop, parse_pull, parse_pull_all
from headrace.query.update.assign import CompareNode, SetNode, SetOnInsertNode, UnsetNode, parse_current_date
from headrace.query.update.field_path import parse_field_path
from headrace.query.update.leaf_node import NO_OP, ApplyParams, UpdateLeafNode
from headrace.query.update.message_text import element_text
from headrace.query.update.plain_fields import PlainFields, apply_plain, plain_fields
from headrace.query.update.push import parse_push
from headrace.query.update.rename import RenameNode, parse_rename
from headrace.query.update.replacement_update import dollar_prefixed
from headrace.query.update.spliced_fields import SplicedField, spliced, spliced_fields
from headrace.query.update.update import Applied, Diff, Update, UpdateContext
from headrace.query.update.update_tree import ArrayFilters, UpdateObjectNode, add
from headrace.query.update.walk import Walk
from headrace.values.bson import type_name
from headrace.values.bson.to_string import to_string

_MODIFIERS: Final[dict[str, Callable[[str, Any, Any], UpdateLeafNode]]] = {
    "$addToSet": parse_add_to_set,
    "$bit": parse_bit,
    "$currentDate": parse_current_date,
    "$inc": parse_inc,
    "$max": lambda field, argument, collation: CompareNode(argument, 1, collation),
    "$min": lambda field, argument, collation: CompareNode(argument, -1, collation),
    "$mul": parse_mul,
    "$pop": parse_pop,
    "$pull": parse_pull,
    "$pullAll": parse_pull_all,
    "$push": parse_push,
    "$set": lambda field, argument, collation: SetNode(argument),
    "$setOnInsert": lambda field, argument, collation: SetOnInsertNode(argument),
    "$unset": lambda field, argument, collation: UnsetNode(),
}
"""The parsers of operators. $rename has two paths and its own."""


class OperatorUpdate(Update):
    """An update tree. `_plain` has its leaves if `apply_plain` can apply all of them, otherwise None."""

    __slots__ = ("_fields", "_has_dollar", "_has_rename", "_needs_position", "_plain", "_spliced", "_tree")
    kind = "operators"

    def __init__(
        self, tree: UpdateObjectNode, plain: PlainFields | None, has_rename: bool, needs_position: bool
    ) -> None:
        self._tree = tree
        self._fields = frozenset(tree.children)
        self._plain = plain
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
            fields = self._spliced = spliced_fields(self._plain)
        return spliced(fields, document, context) if fields else None

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        applied = self._applied(document, context)
        if self._has_dollar and not context.inserting and type(applied.change) is Diff:
            _check_names(applied.change.entry["diff"])
        return applied

    def _applied(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        params = ApplyParams(document, context)
        if self._plain is not None:
            made = apply_plain(self._plain, document, params)
            if made is not None:
                return Applied(made[0], Diff({"$v": 2, "diff": made[1]})) if made[1] else Applied(document, None)
        walk = Walk(document, params, self._has_rename)
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
    for operator, fields in update.items():
        parse = _MODIFIERS.get(operator)
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
                add(tree, components, parse(path, argument, collation), filters, used)
    for identifier in filters:
        if identifier not in used:
            raise CommandError(
                9,
                f"The array filter for identifier '{identifier}' was not used in the update {to_string(update)}",
            )
    return _closed(tree)


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


def _closed(tree: UpdateObjectNode) -> OperatorUpdate:
    tree.close()
    plain = None if "_id" in tree.children else plain_fields(tree, ())
    if plain is not None:
        return OperatorUpdate(tree, plain, False, False)
    has_rename, needs_position = _features(tree)
    return OperatorUpdate(tree, None, has_rename, needs_position)


def _features(node: Any) -> tuple[bool, bool]:
    """(whether there is a $rename below, whether there is a `$` below)."""
    if isinstance(node, UpdateLeafNode):
        return type(node) is RenameNode, False
    children = list(node.children.values())
    position = getattr(node, "positional", None)
    if position is not None:
        children.append(position)
    features = [_features(child) for child in children]
    return any(rename for rename, _ in features), position is not None or any(needs for _, needs in features)
