"""Check of a data directory, from its file to its tables. Nothing is written, and no server may have it open.

    pages                `pages.py`
    every value          matches its checksum, and is BSON where it is a document
    catalog, topics      each number is given once, and is below the next one
    documents ↔ ids      the `_id` of each document leads to it, and the index has no other keys
    documents ↔ indexes  each index has the entries of the documents, no others, and knows their traits
    oplog ↔ runs         each entry holds the position that is its key, and only the runs of its namespaces lead to it;
                         so each topic has as many entries that name it as its runs lead to
    images → oplog       each image is of a change in the oplog

Each table is read in order, once or twice. A server relies on all of this when it reads the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import Timestamp
from bson.errors import BSONError

from headrace.errors import CommandError
from headrace.store.catalog import Catalog, Collection, load, rows_of
from headrace.store.check.pages import page_problems
from headrace.store.checksums.names import describe
from headrace.store.checksums.transaction import CHECKSUM_BYTES, CheckedTransaction, DamagedValue, is_intact
from headrace.store.checksums.upgrade import (
    FORMAT_KEY,
    FORMATS,
    PLAIN_KEYS,
    UPGRADE_KEY,
    WITHOUT_CHECKSUMS,
    IncompatibleFormat,
)
from headrace.store.data_file import DATA_FILE, DataFile, FileProblem, UnusableDirectory
from headrace.store.identity import identify
from headrace.store.indexes.index_entries import key_maker, stored_entries
from headrace.store.indexes.index_rows import RecentRows
from headrace.store.kv import Table, Transaction
from headrace.store.lmdb import TABLES, locked_for_reading, read_only
from headrace.store.view import bounded_key
from headrace.values.bson import decode
from headrace.values.position import from_key, from_timestamp, to_key


class Rows:
    """A plain transaction on a data directory, and the problems found in it."""

    def __init__(
        self, kv: Transaction, tables: dict[str, Table], *, checksums: bool, advance: Callable[[str, int, int], object]
    ) -> None:
        self._kv = kv
        self._tables = tables
        self._checksums = checksums
        self._advance = advance
        self._row_count = sum(kv.stat(table)["entries"] for table in tables.values())
        self._seen_count = 0
        self.catalog = Catalog()
        """Empty until `load_catalog`."""
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        """The number of rows in each table that was walked."""

    def load_catalog(self, kv: Transaction) -> None:
        """Read the catalog through `kv`. Raises an error if it cannot be read."""
        self.catalog = load(rows_of(kv, self._tables))

    def name(self, table: str, key: bytes) -> str:
        """Return a description of the thing stored under a key."""
        return describe(self.catalog, table, key)

    def walk(self, table: str, first: bytes = b"", last: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the rows whose values match their checksums; report the other rows as problems.

        The walk is from `first` to `last`, both inclusive. A walk through a whole table counts its rows.
        """
        with self._kv.cursor(self._tables[table]) as cursor:
            if not (cursor.set_range(first) if first else cursor.first()):
                return
            for key, stored in cursor.iternext():
                if last is not None and key > last:
                    return
                if not first:
                    self.counts[table] += 1
                    self._seen_count += 1
                    self._advance("rows", self._seen_count, self._row_count)
                if not self._checksums or (table == "meta" and key in PLAIN_KEYS):
                    yield key, stored
                elif is_intact(key, stored):
                    yield key, stored[:-CHECKSUM_BYTES]
                elif not first:
                    self.problems.append(f"{self.name(table, key)} does not match its checksum")

    def keys(self, table: str, first: bytes, last: bytes) -> Iterator[bytes]:
        """Yield the keys from `first` to `last`, both inclusive."""
        with self._kv.cursor(self._tables[table]) as cursor:
            if not cursor.set_range(first):
                return
            for key in cursor.iternext(keys=True, values=False):
                if key > last:
                    return
                yield key

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row whose key is `key` or less; a damaged value is returned unchanged."""
        with self._kv.cursor(self._tables[table]) as cursor:
            moved = cursor.set_range(key)
            if not (cursor.last() if not moved else cursor.key() == key or cursor.prev()):
                return None
            at, stored = cursor.item()
            return at, stored[:-CHECKSUM_BYTES] if self._checksums else stored

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a value, intact or not; None if the key does not exist."""
        stored = self._kv.get(key, db=self._tables[table])
        return stored if stored is None or not self._checksums else stored[:-CHECKSUM_BYTES]

    def document(self, table: str, key: bytes, value: bytes) -> dict[str, Any] | None:
        """Return a BSON value decoded, or report a problem and return None."""
        try:
            return decode(value)
        except BSONError:
            self.problems.append(f"{self.name(table, key)} is not BSON")
            return None


