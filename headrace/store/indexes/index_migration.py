"""Entries for the indexes of a data directory that a version wrote in which only unique ones had any.

Each index gets its entries under a new number, piece by piece, and takes that number in the transaction that adds the
last of them; what a crash cuts short begins again. An index that cannot hold a document which is there stays as it
is: listed, and not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index, can_have_entries
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.indexes import index_entries
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.store import Store

LOG = logging.getLogger("headrace.store")
_PROGRESS_COUNT: Final = 1_000_000


def migrate(store: Store) -> None:
    """Give every index its entries that has none yet; says in the log what that is, and which kinds have none."""
    for namespace in list(store.catalog.collections):
        collection = store.catalog.collections[namespace]
        for index in collection.indexes:
            if index.has_entries:
                continue
            if can_have_entries(index.spec):
                _give_entries(store, namespace, index)
            elif not index.is_of_id:
                LOG.warning(
                    "the index %s of %s is of a kind that is not supported: it is not used", index.name, namespace
                )


def _give_entries(store: Store, namespace: str, index: Index) -> None:
    """Build the index under a new number."""
    LOG.warning(
        "the index %s of %s is built: an earlier version did not store its keys, or stored others",
        index.name,
        namespace,
    )
    made: list[Index] = []
    _commit(store, lambda txn: made.append(_begin(txn, index)))
    built = made[-1]
    try:
        after: bytes | None = b""
        count = 0
        while after is not None:
            last: list[tuple[bytes | None, int, Index]] = []
            _commit(
                store,
                lambda txn, after=after, last=last, built=built: last.append(  # type: ignore[misc]
                    _fill(txn, namespace, built, after)
                ),
            )
            after, added, built = last[-1]
            count += added
            if added and count % _PROGRESS_COUNT < added:
                LOG.warning("the index %s of %s: %d documents so far", index.name, namespace, count)
        _commit(store, lambda txn: _replace(txn, namespace, built))
    except DamagedValue:
        raise
    except CommandError as error:
        LOG.warning("the index %s of %s is not used: %s", index.name, namespace, error.message)


def _commit(store: Store, change: Callable[[WriteTransaction], object]) -> None:
    """Run a change in a transaction of its own."""
    txn = store.begin()
    try:
        change(txn)
    except BaseException:
        store.abandon(txn)
        raise
    store.commit(txn)


def _begin(txn: WriteTransaction, index: Index) -> Index:
    """The index under a new number, which is garbage until the index is complete."""
    built = Index(txn.catalog.new_number(txn.kv), index.spec)
    catalog_changes.discard_index(txn, built)
    return built


def _fill(txn: WriteTransaction, namespace: str, built: Index, after: bytes) -> tuple[bytes | None, int, Index]:
    """Add the entries of some documents past the record `after`; return (the last of them, None if there is none,
    their number, the index with their traits)."""
    collection = txn.catalog.collections[namespace]
    piece, size = [], 0
    for record, document in islice(txn.scan(collection, after=after or None), limits.CONVERT_COUNT):
        piece.append((record, document))
        size += len(document)
        if size >= limits.CONVERT_BYTES:
            break
    built = index_entries.add(txn, collection, built, piece)
    return (piece[-1][0] if piece else None), len(piece), built


def _replace(txn: WriteTransaction, namespace: str, built: Index) -> None:
    """The index takes the number under which its entries are."""
    collection: Collection = txn.catalog.collections[namespace]
    old = next(index for index in collection.indexes if index.name == built.name)
    catalog_changes.discard_index(txn, old)
    catalog_changes.retain_index(txn, built)
    indexes = tuple(built if index is old else index for index in collection.indexes)
    txn.catalog.save(txn.kv, collection.changed(indexes=indexes))
