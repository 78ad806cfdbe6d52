"""A job of several collections of several servers, without Spark: each table has each server's rows, and is exact."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.errors import OptionError
from headrace.spark.jobs.checkpoint import read_checkpoint
from headrace.spark.jobs.job_file import JobError
from headrace.spark.jobs.job_tables import tables_of
from headrace.spark.jobs.metrics import JobMetrics
from headrace.spark.jobs.metrics_listener import MetricsListener
from headrace.spark.jobs.start_checks import check_job
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.mongodb.listed_collections import CollectionReplaced
from headrace.spark.mongodb.source_options import server_name
from headrace.spark.rows.extjson import dumps
from headrace.spark.source.options import parse_options
from headrace.spark.stream.planner import StreamPlanner
from tests.spark.jobs.test_collections_job import Runs, job_of, recorded, verified

pytestmark = pytest.mark.long

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    with headrace.Server() as one, headrace.Server() as two:
        yield [one, two]


def uris_of(servers: list[Any]) -> str:
    return "\n".join(server.uri for server in servers)


def change(database: Any, choose: random.Random, number: int) -> None:
    collection = database[choose.choice(NAMES)]
    match choose.randrange(30):
        case 0:
            collection.drop()
        case 1 if collection.name in database.list_collection_names():
            collection.rename(choose.choice([name for name in NAMES if name != collection.name]), dropTarget=True)
        case chosen if chosen < 10:
            collection.delete_one({"_id": choose.randrange(8)})
        case _:
            key = {"_id": choose.randrange(8)}
            collection.update_one(key, {"$set": {"n": number}, "$push": {"list": number}}, upsert=True)


def documents_of(server: Any, name: str) -> Counter[tuple[str, str]]:
    with MongoClient[dict[str, Any]](server.uri) as client:
        return Counter((server_name(server.uri), dumps(document)) for document in client.shop[name].find())


def rows_of(job: Any, kind: str, name: str) -> Counter[tuple[str, str]]:
    for table in tables_of(job):
        if table.sink.kind == kind and table.collection == f"shop.{name}":
            rows = table.sink.open().table.read().to_pylist()  # type: ignore[attr-defined]
            return Counter((row["server"], row["document"]) for row in rows if row.get("current", True))
    return Counter()


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.soak)])
def test_tables_are_the_collections_of_all_servers(servers: list[Any], tmp_path: Path, seed: int) -> None:
    """Batches are small, and a run ends after any of them: its stream goes, with what it has read ahead."""
    choose = random.Random(seed)
    job = job_of(tmp_path, uris_of(servers), maxRowsPerTrigger=choose.choice([4, 10, 40]))
    clients = [MongoClient[dict[str, Any]](server.uri) for server in servers]
    for turn in range(5):
        for number in range(40):
            change(choose.choice(clients).shop, choose, turn * 40 + number)
        Runs(job).run(choose.randrange(6) if turn < 4 else 1000)
    results = verified(job)
    assert len(results) > 3 and all(equal for equal, _ in results), results
    for name in NAMES:
        expected = documents_of(servers[0], name) + documents_of(servers[1], name)
        assert rows_of(job, "mirror", name) == rows_of(job, "history", name) == expected, name
    for client in clients:
        client.close()


def test_state_lag_and_identity_are_by_server(servers: list[Any], tmp_path: Path) -> None:
    job = job_of(tmp_path, uris_of(servers), "mirror", maxRowsPerTrigger=20)
    one, two = (server_name(server.uri) for server in servers)
    with MongoClient[dict[str, Any]](servers[0].uri) as first, MongoClient[dict[str, Any]](servers[1].uri) as second:
        for client, names in ((first, "ab"), (second, "bc")):
            for name in names:
                client.shop[name].insert_many([{"_id": key} for key in range(8)])
        Runs(job).run(1)
        lines = list(lines_of(job_status(job)))
        waiting = [line for line in lines if line.endswith(": waits for its snapshot")]
        assert waiting == [f"  shop.b: {one}: waits for its snapshot", f"  shop.c: {two}: waits for its snapshot"]
        runs = Runs(job)
        runs.run()
        first.shop.b.insert_many([{"_id": 10}, {"_id": 11}])
        second.shop.b.insert_one({"_id": 10})
        metrics = JobMetrics("job")
        listener = MetricsListener(metrics)
        listener.resume(read_checkpoint(job.checkpoint).offset)
        listener.measure(job.source)
        assert (metrics.collections["shop.b"].lag_events, metrics.lag_events) == (3, 3)
        second.shop.late.insert_one({"_id": 1})
        runs.go_on()
        known = recorded(job).collections
        assert set(known) >= {f"{one} shop.a", f"{one} shop.b", f"{two} shop.b", f"{two} shop.late"}
        assert known[f"{one} shop.b"]["uuid"] != known[f"{two} shop.b"]["uuid"]
        assert check_job(job).notices == ()
        second.shop.b.drop()
        (notice,) = check_job(job).notices
        assert notice.startswith(f"shop.b on {two}")
        Runs(job).run()
        assert rows_of(job, "mirror", "b") == documents_of(servers[0], "b")
        assert all(equal for equal, _ in verified(job))


def test_a_server_is_added_and_none_removed(servers: list[Any], tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](servers[0].uri) as first, MongoClient[dict[str, Any]](servers[1].uri) as second:
        with headrace.Server() as third, MongoClient[dict[str, Any]](third.uri) as last:
            for client in (first, second, last):
                client.shop.a.insert_one({"_id": 1})
            job = job_of(tmp_path, uris_of(servers))
            Runs(job).run()
            more = job_of(tmp_path, uris_of([*servers, third]))
            Runs(more).run()
            # A log that has the snapshots only is not compared.
            assert [equal for equal, _ in verified(more)] == [True, True, None]
            assert len(rows_of(more, "mirror", "a")) == 3
            with pytest.raises(JobError, match="cannot be removed"):
                check_job(job)
        stream = StreamPlanner(parse_options(dict(job.source)))
        offset = read_checkpoint(more.checkpoint).offset
        assert offset is not None
        with pytest.raises(OptionError, match="which the option 'uri' has not"):
            stream.partitions(offset, offset)
        stream.close()


@pytest.mark.parametrize("policy", ["stall", "skip"])
def test_a_server_that_is_down_stalls_the_others_or_not(policy: str) -> None:
    with headrace.Server() as one, MongoClient[dict[str, Any]](one.uri) as client:
        with headrace.Server() as two:
            given = {"uri": uris_of([one, two]), "database": "shop", "startingPosition": "snapshot", "awaitMs": "20"}
            stream = StreamPlanner(parse_options(given | {"onServerDown": policy}))
            start = stream.latest_offset(stream.initial_offset())
        client.shop.a.insert_one({"_id": 1})
        end = stream.latest_offset(start)
        assert (end == start) == (policy == "stall")
        stream.close()


def test_a_collection_of_one_server_that_is_another_without_an_event_is_refused(
    servers: list[Any], tmp_path: Path
) -> None:
    job = job_of(tmp_path, uris_of(servers), "mirror")
    for server in servers:
        with MongoClient[dict[str, Any]](server.uri) as client:
            client.shop.a.insert_one({"_id": 1})
    runs = Runs(job)
    runs.run()
    name = server_name(servers[1].uri)
    path = job.checkpoint / "headrace.json"
    path.write_text(path.read_text().replace(recorded(job).collections[f"{name} shop.a"]["uuid"], "00" * 16))
    with pytest.raises(CollectionReplaced, match=f"shop.a on {name} is another collection"):
        check_job(job)
