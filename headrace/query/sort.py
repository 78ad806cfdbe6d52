"""Sorting documents: a specification parsed once, a key for each document, and a sort of any number of records.

Rule: a missing field sorts as null, an empty array before null. An array sorts by its least element when ascending, by
its greatest when descending. Several paths through one array make one key for each element, and the least of these keys
(by the complete specification) counts. Paths through two different arrays are error 2. An array that a number in the
path has led to (`a.0`) counts as a whole.

    sorter = Sorter(memory, key_of, descending=False)
    sorter.add(key, record) ...
    for record in sorter.sorted(): ...

Chunks in memory are merged, and runs on disk when they exceed a stage's memory. Rule: the sort is stable, and the
command may pause between chunks. A chunk is sorted in some milliseconds. The chunks are merged in parts of a chunk's
size as records are read. A run on disk holds only records; their keys are computed again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, compress, count, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.document_metadata import TEXT_SCORE, DocumentMetadata, check_unavailable, mark_of
from headrace.query.expressions.expression import checked_path
from headrace.query.expressions.numbers import to_long
from headrace.query.operation_memory import RecordStream, StageMemory
from headrace.time_limit import limited
from headrace.turns import paced, tick
from headrace.values.bson import MISSING, Missing, decode, to_string
from headrace.values.bson.columns import Columns
from headrace.values.order import RANKS, Key, number_key, sort_key
from headrace.values.paths import array_index, split_path

if TYPE_CHECKING:
    from headrace.query.expressions.expression import Evaluate

CHUNK_COUNT: Final = 4096
"""Records sorted at once, in about four milliseconds."""
_STRIDE: Final = 256
"""Every 256th record of a chunk is in the sample that decides where chunks are cut for merging."""
RECORD_BYTES: Final = 64
"""Bytes counted for a record besides its own."""

RecordKey = tuple[Any, ...]
Item = tuple[Any, ...]
"""A key, a unique number that keeps equal keys in order of insertion, and the record."""


class Sorter:
    """Takes records with their keys and returns them in order."""

    __slots__ = (
        "_bound", "_bytes", "_chunk", "_chunks", "_count_max", "_descending", "_held", "_key_of",
        "_memory", "_next", "_run_start", "_runs", "_step", "_top",
    )  # fmt: skip

    def __init__(
        self, memory: StageMemory, key_of: Callable[[bytes], RecordKey], *, descending: bool = False,
        count_max: int | None = None,
    ) -> None:  # fmt: skip
        """`key_of` computes a record's key again. `count_max`: how many of the first records are wanted."""
        self._memory = memory
        self._key_of = key_of
        self._descending = descending
        self._count_max = count_max
        self._top = count_max is not None and count_max <= CHUNK_COUNT
        self._step = -1 if descending else 1
        self._bound: RecordKey | None = None
        """The key of the last wanted record, once `count_max` records were added."""
        self._next = 0
        self._chunk: list[Item] = []
        self._bytes = 0
        self._chunks: list[list[Item]] = []
        self._held = 0
        self._run_start = 0
        self._runs: list[tuple[int, RecordStream]] = []

    def __len__(self) -> int:
        return abs(self._next)

    def wants(self, key: RecordKey) -> bool:
        """Whether a new record with this key could be among the first `count_max`."""
        bound = self._bound
        return bound is None or (key > bound if self._descending else key < bound)

    def add(self, key: RecordKey, record: bytes) -> None:
        """Add a record. Raises 292 if the records exceed the memory and must not go to disk."""
        chunk = self._chunk
        chunk.append((*key, self._next, record))
        self._next += self._step
        self._bytes += len(record)
        if len(chunk) >= CHUNK_COUNT or self._bytes >= self._memory.step:
            self._end_chunk()

    def add_all(self, keys: Sequence[RecordKey], records: Sequence[bytes]) -> None:
        """Add a batch of records, except those that are not wanted. May pause. Raises as `add`."""
        tick()
        bound, step = self._bound, self._step
        if bound is not None:
            chosen = [key > bound for key in keys] if self._descending else [key < bound for key in keys]
            keys, records = list(compress(keys, chosen)), list(compress(records, chosen))
        end = self._next + step * len(records)
        self._chunk += [
            (*key, number, record) for key, number, record in zip(keys, range(self._next, end, step), records)
        ]
        self._next = end
        self._bytes += sum(map(len, records))
        if len(self._chunk) >= CHUNK_COUNT or self._bytes >= self._memory.step:
            self._end_chunk()

    def _end_chunk(self) -> None:
        """Sort the records added since the last chunk."""
        tick()
        chunk, self._chunk = self._chunk, []
        size, self._bytes = self._bytes + RECORD_BYTES * len(chunk), 0
        if self._top and self._chunks:
            chunk = self._chunks.pop() + chunk
        chunk.sort(reverse=self._descending)
        if self._top and len(chunk) > self._count_max:  # type: ignore[operator]
            size -= sum(len(item[-1]) + RECORD_BYTES for item in chunk[self._count_max :])
            del chunk[self._count_max :]
            self._bound = chunk[-1][:-2] if chunk else None
        self._chunks.append(chunk)
        self._held += size
        self._memory.add(size)
        if self._memory.is_over:
            self._spill()

    def _spill(self) -> None:
        """Write all chunks to disk as one run."""
        stream = self._memory.spill_stream()
        records, size = 0, self._held
        for item in paced(_merged(self._chunks, descending=self._descending)):
            stream.append(item[-1])
            records += 1
        self._chunks, self._held = [], 0
        self._runs.append((self._run_start, stream))
        self._run_start = self._next
        self._memory.add(-size)
        self._memory.spilled(records, size)

    def sorted(self) -> Iterator[bytes]:
        """The records in order. Call it only once."""
        self._end_chunk()
        items = _merged(self._chunks, descending=self._descending)
        if self._runs:
            runs = [self._read(number, stream) for number, stream in self._runs]
            items = paced(merge(*runs, items, reverse=self._descending))
        return islice(map(itemgetter(-1), items), self._count_max)

    def _read(self, number: int, stream: RecordStream) -> Iterator[Item]:
        """The items of a run, with its number: equal keys sort after earlier runs and before later records."""
        key_of = self._key_of
        for record in stream.records():
            yield (*key_of(record), number, record)


