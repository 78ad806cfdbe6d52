"""The tree of the fields that an update changes: object and array nodes, and leaves with operators.

Rule: two operators with the same path, or with one path inside the other's, conflict (error 40). Siblings are applied
in the order of their names, numbers by value. `$` is ordered by the index that it stands for.
Source: MongoDB's manual, "Update Operators Behavior".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import CommandError
from headrace.query.update.field_path import is_array_component
from headrace.query.update.leaf_node import FieldRef, UpdateLeafNode, dotted
from headrace.values.paths import is_index

ArrayFilters = dict[str, Callable[[dict[str, Any]], bool]]


class UpdateObjectNode:
    """Children by field name or array index; `positional` is the child under `$`."""

    __slots__ = ("_merged", "children", "ordered", "positional")

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.positional: Any = None
        self.ordered: tuple[tuple[str, Any], ...] = ()
        self._merged: dict[str, tuple[tuple[str, Any], ...]] = {}

    def close(self) -> None:
        """Sort the children. Call it once, after all children were added."""
        has_number = any(map(str.isdecimal, self.children))
        names = sorted(self.children, key=sibling_key if has_number else None)  # text sorts as its UTF-8 does
        self.ordered = tuple(zip(names, map(self.children.__getitem__, names)))
        for child in (*self.children.values(), self.positional):
            if child is not None and not isinstance(child, UpdateLeafNode):
                child.close()

    def in_order(self, positional: str | None, path: FieldRef) -> tuple[tuple[str, Any], ...]:
        """The children in order; `positional` is the index that `$` stands for. Raises 2 if it is needed but None.

        `path` is the place of the node, for the message of a conflict.
        """
        if self.positional is None:
            return self.ordered
        if positional is None:
            raise CommandError(2, "The positional operator did not find the match needed from the query.")
        merged = self._merged.get(positional)
        if merged is None:
            if len(self._merged) > 64:
                self._merged.clear()
            merged = self._merged[positional] = self._with_positional(positional, path)
        return merged

    def _with_positional(self, positional: str, path: FieldRef) -> tuple[tuple[str, Any], ...]:
        children = dict(self.children)
        existing = children.get(positional)
        children[positional] = (
            self.positional if existing is None else merge(existing, self.positional, dotted((*path, positional)))
        )
        return tuple((name, children[name]) for name in sorted(children, key=sibling_key))


class UpdateArrayNode:
    """Children by array filter identifier. The empty identifier stands for `$[]`, all elements."""

    __slots__ = ("_merged", "children", "filters", "ordered")

    def __init__(self, filters: ArrayFilters) -> None:
        self.filters = filters
        self.children: dict[str, Any] = {}
        self.ordered: tuple[tuple[str, Any, Callable[[dict[str, Any]], bool] | None], ...] = ()
        self._merged: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        """Sort the children. Call it once, after all children were added."""
        self.ordered = tuple((name, self.children[name], self.filters.get(name)) for name in sorted(self.children))
        for child in self.children.values():
            if not isinstance(child, UpdateLeafNode):
                child.close()

    def all_matching(self, array: list[Any], path: FieldRef) -> list[tuple[int, Any]]:
        """The elements of the array at `path` that a filter matches, as (index, node to apply).

        Raises 40 if nodes conflict.
        """
        if len(self.ordered) > 1:
            found = ((index, self._matching(element, (*path, index))) for index, element in enumerate(array))
            return [(index, node) for index, node in found if node is not None]
        ((name, child, test),) = self.ordered
        if test is None:
            return [(index, child) for index in range(len(array))]
        return [(index, child) for index, element in enumerate(array) if test({name: element})]

    def _matching(self, element: Any, path: FieldRef) -> Any:
        """The node to apply to the element at `path`, or None if no filter matches it. Raises 40 if nodes conflict."""
        names = [name for name, _, test in self.ordered if test is None or test({name: element})]
        if len(names) < 2:
            return self.children[names[0]] if names else None
        key = tuple(names)
        node = self._merged.get(key)
        if node is None:
            node = self.children[names[0]]
            for name in names[1:]:
                node = merge(node, self.children[name], dotted(path))
            self._merged[key] = node
        return node


def sibling_key(name: str) -> tuple[bytes, int, bytes]:
    """The sort key of siblings: names by their bytes. Numbers are sorted by value, at the place of "0"."""
    text = name.encode()
    return (b"0", len(text), text) if is_index(name) else (text, 0, text)


def merge(left: Any, right: Any, where: str) -> Any:
    """One node that applies both. Raises 40 if they conflict. `where` is the path, for the message."""
    if isinstance(left, UpdateLeafNode) or type(left) is not type(right):
        raise CommandError(40, f"Update created a conflict at '{where}'")
    merged: Any = (
        UpdateObjectNode() if type(left) is UpdateObjectNode else UpdateArrayNode({**left.filters, **right.filters})
    )
    for name in {**left.children, **right.children}:
        both = [side.children[name] for side in (left, right) if name in side.children]
        component = name if type(merged) is UpdateObjectNode else f"$[{name}]"
        merged.children[name] = both[0] if len(both) == 1 else merge(both[0], both[1], f"{where}.{component}")
    if type(merged) is UpdateObjectNode:
        ends = [side.positional for side in (left, right) if side.positional is not None]
        if ends:
            merged.positional = ends[0] if len(ends) == 1 else merge(ends[0], ends[1], f"{where}.$")
    merged.close()
    return merged


def add(root: UpdateObjectNode, components: tuple[str, ...], leaf: Any, filters: ArrayFilters, used: set[str]) -> None:
    """Add a leaf at a path, and its identifiers to `used`. Raises 40 for a conflict, 2 for an unknown identifier."""
    node: Any = root
    last = len(components) - 1
    for at, component in enumerate(components):
        name = _child_name(component, components, filters, used) if component[0] == "$" else component
        child = node.positional if component == "$" else node.children.get(name)
        if at == last:
            if child is not None:
                raise _conflict(components, last)
            child = leaf
        elif child is None:
            child = UpdateArrayNode(filters) if is_array_component(components[at + 1]) else UpdateObjectNode()
        elif type(child) is not (UpdateArrayNode if is_array_component(components[at + 1]) else UpdateObjectNode):
            raise _conflict(components, at)
        if component == "$":
            node.positional = child
        else:
            node.children[name] = child
        node = child


def _conflict(components: tuple[str, ...], at: int) -> CommandError:
    path, conflict_at = ".".join(components), ".".join(components[: at + 1])
    return CommandError(40, f"Updating the path '{path}' would create a conflict at '{conflict_at}'")


def _child_name(component: str, components: tuple[str, ...], filters: ArrayFilters, used: set[str]) -> str:
    if not is_array_component(component):
        return component
    identifier = component[2:-1]
    if identifier and identifier not in filters:
        raise CommandError(
            2,
            f"No array filter found for identifier '{identifier}' in path '{'.'.join(components)}'",
        )
    used.add(identifier)
    return identifier
