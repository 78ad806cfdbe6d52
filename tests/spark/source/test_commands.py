"""With transport `bson` the source sends only MongoDB's commands; with `auto` it finds out which server it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandListener, CommandStartedEvent
from pyspark.sql.types import StringType, StructField, StructType

import headrace
from headrace.spark.mirror import Mirror
from headrace.spark.mongodb import mongodb_stream
from headrace.spark.mongodb.mongodb_stream import PositionLost
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.extjson import dumps
from headrace.spark.source.options import parse_options
from headrace.spark.source.readers import BatchReader, StreamReader
from headrace.spark.stream.offsets import Offset
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.verify.comparison import compare
from tests.spark.support.pruning import prune_to

# All that the source sends to a server of which it knows nothing; MongoDB 6.0 has each.
MONGODBS: Final = {"aggregate", "buildInfo", "find", "getMore", "killCursors", "ping"}
# Pymongo's own.
DRIVERS: Final = {"endSessions", "hello", "isMaster"}
STAGES: Final = {"$changeStream", "$collStats", "$changeStreamSplitLargeEvent", "$match", "$project"}
HEADRACES: Final = {"headraceChanges"}
SCHEMA: Final = StructType([StructField(name, StringType()) for name in ("token", "operationType", "documentKey")])

Row = dict[str, Any]


class Seen(CommandListener):
    """The names of the commands that were sent, and of the stages in them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.stages: set[str] = set()

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)
        for stage in event.command.get("pipeline", []):
            self.stages |= set(stage)

    def succeeded(self, event: Any) -> None:
        """Said enough when it started."""

    def failed(self, event: Any) -> None:
        """Said enough when it started."""

    def taken(self) -> set[str]:
        names = set(self.names) - DRIVERS
        self.names.clear()
        return names


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What the source sends; all its clients are made anew, and listened to."""
    listener = Seen()
    made: dict[str, MongoClient[Row]] = {}

    def client(uri: str, _: int) -> MongoClient[Row]:
        if uri not in made:
            made[uri] = MongoClient(
                uri, event_listeners=[listener], datetime_conversion="DATETIME_MS", uuidRepresentation="unspecified"
            )
        return made[uri]

    monkeypatch.setattr(mongodb_stream, "_client", client)
    mongodb_stream._supports_arrow.cache_clear()
    yield listener
    mongodb_stream._supports_arrow.cache_clear()
    for each in made.values():
        each.close()


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server, MongoClient[Row](server.uri) as client:
        client.d.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
        client.d.c.insert_many([{"_id": number} for number in range(6)])
        yield server


def write(server: headrace.Server, count: int) -> None:
    with MongoClient[Row](server.uri) as client:
        for number in range(count):
            client.d.c.update_one({"_id": 1}, {"$set": {"n": number}})


def options(server: headrace.Server, **more: str) -> Any:
    return parse_options({"uri": server.uri, "database": "d", "collection": "c", "awaitMs": "20"} | more)


def batch(server: headrace.Server, **more: str) -> list[Row]:
    reader = BatchReader(options(server, **more), SCHEMA)
    return [row for partition in reader.partitions() for rows in reader.read(partition) for row in rows.to_pylist()]


def run(reader: StreamReader, start: Offset) -> tuple[list[str], Offset]:
    """The operations of a run over what is available, and the offset at which it ends."""
    operations: list[str] = []
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        for partition in reader.partitions(start, end):
            operations += [row["operationType"] for rows in reader.read(partition) for row in rows.to_pylist()]
        start = end
    reader.stop()
    return operations, start


def everything(server: headrace.Server, **more: str) -> None:
    """Each path of the source once: batch, positions, past, snapshot, bounds, a position that is lost, and verify."""
    token = batch(server, startingPosition="earliest", **more)[2]["token"]
    write(server, 2)
    assert [row["operationType"] for row in batch(server, startingPosition=token, partitions="2", **more)].count(
        "update"
    ) == 2
    assert len(batch(server, asOf=token, **more)) == 3
    bounds = {"maxRowsPerTrigger": "4", "maxBytesPerTrigger": "2000", "onPositionLost": "resnapshot"}
    reader = StreamReader(options(server, startingPosition="snapshot", partitions="2", **bounds, **more), SCHEMA)
    operations, at = run(reader, reader.initialOffset())
    assert operations == ["snapshotBegin", *["snapshot"] * 6, "snapshotEnd"]
    write(server, 30)
    prune_to(server, 12)
    with pytest.raises(PositionLost):
        batch(server, startingPosition=token, **more)
    reader = StreamReader(options(server, startingPosition="snapshot", **bounds, **more), SCHEMA)
    assert run(reader, at)[0] == operations


def test_with_bson_only_mongodbs_commands_are_sent(server: headrace.Server, seen: Seen) -> None:
    everything(server, transport="bson")
    assert seen.taken() == MONGODBS - {"buildInfo"}
    assert seen.stages <= STAGES


def test_another_server_is_detected_and_sent_only_mongodbs_commands(
    no_headrace: None, server: headrace.Server, seen: Seen
) -> None:
    everything(server)
    assert seen.taken() == MONGODBS
    assert seen.stages <= STAGES
    with pytest.raises(OperationFailure, match="no such command"):
        batch(server, startingPosition="earliest", transport="arrow")


def test_a_mirror_is_compared_with_mongodbs_commands(
    no_headrace: None, server: headrace.Server, seen: Seen, tmp_path: Path
) -> None:
    mirror = Mirror(server.uri, "d", "c", tmp_path, kind="parquet")
    token = mongodb_stream.MongoDBStream(options(server)).resolve(StreamPosition("latest")).text
    rows = {dumps(number): MirrorRow(dumps({"_id": number}), token) for number in range(6)}
    mirror.table().commit(MirrorChanges(MirrorState(token, token, query="q", batch=0), upserts=rows))
    write(server, 3)
    assert compare(mirror).equal
    assert seen.taken() <= MONGODBS


def test_a_headrace_server_is_detected(server: headrace.Server, seen: Seen) -> None:
    everything(server)
    assert seen.taken() == MONGODBS | HEADRACES