_NONE: Final = Timestamp(0, 0)
_VIEWS: Final = ".system.views"


def check_history(rows: Rows) -> None:
    """Add faults of the oplog, its index and the images to `rows.problems`."""
    expected, unknown = _check_entries(rows)
    reached = _check_runs(rows, unknown)
    names = {number: name for name, number in rows.catalog.topics.items()}
    for topic in sorted(reached.keys() | expected.keys()):
        if reached[topic] > expected[topic] and not rows.problems:
            name = names.get(topic, f"topic {topic}")
            rows.problems.append(f"the oplog's index of {name} leads to entries of other namespaces")
    _check_images(rows)


def _check_entries(rows: Rows) -> tuple[Counter[int], set[bytes]]:
    """Count the entries of each topic. Return also the keys of the last entries of chains whose first entries are
    pruned: the namespaces under which the index has such an entry are unknown."""
    topics = rows.catalog.topics
    counts: Counter[int] = Counter()
    chains, unknown = _Chains(), set()
    last_runs: dict[int, tuple[int, int]] = {}
    pruned = rows.get("meta", b"pruned")
    for key, value in rows.walk("oplog"):
        entry = rows.document("oplog", key, value)
        if entry is None:
            continue
        position = from_key(key)
        if type(entry.get("ts")) is not Timestamp or from_timestamp(entry["ts"]) != position:
            rows.problems.append(f"{rows.name('oplog', key)} has another time in itself")
            continue
        if pruned is not None and key <= pruned:
            rows.problems.append(f"{rows.name('oplog', key)} is there, though history before {pruned.hex()} is removed")
        if entry["o"].get("partialTxn"):
            chains.add(entry)
            continue
        names = chains.names(entry)
        if names is None:
            unknown.add(key)
            names = _namespaces(entry)
        for name in names:
            topic = topics.get(name)
            if topic is None or not _is_covered(rows, topic, position, last_runs):
                rows.problems.append(f"the oplog's index of {name} does not lead to {rows.name('oplog', key)}")
            elif key not in unknown:
                counts[topic] += 1
    return counts, unknown


class _Chains:
    """The namespaces of interleaved transaction chains, by the time of each chain's last entry."""

    def __init__(self) -> None:
        self._names: dict[Timestamp, dict[str, None]] = {_NONE: {}}

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry to its chain. The chain of an interrupted commit remains."""
        names = self.names(entry)
        if names is not None:
            self._names[entry["ts"]] = dict.fromkeys(names)

    def names(self, entry: dict[str, Any]) -> list[str] | None:
        """Return the namespaces of an entry and of its chain so far; None if earlier entries of the chain are
        pruned."""
        own = _namespaces(entry)
        before = entry.get("prevOpTime", {}).get("ts", _NONE) if "applyOps" in entry["o"] else _NONE
        if before not in self._names:
            return None
        return list(dict.fromkeys([*(self._names[before] if before == _NONE else self._names.pop(before)), *own]))


def _namespaces(entry: dict[str, Any]) -> list[str]:
    """Return the names under which the oplog's index has an entry."""
    operation, namespace, o = entry.get("op"), str(entry.get("ns")), entry["o"]
    if operation == "n":
        return []
    database = namespace.partition(".")[0]
    if operation != "c":
        return [namespace, f"{database}.$cmd"] if namespace.endswith(_VIEWS) else [namespace]
    if "applyOps" in o:
        return list(dict.fromkeys(str(item["ns"]) for item in o["applyOps"]))
    if "renameCollection" in o:
        return list(dict.fromkeys([namespace, f"{str(o['to']).partition('.')[0]}.$cmd"]))
    return [namespace]


def _is_covered(rows: Rows, topic: int, position: int, last_runs: dict[int, tuple[int, int]]) -> bool:
    """Return whether a run of the topic holds the position. `last_runs`: the topic's last run that held a position."""
    first, last = last_runs.get(topic, (0, -1))
    if first <= position <= last:
        return True
    prefix = topic.to_bytes(4, "big")
    row = rows.last_before("runs", prefix + to_key(position))
    if row is None or row[0][:4] != prefix or from_key(row[1]) < position:
        return False
    last_runs[topic] = from_key(row[0][4:]), from_key(row[1])
    return True


