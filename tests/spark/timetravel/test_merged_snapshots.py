"""Several servers as one stream that begins with their collections, and their collections as they were."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson import Timestamp
from deltalake import DeltaTable
from pymongo import MongoClient
from pyspark.sql.types import StringType, StructField, StructType

import headrace
from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.mongodb.mongodb_stream import PositionLost
from headrace.spark.mongodb.source_options import server_name
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader, StreamReader
from headrace.spark.stream.offsets import Offset
from headrace.spark.verify.comparison import compare_log
from tests.spark.support.archives import SCHEMA, MirroredCollection, Row, advance, batches, run
from tests.spark.support.pruning import prune_to

pytestmark = pytest.mark.process

OF_SERVERS = StructType([*SCHEMA.fields, StructField("server", StringType(), nullable=False)])


class Servers:
    """Some servers with a collection each."""

    def __init__(self, *servers: Any) -> None:
        self.uris = [server.uri for server in servers]
        self.names = [server_name(uri) for uri in self.uris]
        self.collections = [MongoClient[Row](uri).d.c for uri in self.uris]
        self.random = random.Random(3)

    def options(self, **more: str) -> dict[str, str]:
        return {"uri": "\n".join(self.uris), "database": "d", "collection": "c", "awaitMs": "20"} | more

    def stream(self, **more: str) -> StreamReader:
        return StreamReader(parse_options(self.options(startingPosition="snapshot", **more)), OF_SERVERS)

    def read(self, **more: str) -> list[Row]:
        reader = BatchReader(parse_options(self.options(**more)), OF_SERVERS)
        return [
            row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()
        ]

    def write(self, count: int, *numbers: int) -> None:
        """Documents come, change and go; each server has others under the same keys."""
        for _ in range(count):
            for number in numbers or range(len(self.collections)):
                key = {"_id": self.random.randrange(12)}
                if self.random.random() < 0.2:
                    self.collections[number].delete_one(key)
                else:
                    self.collections[number].update_one(key, {"$push": {"n": self.random.random()}}, upsert=True)

    def contents(self) -> dict[str, list[str]]:
        each = zip(self.names, self.collections, strict=True)
        return {name: sorted(dumps(document) for document in collection.find()) for name, collection in each}

    def close(self) -> None:
        for collection in self.collections:
            collection.database.client.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with headrace.Server() as one, headrace.Server() as two:
        servers = Servers(one, two)
        servers.write(15)
        yield servers
        servers.close()


def mirrored(batches_read: list[list[Row]]) -> dict[str, list[str]]:
    """What the rows make of each server's collection."""
    mirrors: dict[str, MirroredCollection] = {}
    for batch in batches_read:
        for name in {row["server"] for row in batch}:
            mirrors.setdefault(name, MirroredCollection()).take([row for row in batch if row["server"] == name])
    return {name: mirror.contents() for name, mirror in mirrors.items()}


def check_order(batches_read: list[list[Row]], names: list[str], *, partitioned: bool = False) -> None:
    """No event before every snapshot is complete; then all in the order (cluster time, server, token).

    In parts each is in order, and so are the batches.
    """
    rows = [row for batch in batches_read for row in batch]
    kinds = [row["operationType"] for row in rows]
    first = len(kinds) - 1 - kinds[::-1].index(SNAPSHOT_END)
    assert all(kind.startswith(SNAPSHOT) for kind in kinds[: first + 1])
    keys = [(row["token"][2:18], names.index(row["server"]), row["token"]) for row in rows[first + 1 :]]
    assert partitioned or keys == sorted(keys)
    assert kinds.count(SNAPSHOT_BEGIN) == kinds.count(SNAPSHOT_END) == len(names)


