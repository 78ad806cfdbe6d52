"""The distinct values of a field by an index, or a document of each: from one value to the next, without those between.

Rule: only through an index whose bounds say all that the filter does, and that has met no array. A value that the key
alone does not tell (a number, null) is read from the document of its first key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.cursors.index_scan import check_index, plan_summary
from headrace.dispatch.context import CommandContext
from headrace.execution.planner.index_access import IndexAccess
from headrace.execution.planner.key_values import key_values
from headrace.store.catalog import Collection
from headrace.store.indexes.index_keys import INVERTED, descends
from headrace.store.view import View
from headrace.turns import examined, tick
from headrace.values.bson import MISSING, decode
from headrace.values.keystring import encode_value
from headrace.values.paths import get_path, split_path


def distinct_values(context: CommandContext, collection: Collection, access: IndexAccess, path: str) -> Iterator[Any]:
    """The values at a path of the index, in its order, each once; none for documents without one."""
    walk = _ValueWalk(access, path)
    for view, key, record in walk.keys(context, collection):
        values = key_values(key, walk.descending)
        if values is not None:
            value = values[-1]
        else:
            value = get_path(decode(view.fetch(collection, access.index, record)), walk.path)
        walk.low = key + b"\0" if value is MISSING else walk.behind(key, value)
        if value is not MISSING:
            yield value


def distinct_documents(
    context: CommandContext, collection: Collection, access: IndexAccess, path: str
) -> Iterator[bytes]:  # fmt: skip
    """The first raw document of each value at a path of the index; a missing one and null are one value."""
    walk = _ValueWalk(access, path)
    for view, key, record in walk.keys(context, collection):
        raw = view.fetch(collection, access.index, record)
        value = get_path(decode(raw), walk.path)
        walk.low = walk.behind(key, None if value is MISSING else value)
        yield raw


class _ValueWalk:
    """A walk from key to key; whoever takes one says in `low` where the next may be."""

    def __init__(self, access: IndexAccess, path: str) -> None:
        self._access = access
        pattern = access.index.spec["key"]
        position = list(pattern).index(path)
        self.path = split_path(path)
        self.descending = [descends(kind) for kind in pattern.values()][: position + 1]
        fixed = [
            intervals[0].piece(down) for intervals, down in zip(access.bounds[:position], self.descending) if intervals
        ]
        self._prefix = access.index.number.to_bytes(4, "big") + b"".join(fixed)
        self.low = b""

    def keys(self, context: CommandContext, collection: Collection) -> Iterator[tuple[View, bytes, bytes]]:
        """(view, key, record) of the first key from `low` on, again and again."""
        index = self._access.index
        for low, high in self._access.ranges:
            self.low = low
            while True:
                view = context.view
                check_index(view, collection, index)
                first = next(view.index_keys(index, self.low, high), None)
                if first is None:
                    break
                examined(plan_summary("DISTINCT_SCAN", index), 0, 1)
                yield view, *first
                tick()

    def behind(self, key: bytes, value: Any) -> bytes:
        """Where the keys of the next value begin."""
        piece = encode_value(value)
        same = self._prefix + (piece.translate(INVERTED) if self.descending[-1] else piece)
        return same + b"\xff" if key.startswith(same) else key + b"\0"
