"""The source's options in Spark itself: representations, wanted columns, partitions, a past state, several servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.database import Database

import headrace
from headrace.spark.source.admission import HAS_ADMISSION_CONTROL
from headrace.values.bson import decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]


def read(spark: SparkSession, uri: str, database: Db, **options: str) -> DataFrame:
    more = {"uri": uri, "database": database.name, "collection": "c", "startingPosition": "earliest"} | options
    return spark.read.format("headrace").options(**more).load()


def test_documents_come_as_wanted_from_either_way(spark: SparkSession, uri: str, database: Db, transport: str) -> None:
    database.c.insert_many([{"_id": number, "n": number / 2, "more": {"a": 1}} for number in range(5)])
    raw = read(spark, uri, database, documents="bson", columns="fullDocument", transport=transport)
    assert [decode(bytes(row.fullDocument))["_id"] for row in raw.collect()] == list(range(5))
    options = {"documents": "columns", "documentSchema": "_id BIGINT, n DOUBLE, more STRUCT<b: INT>"}
    frame = read(spark, uri, database, transport=transport, **options)
    rows = frame.select("fullDocument.*", "fullDocumentRest").collect()
    assert [(row._id, row.n, row.more.b) for row in rows] == [(number, number / 2, None) for number in range(5)]
    assert {row.fullDocumentRest for row in rows} == {'{"more":{"a":{"$numberInt":"1"}}}'}


def test_partitions_hold_all_events_once(spark: SparkSession, uri: str, database: Db, transport: str) -> None:
    database.c.insert_many([{"_id": number} for number in range(50)])
    frame = read(spark, uri, database, partitions="3", columns="documentKey", transport=transport)
    assert frame.rdd.getNumPartitions() == 3
    assert len({row.documentKey for row in frame.collect()}) == frame.count() == 50


def test_a_past_state_is_read_as_of_a_token(spark: SparkSession, uri: str, database: Db, transport: str) -> None:
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    with database.c.watch() as stream:
        database.c.insert_many([{"_id": 1}, {"_id": 2}])
        token = [next(stream)["_id"]["_data"] for _ in range(2)][1]
    database.c.update_one({"_id": 1}, {"$set": {"a": 1}})
    database.c.delete_one({"_id": 2})
    frame = read(spark, uri, database, asOf=token, columns="fullDocument", transport=transport)
    documents = sorted(row.fullDocument for row in frame.collect())
    assert documents == ['{"_id":{"$numberInt":"1"}}', '{"_id":{"$numberInt":"2"}}']


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="in PySpark 4.1 a run is one batch, and that is not all there is")
@pytest.mark.parametrize("transport", ["arrow"], indirect=True)  # a checkpoint is the same for both
def test_a_stream_of_several_servers_continues_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, transport: str
) -> None:
    events: list[tuple[str, str]] = []

    def keep(batch: DataFrame, _: int) -> None:
        events.extend((row.server, row.documentKey) for row in batch.collect())

    with headrace.Server() as one, headrace.Server() as two:
        options = {"uri": f"{one.uri}\n{two.uri}", "database": "d", "collection": "c", "transport": transport}
        source = spark.readStream.format("headrace").options(**options)

        def run() -> int:
            before = len(events)
            writer = (
                source.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
            )
            writer.trigger(availableNow=True).start().awaitTermination()
            return len(events) - before

        assert run() == 0
        for number, server in enumerate((one, two, one)):
            with client_of(server.uri) as client:
                client.d.c.insert_one({"_id": number})
        assert run() == 3
        assert run() == 0
    assert len({server for server, _ in events}) == 2


def test_a_directory_gets_a_server_for_the_job(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Server(tmp_path) as server, client_of(server.uri) as client:
        client.d.c.insert_one({"_id": 1})
    options = {"path": str(tmp_path), "database": "d", "collection": "c", "startingPosition": "earliest"}
    assert spark.read.format("headrace").options(**options).load().count() == 1


def client_of(uri: str) -> Any:
    from pymongo import MongoClient

    return MongoClient(uri)
