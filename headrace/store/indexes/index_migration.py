"""Entries for the indexes of a data directory that a version wrote in which only unique ones had any, or other keys.

Each index is built anew in its own place (`index_builds.py`) before the directory is used; what a crash cuts short goes
on at the next start. An index that cannot hold a document which is there stays as it is: listed, and not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.store.catalog import Collection, Index, can_have_entries
from headrace.store.indexes import index_builds
from headrace.store.write_transaction import WriteTransaction

if TYPE_CHECKING:
    from headrace.store.store import Store

LOG = logging.getLogger("headrace.store")
_PIECE_COUNT: Final = 100
"""Pieces of a build in one transaction: no client waits."""
Result = TypeVar("Result")


def migrate(store: Store) -> None:
    """Give every index its entries that has none yet; says in the log what that is, and which kinds have none."""
    for collection in list(store.catalog.collections.values()):
        for index in collection.indexes:
            if index.has_entries:
                continue
            if can_have_entries(index.spec):
                _rebuild(store, collection, index)
            elif not index.is_of_id:
                LOG.warning(
                    "the index %s of %s is of a kind that is not supported: it is not used",
                    index.name,
                    collection.namespace,
                )


def _rebuild(store: Store, collection: Collection, index: Index) -> None:
    LOG.warning(
        "the index %s of %s is built: an earlier version did not store its keys, or stored others",
        index.name,
        collection.namespace,
    )
    begun = [build.uuid for build in store.catalog.builds_on(collection) if build.indexes[0].name == index.name]
    if not begun:
        begun = [_committed(store, lambda txn: index_builds.begin(txn, collection, [index.spec])).uuid]
    while _committed(store, lambda txn: all(index_builds.resume(txn, begun[0]) for _ in range(_PIECE_COUNT))):
        pass


def _committed(store: Store, change: Callable[[WriteTransaction], Result]) -> Result:
    """Run a change in a transaction of its own; return its result."""
    txn = store.begin()
    try:
        result = change(txn)
    except BaseException:
        store.abandon(txn)
        raise
    store.commit(txn)
    return result
