"""`headrace oplog`: how far the oplog reaches back, how fast it grows, and which namespaces write the most."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import Failed, add_command, add_json, add_uri

if TYPE_CHECKING:
    from headrace.cli.connection import Client

SAMPLE_COUNT: Final = 10_000
"""The number of newest entries that give the rate and the busiest namespaces."""
BUSIEST_COUNT: Final = 10
_HOUR: Final = 3600.0
_DESCRIPTION: Final = (
    "Show the oplog of Headrace or of a MongoDB member: its window, its size, its growth, the busiest namespaces, and "
    "how long history lasts at the rate of the newest entries: a stream that pauses for longer loses its position."
)


def add_parser(commands: Any) -> None:
    """Add the subcommand `oplog`."""
    examples = ("headrace oplog", "headrace oplog mongodb://db.example:27017 --json | jq .lastsSecs")
    parser = add_command(commands, "oplog", _run, "show how far history reaches back", _DESCRIPTION, examples)
    add_uri(parser)
    add_json(parser)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.connection import connected
    from headrace.cli.terminal import Painter, one_line

    with connected(arguments.uri) as client:
        report = report_of(client)
    print(one_line(report.document()) if arguments.json else "\n".join(report.lines(Painter())))
    return 0


@dataclass
class OplogReport:
    """The figures of an oplog; times are seconds since the Unix epoch."""

    oldest: int
    newest: int
    entry_count: int
    bytes: int
    bytes_max: int | None
    hours_max: float | None
    """Headrace's retention: older entries are removed at any size."""
    entries_max: int | None
    sample_count: int
    sample_secs: int
    busiest: list[tuple[str, int, int]]
    """(namespace, entries, bytes) in the sample, the most bytes first."""

    @property
    def bytes_per_hour(self) -> float:
        """The oplog's growth in bytes per hour, at the rate of the sample."""
        if not self.sample_secs or not self.entry_count:
            return 0.0
        return self.sample_count / self.sample_secs * _HOUR * (self.bytes / self.entry_count)

    @property
    def lasts_secs(self) -> float | None:
        """How many seconds an entry stays at the rate of the sample; None for an oplog without bounds."""
        bounds = []
        if self.bytes_max and self.bytes_per_hour:
            bounds.append(self.bytes_max / self.bytes_per_hour * _HOUR)
        if self.entries_max and self.sample_secs:
            bounds.append(self.entries_max * self.sample_secs / self.sample_count)
        if self.hours_max:
            bounds.append(self.hours_max * _HOUR)
        return min(bounds) if bounds else None

    def document(self) -> dict[str, Any]:
        """Return the report for scripts."""
        return {
            "oldest": self.oldest, "newest": self.newest, "windowSecs": self.newest - self.oldest,
            "entries": self.entry_count, "bytes": self.bytes, "bytesMax": self.bytes_max,
            "retentionHours": self.hours_max, "entriesMax": self.entries_max,
            "bytesPerHour": round(self.bytes_per_hour),
            "lastsSecs": None if self.lasts_secs is None else round(self.lasts_secs),
            "sample": {
                "entries": self.sample_count, "secs": self.sample_secs,
                "busiest": [
                    {"ns": namespace, "entries": count, "bytes": size} for namespace, count, size in self.busiest
                ],
            },
        }  # fmt: skip

    def lines(self, painter: Any) -> Iterator[str]:
        """Yield the report for people."""
        from headrace.cli.terminal import duration, moment, printable, size, table

        def row(title: str, text: str) -> str:
            return f"{painter(f'{title:10}', 'bold')}{text}"

        window = self.newest - self.oldest
        yield row("window", f"{duration(window)}, from {moment(self.oldest * 1000)} to {moment(self.newest * 1000)}")
        share = f" of {size(self.bytes_max)} ({self.bytes / self.bytes_max:.0%})" if self.bytes_max else ""
        yield row("size", f"{size(self.bytes)}{share}, {self.entry_count:,} entries")
        yield row(
            "growth",
            f"{size(self.bytes_per_hour)} an hour, as the newest {self.sample_count:,} entries grew in "
            f"{duration(self.sample_secs)}" if self.sample_secs else "too few entries to say",
        )  # fmt: skip
        lasts = self.lasts_secs
        rate = " at this rate" if self.sample_secs else ""
        yield row("lasts", "without bound" if lasts is None else f"{duration(lasts)}{rate}")
        if self.busiest:
            total = sum(entry_bytes for _, _, entry_bytes in self.busiest) or 1
            rows = [
                (printable(namespace), f"{count:,}", size(entry_bytes), f"{entry_bytes / total:.0%}")
                for namespace, count, entry_bytes in self.busiest[:BUSIEST_COUNT]
            ]
            yield ""
            yield from table(("NAMESPACE", "ENTRIES", "BYTES", "SHARE"), rows, right=(1, 2, 3))


def report_of(client: Client) -> OplogReport:
    """Read a server's oplog and return the report. Raises PyMongoError, and Failed for a server without an oplog."""
    oplog = client.get_database("local").get_collection("oplog.rs")
    oldest = next(iter(oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1)), None)
    if oldest is None:
        raise Failed("the server has no oplog: it is not a replica set")
    stats = next(iter(oplog.aggregate([{"$collStats": {"storageStats": {}}}])))["storageStats"]
    entry_counts: Counter[str] = Counter()
    entry_bytes: Counter[str] = Counter()
    newest = first = oldest["ts"].time
    count = 0
    fields = {"_id": 0, "ns": 1, "op": 1, "o.applyOps.ns": 1, "size": {"$bsonSize": "$$ROOT"}, "ts": 1}
    for entry in oplog.find({}, fields).sort("$natural", -1).limit(SAMPLE_COUNT):
        first = entry["ts"].time
        newest = max(newest, first)
        count += 1
        if entry["op"] != "n":
            namespace = _namespace(entry)
            entry_counts[namespace] += 1
            entry_bytes[namespace] += entry["size"]
    hours_max, entries_max = _retention(client)
    return OplogReport(
        oldest["ts"].time, newest, int(stats["count"]), int(stats["size"]), int(stats.get("maxSize") or 0) or None,
        hours_max, entries_max, count, newest - first,
        [(namespace, entry_counts[namespace], size) for namespace, size in entry_bytes.most_common()],
    )  # fmt: skip


def _namespace(entry: dict[str, Any]) -> str:
    """Return the namespace of an entry, or of a transaction's first write."""
    writes = entry.get("o", {}).get("applyOps")
    return str(writes[0]["ns"]) if writes and "ns" in writes[0] else str(entry["ns"])


def _retention(client: Client) -> tuple[float | None, int | None]:
    """Return Headrace's limits of age in hours and of entries. MongoDB limits its oplog by size."""
    status = client.admin.command("serverStatus", metrics=0)
    if status.get("process") != "headrace":
        return None, None
    parameters = client.admin.command("getParameter", 1, oplogMinRetentionHours=1, oplogEntriesMax=1)
    return parameters["oplogMinRetentionHours"] or None, parameters["oplogEntriesMax"] or None
