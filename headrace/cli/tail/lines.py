"""An event as lines for people.

    2026-11-22T10:28:20.766Z  update  shop.orders  {"_id": 1}
        ~ qty      2 -> 3
        + tags     ["new"]
        - discount 5

`+` marks a new field, `~` a changed one and `-` a removed one. `=` marks a new or changed field if the collection
stores no pre-images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.cli.terminal import Painter, moment, shortened, shown

Path = tuple[str, ...]

_COLOURS: Final = {"delete": "red", "insert": "green", "invalidate": "red", "replace": "yellow", "update": "yellow"}
_MISSING: Final = object()
_KNOWN: Final = frozenset({
    "_id", "clusterTime", "collectionUUID", "documentKey", "fullDocument", "fullDocumentBeforeChange", "lsid", "ns",
    "nsType", "operationType", "splitEvent", "txnNumber", "updateDescription", "wallTime",
})  # fmt: skip
"""Fields of an event with a fixed place in its lines; all others get their own line."""


class EventLines:
    """Formats events: colours, the length of a line, the chosen fields of documents."""

    def __init__(self, painter: Painter, columns: int | None, fields: Sequence[Path] = ()) -> None:
        """Cut lines after `columns` characters (None: never); show the paths in `fields` (empty: all)."""
        self._painter = painter
        self._columns = columns
        self._fields = fields

    def of(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of an event."""
        yield self._head(event)
        yield from self._aligned(self.changes(event))
        for name, value in event.items():
            if name not in _KNOWN and value is not None:
                yield self._cut(f"    {name}: {shown(value)}")

    def changes(self, event: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """Yield (sign, path, text) for each field that an event changes; an empty path is the whole document."""
        before, after = event.get("fullDocumentBeforeChange"), event.get("fullDocument")
        operation = event.get("operationType")
        if operation == "update" and "updateDescription" in event:
            yield from self._update(event["updateDescription"], before, after)
        elif operation == "replace" and before is not None and after is not None:
            yield from self._difference(before, after)
        elif after is not None:
            yield "+" if operation == "insert" else "=", "", shown(self._wanted(after))
        elif before is not None:
            yield "-", "", shown(self._wanted(before))

    def chosen(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the event with only the chosen fields of its documents."""
        if not self._fields:
            return event
        picked = dict(event)
        for name in ("fullDocument", "fullDocumentBeforeChange"):
            if isinstance(event.get(name), Mapping):
                picked[name] = self._wanted(event[name])
        description = event.get("updateDescription")
        if isinstance(description, Mapping):
            picked["updateDescription"] = {**description, **self._changes(description)}
        return picked

    def _changes(self, description: Mapping[str, Any]) -> dict[str, Any]:
        unambiguous = description.get("disambiguatedPaths") or {}

        def wanted(name: str) -> bool:
            return self._is_wanted(tuple(map(str, unambiguous.get(name) or name.split("."))))

        updated = description.get("updatedFields") or {}
        return {
            "updatedFields": {name: value for name, value in updated.items() if wanted(name)},
            "removedFields": [name for name in description.get("removedFields") or () if wanted(name)],
            "truncatedArrays": [one for one in description.get("truncatedArrays") or () if wanted(one["field"])],
        }

    def _head(self, event: Mapping[str, Any]) -> str:
        operation = str(event.get("operationType", "?"))
        namespace = ".".join(str(name) for name in (event.get("ns") or {}).values())
        wall = event.get("wallTime")
        time = event.get("clusterTime")
        if wall is not None:
            at = moment(int(wall.timestamp() * 1000) if hasattr(wall, "timestamp") else int(wall))
        else:
            at = "" if time is None else moment(time.time * 1000)
        key = event.get("documentKey")
        fields = [
            self._painter(at, "dim"), self._painter(f"{operation:8}", _COLOURS.get(operation, "cyan"), "bold"),
            namespace, "" if key is None else shown(key),
        ]  # fmt: skip
        return "  ".join(part for part in fields if part).rstrip()

    def _update(
        self, description: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield (sign, path, text) for each field that an update has changed."""
        unambiguous = description.get("disambiguatedPaths") or {}
        for name, value in (description.get("updatedFields") or {}).items():
            path = tuple(map(str, unambiguous.get(name) or name.split(".")))
            if self._is_wanted(path):
                yield _changed(name, _at(before, path), value)
        for name in description.get("removedFields") or ():
            path = tuple(map(str, unambiguous.get(name) or name.split(".")))
            if self._is_wanted(path):
                old = _at(before, path)
                yield "-", name, "" if old is _MISSING or old is _UNKNOWN else shown(old)
        for array in description.get("truncatedArrays") or ():
            path = tuple(array["field"].split("."))
            if self._is_wanted(path):
                old = _at(before, path)
                was = f" (was {len(old)})" if isinstance(old, list) else ""
                yield "~", array["field"], f"cut to {array['newSize']} elements{was}"
        if after is not None:
            yield "=", "", shown(self._wanted(after))

    def _difference(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        for name in [*before, *(name for name in after if name not in before)]:
            if not self._is_wanted((name,)):
                continue
            if name not in after:
                yield "-", name, shown(before[name])
            elif name not in before or not _is_same(before[name], after[name]):
                yield _changed(name, before.get(name, _MISSING), after[name])

    def _aligned(self, changes: Any) -> Iterator[str]:
        rows = list(changes)
        width = max((len(name) for _, name, _ in rows), default=0)
        for sign, name, text in rows:
            line = f"    {sign} {name:{width}}  {text}" if name else f"    {sign} {text}"
            colour = {"+": "green", "-": "red", "~": "yellow"}.get(sign)
            yield self._painter(self._cut(line.rstrip()), *([colour] if colour else []))

    def _cut(self, line: str) -> str:
        return line if self._columns is None else shortened(line, self._columns)

    def _is_wanted(self, path: Path) -> bool:
        """Return whether a changed path is a chosen field, is inside one, or contains one."""
        if not self._fields:
            return True
        return any(path[: len(field)] == field[: len(path)] for field in self._fields)

    def _wanted(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the document with only the chosen fields."""
        if not self._fields:
            return document
        picked: dict[str, Any] = {}
        for field in self._fields:
            value = _at(document, field)
            if value is not _MISSING:
                target = picked
                for name in field[:-1]:
                    target = target.setdefault(name, {})
                target[field[-1]] = value
        return picked


_UNKNOWN: Final = object()


def _changed(name: str, old: Any, new: Any) -> tuple[str, str, str]:
    if old is _UNKNOWN:
        return "=", name, shown(new)
    if old is _MISSING:
        return "+", name, shown(new)
    return "~", name, f"{shown(old)} -> {shown(new)}"


def _at(document: Mapping[str, Any] | None, path: Path) -> Any:
    """Return the value at a path: `_MISSING` for no value, `_UNKNOWN` for no document."""
    if document is None:
        return _UNKNOWN
    value: Any = document
    for name in path:
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values and their types are the same."""
    return shown(one) == shown(other) and type(one) is type(other)
