"""The policy `keep`: a key that comes back after a drop as another type of number is the row that was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64
from pymongo.database import Database

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.folding_sink import sql_sink
from headrace.spark.sinks.mongodb_sink import mongodb_sink
from tests.spark.sinks.test_server_sinks import of_servers
from tests.spark.sinks.test_servers_folded import KINDS, opened
from tests.spark.support.generated_changes import table_of, token_at

pytestmark = pytest.mark.long

SPELLINGS: tuple[dict[str, Any], ...] = (
    {"plain": 1, "many": Decimal128("2.00"), "within": {"a": 3, "b": [0]}, "other": 1.5, "text": "1"},
    {"plain": 1.0, "many": Int64(2), "within": {"a": 3.0, "b": [-0.0]}, "other": Decimal128("1.50"), "text": "1"},
    {"plain": Decimal128("1.00"), "many": 2, "within": {"a": Int64(3), "b": [Decimal128("0E3")]}, "other": 1.5},
    {"plain": Int64(1), "many": Decimal128("20E-1")},
)
"""The same keys, each time as other numbers."""


def row(time: int, kind: str, key: Any = None) -> Row:
    if key is None:
        return Row(token_at(time), operationType=kind)
    texts = {"documentKey": dumps({"_id": key}), "fullDocument": dumps({"_id": key, "at": time})}
    return Row(token_at(time), operationType=kind, **texts)


def dropped_and_filled() -> list[list[Row]]:
    """Each time the collection is dropped, in the batch before or in the same, and has its keys as other numbers."""
    row_batches: list[list[Row]] = []
    time = 0
    for turn, keys in enumerate(SPELLINGS):
        rows = [row(time + number, "insert", key) for number, key in enumerate(keys.values(), start=1)]
        drop = row(time, "drop")
        row_batches += [[drop], rows] if turn == 2 else [[drop, *rows]]
        time += 10
    return row_batches


def current(sink: Any) -> list[tuple[str, str]]:
    """The documents of a mirror, or the versions of a history that are valid."""
    rows = sink.table.read().to_pylist()
    return sorted((each.get("server", ""), each["document"]) for each in rows if each.get("until") is None)


def expected() -> list[str]:
    last: dict[str, str] = {}
    for turn, keys in enumerate(SPELLINGS):
        last |= {name: dumps({"_id": key, "at": turn * 10 + n}) for n, (name, key) in enumerate(keys.items(), start=1)}
    return sorted(last.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_comes_back_as_another_number_is_one_row(kind: str, tmp_path: Path) -> None:
    for number, rows in enumerate(dropped_and_filled()):
        opened(kind, tmp_path / "t", "keep").apply(MicroBatch("q", number, table_of(rows)))
    assert [document for _, document in current(opened(kind, tmp_path / "t"))] == expected()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_one_row_of_each_server(kind: str, tmp_path: Path) -> None:
    sink = opened(kind, tmp_path / "t", "keep")
    row_batches = dropped_and_filled()
    for number, rows in enumerate(row_batches):
        second = row_batches[number - 1] if number else None
        sink.apply(MicroBatch("q", number, of_servers((rows, second))))
    sink.apply(MicroBatch("q", len(row_batches), of_servers((None, row_batches[-1]))))
    documents = [document for _, document in current(sink)]
    assert documents == expected() * 2 and len({server for server, _ in current(sink)}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_snapshot_and_the_events_after_it_find_the_row(kind: str, tmp_path: Path) -> None:
    rows = [
        [row(1, "insert", 1), row(2, "insert", Decimal128("2.0")), row(3, "insert", "x")],
        [row(10, SNAPSHOT_BEGIN), row(11, SNAPSHOT, 1.0), row(12, SNAPSHOT_END)],
        [row(13, "insert", 2), row(14, "delete", 1.0)],
    ]
    for number, batch in enumerate(rows):
        opened(kind, tmp_path / "t", "keep").apply(MicroBatch("q", number, table_of(batch)))
    documents = [document for _, document in current(opened(kind, tmp_path / "t"))]
    assert documents == sorted([dumps({"_id": "x", "at": 3}), dumps({"_id": 2, "at": 13})])


@pytest.mark.parametrize("kind", ["history", "mirror"])
def test_the_keys_of_a_table_are_read_after_a_drop_and_not_before_every_batch(kind: str, tmp_path: Path) -> None:
    sink = opened(kind, tmp_path / "t", "keep")
    read = []
    keys = sink.table.read_keys
    sink.table.read_keys = lambda: read.append(1) or keys()
    batches = [[row(1, "insert", 1)], [row(2, "insert", 2)], [row(3, "drop")]]
    batches += [[row(4, "insert", 1.0)], [row(5, "insert", 3)]]
    counts = []
    for number, rows in enumerate(batches):
        sink.apply(MicroBatch("q", number, table_of(rows)))
        counts.append(len(read))
    assert counts == [0, 0, 1, 1, 1]


def test_it_is_one_row_of_a_database(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="pip install 'headrace[sql]'")
    url = f"sqlite:///{tmp_path}/tables.db"
    for number, rows in enumerate(dropped_and_filled()):
        sql_sink(url, "t", policy="keep").apply(MicroBatch("q", number, table_of(rows)))
    assert [document for _, document in current(sql_sink(url, "t"))] == expected()


def test_it_is_one_document_of_another_server(uri: str, database: Database[dict[str, Any]]) -> None:
    for number, rows in enumerate(dropped_and_filled()):
        sink = mongodb_sink(uri, database=database.name, collection="c", policy="keep")
        sink.apply(MicroBatch("q", number, table_of(rows)))
    assert sorted(dumps(document) for document in database.c.find()) == expected()
