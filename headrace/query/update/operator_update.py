"""Updates by operators: {$set: …, $inc: …}. The diff is written while applying, never computed from documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson import Timestamp

from headrace.errors import CommandError
from headrace.query.update.field_path import parse_field_path
from headrace.query.update.leaf_node import KEEP, Appended, Leaf, Moment
from headrace.query.update.message_text import element_text, value_text
from headrace.query.update.modifiers import MODIFIERS
from headrace.query.update.rename import Rename, parse_rename
from headrace.query.update.update import Applied, Diff, Update
from headrace.query.update.update_tree import ArrayFilters, Fields, add
from headrace.query.update.walk import DOCUMENT_DEPTH_MAX, Walk
from headrace.values.bson import MISSING, type_name

Flat = tuple[tuple[str, Leaf, tuple[str]], ...]


class OperatorUpdate(Update):
    """`_flat` is the same as the tree where all leaves are top-level fields that the short way can do; else None."""

    __slots__ = ("_flat", "_has_rename", "_needs_position", "_tree")
    kind = "operators"

    def __init__(self, tree: Fields, flat: Flat | None, has_rename: bool, needs_position: bool) -> None:
        self._tree = tree
        self._flat = flat
        self._has_rename = has_rename
        self._needs_position = needs_position

    @property
    def needs_position(self) -> bool:
        return self._needs_position

    def apply(
        self,
        document: dict[str, Any],
        *,
        positional: str | None = None,
        now_ms: int,
        timestamp: Timestamp,
        inserting: bool = False,
    ) -> Applied:
        moment = Moment(document, now_ms, timestamp, inserting)
        if self._flat is not None:
            return _apply_flat(self._flat, document, moment)
        walk = Walk(document, moment, positional, self._has_rename)
        if not walk.fields(self._tree, walk.document, ()):
            return Applied(document, None)
        return Applied(walk.document, Diff({"$v": 2, "diff": walk.log.diff() if walk.log is not None else {}}))


def _apply_flat(flat: Flat, document: dict[str, Any], moment: Moment) -> Applied:
    """The walk, where every leaf is a top-level field other than `_id`."""
    new = document.copy()
    diff: dict[str, Any] = {}
    deletes: dict[str, Any] = {}
    updates: dict[str, Any] = {}
    inserts: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name, leaf, path in flat:
        old = document.get(name, MISSING)
        if leaf.insert_only and not moment.inserting:
            continue
        if old is MISSING:
            if leaf.creates:
                new[name] = inserts[name] = leaf.change(MISSING, moment, path)
            continue
        value = leaf.change(old, moment, path)
        if value is KEEP:
            continue
        if value is MISSING:
            del new[name]
            deletes[name] = False
        elif type(value) is Appended:
            array = new[name] = value.array
            start = len(array) - value.count
            arrays["s" + name] = {"a": True, **{f"u{at}": array[at] for at in range(start, len(array))}}
        else:
            new[name] = updates[name] = value
    if deletes:
        diff["d"] = deletes
    if updates:
        diff["u"] = updates
    if inserts:
        diff["i"] = inserts
    if arrays:
        diff.update(arrays)
    return Applied(new, Diff({"$v": 2, "diff": diff})) if diff else Applied(document, None)


def parse_operators(update: Mapping[str, Any], filters: ArrayFilters, collation: Any) -> OperatorUpdate:
    """Raises 9, 40, 52, 56 and what the operators raise, in the order in which the client wrote them."""
    tree = Fields()
    used: set[str] = set()
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
                add(tree, parse_field_path(path), parse(path, argument, collation), filters, used)
    for identifier in filters:
        if identifier not in used:
            raise CommandError(
                9,
                f"The array filter for identifier '{identifier}' was not used in the update {value_text(update)}",
            )
    return _closed(tree)


def _add_rename(tree: Fields, path: str, argument: Any, filters: ArrayFilters, used: set[str]) -> None:
    """A rename takes up two paths; the source's leaf only keeps others away and is taken out of the tree again."""
    add(tree, parse_field_path(path), Source(), filters, used)
    if type(argument) is not str:
        raise CommandError(2, f"The 'to' field for $rename must be a string: {element_text(path, argument)}")
    target = parse_field_path(argument)
    add(tree, target, parse_rename(path, argument), filters, used)


class Source(Leaf):
    """Keeps the source of a $rename for it, so that no other operator may touch it; does nothing."""

    __slots__ = ()
    creates = False
    insert_only = True
    lenient = True

    def change(self, old: Any, moment: Moment, path: Any) -> Any:
        return KEEP


def _closed(tree: Fields) -> OperatorUpdate:
    tree.close()
    flat: list[tuple[str, Leaf, tuple[str]]] = []
    short = True
    for name, node in tree.ordered:
        if not isinstance(node, Leaf) or type(node) is Rename or name == "_id" or node.depth >= DOCUMENT_DEPTH_MAX:
            short = False
            break
        flat.append((name, node, (name,)))
    if short:
        return OperatorUpdate(tree, tuple(flat), False, False)
    has_rename, needs_position = _features(tree)
    return OperatorUpdate(tree, None, has_rename, needs_position)


def _features(node: Any) -> tuple[bool, bool]:
    """Whether there is a $rename below, and whether there is a `$`."""
    if isinstance(node, Leaf):
        return type(node) is Rename, False
    children = list(node.children.values())
    position = getattr(node, "positional", None)
    if position is not None:
        children.append(position)
    found = [_features(child) for child in children]
    return any(rename for rename, _ in found), position is not None or any(needs for _, needs in found)