def _merged(chunks: Sequence[list[Item]], *, descending: bool) -> Iterator[Item]:
    """The items of sorted chunks in order. A sample of the chunks divides them into parts, and each part is sorted at
    once: much quicker than a merge item by item. Pauses before each part."""
    if len(chunks) == 1:
        yield from chunks[0]
        return
    if descending:
        for chunk in chunks:
            chunk.reverse()  # bisect needs ascending order
    sample = sorted(chain.from_iterable(chunk[_STRIDE - 1 :: _STRIDE] for chunk in chunks))
    bounds = sample[CHUNK_COUNT // _STRIDE - 1 :: CHUNK_COUNT // _STRIDE]
    if descending:
        bounds.reverse()
    reached = [len(chunk) if descending else 0 for chunk in chunks]
    for bound in (*bounds, None):
        tick()
        part: list[Item] = []
        for number, chunk in enumerate(chunks):
            start = reached[number]
            if bound is not None:
                end = bisect_left(chunk, bound)
            else:
                end = 0 if descending else len(chunk)
            part += chunk[end:start] if descending else chunk[start:end]
            reached[number] = end
        part.sort(reverse=descending)
        yield from part


NULL: Final[Key] = (5, 0)


class Descending:
    """A key with reversed order."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def __lt__(self, other: Descending) -> bool:
        return other.key < self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class SortKey:
    """A parsed sort: `paths` with True for descending, the most significant first.

    `natural` is 1 or -1 for the order of storage (`$natural`). There are no paths then: `key` is the same for all
    documents, and `sorted` keeps or reverses their order.
    """

    paths: tuple[tuple[str, bool], ...]
    collation: Collation | None = None
    natural: int | None = None

    def key(self, document: dict[str, Any]) -> tuple[Any, ...]:
        """A comparable key: it orders documents ascending."""
        keys = self._keys(document)
        return tuple(Descending(key) if down else key for key, (_, down) in zip(keys, self.paths))

    def sorted(self, documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The documents in order, stable. Only for few documents: there is no limit and no pause."""
        if not self.paths:
            return list(documents)[:: self.natural or 1]
        return sorted(documents, key=self.key)

    def sorter(self, memory: StageMemory, count_max: int | None = None) -> Sorter:
        """A sorter for encoded documents. The caller adds each with its `merge_key`."""
        return Sorter(
            memory, lambda raw: self.merge_key(decode(raw)), descending=self.is_descending, count_max=count_max
        )

    @property
    def is_descending(self) -> bool:
        """The direction of the first path, which is the direction of `merge_key`."""
        return bool(self.paths) and self.paths[0][1]

    def merge_key(self, document: dict[str, Any]) -> tuple[Any, ...]:
        """Like `key`, but cheaper to compare. It orders documents descending if `is_descending`."""
        keys, descending = self._keys(document), self.is_descending
        if len(keys) == 1:
            return (keys[0],)
        return tuple(key if down == descending else Descending(key) for key, (_, down) in zip(keys, self.paths))

    def merge_keys(self, columns: Sequence[Sequence[Key]]) -> list[tuple[Any, ...]]:
        """The merge keys of several documents, from a column of ascending keys for each path."""
        if len(columns) == 1:
            return [(key,) for key in columns[0]]
        descending = self.is_descending
        return list(zip(*(
            keys if down == descending else map(Descending, keys) for keys, (_, down) in zip(columns, self.paths)
        )))  # fmt: skip

    def fields(self) -> set[str]:
        """Names of the top-level fields that the sort reads."""
        return {split_path(path)[0] for path, _ in self.paths}

    def _keys(self, document: dict[str, Any]) -> list[Key]:
        """One ascending key for each path."""
        keys = []
        for path, _ in self.paths:
            value = _plain_value(document, path)
            if value is ARRAY:
                return self._of_arrays(document)[0]
            keys.append(NULL if value is MISSING else sort_key(value, self.collation))
        return keys

    def values(self, document: dict[str, Any]) -> list[Any]:
        """The values by which a document sorts, one for each path: `{$meta: "sortKey"}`.

        A missing field and an empty array are null. A string under a collation is its sort key, as Latin-1.
        """
        values = [_plain_value(document, path) for path, _ in self.paths]
        if any(value is ARRAY for value in values):
            values = self._of_arrays(document)[1]
        return [self._shown(None if value is MISSING else value) for value in values]

    def reader(self) -> Evaluate:
        """Return the expression `{$meta: "sortKey"}` for the documents that were sorted."""
        return lambda env: self.values(env.root)

    def _shown(self, value: Any) -> Any:
        if self.collation is None or type(value) not in (str, dict, list):
            return value
        if type(value) is str:
            return self.collation.key(value).decode("latin-1")
        if type(value) is dict:
            return {name: self._shown(item) for name, item in value.items()}
        return [self._shown(item) for item in value]

    def _of_arrays(self, document: dict[str, Any]) -> tuple[list[Key], list[Any]]:
        """The keys of a document in which a path meets an array, and the value of each key."""
        first: tuple[list[Key], list[Any]] = [], []
        least: list[Any] = []

        def compare_with_first(keys: list[Key], values: list[Any]) -> None:
            nonlocal first, least
            other = [Descending(key) if down else key for key, (_, down) in zip(keys, self.paths)]
            if not least or other < least:
                first, least = (keys, values), other

        _expand([split_path(path) for path, _ in self.paths], document, self.collation, compare_with_first)
        return first


ARRAY: Final = object()


def _plain_value(document: dict[str, Any], path: str) -> Any:
    """The value at the path, MISSING, or ARRAY if there is an array at the path or on the way."""
    if "." in path:
        value: Any = document
        for part in path.split("."):
            if type(value) is not dict:
                break
            value = value.get(part, MISSING)
        else:
            return ARRAY if type(value) is list else value
        return ARRAY if type(value) is list else MISSING
    value = document.get(path, MISSING)
    return ARRAY if type(value) is list else value


RemainingPath = tuple[str, ...]


Emit = Callable[[list[Key], list[Any]], None]
"""Takes a key and a value for each path."""


def _expand(paths: list[RemainingPath], document: Any, collation: Collation | None, emit: Emit) -> None:
    """Call `emit` with the keys and values for each element of the array that the paths go through."""
    _expand_from(paths, [document] * len(paths), [None] * len(paths), collation, emit)


def _expand_from(
    paths: list[RemainingPath], containers: list[Any], fixed: list[Any], collation: Collation | None, emit: Emit
) -> None:
    """Continue `_expand` from the paths whose key in `fixed` is None. `containers` has each path's value so far."""
    array: list[Any] | None = None
    through: list[int] = []
    rests, values = list(paths), list(containers)
    for number, (path, container) in enumerate(zip(paths, containers)):
        if fixed[number] is not None:
            continue
        rest, value, is_whole = _advance(path, container)
        rests[number], values[number] = rest, value
        if is_whole or type(value) is not list:
            fixed = [*fixed]
            fixed[number] = NULL if value is MISSING else sort_key(value, collation)
            continue
        if array is not None and array is not value:
            raise CommandError(2, "cannot sort with keys that are parallel arrays")
        array = value
        through.append(number)
    if array is None:
        emit(fixed, values)
        return
    for item in array or [MISSING]:
        chosen, containers = [*fixed], [*values]
        for number in through:
            if rests[number]:
                containers[number] = item if type(item) is dict else {}
            else:
                containers[number] = item
                chosen[number] = sort_key(item, collation)  # for an empty array: MISSING, which sorts before null
        _expand_from(rests, containers, chosen, collation, emit)


def _advance(path: RemainingPath, container: Any) -> tuple[RemainingPath, Any, bool]:
    """Walk until the path ends or meets an array to expand. Return the rest of the path, the value there, and whether
    it is an array that counts as a whole: a number in the path has led to it, or to an array that holds it.

    Raises 16746 for a number that may mean an element or a field of the array's documents.
    """
    value, rest, is_nested = container, path, False
    while rest:
        if type(value) is dict:
            value, rest = value.get(rest[0], MISSING), rest[1:]
        elif type(value) is list:
            index = array_index(rest[0])
            if index is None or index >= len(value):
                return ((), MISSING, False) if is_nested else (rest, value, False)
            if any(type(item) is dict and rest[0] in item for item in value):
                raise CommandError(
                    16746,
                    "Ambiguous field name found in array (do not use numeric field names in embedded elements in an "
                    f"array), field: '{rest[0]}' for array: {to_string(dict(zip(map(str, count()), value)))}",
                )
            value, rest = value[index], rest[1:]
            is_nested = is_nested or type(value) is list
        else:
            return (), MISSING, False
    return (), value, is_nested and type(value) is list and bool(value)


def parse_sort(
    spec: dict[str, Any],
    collation: Collation | None = None,
    *,
    metadata: DocumentMetadata | None = None,
    natural: bool = True,
) -> SortKey:
    """Parse a sort specification. An empty one sorts nothing.

    Raises 13103 for too many paths, 15974 and 15975 for an invalid direction, 16410, 15998, 40352 and 40353 for bad
    names, 31138 and 40218 for `$meta`. `metadata`: the metadata of the documents, or None. `natural`: whether
    `$natural` is allowed, as in find.
    """
    if sum(type(direction) is not dict for direction in spec.values()) > limits.SORT_FIELD_COUNT_MAX:
        raise CommandError(13103, f"too many compound keys: the limit is {limits.SORT_FIELD_COUNT_MAX}")
    if natural and "$natural" in spec:
        return _parse_natural(spec, collation)
    paths = []
    for path, direction in spec.items():
        checked_path(path)
        if type(direction) is dict and set(direction) == {"$meta"}:
            paths.append((_metadata_path(direction["$meta"], metadata), True))
            continue
        paths.append((path, _is_descending(path, direction)))
    return SortKey(tuple(paths), collation)


def _parse_natural(spec: dict[str, Any], collation: Collation | None) -> SortKey:
    if len(spec) > 1:
        raise CommandError(2, "Cannot include '$natural' in compound sort")
    direction = spec["$natural"]
    if type(direction) not in (int, Int64, float, Decimal128) or number_key(direction) not in (1, -1):
        raise CommandError(2, "$natural sort cannot be set to a value other than -1 or 1.")
    return SortKey((), collation, natural=int(number_key(direction)))


_SORTED_METADATA: Final = frozenset(
    {"geoNearDistance", "randVal", "score", "searchScore", TEXT_SCORE, "vectorSearchScore"}
)


def _metadata_path(name: Any, metadata: DocumentMetadata | None) -> str:
    """The path to sort by metadata of documents, highest first."""
    if type(name) is not str or name not in _SORTED_METADATA:
        raise CommandError(31138, f"Illegal $meta sort: {to_string(name)}")
    source = None if metadata is None else metadata.source_of(name)
    if metadata is None or source is None:
        check_unavailable(name)
        return mark_of(name)
    metadata.is_read = True
    return mark_of(source)


def _is_descending(path: str, direction: Any) -> bool:
    if type(direction) is dict:
        if next(iter(direction), "") == "$meta":
            raise CommandError(9, "Cannot have additional keys in a $meta sort specification")
        raise CommandError(17312, "$meta is the only expression supported by $sort right now")
    if type(direction) not in (int, Int64, float, Decimal128):
        raise CommandError(15974, f"Illegal key in $sort specification: {path}: {to_string(direction)}")
    number = to_long(direction)  # 1.9 is 1
    if number not in (1, -1):
        raise CommandError(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
    return number == -1


# Many documents.


_INTEGERS: Final = frozenset({DatetimeMS, Int64, int})
_DATE_RANK: Final = RANKS[DatetimeMS]


class SortColumns:
    """Computes `SortKey.merge_key` for many raw documents at once. Only the fields in the sort are decoded."""

    __slots__ = ("_columns", "_is_plain", "_key", "_names", "_order")

    def __init__(self, order: SortKey) -> None:
        names = sorted(order.fields())
        self._order = order
        self._key: Callable[[dict[str, Any]], tuple[Any, ...]] = limited(order.merge_key)
        self._columns = Columns(names)
        self._is_plain = not any("." in path for path, _ in order.paths)

    def of(self, documents: Sequence[bytes]) -> Sequence[tuple[Any, ...]]:
        """The key of each document. Raises 2 if paths go through two arrays of a document."""
        if self._is_plain and (dates := self._columns.dates(documents)) is not None:
            return [((_DATE_RANK, date),) for date in dates]
        columns = self._columns.values(documents)
        kinds = {name: set(map(type, column)) for name, column in columns.items()}
        if self._is_plain and not any(list in found for found in kinds.values()):
            order = self._order
            keys = [_keys(columns[path], kinds[path], order.collation) for path, _ in order.paths]
            return order.merge_keys(keys) if keys else [()] * len(documents)
        names = list(columns)
        rows = zip(*columns.values())
        return [self._key({name: value for name, value in zip(names, row) if value is not MISSING}) for row in rows]


def _keys(column: Sequence[Any], kinds: set[type], collation: Any) -> list[Key]:
    """The ascending key of each value of a column without arrays."""
    if len(kinds) == 1:
        (kind,) = kinds
        rank = RANKS[kind]
        if kind in _INTEGERS:
            return [(rank, int(value)) for value in column]
        if kind is str and collation is None:
            return [(rank, value) for value in column]
    if Missing in kinds:
        return [NULL if value is MISSING else sort_key(value, collation) for value in column]
    return [sort_key(value, collation) for value in column]
