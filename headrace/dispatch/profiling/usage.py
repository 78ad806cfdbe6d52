"""How often commands have used each collection, and how long they took, for `top` and `$collStats`.

    engine.usage.note(kind, request, seconds)       a command was answered
    engine.usage.note_key(key, seconds)             a command was answered without reading its request

The time is the running time of the command. It includes the turns of others during a pause, but not waits for events,
for a lock or for the group commit. The numbers are lost when the server stops, and when a collection is dropped or
renamed. Source: MongoDB's manual, `top` and `$collStats`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import add
from typing import Any, Final

from bson import Int64

from headrace import limits
from headrace.dispatch.request import Request

QUERIES, GET_MORE, INSERT, UPDATE, REMOVE, READ, WRITE, CATALOG = range(1, 9)

KINDS: Final = {
    "aggregate": READ,
    "collMod": CATALOG,
    "count": READ,
    "create": CATALOG,
    "createIndexes": CATALOG,
    "delete": REMOVE,
    "distinct": READ,
    "drop": CATALOG,
    "dropIndexes": CATALOG,
    "find": QUERIES,
    "findAndModify": WRITE,
    "getMore": GET_MORE,
    "insert": INSERT,
    "listIndexes": READ,
    "update": UPDATE,
    "validate": READ,
}
"""The kinds under which commands about one collection are counted."""
_EVENTS: Final = (
    ("queries", (QUERIES,)), ("getmore", (GET_MORE,)), ("insert", (INSERT,)), ("update", (UPDATE,)),
    ("remove", (REMOVE,)), ("commands", (READ, WRITE, CATALOG)),
)  # fmt: skip
_READS: Final = (QUERIES, GET_MORE, READ)
_LOCKS: Final = {
    "total": (*_READS, INSERT, UPDATE, REMOVE, WRITE, CATALOG),
    "readLock": _READS,
    "writeLock": (INSERT, UPDATE, REMOVE, WRITE, CATALOG),
}
_LATENCIES: Final = {"reads": _READS, "writes": (INSERT, UPDATE, REMOVE, WRITE), "commands": (CATALOG,)}
_MICROS: Final = (
    0, *(1 << power for power in range(1, 11)),
    *(micros for power in range(11, 21) for micros in (1 << power, 3 << power - 1)),
    *(1 << power for power in range(21, 41)),
)  # fmt: skip
"""The lower bound of each range: powers of two, with one step in between from 2048 µs to a second."""
_SECONDS: Final = [micros / 1e6 for micros in _MICROS]

Key = tuple[int, str, Any]
"""A kind, a database and a collection."""


class _Sum:
    """The usage of one kind in one collection: total time, count, and counts by range of times."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.counts = [0] * len(_SECONDS)


class Usage:
    """The usage of all collections of one server."""

    def __init__(self, exists: Callable[[str], bool]) -> None:
        """`exists`: whether a collection with this namespace exists."""
        self._exists = exists
        self._sums: dict[Key, _Sum] = {}

    def note(self, kind: int, request: Request, seconds: float) -> None:
        """Count a command of a kind, which took `seconds`."""
        name = request.body.get("collection" if kind == GET_MORE else request.name)
        if type(name) is str:  # else an aggregation without a collection, or a refused name
            self.note_key((kind, request.db, name), seconds)

    def note_key(self, key: Key, seconds: float) -> None:
        """Count a command of a kind on a collection, (kind, database, name), which took `seconds`."""
        used = self._sums.get(key) or self._new_sum(key)
        used.seconds += seconds
        used.counts[bisect_right(_SECONDS, seconds) - 1] += 1

    def _new_sum(self, key: Key) -> _Sum:
        if len(self._sums) >= limits.USAGE_COUNT_MAX:
            self._forget_some()
        made = self._sums[key] = _Sum()
        return made

    def _forget_some(self) -> None:
        """Forget the numbers of dropped collections; if these are few, also the older half of the others."""
        left = [key for key in self._sums if self._exists(f"{key[1]}.{key[2]}")]
        if len(left) > limits.USAGE_COUNT_MAX // 2:
            left = left[len(left) // 2 :]
        self._sums = {key: self._sums[key] for key in left}

    def forget(self, namespace: str) -> None:
        """Forget the numbers of a collection that was dropped or renamed."""
        database, _, name = namespace.partition(".")
        for kind in KINDS.values():
            self._sums.pop((kind, database, name), None)

    def totals(self) -> dict[str, Any]:
        """Return the times and counts that `top` shows, by namespace; times in microseconds."""
        names = sorted({f"{database}.{name}" for _, database, name in self._sums})
        return {name: self._total(name) for name in names}

    def _total(self, namespace: str) -> dict[str, Any]:
        fields = {}
        for field, kinds in (*_LOCKS.items(), *_EVENTS):
            micros, counts = self._sum_of(namespace, kinds)
            fields[field] = {"time": Int64(micros), "count": Int64(sum(counts))}
        return fields

    def _sum_of(self, namespace: str, kinds: tuple[int, ...]) -> tuple[int, list[int]]:
        """Return (microseconds, the count of each range) of several kinds."""
        database, _, name = namespace.partition(".")
        micros, counts = 0, [0] * len(_SECONDS)
        for kind in kinds:
            if (found := self._sums.get((kind, database, name))) is not None:
                micros += int(found.seconds * 1e6)
                counts = list(map(add, counts, found.counts))
        return micros, counts

    def latencies(self, namespace: str, *, histograms: bool) -> dict[str, Any]:
        """Return the `latencyStats` of `$collStats`. Transactions are not counted by collection, as in MongoDB."""
        shown = {}
        for field, kinds in (*_LATENCIES.items(), ("transactions", ())):
            micros, counts = self._sum_of(namespace, kinds)
            latency: dict[str, Any] = {}
            if histograms:
                latency["histogram"] = [
                    {"micros": Int64(least), "count": Int64(count)} for least, count in zip(_MICROS, counts) if count
                ]
            latency["latency"] = Int64(micros)
            latency["ops"] = Int64(sum(counts))
            shown[field] = latency
        return shown
