"""The keys under which an index holds a document: one for each element of the array that its paths reach.

    {a: [{b: 1, c: 2}, {b: 3, c: 4}]}  under  {a.b, a.c}   →  (1, 2), (3, 4)
    key   keystrings of the values, those of descending fields inverted, and 04 (which, as in MongoDB, puts "x" on the
          right side of "x\\0y", whose keystring begins with that of "x" and goes on with FF, inverted 00)

All paths that meet an array must meet the same array (error 171). A missing value counts as null, but an empty array as
undefined, so that `{a: []}` and `{a: null}` do not collide. An element that is itself an array is not opened again.

If the paths meet no array, or one path ends at an array, keys are made without rows. Both ways make the same keys. A
document with more than `count_max` keys, equal keys counted each, is refused with error 201. Source: MongoDB's
documentation of multikey indexes, and its server's answers for these cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import maxsize
from typing import Any, Final, NamedTuple

from bson import Decimal128

from headrace import limits
from headrace.errors import CommandError
from headrace.hashing import sha256
from headrace.store.indexes.field_keys import Encoders, FieldKeys, SortKey, field_keys
from headrace.values.bson import MISSING, decode, find_element
from headrace.values.bson.columns import Columns
from headrace.values.keystring.encoding import END


class _Undefined:
    """The value of an empty array in an index: BSON's undefined, which Python has no value for."""

    def __repr__(self) -> str:
        return "undefined"


UNDEFINED: Final = _Undefined()

Row = tuple[Any, ...]


class _Reached(NamedTuple):
    """The point that a path reaches: a value, or an array and the rest of the path."""

    value: Any
    rest: tuple[str, ...]


def index_rows(document: dict[str, Any], pattern: dict[str, Any]) -> list[Row]:
    """Return the values of the index's fields, MISSING if absent; several rows if the paths meet an array.

    Raises 171 if two paths meet different arrays, 16746 if `a.0` may mean an element or a field.
    """
    return list(iter_rows(document, pattern))


