"""Pre-images: documents as they were before a change, stored for collections that enable them.

    images   collection UUID (16) + position (8) + index in a transaction (4)   → wall ms (8, signed) + document

An image lives as long as its oplog entry, or for `expireAfterSeconds` if that is shorter. Source: MongoDB's
`config.system.preimages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.store.catalog import Collection
from headrace.store.view import View

if TYPE_CHECKING:
    from headrace.store.write_transaction import WriteTransaction


def _key(uuid: bytes, position: int, index: int) -> bytes:
    return uuid + position.to_bytes(8, "big") + index.to_bytes(4, "big")


def put(txn: WriteTransaction, collection: Collection, position: int, index: int, wall_ms: int, old: bytes) -> None:
    """Store `old`, the document before the change logged at `position` (and `index` inside its transaction)."""
    assert collection.uuid is not None
    value = wall_ms.to_bytes(8, "big", signed=True) + old
    txn.kv.put(_key(collection.uuid, position, index), value, db=txn.tables["images"])


def get(view: View, uuid: bytes, position: int, index: int) -> bytes | None:
    """Return the document before that change; None if no image was stored or the image has expired."""
    value = view.kv.get(_key(uuid, position, index), db=view.tables["images"])
    return None if value is None else value[8:]
