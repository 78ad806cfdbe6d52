"""Rows straight from the oplog are the rows of the events, whatever the events, the options and the bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, ObjectId

from headrace import limits
from headrace.testing.driven import DrivenServer
from headrace.values.arrow.batches import SCHEMA, batches_of, columns_batch, events_batch
from headrace.values.arrow.event_columns import COLUMNS, SIZE, RowColumns, RowKind, in_slice
from headrace.values.bson import encode

KEYS: list[Any] = [
    1, 2.5, Int64(3), Int64(1 << 40), -0.0, Decimal128("4.0"), "five", "with\0zero", "ü", ObjectId("6" * 24),
    {"seven": 7}, True, None, datetime(2026, 11, 21, tzinfo=UTC), Binary(b"nine"), "k" * 600,
]  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"showExpandedEvents": True}, {"showRawUpdateDescription": True}, {"fullDocument": "whenAvailable"},
    {"fullDocumentBeforeChange": "whenAvailable"}, {"fullDocument": "updateLookup"},
]  # fmt: skip
PIPELINES: list[list[dict[str, Any]]] = [
    [],
    [{"$match": {"operationType": {"$in": ["insert", "update"]}}}],
    [{"$match": {"ns.coll": "c"}}],
    [{"$match": {"fullDocument.n": {"$gt": 1}}}],
    [{"$set": {"more": 1}}],
]
SCOPES = ["c", 1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DrivenServer]:
    # A reply ends where its time is up, on a busy machine with nothing in it.
    monkeypatch.setattr(limits, "SCAN_MS_MAX", 60_000.0)
    with DrivenServer() as driven:
        yield driven


def write(server: DrivenServer, choose: random.Random, count: int) -> None:
    """Statements of every kind: several documents, retryable ones, transactions, commands, other collections."""
    numbers = iter(range(1 << 30))
    for _ in range(count):
        coll, key = choose.choice(["c", "c", "c", "d", "system.views"][:4]), choose.choice(KEYS)
        match choose.randrange(9):
            case 0 | 1:
                documents = [
                    {"_id": key, "n": number, "list": [1, {"x": key}]} for number in range(choose.randrange(1, 4))
                ]
                documents = [
                    document | ({"_id": ObjectId()} if index else {}) for index, document in enumerate(documents)
                ]
                server.run("d", {"insert": coll, "documents": documents})
            case 2:
                server.run("d", {"delete": coll, "deletes": [{"q": {"_id": key}, "limit": 1}]})
            case 3:
                change = {
                    "q": {"_id": key},
                    "u": {"n": next(numbers), "x": "replaced"},
                    "upsert": choose.random() < 0.5,
                }
                server.run("d", {"update": coll, "updates": [change]})
            case 4 | 5:
                how = choose.choice([{"$set": {"a": next(numbers)}}, {"$set": {"n": next(numbers)}, "$unset": {"a": 1}},
                                     {"$push": {"list": 1}}, {"$set": {"list.0": next(numbers)}}])  # fmt: skip
                server.run("d", {"update": coll, "updates": [{"q": {}, "u": how, "multi": True}]})
            case 6:
                session = {
                    "lsid": {"id": Binary(b"0123456789abcdef", 4)},
                    "txnNumber": Int64(choose.randrange(1, 1 << 30)),
                }
                server.run("d", {"insert": coll, "documents": [{"_id": ObjectId()}], **session})
            case 7:
                server.run("d", {"createIndexes": coll, "indexes": [{"key": {"n": 1}, "name": f"n{next(numbers)}"}]})
            case 8 if choose.random() < 0.2:
                server.run("d", {"drop": "d"})


def start(server: DrivenServer, name: Any) -> dict[str, Any]:
    reply = server.must("d", {"aggregate": name, "pipeline": [{"$changeStream": {}}], "cursor": {}})
    token: dict[str, Any] = reply["cursor"]["postBatchResumeToken"]
    return token


def rows_of_events(server: DrivenServer, name: Any, after: Any, options: Any, pipeline: Any) -> list[bytes]:
    """The events, from change streams."""
    result: list[bytes] = []
    while True:
        stages = [{"$changeStream": options | {"startAfter": after}}, *pipeline]
        reply = server.must("d", {"aggregate": name, "pipeline": stages, "cursor": {"batchSize": 100_000}})["cursor"]
        if not reply["firstBatch"] and reply["postBatchResumeToken"] == after:
            return result
        result += map(encode, reply["firstBatch"])
        after = reply["postBatchResumeToken"]


def rows(server: DrivenServer, name: Any, after: Any, columns: list[str], **more: Any) -> pa.Table:
    """The same range, in as many replies as it takes."""
    result: list[pa.RecordBatch] = []
    for _ in range(10_000):
        reply = server.must("d", {"headraceChanges": name, "after": after, "columns": columns, **more})
        result += batches_of(reply["arrow"])
        assert (
            sum(batch.num_rows for batch in batches_of(reply["arrow"])) == reply["rows"] <= more.get("rowsMax", 1 << 30)
        )
        after = reply["token"]
        if reply["done"]:
            return pa.Table.from_batches(result)
    raise AssertionError("it does not come to its end")


def check_counts(server: DrivenServer, name: Any, after: dict[str, Any], **more: Any) -> None:
    """Where rows are only counted, each reply has as many as there are up to its token."""
    tokens = rows(server, name, after, ["token"], **more)["token"].to_pylist()
    counted, done = 0, False
    while not done:
        reply = server.must("d", {"headraceChanges": name, "after": after, "columns": [], **more})
        assert reply["rows"] == sum(after["_data"] < token <= reply["token"]["_data"] for token in tokens)
        assert reply["rows"] <= more["rowsMax"]
        counted, after, done = counted + reply["rows"], reply["token"], reply["done"]
    assert counted == len(tokens)


@pytest.mark.process
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_those_of_the_events(server: DrivenServer, options: dict[str, Any], seed: int) -> None:
    choose = random.Random(seed)
    server.must("d", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    begin = start(server, "c")
    write(server, choose, 60)
    columns = [*COLUMNS, SIZE]
    for name in SCOPES:
        for pipeline in PIPELINES:
            events = rows_of_events(server, name, begin, options, pipeline)
            assert events
            more = {"stream": options, "pipeline": pipeline}
            full = rows(server, name, begin, columns, **more)
            assert full.equals(pa.Table.from_batches([events_batch(events, columns)])), (name, pipeline)
            pieces = rows(server, name, begin, columns, rowsMax=choose.randrange(1, 9), **more)
            assert pieces.equals(full)
            assert rows(server, name, begin, columns, bytesMax=choose.randrange(1, 5000), **more).equals(full)
            for bound in (1, 7, 10_000):
                slice_ = {"rowsMax": bound} | ({} if bound == 1 else {"slice": 1, "slices": 2})
                check_counts(server, name, begin, **slice_, **more)
            number = choose.randrange(3)
            part = rows(server, name, begin, columns, slice=number, slices=3, rowsMax=7, **more)
            assert part.equals(pa.Table.from_batches([events_batch(in_slice(events, number, 3), columns)]))


@pytest.mark.long
def test_a_range_ends_at_any_token_of_it(server: DrivenServer) -> None:
    begin = start(server, "c")
    write(server, random.Random(5), 60)
    events = rows_of_events(server, "c", begin, {}, [])
    full = rows(server, "c", begin, ["token"])["token"].to_pylist()
    assert len(full) == len(events) > 20
    for count, token in enumerate(full, 1):
        reply = server.must(
            "d", {"headraceChanges": "c", "after": begin, "until": {"_data": token}, "columns": ["token"]}
        )
        assert batches_of(reply["arrow"])[0]["token"].to_pylist() == full[:count]
        assert reply["done"] and reply["token"]["_data"] == token


def test_columns_made_at_once_are_those_of_the_rows_one_by_one_also_after_2038() -> None:
    rows = RowColumns()
    for number, kind in enumerate(("insert", "update", "delete") * 2):
        rows.kinds.append(RowKind(kind, "d", "c", None, 100))
        rows.tokens.append(f"82{number}")
        rows.positions.append((0xF0000000 + number) << 32 | 0xFFFFFFFF)
        rows.walls.append((4_000_000_000_000 + number).to_bytes(8, "little"))
        rows.keys.append(encode({"_id": number}))
        rows.details.append(None if kind == "delete" else encode({"n": number}))
    fields = [SCHEMA.field(name) for name in COLUMNS]
    arrays = [pa.array(values, type=field.type) for values, field in zip(zip(*rows.rows()), fields)]
    assert columns_batch(rows, COLUMNS).equals(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
