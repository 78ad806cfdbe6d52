"""The keys of a wildcard index: one for each value at each path, with the path before it.

    {a: {b: 1, c: [2, {d: 3}]}}  under  {$**: 1}   →  ("a.b", 1), ("a.c", 2), ("a.c.d", 3)
    key    keystrings of the fields before the wildcard, the path as a string, the value, the fields after it, 04

Objects with fields and arrays are represented by their contents. An empty object is a value, and an empty array is
undefined. An array within an array is a value. Paths contain no array positions. A missing value has no key. But in a
compound index a document without any path has a key with minKey for path and value, so that the other fields lead to
it.

`_id` is indexed if the projection includes it. Fields beside the wildcard may not reach arrays (7246301). Source:
MongoDB's documentation of wildcard indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from bson import MinKey

from headrace import limits
from headrace.errors import CommandError
from headrace.store.indexes.field_keys import SortKey, field_keys
from headrace.store.indexes.index_keys import (
    CUT_BYTES,
    CUT_KEY,
    INVERTED,
    UNBOUNDED,
    UNDEFINED,
    Row,
    Traits,
    descends,
    index_rows,
    too_many_keys,
)
from headrace.values.bson import MISSING, decode
from headrace.values.keystring.encoding import END, encode_value

WILDCARD: Final = "$**"
ANY_ARRAY: Final = "$**"
"""The trait of an index with arrays at too many paths to list them."""
_UNCUT_MAX: Final = limits.KEY_BYTES_MAX - 4
_KNOWN_MAX: Final = 1000
"""The number of paths for which an index caches whether they have keys, and their keys. Documents mostly share
paths."""


def wildcard_of(pattern: dict[str, Any]) -> str | None:
    """Return the wildcard field of a key pattern: `$**` or `path.$**`."""
    return next((path for path in pattern if path == WILDCARD or path.endswith("." + WILDCARD)), None)


class WildcardPaths:
    """The paths that a wildcard index covers."""

    __slots__ = ("_excluded", "_included", "_known", "_with_id")

    def __init__(self, spec: dict[str, Any]) -> None:
        field = wildcard_of(spec["key"]) or WILDCARD
        projection = dict(_flat(spec.get("wildcardProjection") or {}, ""))
        self._known: dict[str, bool] = {}
        self._with_id = bool(projection.pop("_id", False))
        self._included = [path for path, shown in projection.items() if shown]
        self._excluded = [path for path, shown in projection.items() if not shown]
        if field != WILDCARD:
            self._included = [field.removesuffix("." + WILDCARD)]
            self._with_id = self._included[0].partition(".")[0] == "_id"

    def has(self, path: str) -> bool:
        """Return whether values at a path have keys."""
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[path] = self._has(path)
        return known

    def _has(self, path: str) -> bool:
        if path == "_id" or path.startswith("_id."):
            return self._with_id
        if any(_is_within(path, other) for other in self._excluded):
            return False
        return not self._included or any(_is_within(path, other) for other in self._included)

    def has_all_below(self, path: str) -> bool:
        """Return whether all values at and below a path have keys: none below it is excluded."""
        return self.has(path) and not any(_is_within(other, path) for other in self._excluded)

    def reaches(self, path: str) -> bool:
        """Return whether values at or below a path may have keys."""
        return self.has(path) or any(_is_within(other, path) for other in self._included)


def _flat(projection: dict[str, Any], prefix: str) -> Iterator[tuple[str, bool]]:
    for name, shown in projection.items():
        if type(shown) is dict:
            yield from _flat(shown, f"{prefix}{name}.")
        else:
            yield prefix + name, bool(shown)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(other + ".")


class WildcardKeyMaker:
    """Makes the keys of one wildcard index, with the interface of `KeyMaker`. `known` returns the index's present
    traits."""

    __slots__ = (
        "_after", "_before", "_descends", "_keys", "_known", "_others", "_path_keys", "_prefix", "_projection",
        "covers", "made_count",
    )  # fmt: skip

    def __init__(
        self, number: int, spec: dict[str, Any], covers: Callable[[dict[str, Any]], bool] | None,
        sort_key: SortKey | None, known: Callable[[], Traits],
    ) -> None:  # fmt: skip
        self._prefix = number.to_bytes(4, "big")
        self._projection = WildcardPaths(spec)
        self._keys = field_keys(1, sort_key)
        self._path_keys: dict[str, bytes] = {}
        self._known = known
        self.covers = covers
        self.made_count = 0
        names = list(spec["key"])
        at = names.index(wildcard_of(spec["key"]) or WILDCARD)
        self._before = [(name, descends(spec["key"][name])) for name in names[:at]]
        self._after = [(name, descends(spec["key"][name])) for name in names[at + 1 :]]
        self._descends = descends(spec["key"][names[at]])
        self._others = {name: spec["key"][name] for name in names[:at] + names[at + 1 :]}

    def keys(
        self, document: bytes, count_max: int = UNBOUNDED, decoded: dict[str, Any] | None = None
    ) -> tuple[list[bytes], Traits]:
        """Return keys as `KeyMaker.keys` does. Raises 7246301, 16746, and 201."""
        if decoded is None:
            decoded = decode(document)
        if self.covers is not None and not self.covers(decoded):
            return [], frozenset()
        before, after = self._other_keys(decoded)
        arrays: set[str] = set()
        pieces: dict[bytes, None] = {}
        self.made_count = 1
        for count, (path, value) in enumerate(self._values(decoded, "", arrays), 1):
            if count > count_max:
                raise too_many_keys()
            self.made_count = count
            pieces[self._path_key(path) + self._value_key(value)] = None
        if not pieces and self._others:
            pieces = {_LEAST + (_LEAST.translate(INVERTED) if self._descends else _LEAST): None}
        made = [before + piece + after for piece in pieces]
        traits = self._bounded_traits(arrays)
        if any(len(key) > _UNCUT_MAX for key in made):
            cut = [key[: CUT_BYTES + 4] if len(key) > _UNCUT_MAX else key for key in made]
            made = list(dict.fromkeys(cut))
            traits |= {CUT_KEY}
        return made, traits

    def rows(self, document: bytes) -> dict[bytes, Row]:
        """Return the keys without values, which are never needed: no wildcard index is unique."""
        return dict.fromkeys(self.keys(document)[0], ())

    def _path_key(self, path: str) -> bytes:
        key = self._path_keys.get(path)
        if key is None:
            if len(self._path_keys) >= _KNOWN_MAX:
                self._path_keys.clear()
            key = self._path_keys[path] = encode_value(path)
        return key

    def _value_key(self, value: Any) -> bytes:
        key = b"\x0f" if value is UNDEFINED else self._keys.of_value(value)
        return key.translate(INVERTED) if self._descends else key

    def _other_keys(self, decoded: dict[str, Any]) -> tuple[bytes, bytes]:
        """Return the key bytes before and after the wildcard's part."""
        if not self._others:
            return self._prefix, END
        rows = index_rows(decoded, self._others)
        if (
            len(rows) > 1
            or any(value is UNDEFINED or type(value) is list for value in rows[0])
            or self._is_multikey(decoded)
        ):
            raise CommandError(
                7246301, "Wildcard compound index does not support arrays in the fields beside the wildcard"
            )
        values = dict(zip(self._others, rows[0]))

        def joined(fields: list[tuple[str, bool]]) -> bytes:
            pieces = []
            for name, down in fields:
                piece = self._keys.missing if values[name] is MISSING else self._keys.of_value(values[name])
                pieces.append(piece.translate(INVERTED) if down else piece)
            return b"".join(pieces)

        return self._prefix + joined(self._before), joined(self._after) + END

    def _is_multikey(self, decoded: dict[str, Any]) -> bool:
        for name in self._others:
            value: Any = decoded
            for part in name.split("."):
                value = value.get(part, MISSING) if type(value) is dict else MISSING
                if type(value) is list:
                    return True
        return False

    def _values(self, value: dict[str, Any], prefix: str, arrays: set[str]) -> Iterator[tuple[str, Any]]:
        """Yield (path, value) for every value that has a key; add the paths with an array to `arrays`."""
        for name, item in value.items():
            path = prefix + name
            kind = type(item)
            if kind is not dict and kind is not list:
                if self._projection.has(path):
                    yield path, item
                continue
            if not self._projection.reaches(path):
                continue
            if kind is dict:
                if item:
                    yield from self._values(item, path + ".", arrays)
                elif self._projection.has(path):
                    yield path, item
                continue
            arrays.add(path)
            yield from self._elements(item, path, arrays)

    def _elements(self, array: list[Any], path: str, arrays: set[str]) -> Iterator[tuple[str, Any]]:
        is_indexed = self._projection.has(path)
        if not array and is_indexed:
            yield path, UNDEFINED
        for item in array:
            if type(item) is dict and item:
                yield from self._values(item, path + ".", arrays)
            elif is_indexed:
                yield path, item

    def _bounded_traits(self, arrays: set[str]) -> Traits:
        known = self._known()
        if ANY_ARRAY in known:
            return frozenset()
        return frozenset(arrays) if len(arrays | known) <= limits.WILDCARD_ARRAYS_MAX else frozenset({ANY_ARRAY})


_LEAST: Final = encode_value(MinKey())
