"""The fast path of `Walk`, for updates of fields in documents without arrays, `$rename` and `$` on their paths."""

from __future__ import annotations

from typing import Any

from headrace import limits
from headrace.query.update.leaf_node import NO_OP, Appended, ApplyParams, UpdateLeafNode
from headrace.query.update.rename import RenameNode
from headrace.query.update.update_tree import UpdateObjectNode
from headrace.values.bson import MISSING

PlainFields = tuple[tuple[str, Any, tuple[str, ...]], ...]
"""The fields of an update as (name, leaf or the plain fields of a subdocument, path)."""


def plain_fields(node: Any, path: tuple[str, ...]) -> PlainFields | None:
    """The plain fields of a node, with subdocuments as nested tuples; None if only `Walk` can apply the node."""
    if type(node) is not UpdateObjectNode or node.positional is not None:
        return None
    fields: list[tuple[str, Any, tuple[str, ...]]] = []
    for name, child in node.ordered:
        here = (*path, name)
        if isinstance(child, UpdateLeafNode):
            if type(child) is RenameNode or child.depth + len(here) > limits.NESTING_MAX:
                return None
            fields.append((name, child, here))
        elif (inner := plain_fields(child, here)) is not None:
            fields.append((name, inner, here))
        else:
            return None
    return tuple(fields)


def apply_plain(
    fields: PlainFields, document: dict[str, Any], params: ApplyParams
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The fast path of `Walk`: (new document, diff), the diff empty if nothing changes. None if a path leads through
    anything but documents."""
    new = document.copy()
    deletes: dict[str, Any] = {}
    updates: dict[str, Any] = {}
    inserts: dict[str, Any] = {}
    children: dict[str, Any] = {}
    for name, leaf, path in fields:
        old = document.get(name, MISSING)
        if type(leaf) is tuple:
            inner = apply_plain(leaf, old, params) if type(old) is dict else None
            if inner is None:
                return None
            if inner[1]:
                new[name], children["s" + name] = inner
            continue
        if leaf.insert_only and not params.context.inserting:
            continue
        if old is MISSING:
            if leaf.creates:
                new[name] = inserts[name] = leaf.change(MISSING, params, path)
            continue
        value = leaf.change(old, params, path)
        if value is NO_OP:
            continue
        if value is MISSING:
            del new[name]
            deletes[name] = False
        elif type(value) is Appended:
            array = new[name] = value.array
            start = len(array) - value.count
            children["s" + name] = {"a": True, **{f"u{at}": array[at] for at in range(start, len(array))}}
        else:
            new[name] = updates[name] = value
    diff: dict[str, Any] = {}
    if deletes:
        diff["d"] = deletes
    if updates:
        diff["u"] = updates
    if inserts:
        diff["i"] = inserts
    if children:
        diff.update(children)
    return new, diff
