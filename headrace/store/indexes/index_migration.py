"""Index entries for a data directory of an earlier version, which stored only unique indexes, or other keys.

Each index is rebuilt in place (`index_builds.py`) before the directory is used. After a crash the next start continues.
An index that cannot hold a stored document is listed but not used.
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
"""The number of build pieces in one transaction. No client waits meanwhile."""
Result = TypeVar("Result")


def migrate(store: Store) -> None:
    """Build the entries of every index that has none yet. Log each rebuild, and each index of an unsupported kind."""
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
