"""Consistency of a data directory's tables, which a server relies on when it reads them.

    every value          matches its checksum, and is BSON where it is a document
    catalog, topics      each number is given once, and is below the next one
    documents ↔ ids      the `_id` of each document leads to it, and the index has no other keys
    documents ↔ indexes  each index has the entries of the documents, no others, and knows their traits
    oplog ↔ runs, images: see `history.py`

Each table is read in order, once or twice, and nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

from bson.errors import BSONError

from headrace.errors import CommandError
from headrace.store.catalog import Collection
from headrace.store.check.history import check_history
from headrace.store.check.rows import Rows
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.identity import identify
from headrace.store.indexes.index_entries import key_maker, stored_entries
from headrace.store.indexes.index_rows import RecentRows
from headrace.store.kv import Transaction
from headrace.store.view import bounded_key

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
