"""The oplog and the pre-images read as if they were collections: `local.oplog.rs`, `config.system.preimages`.

Scans hold the last key they returned and ask for the current view, so that they can be tailed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.store.view import View
from headrace.values.bson import decode, encode
from headrace.values.position import LAST, from_key, from_timestamp, to_timestamp


class OplogScan:
    """An iterator of raw entries from `first` to `last`, both inclusive; a tailing one goes on after its end."""

    __slots__ = ("_backward", "_buffer", "_first", "_last", "_view")

    def __init__(self, view: Callable[[], View], *, first: int = 0, last: int = LAST, backward: bool = False) -> None:
        self._view = view
        self._first = first
        self._last = last
        self._backward = backward
        self._buffer: Iterator[bytes] = iter(())

    def __iter__(self) -> OplogScan:
        return self

    @property
    def next_position(self) -> int:
        """The position a tailing scan reads next, inclusive."""
        return self._first

    def __next__(self) -> bytes:
        for entry in self._buffer:
            return entry
        walk = self._view().entries(self._first, self._last, backward=self._backward)
        chunk = list(islice(walk, limits.VIEW_CHUNK_COUNT))
        if not chunk:
            raise StopIteration
        if self._backward:
            self._last = chunk[-1][0] - 1
        else:
            self._first = chunk[-1][0] + 1
        self._buffer = iter([entry for _, entry in chunk])
        return next(self._buffer)


def time_bounds(spec: dict[str, Any]) -> tuple[int, int]:
    """First and last position that a filter's conditions on `ts` leave, so that the scan begins there."""
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
    """The documents of `config.system.preimages`, made from the images table."""
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
