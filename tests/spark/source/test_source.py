"""The source in Spark: batch reads, streams that go on where they stopped, snapshots, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.database import Database

from headrace.spark.source.admission import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]
EventKeys = list[tuple[str, str | None]]


# What the driver and a checkpoint do is the same however a range is read; ranges are read both ways without Spark.
one_transport = pytest.mark.parametrize("transport", ["arrow"], indirect=True)


class Runs:
    """Runs of one streaming query to the end of what there is, each keeping what its batches brought."""

    def __init__(self, spark: SparkSession, uri: str, database: Db, checkpoint: Path, **options: str) -> None:
        self.source = spark.readStream.format("headrace").options(
            uri=uri, database=database.name, collection="c", **options
        )
        self.checkpoint = checkpoint
        self.batches: list[EventKeys] = []

    def again(self) -> EventKeys:
        before = len(self.batches)
        self._run()
        while not HAS_ADMISSION_CONTROL and len(self.batches) > before and self._run():
            """A run is one batch there, so it takes some."""
        return [row for batch in self.batches[before:] for row in batch]

    def _run(self) -> bool:
        """Whether it brought anything."""
        count = len(self.batches)
        writer = self.source.load().writeStream.foreachBatch(self._keep)
        writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return len(self.batches) > count

    def _keep(self, batch: DataFrame, _: int) -> None:
        self.batches.append([(row.operationType, row.documentKey) for row in batch.collect()])


def key(number: int) -> str:
    return f'{{"_id":{{"$numberInt":"{number}"}}}}'


def test_a_batch_read_gives_the_events_between_two_positions(
    spark: SparkSession, uri: str, database: Db, transport: str
) -> None:
    with database.c.watch() as stream:
        start = stream.resume_token
    database.c.insert_many([{"_id": number, "n": 1.5} for number in range(30)])
    database.c.update_one({"_id": 1}, {"$set": {"n": 2}})
    database.c.drop()
    options = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": start["_data"]}
    options["transport"] = transport
    rows = spark.read.format("headrace").options(**options).load().collect()
    kinds = [row.operationType for row in rows]
    assert kinds == ["insert"] * 30 + ["update", "drop", "invalidate"]
    assert rows[0].fullDocument == '{"_id":{"$numberInt":"0"},"n":{"$numberDouble":"1.5"}}'
    assert [row.token for row in rows] == sorted(row.token for row in rows)
    part = spark.read.format("headrace").options(**options | {"endingPosition": rows[3].token}).load()
    assert [row.token for row in part.collect()] == [row.token for row in rows[:4]]


@one_transport
def test_a_stream_goes_on_where_it_stopped_and_keeps_its_bound_of_rows(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, transport: str
) -> None:
    runs = Runs(spark, uri, database, tmp_path, maxRowsPerTrigger="10", transport=transport)
    # Nothing yet, but the position is kept: what comes while no query runs is not lost.
    assert runs.again() == []
    database.c.insert_many([{"_id": number} for number in range(25)])
    assert runs.again() == [("insert", key(number)) for number in range(25)]
    assert max(len(batch) for batch in runs.batches) == 10
    database.c.delete_one({"_id": 3})
    assert runs.again() == [("delete", key(3))]
    assert runs.again() == []


@one_transport
def test_a_snapshot_comes_first_then_its_events_and_again_after_an_invalidate(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, transport: str
) -> None:
    database.c.insert_many([{"_id": number} for number in range(7)])
    bounded = {"maxRowsPerTrigger": "3", "startingPosition": "snapshot"}
    runs = Runs(spark, uri, database, tmp_path, transport=transport, **bounded)
    taken = [("snapshot", key(number)) for number in range(7)]
    assert runs.again() == [("snapshotBegin", None), *taken, ("snapshotEnd", None)]
    database.c.insert_one({"_id": 8})
    assert runs.again() == [("insert", key(8))]
    database.other.insert_one({"_id": 9})
    database.other.rename("c", dropTarget=True)
    events = runs.again()
    assert events[-3:] == [("snapshotBegin", None), ("snapshot", key(9)), ("snapshotEnd", None)]
    assert [kind for kind, _ in events[:-3]] == ["rename", "invalidate"]


def test_an_option_that_is_wrong_is_named_in_the_error(spark: SparkSession, uri: str) -> None:
    with pytest.raises(Exception, match="collecton"):
        spark.read.format("headrace").options(uri=uri, collecton="c").load().count()
