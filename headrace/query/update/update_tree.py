"""The fields an update touches, as a tree: inner nodes by name, leaves with operators; conflicts are found here.

Rule: no two operators may touch one path, or a path and one inside it (error 40). Siblings are applied in order of
their names, digits by number; with `$` the index that the filter found takes its place among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import CommandError
from headrace.query.update.field_path import is_array_part
from headrace.query.update.leaf_node import Leaf
from headrace.values.paths import is_index

ArrayFilters = dict[str, Callable[[dict[str, Any]], bool]]


class Fields:
    """Children by field name or index; `positional` is what stands under `$`."""

    __slots__ = ("_merged", "children", "ordered", "positional")

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.positional: Any = None
        self.ordered: tuple[tuple[str, Any], ...] = ()
        self._merged: dict[str, tuple[tuple[str, Any], ...]] = {}

    def close(self) -> None:
        """Fix the order of the children, once all are known."""
        self.ordered = tuple((name, self.children[name]) for name in sorted(self.children, key=sibling_key))
        for child in (*self.children.values(), self.positional):
            if child is not None and not isinstance(child, Leaf):
                child.close()

    def in_order(self, positional: str | None) -> tuple[tuple[str, Any], ...]:
        """The children in order; `positional` is the index `$` stands for in this document."""
        if self.positional is None:
            return self.ordered
        if positional is None:
            raise CommandError(2, "The positional operator did not find the match needed from the query.")
        merged = self._merged.get(positional)
        if merged is None:
            if len(self._merged) > 64:
                self._merged.clear()
            merged = self._merged[positional] = self._with_positional(positional)
        return merged

    def _with_positional(self, positional: str) -> tuple[tuple[str, Any], ...]:
        children = dict(self.children)
        own = children.get(positional)
        children[positional] = self.positional if own is None else merge(own, self.positional, positional)
        return tuple((name, children[name]) for name in sorted(children, key=sibling_key))


class Elements:
    """Children by array filter identifier; the empty one is `$[]`, all elements."""

    __slots__ = ("_merged", "children", "filters", "ordered")

    def __init__(self, filters: ArrayFilters) -> None:
        self.filters = filters
        self.children: dict[str, Any] = {}
        self.ordered: tuple[tuple[str, Any, Callable[[dict[str, Any]], bool] | None], ...] = ()
        self._merged: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        """Fix the order of the children, once all are known."""
        self.ordered = tuple((name, self.children[name], self.filters.get(name)) for name in sorted(self.children))
        for child in self.children.values():
            if not isinstance(child, Leaf):
                child.close()

    def matching(self, element: Any) -> Any:
        """What is to be done to this element: a node, or None."""
        names = [name for name, _, test in self.ordered if test is None or test({name: element})]
        if len(names) < 2:
            return self.children[names[0]] if names else None
        key = tuple(names)
        node = self._merged.get(key)
        if node is None:
            node = self.children[names[0]]
            for name in names[1:]:
                node = merge(node, self.children[name], "")
            self._merged[key] = node
        return node


def sibling_key(name: str) -> tuple[bytes, int, bytes]:
    """Orders siblings: names by their bytes, numbers among each other by value, starting where digits stand."""
    text = name.encode()
    return (b"0", len(text), text) if is_index(name) else (text, 0, text)


def merge(left: Any, right: Any, where: str) -> Any:
    """One node that does what both do; raises where both change the same."""
    if isinstance(left, Leaf) or type(left) is not type(right):
        raise CommandError(40, f"Update created a conflict at '{where}'")
    merged: Any = Fields() if type(left) is Fields else Elements({**left.filters, **right.filters})
    for name in {**left.children, **right.children}:
        both = [side.children[name] for side in (left, right) if name in side.children]
        merged.children[name] = both[0] if len(both) == 1 else merge(both[0], both[1], f"{where}.{name}")
    if type(merged) is Fields:
        ends = [side.positional for side in (left, right) if side.positional is not None]
        if ends:
            merged.positional = ends[0] if len(ends) == 1 else merge(ends[0], ends[1], f"{where}.$")
    merged.close()
    return merged


def add(root: Fields, parts: tuple[str, ...], leaf: Any, filters: ArrayFilters, used: set[str]) -> None:
    """Put a leaf at a path; records in `used` the identifiers the path names."""
    node: Any = root
    last = len(parts) - 1
    for at, part in enumerate(parts):
        name = _child_name(part, parts, filters, used) if part[0] == "$" else part
        child = node.positional if part == "$" else node.children.get(name)
        if at == last:
            if child is not None:
                raise _conflict(parts, last)
            child = leaf
        elif child is None:
            child = Elements(filters) if is_array_part(parts[at + 1]) else Fields()
        elif type(child) is not (Elements if is_array_part(parts[at + 1]) else Fields):
            raise _conflict(parts, at)
        if part == "$":
            node.positional = child
        else:
            node.children[name] = child
        node = child


def _conflict(parts: tuple[str, ...], at: int) -> CommandError:
    path, place = ".".join(parts), ".".join(parts[: at + 1])
    return CommandError(40, f"Updating the path '{path}' would create a conflict at '{place}'")


def _child_name(part: str, parts: tuple[str, ...], filters: ArrayFilters, used: set[str]) -> str:
    if not is_array_part(part):
        return part
    identifier = part[2:-1]
    if identifier and identifier not in filters:
        raise CommandError(
            2,
            f"No array filter found for identifier '{identifier}' in path '{'.'.join(parts)}'",
        )
    used.add(identifier)
    return identifier