@pytest.mark.parametrize("more", [{}, {"maxRowsPerTrigger": "6"}, {"maxRowsPerTrigger": "6", "partitions": "2"}])
def test_each_collection_comes_and_then_the_events_of_all_in_order(servers: Servers, more: dict[str, str]) -> None:
    reader = servers.stream(**more)
    at = reader.initialOffset()
    batches_read = []
    for _ in range(3):
        end = advance(reader, at)
        servers.write(4)
        batches_read.append([row for batch in batches(reader, at, end) for row in batch.to_pylist()])
        at = end
    batches_read += run(servers.stream(**more), at)
    assert mirrored(batches_read) == servers.contents()
    check_order(batches_read, servers.names, partitioned="partitions" in more)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_log_of_several_servers_is_compared_with_each(servers: Servers, gone: int, tmp_path: Path) -> None:
    sink = changes_sink(tmp_path / "changes")
    reader = servers.stream()
    at = reader.initialOffset()
    number = 0
    servers.write(6)
    reader.prepareForTriggerAvailableNow()
    while (end := advance(reader, at)) != at:
        if rows := batches(reader, at, end):
            sink.apply(MicroBatch("q", number, pa.Table.from_batches(rows)))
        at, number = end, number + 1
    options = parse_options(servers.options())
    comparison = compare_log(sink.table, options)
    assert comparison.equal and comparison.row_count == comparison.event_count > 6
    last = sink.table.position().servers[servers.names[gone]].token
    DeltaTable(tmp_path / "changes").delete(f"token = '{last}'")
    assert compare_log(sink.table, options).missing == (last,)


def test_a_crash_anywhere_goes_on_with_each_server_where_it_was(servers: Servers) -> None:
    more = {"maxRowsPerTrigger": "6"}
    at: Offset = servers.stream(**more).initialOffset()
    batches_read = []
    for _ in range(9):
        crashed = servers.stream(**more)
        end = advance(crashed, at)
        batches(crashed, at, end)
        crashed.stop()
        servers.write(1)
        reader = servers.stream(**more)
        batches_read.append([row for batch in batches(reader, at, end) for row in batch.to_pylist()])
        at = end
    batches_read += run(servers.stream(**more), at)
    assert mirrored(batches_read) == servers.contents()
    check_order(batches_read, servers.names)


def test_a_collection_that_is_dropped_is_read_again_while_the_others_wait(servers: Servers) -> None:
    batches_read = run(reader := servers.stream(), at := reader.initialOffset())
    reader = servers.stream()
    reader.prepareForTriggerAvailableNow()
    while (end := advance(reader, at)) != at:
        at = end
    servers.collections[0].drop()
    servers.write(5)
    again = run(servers.stream(), at)
    assert mirrored([*batches_read, *again]) == servers.contents()
    begun = [row["server"] for batch in again for row in batch if row["operationType"] == SNAPSHOT_BEGIN]
    assert begun == servers.names[:1]


