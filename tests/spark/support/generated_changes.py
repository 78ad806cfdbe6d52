"""Changes of a collection as batches of the source's rows, generated from a seed without a server.

They are a snapshot read while writers write, the events since, a drop with the new snapshot behind it, more events.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from bson import Int64

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch

MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [pa.field("token", pa.string(), nullable=False)]
    + [
        pa.field(name, {"clusterTime": MOMENT, "wallTime": MOMENT, "txnNumber": pa.int64(),
                        "clusterTimeIncrement": pa.int64()}.get(name, pa.string()))
        for name in Row._fields[1:-1]
    ]
)  # fmt: skip
BEGAN = 1_700_000_000


def token_at(time: int) -> str:
    """The token of the event number `time`; each has a cluster time of its own."""
    return f"82{BEGAN + time:08X}{1:08X}00"


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table([list(column) for column in zip(*(row[:-1] for row in rows), strict=True)], schema=SCHEMA)


def batches(row_batches: list[list[Row]], query: str = "q") -> list[MicroBatch]:
    return [MicroBatch(query, number, table_of(rows)) for number, rows in enumerate(row_batches)]


@dataclass(slots=True)
class GeneratedChanges:
    """The documents now, all events so far, the batches of rows, and the documents at every token."""

    seed: int
    keys: int = 5
    time: int = 0
    documents: dict[Any, dict[str, Any]] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    row_batches: list[list[Row]] = field(default_factory=list)
    at: dict[str, dict[str, str]] = field(default_factory=dict)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def contents(self) -> dict[str, str]:
        return {dumps(key): dumps(document) for key, document in self.documents.items()}

    def row(self, kind: str, key: Any = None, **fields: Any) -> Row:
        self.time += 1
        moment = (BEGAN + self.time) * 1_000_000
        texts = {name: dumps(value) for name, value in fields.items()}
        document_key = None if key is None else dumps({"_id": key})
        return Row(token_at(self.time), moment, 1, kind, "db", "c", documentKey=document_key, wallTime=moment)._replace(
            **texts
        )

    def _record(self, row: Row) -> None:
        self.events.append(row)
        self.at[row.token] = self.contents()

    def write(self) -> None:
        key = self.random.choice([Int64(7), "text", *range(self.keys - 2)])
        old = self.documents.get(key)
        if old is None:
            self.documents[key] = {"_id": key, "a": [1, 2], "text": "x" * self.random.choice([1, 2000])}
            self._record(self.row("insert", key, fullDocument=self.documents[key]))
        elif self.random.random() < 0.25:
            del self.documents[key]
            self._record(self.row("delete", key))
        elif self.random.random() < 0.2:
            self.documents[key] = {"_id": key, "a": [], "b": self.time}
            self._record(self.row("replace", key, fullDocument=self.documents[key]))
        else:
            self._update(key, old)

    def _update(self, key: Any, old: dict[str, Any]) -> None:
        """Arrays grow and shrink, so that an update done twice, or out of order, shows."""
        if len(old["a"]) > 2:
            self.documents[key] = old | {"a": old["a"][:1]}
            description: dict[str, Any] = {"updatedFields": {}, "truncatedArrays": [{"field": "a", "newSize": 1}]}
        else:
            self.documents[key] = old | {"a": [*old["a"], self.time]}
            description = {"updatedFields": {f"a.{len(old['a'])}": self.time}, "removedFields": []}
        self._record(self.row("update", key, updateDescription=description))

    def writes(self, count: int) -> None:
        for _ in range(count):
            self.write()

    def snapshot(self) -> None:
        """A snapshot in two batches with writes in between; then the events since it began, in small batches."""
        begun = self.time
        begin = self.row(SNAPSHOT_BEGIN)._replace(token=token_at(begun))
        self.time = begun
        rows = [begin]
        for number, key in enumerate(sorted(self.documents, key=str)):
            if number == 2 and rows:
                self.row_batches.append(rows)
                rows = []
            self.writes(self.random.randrange(3))
            if key in self.documents:
                row = self.row(SNAPSHOT, key, fullDocument=self.documents[key])
                self.time -= 1
                rows.append(row._replace(token=token_at(self.time)))
        self.row_batches.append(rows or [])
        self.row_batches = [rows for rows in self.row_batches if rows]
        self.row_batches.append([self.row(SNAPSHOT_END)._replace(token=token_at(self.time))])
        self.writes(8)
        self.stream(begun)

    def stream(self, after: int) -> None:
        pending = [row for row in self.events if row.token > token_at(after)]
        while pending:
            size = self.random.randrange(3, 9)
            self.row_batches.append(pending[:size])
            pending = pending[size:]

    def drop(self) -> None:
        after = self.time
        self.writes(3)
        self.documents.clear()
        self._record(self.row("drop"))
        self._record(self.row("invalidate"))
        self.stream(after)


def generated_changes(seed: int) -> GeneratedChanges:
    changes = GeneratedChanges(seed)
    changes.writes(12)
    changes.snapshot()
    changes.drop()
    changes.writes(9)
    changes.snapshot()
    return changes
