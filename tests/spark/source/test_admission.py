"""The reader as PySpark 4.1 asks it, which names neither start nor limit: it stands where Spark does all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.database import Database

from headrace.spark.source import admission
from headrace.spark.source.admission import LegacyAdmission
from headrace.spark.source.options import parse_options
from headrace.spark.stream.offsets import Offset
from headrace.values.bson import decode

Db = Database[dict[str, Any]]


class Old(LegacyAdmission):
    """A reader of PySpark 4.1, without PySpark 4.1 around it."""

    def __init__(self, uri: str, database: Db, **more: str) -> None:
        options = {"uri": uri, "database": database.name, "collection": "c", "awaitMs": "20"}
        self.options = parse_options(options | more)

    def rows(self, start: Offset, end: Offset) -> list[Any]:
        partitions = self.partitions(start, end)
        batches = [batch for part in partitions for batch in part.read(self.options, ["documentKey", "operationType"])]
        event_rows = [row for batch in batches for row in batch.to_pylist()]
        return [decode(row["documentKey"])["_id"] if row["documentKey"] else row["operationType"] for row in event_rows]


@pytest.fixture
def old(uri: str, database: Db, transport: str) -> Old:
    return Old(uri, database, transport=transport, maxRowsPerTrigger="10")


def test_the_first_batch_begins_where_the_stream_does_though_that_is_asked_later(old: Old, database: Db) -> None:
    end = old.latestOffset()
    start = old.initialOffset()
    assert start != end  # there is a first batch, so that Spark keeps a position
    assert old.rows(start, end) == []
    database.c.insert_one({"_id": 1})
    assert old.rows(end, old.latestOffset()) == [1]


def test_batches_follow_one_another_within_the_bounds(old: Old, database: Db) -> None:
    start = old.latestOffset()
    database.c.insert_many([{"_id": number} for number in range(25)])
    seen = []
    while (end := old.latestOffset()) != start:
        seen.append(old.rows(start, end))
        start = end
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_a_query_that_goes_on_stands_where_spark_says(old: Old, uri: str, database: Db) -> None:
    end = old.latestOffset()
    database.c.insert_many([{"_id": number} for number in range(15)])
    planned = old.latestOffset()
    assert old.rows(end, planned) == list(range(10))
    later = Old(uri, database, maxRowsPerTrigger="10")
    assert later.rows(planned, planned) == []  # Spark passes the planned offset, and reads that batch again
    assert later.rows(end, planned) == list(range(10))
    assert later.rows(planned, later.latestOffset()) == [10, 11, 12, 13, 14]


def test_a_snapshot_comes_in_chunks_and_is_gone_on_with(uri: str, database: Db) -> None:
    database.c.insert_many([{"_id": number} for number in range(7)])
    options = {"startingPosition": "snapshot", "maxRowsPerTrigger": "3"}
    seen, start = [], Old(uri, database, **options).initialOffset()
    reader = Old(uri, database, **options)
    assert reader.rows(start, start) == []
    while (end := reader.latestOffset()) != start:
        seen += reader.rows(start, end)
        reader = Old(uri, database, **options)  # stopped after each batch
        assert reader.rows(end, end) == []
        start = end
    assert seen == ["snapshotBegin", *range(7), "snapshotEnd"]


@pytest.mark.parametrize(
    ("durations", "all_of_it"), [([{"addBatch": 5}], False), ([{"latestOffset": 1}], True), ([], True)]
)
def test_a_run_of_one_batch_took_all_when_it_wrote_none(
    monkeypatch: pytest.MonkeyPatch, durations: list[dict[str, int]], all_of_it: bool
) -> None:
    """An idle run reports progress too, without a batch having been written."""
    monkeypatch.setattr(admission, "HAS_ADMISSION_CONTROL", False)
    ended: Any = SimpleNamespace(recentProgress=[{"durationMs": each} for each in durations])
    assert admission.took_all(ended) == all_of_it