@pytest.mark.parametrize("policy", ["stall", "skip"])
def test_a_server_that_is_down_in_its_snapshot_is_waited_for_or_passed_over(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MERGED_PING_SECONDS_MAX", 1.0)
    with headrace.Server() as one:
        with headrace.Server(tmp_path) as two:
            servers = Servers(one, two)
            servers.write(5)
            reader = servers.stream(onServerDown=policy)
            at: Offset = reader.initialOffset()
            port = int(two.address.rpartition(":")[2])
            servers.collections[1].database.client.close()
        batches_read = []
        with caplog.at_level(logging.WARNING):
            for _ in range(6):
                end = advance(reader, at)
                batches_read.append([row for batch in batches(reader, at, end) for row in batch.to_pylist()])
                at = end
                servers.write(1, 0)
        kinds = [row["operationType"] for batch in batches_read for row in batch]
        assert f"127.0.0.1:{port} cannot be reached" in caplog.text
        assert {row["server"] for batch in batches_read for row in batch} == {servers.names[0]}
        assert kinds.count(SNAPSHOT_END) == 1
        # The events of the one wait for the snapshot of the other, or not.
        assert (set(kinds) <= {SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END}) == (policy == "stall")
        with headrace.Server(tmp_path, port=port):
            servers.collections[1] = MongoClient[Row](servers.uris[1]).d.c
            batches_read += run(servers.stream(onServerDown=policy), at)
            assert mirrored(batches_read) == servers.contents()
            servers.close()


def test_a_server_whose_position_was_pruned_is_read_again_if_the_policy_says_so() -> None:
    with headrace.Server() as one, headrace.Server() as two:
        servers = Servers(one, two)
        servers.write(5)
        run(reader := servers.stream(), at := reader.initialOffset())
        reader = servers.stream()
        reader.prepareForTriggerAvailableNow()
        batches_read = []
        while (end := advance(reader, at)) != at:
            batches_read.append([row for batch in batches(reader, at, end) for row in batch.to_pylist()])
            at = end
        servers.write(20)
        prune_to(one, 5)
        with pytest.raises(PositionLost):
            run(servers.stream(), at)
        again = run(servers.stream(onPositionLost="resnapshot"), at)
        assert mirrored([*batches_read, *again]) == servers.contents()
        begun = [row["server"] for batch in again for row in batch if row["operationType"] == SNAPSHOT_BEGIN]
        assert begun == servers.names[:1]
        servers.close()


def test_a_server_that_is_added_begins_with_its_snapshot(servers: Servers) -> None:
    with headrace.Server() as three:
        batches_read = run(reader := servers.stream(), at := reader.initialOffset())
        at = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        batches_read = []
        while (end := advance(reader, at)) != at:
            batches_read.append([row for batch in batches(reader, at, end) for row in batch.to_pylist()])
            at = end
        with MongoClient[Row](three.uri) as client:
            client.d.c.insert_one({"_id": 1})
        servers.uris.append(three.uri)
        servers.names.append(server_name(three.uri))
        servers.collections.append(MongoClient[Row](three.uri).d.c)
        servers.write(3)
        batches_read += run(servers.stream(), at)
        assert mirrored(batches_read) == servers.contents()
        servers.collections.pop().database.client.close()


def test_the_collections_as_of_a_time_have_their_servers(servers: Servers) -> None:
    for collection in servers.collections:
        collection.database.command("collMod", "c", changeStreamPreAndPostImages={"enabled": True})
    moments = [collection.database.command("ping")["operationTime"] for collection in servers.collections]
    before = servers.contents()
    moment = max(moments).time + 1
    for collection in servers.collections:
        wait_until(collection.database.client, Timestamp(moment, 1))
    servers.write(6)
    rows = servers.read(asOf=datetime.fromtimestamp(moment, UTC).isoformat())
    documents = {name: sorted(row["fullDocument"] for row in rows if row["server"] == name) for name in servers.names}
    assert documents == before
    with pytest.raises(OptionError, match="a token is of one server"):
        servers.read(asOf=rows[0]["token"])


def wait_until(client: MongoClient[Row], moment: Timestamp) -> None:
    """Writes elsewhere until the server's time has come so far."""
    while client.admin.command("ping")["operationTime"] < moment:
        client.elsewhere.c.insert_one({})


def test_a_mirror_and_a_history_have_each_servers_collection(servers: Servers, tmp_path: Path) -> None:
    """Batches go to tables that are opened anew each time; one collection is dropped on its server meanwhile."""
    job = parse_job(
        {
            "checkpoint": "checkpoint", "source": servers.options(startingPosition="snapshot"),
            "sink": [{"kind": "mirror", "path": "mirror"}, {"kind": "history", "path": "history"}],
        },
        "job", tmp_path,
    )  # fmt: skip
    at: Offset = servers.stream(maxRowsPerTrigger="6").initialOffset()
    for number in range(12):
        if number == 6:
            servers.collections[0].drop()
        servers.write(2)
        reader = servers.stream(maxRowsPerTrigger="6", showRawUpdateDescription="true")
        if rows := batches(reader, at, end := advance(reader, at)):
            for sink in job.sinks:
                sink.open().apply(MicroBatch("q", number, pa.Table.from_batches(rows)))
        at = end
        reader.stop()
    verified = list(verify_job(job))
    assert [each.equal for each in verified] == [True, True], verified
    assert all(f"{name}: " in each.description for name in servers.names for each in verified)
    servers.collections[1].insert_one({"_id": "later"})
    DeltaTable(tmp_path / "mirror").delete(f"server = '{servers.names[1]}'")
    assert [each.equal for each in verify_job(job)] == [False, True]
