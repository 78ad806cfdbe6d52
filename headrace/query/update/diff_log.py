"""Records the $v: 2 diff of an update by operators while it changes a document.

Rule (reference: change-streams.md §3.4): a changed field goes to section `u`, a new field to `i` at its first created
component, a removed field to `d`. Changes within arrays are recorded by index. Fields are in the order in which they
changed, sections in the order d, u, i, sub-diffs. There are no empty sub-diffs.
"""

from __future__ import annotations

from typing import Any

from headrace.query.update.leaf_node import FieldRef


class DiffLog:
    """Collects changes by path. An int in a path is an index in an array."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Document()

    def updated(self, path: FieldRef, value: Any) -> None:
        """Record a new value of an existing field or array index."""
        self._section(path, "u")[path[-1]] = value

    def inserted(self, path: FieldRef, value: Any) -> None:
        """Record a new field. `value` may still be extended until the diff is read."""
        self._section(path, "i")[path[-1]] = value

    def deleted(self, path: FieldRef) -> None:
        """Record the removal of a field of an object."""
        self._section(path, "d")[path[-1]] = False

    def diff(self) -> dict[str, Any]:
        """The diff recorded so far; {} if nothing changed."""
        return self._root.diff()

    def _section(self, path: FieldRef, section: str) -> dict[Any, Any]:
        node: _Document | _Array = self._root
        for at, component in enumerate(path[:-1]):
            child = node.children.get(component)
            if child is None:
                child = node.children[component] = _Array() if type(path[at + 1]) is int else _Document()
            node = child
        if type(node) is _Array:
            return node.values
        return node.sections[section]  # type: ignore[union-attr]


class _Document:
    __slots__ = ("children", "sections")

    def __init__(self) -> None:
        self.sections: dict[str, dict[Any, Any]] = {"d": {}, "u": {}, "i": {}}
        self.children: dict[Any, Any] = {}

    def diff(self) -> dict[str, Any]:
        diff: dict[str, Any] = {section: fields for section, fields in self.sections.items() if fields}
        for name, child in self.children.items():
            diff["s" + name] = child.diff()
        return diff


class _Array:
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.children: dict[Any, Any] = {}

    def diff(self) -> dict[str, Any]:
        diff: dict[str, Any] = {"a": True}
        for index in sorted({*self.values, *self.children}):
            if index in self.values:
                diff[f"u{index}"] = self.values[index]
            else:
                diff[f"s{index}"] = self.children[index].diff()
        return diff
