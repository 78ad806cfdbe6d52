"""The diff that operators write down as they change a document.

Rule (reference: change-streams.md §3.4): a changed leaf is `u`, a new field `i` at the first component that was
made, a removed one `d`; what happens in an array is told by index. Fields stand in the order in which they were
changed, sections in the order d, u, i, sub-diffs. Nothing changed leaves no sub-diff behind.
"""

from __future__ import annotations

from typing import Any

from headrace.query.update.leaf_node import Path


class DiffLog:
    """Collects changes by path; an int in a path says that its container is an array."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Document()

    def updated(self, path: Path, value: Any) -> None:
        """The existing field, or the place in an array, has a new value."""
        self._section(path, "u")[path[-1]] = value

    def inserted(self, path: Path, value: Any) -> None:
        """The field is new. `value` may still grow until the diff is read."""
        self._section(path, "i")[path[-1]] = value

    def deleted(self, path: Path) -> None:
        self._section(path, "d")[path[-1]] = False

    def diff(self) -> dict[str, Any]:
        """The diff so far; {} if nothing changed."""
        return self._root.diff()

    def _section(self, path: Path, section: str) -> dict[Any, Any]:
        node: _Document | _Array = self._root
        for at, part in enumerate(path[:-1]):
            child = node.children.get(part)
            if child is None:
                child = node.children[part] = _Array() if type(path[at + 1]) is int else _Document()
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
        found: dict[str, Any] = {section: fields for section, fields in self.sections.items() if fields}
        for name, child in self.children.items():
            found["s" + name] = child.diff()
        return found


class _Array:
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.children: dict[Any, Any] = {}

    def diff(self) -> dict[str, Any]:
        found: dict[str, Any] = {"a": True}
        for index in sorted({*self.values, *self.children}):
            if index in self.values:
                found[f"u{index}"] = self.values[index]
            else:
                found[f"s{index}"] = self.children[index].diff()
        return found