def iter_rows(document: dict[str, Any], pattern: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of `index_rows` one by one, and raise its errors during the iteration."""
    return _rows([_Reached(document, tuple(path.split("."))) for path in pattern])


def _rows(columns: list[_Reached]) -> Iterator[Row]:
    walked = [_walk(*column) for column in columns]
    arrays = [index for index, reached in enumerate(walked) if type(reached.value) is list]
    if not arrays:
        yield tuple(reached.value for reached in walked)
        return
    array = walked[arrays[0]].value
    if any(walked[index].value is not array for index in arrays):
        raise CommandError(171, "cannot index parallel arrays")
    if not array:
        empty = [UNDEFINED if not walked[index].rest else MISSING for index in arrays]
        yield _replaced(walked, arrays, empty)
        return
    names = [walked[index].rest[0] if len(walked[index].rest) == 1 else None for index in arrays]
    for element in array:
        if type(element) is dict and None not in names:  # the usual case: a field of a document in the array
            values = [element.get(name, MISSING) for name in names]
            if list not in map(type, values):
                yield _replaced(walked, arrays, values)
                continue
        inside = [_inside(element, walked[index].rest) for index in arrays]
        yield from _rows_of_element(walked, arrays, inside)


def _rows_of_element(walked: list[_Reached], arrays: list[int], inside: list[_Reached]) -> Iterator[Row]:
    """Yield the rows of one element of the array. A path that ends at the element does not open it again."""
    ended = {index: reached.value for index, reached in zip(arrays, inside) if not reached.rest}
    columns = list(walked)
    for index, reached in zip(arrays, inside):
        columns[index] = reached
    if not any(reached.rest for reached in inside):
        yield _replaced(walked, arrays, list(ended.values()))
        return
    open_columns = [_Reached(None, ()) if index in ended else column for index, column in enumerate(columns)]
    for row in _rows(open_columns):
        yield tuple(ended.get(index, value) for index, value in enumerate(row))


def _replaced(walked: list[_Reached], columns: list[int], values: list[Any]) -> Row:
    row = [reached.value for reached in walked]
    for index, value in zip(columns, values):
        row[index] = value
    return tuple(row)


def _inside(element: Any, rest: tuple[str, ...]) -> _Reached:
    """Return the start of a path's rest in an element. A value that is no document has no fields."""
    if not rest:
        return _Reached(element, ())
    return _Reached(element, rest) if type(element) is dict else _Reached(MISSING, ())


def _walk(value: Any, path: tuple[str, ...]) -> _Reached:
    """Follow a path to its end, or to the first array that must be spread."""
    at = 0
    while at < len(path):
        if type(value) is dict:
            value = value.get(path[at], MISSING)
        elif type(value) is list:
            if not _is_position(value, path[at]):
                return _Reached(value, path[at:])
            value = value[int(path[at])] if int(path[at]) < len(value) else MISSING
        else:
            return _Reached(MISSING, ())
        at += 1
    return _Reached(value, ())


def _is_position(array: list[Any], name: str) -> bool:
    """Return whether a number in a path means an element of this array, rather than a field of its documents."""
    if not name.isdigit():
        return False
    as_field = any(type(item) is dict and name in item for item in array)
    if as_field and int(name) < len(array):
        raise CommandError(16746, f"Ambiguous field name reached in array (do not use numeric field names): {name}")
    return not as_field


# ------------------------------------------------------------------ keys

Traits = frozenset[str]
"""The traits of an index's documents: the paths at which one of them had an array, and `CUT_KEY`."""

CUT_KEY: Final = ""
"""The trait of an index with a cut key. Its keys are in order only up to the cut."""
NO_TRAITS: Final[Traits] = frozenset()
CUT_BYTES: Final = limits.KEY_BYTES_MAX - 32
"""Number of bytes kept of a key that is too long for LMDB. In a unique index a SHA-256 digest of the whole key
follows."""
INVERTED: Final = bytes(255 - byte for byte in range(256))
_UNDEFINED_KEY: Final = b"\x0f"
UNBOUNDED: Final = maxsize
"""The `count_max` for the keys of a document that is already stored."""
_MINOR_BYTES: Final = 1024  # bytes; a smaller document is decoded as a whole


def too_many_keys() -> CommandError:
    """Return error 201 for a document with more keys in its indexes than `limits.INDEX_KEY_COUNT_MAX`."""
    return CommandError(201, "Maximum number of generated keys exceeded.")


class _KeyField(NamedTuple):
    path: tuple[str, ...]
    descending: bool
    keys: FieldKeys
    array_trait: Traits
    """The trait of a document with an array at the path."""


def _keys_of_elements(keys: FieldKeys, array: list[Any]) -> list[bytes]:
    """Return the keys of an array's elements. If all have one plain type, its encoder is looked up once."""
    kinds = set(map(type, array))
    encoder = keys.encoders.get(kinds.pop()) if len(kinds) == 1 else None
    return list(map(keys.of_value if encoder is None else encoder, array))


class PlainField(NamedTuple):
    """A field of an index, with the encoders of its plain values."""

    path: tuple[str, ...]
    descending: bool
    encoders: Encoders


class KeyMaker:
    """Makes the keys of one index. `covers` is a partial index's filter, `sort_key` its collation's function."""

    __slots__ = (
        "_fields",
        "_hashed",
        "_names",
        "_paths",
        "_pattern",
        "_unique",
        "columns",
        "covers",
        "is_sparse",
        "made_count",
        "prefix",
    )

    def __init__(
        self, number: int, spec: dict[str, Any], covers: Callable[[dict[str, Any]], bool] | None,
        sort_key: SortKey | None, *, unique: bool,
    ) -> None:  # fmt: skip
        self._pattern: dict[str, Any] = spec["key"]
        self.prefix = number.to_bytes(4, "big")
        """The index's number, the prefix of all keys."""
        self.is_sparse = bool(spec.get("sparse"))
        """Whether a document with none of the fields has no key."""
        self._unique = unique
        self.covers = covers
        self.made_count = 0
        """The number of keys that the last call of `keys` made, equal keys counted each; at least 1."""
        self._hashed = "hashed" in self._pattern.values()
        self._paths = [tuple(path.split(".")) for path in self._pattern]
        self.columns = Columns(dict.fromkeys(path[0] for path in self._paths))
        """Reads the fields of many documents."""
        self._names = [name.encode() for name in self.columns.names]
        self._fields = [
            _KeyField(path, descends(kind), field_keys(kind, sort_key), frozenset({".".join(path)}))
            for path, kind in zip(self._paths, self._pattern.values())
        ]  # fmt: skip

    def keys(
        self, document: bytes, count_max: int = UNBOUNDED, decoded: dict[str, Any] | None = None
    ) -> tuple[list[bytes], Traits]:
        """Return the distinct keys of a raw document without its record, and its traits. Raises 171, 16746, 16766, and
        201 if there are more than `count_max`. `decoded`: the decoded document, if several indexes share it."""
        self.made_count = 1
        if decoded is None:
            decoded = self._decoded(document)
        if self.covers is not None and not self.covers(decoded):
            return [], NO_TRAITS
        made = self._plain_keys(decoded, count_max)
        if made is not None:
            return made
        rows = self._rows(decoded, count_max)
        return list(rows), self._traits(decoded, rows) if rows else NO_TRAITS

    @property
    def plain_fields(self) -> list[PlainField]:
        """The fields with their encoders, for documents without arrays."""
        return [
            PlainField(path, field.descending, field.keys.encoders) for path, field in zip(self._paths, self._fields)
        ]

    def rows(self, document: bytes) -> dict[bytes, Row]:
        """Return the keys of a raw document, each with its values, null for a missing one. Raises 171, 16746, 16766."""
        return self._rows(self._decoded(document))

    def _decoded(self, document: bytes) -> dict[str, Any]:
        """Return the document's fields that the index uses, or all fields if a filter may use others."""
        if self.covers is not None or len(document) < _MINOR_BYTES:
            return decode(document)
        elements = []
        for name in self._names:
            element = find_element(document, name)
            if element is not None:
                _, start, end = element
                if _is_repeated(document, name, end):
                    return decode(document)
                elements.append(document[start - len(name) - 2 : end])
        made = b"".join(elements)
        return decode((len(made) + 5).to_bytes(4, "little") + made + b"\0")

    def _rows(self, decoded: dict[str, Any], count_max: int = UNBOUNDED) -> dict[bytes, Row]:
        if self._hashed:
            for path in self._paths:
                for array in sorted(array_paths(decoded, path)):
                    raise _array_in_hashed(array)
        rows: dict[bytes, Row] = {}
        count = 0
        for key, row in self._whole_rows(decoded):
            count += 1
            if count > count_max:
                raise too_many_keys()
            rows[self._cut(key)] = tuple([None if item is MISSING or item is UNDEFINED else item for item in row])
        self.made_count = max(count, 1)
        return rows

    def whole_keys(self, document: bytes) -> Iterator[bytes]:
        """Yield the keys of a raw document with the index's number, not cut to LMDB's length."""
        for key, _ in self._whole_rows(self._decoded(document)):
            yield key

    def _whole_rows(self, decoded: dict[str, Any]) -> Iterator[tuple[bytes, Row]]:
        for row in iter_rows(decoded, self._pattern):
            if self.is_sparse and all(item is MISSING for item in row):
                continue
            key = b"".join([
                _key(field, item).translate(INVERTED) if field.descending else _key(field, item)
                for item, field in zip(row, self._fields)
            ])  # fmt: skip
            yield self.prefix + key + END, row

    def _plain_keys(self, decoded: dict[str, Any], count_max: int) -> tuple[list[bytes], Traits] | None:
        """Return the keys of a document if the paths meet no array, or one path ends at an array; otherwise None."""
        before, after = self.prefix, b""
        spread: list[bytes] | None = None
        traits = NO_TRAITS
        is_there = not self.is_sparse
        for path, down, keys, array_trait in self._fields:
            value: Any = decoded
            for name in path:
                if type(value) is dict:
                    value = value.get(name, MISSING)
                elif type(value) is list:
                    return None
                else:
                    value = MISSING
                    break
            if value is MISSING:
                piece = keys.missing
            elif type(value) is list:
                if spread is not None or self._hashed:
                    return None
                if len(value) > count_max:
                    raise too_many_keys()
                is_there, traits = True, array_trait
                spread = _keys_of_elements(keys, value) or [_UNDEFINED_KEY]
                if down:
                    spread = [piece.translate(INVERTED) for piece in spread]
                continue
            else:
                is_there = True
                piece = keys.of_value(value)
            if down:
                piece = piece.translate(INVERTED)
            if spread is None:
                before += piece
            else:
                after += piece
        if not is_there:
            return [], NO_TRAITS
        if spread is None:
            key = before + END
            return ([key], NO_TRAITS) if len(key) <= _UNCUT_MAX else ([self._cut(key)], _CUT)
        return self._spread_keys(before, spread, after + END, traits)

    def _spread_keys(
        self, before: bytes, spread: list[bytes], after: bytes, traits: Traits
    ) -> tuple[list[bytes], Traits]:
        """Return a key for each element of an array."""
        self.made_count = len(spread)
        made = [before + element + after for element in spread]
        if len(made) > 1:
            made = list(dict.fromkeys(made))
        if max(map(len, made)) > _UNCUT_MAX:
            made = list(dict.fromkeys([self._cut(key) for key in made]))
            traits |= _CUT
        return made, traits

    def _cut(self, key: bytes) -> bytes:
        """Return a key that begins with the index's number, cut if it is too long for LMDB."""
        if len(key) <= _UNCUT_MAX:
            return key
        return key[: CUT_BYTES + 4] + (sha256(key[4:]) if self._unique else b"")

    def _traits(self, document: dict[str, Any], rows: dict[bytes, Row]) -> Traits:
        traits = {path for names in self._paths for path in array_paths(document, names)}
        if any(len(key) > CUT_BYTES for key in rows):
            traits.add(CUT_KEY)
        return frozenset(traits)


def _key(field: _KeyField, value: Any) -> bytes:
    if value is MISSING:
        return field.keys.missing
    if value is UNDEFINED:
        return _UNDEFINED_KEY
    return field.keys.of_value(value)


def _array_in_hashed(path: str) -> CommandError:
    return CommandError(
        16766, f"Error: hashed indexes do not currently support array values. Found array at path: {path}"
    )


def _is_repeated(document: bytes, name: bytes, at: int) -> bool:
    """Return whether another field with this name follows at `at`. The last one counts."""
    return document.find(name + b"\0", at) >= 0 and find_element(document, name, at - 4) is not None


_UNCUT_MAX: Final = limits.KEY_BYTES_MAX - 4  # includes the index's number; a record follows
_CUT: Final[Traits] = frozenset({CUT_KEY})


def descends(kind: Any) -> bool:
    """Return whether a value of a key pattern means descending order."""
    if isinstance(kind, Decimal128):
        return kind.to_decimal() < 0
    return kind < 0 if isinstance(kind, int | float) else False


def array_paths(value: Any, path: tuple[str, ...], walked: tuple[str, ...] = ()) -> set[str]:
    """Return the paths, from the document's root to `path`, at which there is an array. Elements of arrays are
    followed."""
    rest = path
    while rest and type(value) is dict:
        value = value.get(rest[0], MISSING)
        walked, rest = (*walked, rest[0]), rest[1:]
    if type(value) is not list:
        return set()
    if not rest:
        return {".".join(walked)}
    paths = {".".join(walked)}
    for item in value:
        if type(item) is dict:
            paths |= array_paths(item, rest, walked)
    if rest[0].isdigit() and int(rest[0]) < len(value):
        paths |= array_paths(value[int(rest[0])], rest[1:], (*walked, rest[0]))
    return paths
