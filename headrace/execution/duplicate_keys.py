"""The documents that prevent an index from becoming unique, because they share a key.

Truncated keys do not show whether their values are equal. The build of the unique index detects these.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace import limits
from headrace.dispatch.context import CommandContext
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import CUT_BYTES
from headrace.store.view import LEFT_OUT
from headrace.values.bson import decode


def duplicates(context: CommandContext, collection: Collection, index: Index) -> list[dict[str, Any]]:
    """Return `{ids: [...]}` for each key that several documents share, up to a limit. Read the index in pieces."""
    number = index.number.to_bytes(4, "big")
    low, high = number + b"\x01", number + b"\xff"
    groups: list[list[bytes]] = []
    last = b""
    while True:
        piece = list(islice(context.view.index_keys(index, low, high), limits.VIEW_CHUNK_COUNT))
        if not piece or len(groups) > limits.VIOLATION_COUNT_MAX:
            break
        for key, record in piece:
            if record is LEFT_OUT:
                continue
            if key[:-8] == last[:-8] and len(key) < CUT_BYTES + 12:
                if groups and groups[-1][-1] == last[-8:]:
                    groups[-1].append(key[-8:])
                else:
                    groups.append([last[-8:], key[-8:]])
            last = key
        low = piece[-1][0] + b"\0"
        context.tick()
    shown = []
    for records in groups:
        documents = [context.view.by_record(collection, record) for record in records]
        shown.append({"ids": [decode(document)["_id"] for document in documents if document is not None]})
    return shown