def _check_runs(rows: Rows, unknown: set[bytes]) -> Counter[int]:
    """Count the entries that the runs of each topic lead to, without the `unknown` keys."""
    topics = set(rows.catalog.topics.values())
    reached: Counter[int] = Counter()
    before = (0, -1)
    for key, value in rows.walk("runs"):
        topic, first, last = int.from_bytes(key[:4], "big"), from_key(key[4:]), from_key(value)
        if topic not in topics or last < first or (before[0] == topic and first <= before[1]):
            rows.problems.append(f"{rows.name('runs', key)} is no run that follows the one before it")
        before = topic, last
        reached[topic] += sum(key not in unknown for key in rows.keys("oplog", to_key(first), to_key(last)))
    return reached


def _check_images(rows: Rows) -> None:
    oldest = next(iter(rows.keys("oplog", b"\0", b"\xff" * 8)), None)
    for key, value in rows.walk("images"):
        rows.document("images", key, value[8:])
        position = key[16:24]
        if oldest is not None and position >= oldest and rows.get("oplog", position) is None:
            rows.problems.append(f"{rows.name('images', key)} is of a change that is not in the oplog")


_GARBAGE: Final = b"garbage"


def check_tables(rows: Rows, kv: Transaction) -> None:
    """Add faults of the tables to `rows.problems`. The catalog is read through `kv`."""
    try:
        rows.load_catalog(kv)
    except (DamagedValue, BSONError, KeyError, TypeError, ValueError) as error:
        what = error.message if isinstance(error, DamagedValue) else f"it cannot be read: {error!r}"
        rows.problems.append(f"the catalog: {what}; nothing else can be checked without it")
        return
    _check_numbers(rows)
    _check_documents(rows)
    _check_ids(rows)
    _check_indexes(rows)
    check_history(rows)
    for table in ("meta", "topics"):
        for _ in rows.walk(table):
            pass
    for table in ("catalog", "sessions"):
        for key, value in rows.walk(table):
            rows.document(table, key, value)


def _check_numbers(rows: Rows) -> None:
    given: Counter[int] = Counter(rows.catalog.topics.values())
    for collection in rows.catalog.collections.values():
        given[collection.number] += 1
        given.update(index.number for index in collection.indexes)
    rows.problems += [
        f"the catalog gives number {number} {count} times" for number, count in given.items() if count > 1
    ]
    following = rows.get("meta", b"next-number")
    if given and (following is None or int.from_bytes(following, "big") <= max(given)):
        rows.problems.append("the catalog's next number is one that it has given already")


def _dropped(rows: Rows) -> set[bytes]:
    """Return the numbers of dropped collections and indexes whose rows have not been removed yet."""
    return {key[len(_GARBAGE) :] for key, _ in rows.walk("meta", _GARBAGE, _GARBAGE + b"\xff" * 4)}


def _collections(rows: Rows) -> dict[bytes, Collection | None]:
    """Return collections by the first bytes of their keys; None for a dropped collection that still has rows."""
    known: dict[bytes, Collection | None] = dict.fromkeys(_dropped(rows))
    known.update({item.number_key: item for item in rows.catalog.collections.values() if not item.is_view})
    return known


def _check_documents(rows: Rows) -> None:
    collections = _collections(rows)
    for key, value in rows.walk("documents"):
        if key[:4] not in collections:
            rows.problems.append(f"{rows.name('documents', key)} belongs to no collection")
            continue
        collection = collections[key[:4]]
        if collection is None:
            continue
        document = rows.document("documents", key, value)
        if document is None:
            continue
        if value[5:9] != b"_id\0":
            rows.problems.append(f"{rows.name('documents', key)} does not begin with its _id")
            continue
        if rows.get("ids", bounded_key(key[:4], identify(value)[0])) != key[4:]:
            rows.problems.append(f"the _id of {rows.name('documents', key)} does not lead to it")
        for index in collection.maintained:
            if index.building:
                continue
            with suppress(CommandError):  # the index refuses this document today
                entries = stored_entries(index, key[4:], value)
                if any(rows.get("indexes", row) != stored for row, stored in entries.items()):
                    rows.problems.append(f"the index {index.name} does not lead to {rows.name('documents', key)}")
                if not key_maker(index).keys(value)[1] <= index.traits:
                    rows.problems.append(f"the index {index.name} does not know what {rows.name('documents', key)} has")


