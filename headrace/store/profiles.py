"""The collections that the profiler fills: `DATABASE.system.profile`, capped, and without entries in the oplog.

As in MongoDB, each member of a set has its own. The profile has no events and no oplog entries, and is in no backup by
the oplog.
"""

from __future__ import annotations

from collections.abc import Sequence

from bson import Int64

from headrace import limits
from headrace.store import capped, catalog_changes
from headrace.store.change_log import NO_LOG
from headrace.store.write_transaction import WriteTransaction


def store_profiles(txn: WriteTransaction, documents: Sequence[tuple[str, bytes | None]]) -> None:
    """Insert each document into its collection, which is created if missing. None: insert no document."""
    unlogged = WriteTransaction(txn.store, txn.kv, catalog=txn.catalog, changes=NO_LOG)
    unlogged.count_changes = txn.count_changes
    for namespace, document in documents:
        collection = unlogged.collection(namespace)
        if collection is None:
            options = {"capped": True, "size": Int64(limits.PROFILE_BYTES)}
            collection = catalog_changes.create(unlogged, namespace, options)
        if document is not None and not collection.is_view:
            while not capped.measure_on(unlogged, collection):
                pass
            unlogged.insert(collection, document)
