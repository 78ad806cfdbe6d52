"""Small batches come with their plan, whole; large ones, and what was not just planned, are left to the workers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pymongo.database import Database
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from headrace import limits
from headrace.spark.sinks.table_sink import were_fetched
from headrace.spark.source.admission import HAS_ADMISSION_CONTROL
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import PrefetchingReader
from headrace.spark.stream.offsets import in_snapshot
from headrace.spark.timetravel.snapshot import Chunk, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Db = Database[dict[str, Any]]


@pytest.fixture
def reader(uri: str, database: Db) -> PrefetchingReader:
    return reader_of(uri, database)


def reader_of(uri: str, database: Db, **more: str) -> PrefetchingReader:
    given = {"uri": uri, "database": database.name, "collection": "c", "columns": "token", "partitions": "3", **more}
    assert PrefetchingReader.is_possible
    return PrefetchingReader(parse_options(given), StructType([StructField("token", StringType(), False)]))


def test_a_small_batch_is_prefetched_completely(reader: PrefetchingReader, database: Db) -> None:
    start = reader.initialOffset()
    database.c.insert_many([{"_id": number} for number in range(10)])
    end = reader.latestOffset(start, ReadAllAvailable())
    (partition,) = reader.partitions(start, end)
    fetched = reader.getCache(start, end)
    assert fetched is not None
    assert tokens(pa.Table.from_batches(fetched)) == tokens(pa.Table.from_batches(reader.read(partition)))
    assert reader.getCache(start, end) is None, "given once"
    reader.stop()


def test_a_large_batch_is_left_to_the_workers(
    reader: PrefetchingReader, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = reader.initialOffset()
    database.c.insert_many([{"_id": number} for number in range(10)])
    end = reader.latestOffset(start, ReadAllAvailable())
    for name in ("PREFETCH_ROW_COUNT_MAX", "PREFETCH_BYTES_MAX"):
        with monkeypatch.context() as patched:
            patched.setattr(limits, name, 9)
            assert len(reader.partitions(start, end)) == 3
            assert reader.getCache(start, end) is None
    reader.stop()


def test_small_chunks_of_a_snapshot_are_prefetched_and_others_left_to_the_workers(
    uri: str, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.c.insert_many([{"_id": number} for number in range(20)])
    monkeypatch.setattr(limits, "PREFETCH_ROW_COUNT_MAX", 10)
    # The first document, beside the snapshot's begin; all others, or seven at a time and the last five; its end.
    assert prefetched(uri, database) == [2, None, 1]
    assert prefetched(uri, database, maxRowsPerTrigger="7") == [2, 7, 7, 5, 1]
    database.c.delete_many({"_id": {"$gte": 10}})
    assert prefetched(uri, database) == [2, 9, 1]
    database.c.delete_many({})
    assert prefetched(uri, database) == [2]


def test_a_snapshot_of_few_long_documents_is_not_read_in_the_driver(
    uri: str, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.c.insert_many([{"_id": number, "text": "x" * 1000} for number in range(8)])
    monkeypatch.setattr(limits, "PREFETCH_BYTES_MAX", 6000)
    read: list[Chunk] = []
    monkeypatch.setattr(Snapshot, "read", lambda self, chunk: read.append(chunk) or [])
    reader = reader_of(uri, database, startingPosition="snapshot")
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    assert reader.getCache(start, end) is None
    assert read == []
    reader.stop()


def prefetched(uri: str, database: Db, **more: str) -> list[int | None]:
    """The rows of each batch of a snapshot that came with its plan; None if workers are to read it."""
    reader = reader_of(uri, database, startingPosition="snapshot", **more)
    counts: list[int | None] = []
    start = reader.initialOffset()
    while in_snapshot(start):
        end = reader.latestOffset(start, ReadAllAvailable())
        partitions = reader.partitions(start, end)
        fetched = reader.getCache(start, end)
        rows = pa.Table.from_batches(batch for part in partitions for batch in reader.read(part)).num_rows
        counts.append(None if fetched is None else pa.Table.from_batches(fetched).num_rows)
        assert counts[-1] in {rows, None} and (fetched is None or len(partitions) == 1)
        start = end
    reader.stop()
    return counts


def test_what_was_not_just_planned_is_not_there(reader: PrefetchingReader, database: Db) -> None:
    start = reader.initialOffset()
    database.c.insert_one({"_id": 1})
    middle = reader.latestOffset(start, ReadAllAvailable())
    database.c.insert_one({"_id": 2})
    end = reader.latestOffset(middle, ReadAllAvailable())
    reader.partitions(start, middle)
    assert reader.getCache(start, end) is None
    assert reader.getCache(start, middle) is not None
    assert reader.partitions(end, end) is not None
    assert reader.getCache(end, end) is None, "nothing is in it"
    reader.stop()


def test_workers_get_the_reader_without_its_rows_and_spark_sees_what_it_can(
    reader: PrefetchingReader, database: Db
) -> None:
    start = reader.initialOffset()
    database.c.insert_one({"_id": 1})
    end = reader.latestOffset(start, ReadAllAvailable())
    (partition,) = reader.partitions(start, end)
    sent = pickle.loads(pickle.dumps(reader))
    assert sent.getCache(start, end) is None
    assert pa.Table.from_batches(sent.read(partition)).num_rows == 1
    assert isinstance(reader.simple_reader, SupportsTriggerAvailableNow)
    reader.stop()


def tokens(table: pa.Table) -> list[str]:
    texts: list[str] = table.column("token").to_pylist()
    return texts


@pytest.mark.spark
@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="this PySpark reads every batch on workers")
def test_a_sink_learns_whether_spark_has_the_rows_already(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    given = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": "earliest"}
    seen: list[tuple[int, bool]] = []

    def look(frame: DataFrame, _: int) -> None:
        seen.append((frame.count(), were_fetched(frame)))

    for count in (3, limits.PREFETCH_ROW_COUNT_MAX):
        database.c.insert_many([{"n": number} for number in range(count)])
        rows = spark.readStream.format("headrace").options(**given).load().select("token", "operationType")
        writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / str(count)))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert seen == [(3, True), (3 + limits.PREFETCH_ROW_COUNT_MAX, False)]
    assert not were_fetched(spark.range(3))