def _check_ids(rows: Rows) -> None:
    collections = _collections(rows)
    for key, record in rows.walk("ids"):
        if key[:4] not in collections:
            rows.problems.append(f"{rows.name('ids', key)} belongs to no collection")
        elif collections[key[:4]] is None:
            continue
        elif (document := rows.get("documents", key[:4] + record)) is None:
            rows.problems.append(f"{rows.name('ids', key)} leads to no document")
        else:
            with suppress(BSONError, IndexError, CommandError):  # a damaged document has been reported already
                if bounded_key(key[:4], identify(document)[0]) != key:
                    rows.problems.append(f"{rows.name('ids', key)} leads to a document with another _id")


def _check_indexes(rows: Rows) -> None:
    owners = {
        index.number.to_bytes(4, "big"): (item, index)
        for item in rows.catalog.collections.values()
        for index in [*item.indexes, *(index for index in item.maintained if index.building)]
    }
    dropped, recent = _dropped(rows), RecentRows()
    last: tuple[bytes, bytes | None] = b"", None
    for key, value in rows.walk("indexes"):
        if key[:4] in dropped:
            continue
        if key[:4] not in owners:
            rows.problems.append(f"{rows.name('indexes', key)} belongs to no index")
            continue
        collection, index = owners[key[:4]]
        if not index.has_entries:  # entries of an earlier version
            continue
        record = value if index.unique else key[-8:]
        at = collection.number_key + record
        if at != last[0]:  # the keys of a long document are mostly adjacent
            last = at, rows.get("documents", at)
        document = last[1]
        if document is None:
            rows.problems.append(f"{rows.name('indexes', key)} leads to no document")
            continue
        with suppress(BSONError, CommandError):  # a damaged document has been reported already
            if recent.expected(index, record, document).get(key) != value:
                rows.problems.append(f"{rows.name('indexes', key)} leads to a document with another key")


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check."""

    problems: list[str]
    collections: int
    rows: dict[str, int]
    """The number of rows in each table that was walked."""
    has_checksums: bool


Advance = Callable[[str, int, int], object]
"""Called with "pages" or "rows", the number checked so far, and the approximate total."""


def check(path: Path, advance: Advance = lambda what, done, total: None) -> Report:
    """Check a directory; `advance` is called for each page and each row.

    Raises `DirectoryInUse`; `UnusableDirectory` if there is nothing that can be checked.
    """
    file = path / DATA_FILE
    if not file.is_file() or file.stat().st_size == 0:
        raise UnusableDirectory(f"{path} has no data file of Headrace")
    with locked_for_reading(path):
        problems = _page_problems(file, advance)
        if problems:
            return Report(problems, 0, {}, has_checksums=False)
        return _check_tables(path, advance)


def _page_problems(file: Path, advance: Advance) -> list[str]:
    with file.open("rb") as opened:
        try:
            return list(page_problems(DataFile(opened.fileno(), file.stat().st_size), advance))
        except FileProblem as problem:
            raise UnusableDirectory(f"{file} {problem}") from None


def _check_tables(path: Path, advance: Advance) -> Report:
    with read_only(path) as (kv, tables):
        if set(tables) & set(TABLES) and set(tables) != set(TABLES):
            missing, others = sorted(set(TABLES) - set(tables)), sorted(set(tables) - set(TABLES))
            return Report(
                [f"tables are missing: {missing}; unknown ones are there: {others}"], 0, {}, has_checksums=False
            )
        if set(tables) != set(TABLES):
            raise UnusableDirectory(f"{path / DATA_FILE} is an LMDB file of another program")
        version = kv.get(FORMAT_KEY, db=tables["meta"])
        if version not in FORMATS:
            raise IncompatibleFormat(f"{path} has format {(version or b'none').decode(errors='replace')}")
        if kv.get(UPGRADE_KEY, db=tables["meta"]) is not None:
            raise UnusableDirectory(f"the conversion of {path} was cut off: start its server once, which completes it")
        has_checksums = version != WITHOUT_CHECKSUMS
        rows = Rows(kv, tables, checksums=has_checksums, advance=advance)
        names = {table: name for name, table in tables.items()}
        values = CheckedTransaction(kv, lambda table, key: rows.name(names[table], key)) if has_checksums else kv
        check_tables(rows, values)
        return Report(rows.problems, len(rows.catalog.collections), dict(rows.counts), has_checksums=has_checksums)
