"""Checks of the oplog against its index, and of the images against the oplog.

Each entry holds the position that is its key, and only the runs of its namespaces lead to it. So each topic has as many
entries that name it as its runs lead to.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from bson import Timestamp

from headrace.store.check.rows import Rows
from headrace.values.position import from_key, from_timestamp, to_key

_NONE: Final = Timestamp(0, 0)
_VIEWS: Final = ".system.views"


def check_history(rows: Rows) -> None:
    """Add faults of the oplog, its index and the images to `rows.problems`."""
    expected, unknown = _check_entries(rows)
    reached = _check_runs(rows, unknown)
    names = {number: name for name, number in rows.catalog.topics.items()}
    for topic in sorted(reached.keys() | expected.keys()):
        if reached[topic] > expected[topic] and not rows.problems:
            name = names.get(topic, f"topic {topic}")
            rows.problems.append(f"the oplog's index of {name} leads to entries of other namespaces")
    _check_images(rows)


def _check_entries(rows: Rows) -> tuple[Counter[int], set[bytes]]:
    """Count the entries of each topic. Return also the keys of the last entries of chains whose first entries are
    pruned: the namespaces under which the index has such an entry are unknown."""
    topics = rows.catalog.topics
    counts: Counter[int] = Counter()
    chains, unknown = _Chains(), set()
    last_runs: dict[int, tuple[int, int]] = {}
    pruned = rows.get("meta", b"pruned")
    for key, value in rows.walk("oplog"):
        entry = rows.document("oplog", key, value)
        if entry is None:
            continue
        position = from_key(key)
        if type(entry.get("ts")) is not Timestamp or from_timestamp(entry["ts"]) != position:
            rows.problems.append(f"{rows.name('oplog', key)} has another time in itself")
            continue
        if pruned is not None and key <= pruned:
            rows.problems.append(f"{rows.name('oplog', key)} is there, though history before {pruned.hex()} is removed")
        if entry["o"].get("partialTxn"):
            chains.add(entry)
            continue
        names = chains.names(entry)
        if names is None:
            unknown.add(key)
            names = _namespaces(entry)
        for name in names:
            topic = topics.get(name)
            if topic is None or not _is_covered(rows, topic, position, last_runs):
                rows.problems.append(f"the oplog's index of {name} does not lead to {rows.name('oplog', key)}")
            elif key not in unknown:
                counts[topic] += 1
    return counts, unknown


class _Chains:
    """The namespaces of interleaved transaction chains, by the time of each chain's last entry."""

    def __init__(self) -> None:
        self._names: dict[Timestamp, dict[str, None]] = {_NONE: {}}

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry to its chain. The chain of an interrupted commit remains."""
        names = self.names(entry)
        if names is not None:
            self._names[entry["ts"]] = dict.fromkeys(names)

    def names(self, entry: dict[str, Any]) -> list[str] | None:
        """Return the namespaces of an entry and of its chain so far; None if earlier entries of the chain are
        pruned."""
        own = _namespaces(entry)
        before = entry.get("prevOpTime", {}).get("ts", _NONE) if "applyOps" in entry["o"] else _NONE
        if before not in self._names:
            return None
        return list(dict.fromkeys([*(self._names[before] if before == _NONE else self._names.pop(before)), *own]))


def _namespaces(entry: dict[str, Any]) -> list[str]:
    """Return the names under which the oplog's index has an entry."""
    operation, namespace, o = entry.get("op"), str(entry.get("ns")), entry["o"]
    if operation == "n":
        return []
    database = namespace.partition(".")[0]
    if operation != "c":
        return [namespace, f"{database}.$cmd"] if namespace.endswith(_VIEWS) else [namespace]
    if "applyOps" in o:
        return list(dict.fromkeys(str(item["ns"]) for item in o["applyOps"]))
    if "renameCollection" in o:
        return list(dict.fromkeys([namespace, f"{str(o['to']).partition('.')[0]}.$cmd"]))
    return [namespace]


def _is_covered(rows: Rows, topic: int, position: int, last_runs: dict[int, tuple[int, int]]) -> bool:
    """Return whether a run of the topic holds the position. `last_runs`: the topic's last run that held a position."""
    first, last = last_runs.get(topic, (0, -1))
    if first <= position <= last:
        return True
    prefix = topic.to_bytes(4, "big")
    row = rows.last_before("runs", prefix + to_key(position))
    if row is None or row[0][:4] != prefix or from_key(row[1]) < position:
        return False
    last_runs[topic] = from_key(row[0][4:]), from_key(row[1])
    return True


def _check_runs(rows: Rows, unknown: set[bytes]) -> Counter[int]:
    """Count the entries that the runs of each topic lead to, without the `unknown` keys."""
    topics = set(rows.catalog.topics.values())
    reached: Counter[int] = Counter()
    before = (0, -1)
    for key, value in rows.walk("runs"):
        topic, first, last = int.from_bytes(key[:4], "big"), from_key(key[4:]), from_key(value)
        if topic not in topics or last < first or (before[0] == topic and first <= before[1]):
            rows.problems.append(f"{rows.name('runs', key)} is no run that follows the one before it")
        before = topic, last
        reached[topic] += sum(key not in unknown for key in rows.keys("oplog", to_key(first), to_key(last)))
    return reached


def _check_images(rows: Rows) -> None:
    oldest = next(iter(rows.keys("oplog", b"\0", b"\xff" * 8)), None)
    for key, value in rows.walk("images"):
        rows.document("images", key, value[8:])
        position = key[16:24]
        if oldest is not None and position >= oldest and rows.get("oplog", position) is None:
            rows.problems.append(f"{rows.name('images', key)} is of a change that is not in the oplog")
