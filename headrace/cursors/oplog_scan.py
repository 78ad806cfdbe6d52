"""The oplog and the pre-images read as collections: `local.oplog.rs`, `config.system.preimages`.

Scans hold their last key and fetch the current view, so that they can be tailed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.cursors.collection_scan import ChunkedScan, take_chunk
from headrace.store.view import View
from headrace.values.bson import decode, encode
from headrace.values.position import LAST, from_key, from_timestamp, to_timestamp


class OplogScan(ChunkedScan):
    """Raw entries from `first` to `last`, both inclusive."""

    __slots__ = ("_backward", "_first", "_last")

    def __init__(self, view: Callable[[], View], *, first: int = 0, last: int = LAST, backward: bool = False) -> None:
        super().__init__(view)
        self._first = first
        self._last = last
        self._backward = backward

    def _chunk(self) -> list[bytes] | None:
        walk = self._view().entries(self._first, self._last, backward=self._backward)
        chunk = take_chunk(walk, self._count)
        if not chunk:
            return None
        if self._backward:
            self._last = chunk[-1][0] - 1
        else:
            self._first = chunk[-1][0] + 1
        return [entry for _, entry in chunk]


def time_bounds(spec: dict[str, Any]) -> tuple[int, int]:
    """Return the first and last position that a filter's conditions on `ts` allow, so that the scan begins there."""
    condition = spec.get("ts")
    first, last = 0, LAST
    if type(condition) is Timestamp:
        return from_timestamp(condition), from_timestamp(condition)
    if type(condition) is not dict:
        return first, last
    for operator, value in condition.items():
        if type(value) is not Timestamp:
            continue
        position = from_timestamp(value)
        if operator in ("$gt", "$gte"):
            first = max(first, position + (operator == "$gt"))
        elif operator in ("$lt", "$lte"):
            last = min(last, position - (operator == "$lt"))
    return first, max(last, 0)


def pre_images(view: View) -> Iterator[bytes]:
    """Yield the documents of `config.system.preimages`, made from the images table."""
    with view.kv.cursor(view.tables["images"]) as cursor:
        for key, value in cursor.iternext(keys=True, values=True):
            yield encode({
                "_id": {
                    "nsUUID": Binary(key[:16], 4),
                    "ts": to_timestamp(from_key(key[16:24])),
                    "applyOpsIndex": Int64(int.from_bytes(key[24:28], "big")),
                },
                "operationTime": DatetimeMS(int.from_bytes(value[:8], "big", signed=True)),
                "preImage": decode(value[8:]),
            })  # fmt: skip
