"""The `updateDescription` of a change event, from the diff in the oplog entry.

Rule (reference: change-streams.md §3.2): at each level first the updated and inserted fields, then the removed fields,
then the sub-diffs in turn. Paths are dotted. If a dot or a number in a field's name makes a path ambiguous,
`disambiguatedPaths` also has its components; only expanded streams get that field. There an array index is an int32 and
a field's name a string. Documents are not needed: the diff alone tells which components are indexes.
"""

from __future__ import annotations

from typing import Any

Components = tuple[str | int, ...]


def describe(diff: dict[str, Any], *, expanded: bool = False) -> dict[str, Any]:
    """Return the description, with its fields in the order of events. `diff` is the entry's decoded `o.diff`."""
    reader = _DiffReader()
    reader.document(diff, "", (), False)
    description: dict[str, Any] = {
        "updatedFields": reader.updated,
        "removedFields": reader.removed,
        "truncatedArrays": reader.truncated,
    }
    if expanded:
        description["disambiguatedPaths"] = reader.ambiguous
    return description


class _DiffReader:
    """Walks a diff and collects the lists of the description."""

    __slots__ = ("ambiguous", "removed", "truncated", "updated")

    def __init__(self) -> None:
        self.updated: dict[str, Any] = {}
        self.removed: list[str] = []
        self.truncated: list[dict[str, Any]] = []
        self.ambiguous: dict[str, list[str | int]] = {}

    def document(self, diff: dict[str, Any], prefix: str, components: Components, ambiguous: bool) -> None:
        """Read a document's diff. `prefix`: the dotted path to it, with a final dot; `ambiguous`: whether that path
        is."""
        for section in ("u", "i"):
            for name, value in diff.get(section, {}).items():
                self.updated[prefix + name] = value
                self._report(prefix, components, name, ambiguous)
        for name in diff.get("d", {}):
            self.removed.append(prefix + name)
            self._report(prefix, components, name, ambiguous)
        for section, child in diff.items():
            if section[0] == "s":
                name = section[1:]
                self._child(child, prefix + name, (*components, name), ambiguous or _is_ambiguous(name, components))

    def array(self, diff: dict[str, Any], path: str, components: Components, ambiguous: bool) -> None:
        """Read an array's diff. `path`: the dotted path to it; `ambiguous`: whether that path is."""
        if "l" in diff:
            self.truncated.append({"field": path, "newSize": diff["l"]})
            if ambiguous:
                self.ambiguous[path] = list(components)
        prefix = path + "."
        for key, value in diff.items():
            if key[0] == "u":
                self.updated[prefix + key[1:]] = value
                if ambiguous:
                    self.ambiguous[prefix + key[1:]] = [*components, int(key[1:])]
        for key, child in diff.items():
            if key[0] == "s":
                self._child(child, prefix + key[1:], (*components, int(key[1:])), ambiguous)

    def _child(self, diff: dict[str, Any], path: str, components: Components, ambiguous: bool) -> None:
        if diff.get("a") is True:
            self.array(diff, path, components, ambiguous)
        else:
            self.document(diff, path + ".", components, ambiguous)

    def _report(self, prefix: str, components: Components, name: str, ambiguous: bool) -> None:
        if ambiguous or _is_ambiguous(name, components):
            self.ambiguous[prefix + name] = [*components, name]


def _is_ambiguous(name: str, above: Components) -> bool:
    """Return whether a field's name may be mistaken for a dotted path or, below the top level, for an array index."""
    return "." in name or (bool(above) and name.isascii() and name.isdigit() and (name == "0" or name[0] != "0"))
