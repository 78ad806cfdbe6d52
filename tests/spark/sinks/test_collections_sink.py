"""The sink of several tables, without Spark: each table is right, although the process crashes between two of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.collections_sink import CollectionsSink, rows_by_collection
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.tables.mirror_table import stored_rows
from headrace.spark.tables.progress import CollectionGone, NotOurTable, TableOwner

COLUMNS = (
    "token",
    "operationType",
    "database",
    "collection",
    "documentKey",
    "fullDocument",
    "updateDescription",
    "other",
)
ALL = CollectionSelection("d")
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])


def row(token: str, kind: str, name: str, key: int | None = None, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    document_key = None if key is None else dumps({"_id": key})
    return Row(token, operationType=kind, database="d", collection=name, documentKey=document_key, **texts)


def insert(token: str, name: str, key: int) -> Row:
    return row(token, "insert", name, key, fullDocument={"_id": key, "at": token})


def batch(number: int, *rows: Row) -> MicroBatch:
    return MicroBatch("q", number, pa.table([[getattr(one, name) for one in rows] for name in COLUMNS], schema=SCHEMA))


def test_rows_go_to_their_collections_and_a_rename_to_both() -> None:
    rename = row("2", "rename", "a", other={"to": {"db": "d", "coll": "b"}})
    outside = row("4", "rename", "c", other={"to": {"db": "e", "coll": "x"}})
    table = batch(
        0, insert("1", "a", 1), rename, insert("3", "b", 1), outside, Row("5", operationType="invalidate")
    ).table
    tokens = {name: rows["token"].to_pylist() for name, rows in rows_by_collection(table, ALL)}
    assert tokens == {("d", "a"): ["1", "2"], ("d", "b"): ["2", "3"], ("d", "c"): ["4"]}
    only = CollectionSelection("d", ("b",))
    assert [name for name, _ in rows_by_collection(table, only)] == [("d", "b")]


class Crashing:
    """A sink whose process ends now and then before its commit, or right after it."""

    def __init__(self, sink: Sink, choose: random.Random) -> None:
        self.sink, self.choose = sink, choose

    def position(self) -> Any:
        return self.sink.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        if self.choose.random() < 0.25:
            raise ConnectionAbortedError("before")
        report = self.sink.apply(batch)
        if self.choose.random() < 0.25:
            raise ConnectionAbortedError("after")
        return report


KINDS = {
    "changes": lambda path: changes_sink(path, writers="driver"),
    "history": HistorySink,
    "mirror": mirror_sink,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_crash_between_two_tables_repeats_what_is_missing(tmp_path: Path, kind: str) -> None:
    choose = random.Random(kind)
    documents: dict[str, dict[int, Row]] = {name: {} for name in "abcd"}
    events: dict[str, list[str]] = {name: [] for name in "abcd"}
    token = 0

    def open_table(namespace: Namespace) -> Sink:
        return Crashing(KINDS[kind](tmp_path / namespace[1]), choose)

    sink = CollectionsSink(open_table, ALL)
    for number in range(8):
        rows = []
        for _ in range(choose.randrange(1, 9)):
            name, token = choose.choice("abcd"), token + 1
            key = len(documents[name]) if not documents[name] or choose.random() < 0.7 else -1
            if key >= 0:
                rows.append(documents[name].setdefault(key, insert(f"{token:03}", name, key)))
            else:
                rows.append(row(f"{token:03}", "drop", name))
                documents[name].clear()
            events[name].append(f"{token:03}")
        while True:
            try:
                sink.apply(batch(number, *rows))
                break
            except ConnectionAbortedError:
                sink = CollectionsSink(open_table, ALL)  # the next process
    for name, there in documents.items():
        table: Any = KINDS[kind](tmp_path / name)
        expected = {dumps(key): one.fullDocument for key, one in there.items()}
        if kind == "mirror":
            assert {key: one.document for key, one in stored_rows(table.table.read()).items()} == expected
        elif kind == "history":
            assert {key: version.document for key, version in table.table.rows().items()} == expected
        else:
            assert sorted(table.table.read()["token"].to_pylist()) == events[name]


def test_a_drop_alone_makes_no_table_and_quiet_collections_are_left_alone(tmp_path: Path) -> None:
    sink = CollectionsSink(lambda namespace: mirror_sink(tmp_path / namespace[1]), ALL)
    assert sink.apply(batch(0, row("1", "drop", "a"))) is None
    assert not (tmp_path / "a").exists() and sink.position().batch == -1
    seen: list[tuple[str, int]] = []
    sink.listener = lambda name, report, _: seen.append((name, report.row_count))
    report = sink.apply(batch(1, insert("2", "a", 1), insert("3", "a", 2), insert("4", "b", 1)))
    assert report is not None and (report.row_count, report.event_count, report.token) == (3, 3, "4")
    assert sorted(seen) == [("d.a", 2), ("d.b", 1)] and list(sink.take_committed()) == [("d", "a"), ("d", "b")]
    assert sink.apply(batch(1, insert("2", "a", 1))) is None
    sink.apply(batch(2, insert("5", "b", 2)))
    assert sink.take_committed() == {("d", "b"): False}
    assert mirror_sink(tmp_path / "a").position().batch == 1


def test_each_table_has_its_collections_owner_and_policy(tmp_path: Path) -> None:
    sink = CollectionsSink(lambda namespace: mirror_sink(tmp_path / namespace[1], policy="fail"), ALL)
    sink.owner = TableOwner("id", "job", "checkpoint", "mirror", "d")
    sink.apply(batch(0, insert("1", "a", 1), insert("2", "b", 1)))
    owner = TableOwner.of(mirror_sink(tmp_path / "a").position().owner)
    assert owner is not None and owner.namespace == "d.a"
    with pytest.raises(CollectionGone, match=r"drop of d\.a"):
        sink.apply(batch(1, row("3", "drop", "a"), insert("4", "b", 2)))
    other = CollectionsSink(lambda _: mirror_sink(tmp_path / "a"), ALL)
    other.owner = sink.owner
    with pytest.raises(NotOurTable, match=r"the rows of d\.a"):
        other.apply(batch(2, insert("5", "b", 3)))
