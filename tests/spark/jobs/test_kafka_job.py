"""A job into a real Kafka, of one broker, killed in its snapshot and in its stream while a writer writes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from bson import json_util
from pymongo import MongoClient

import headrace
from tests.spark.jobs.test_job_killed import run_and_kill, writers
from tests.spark.support.kafka_broker import Broker, broker, resolved
from tests.spark.support.other_pyspark import environment_with_pyspark

pytestmark = [
    pytest.mark.network,
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the job's processes in /proc"),
]

# There is none for PySpark 4.3 yet.
PYSPARK: Final = "4.2.0"
WRITER: Final = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", PYSPARK)
NEEDED: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
DOCUMENTS: Final = 400
JOB: Final = """
checkpoint = "checkpoint"
report_seconds = 0.2
[source]
uri = "{uri}"
database = "shop"
collection = "orders"
startingPosition = "snapshot"
maxRowsPerTrigger = 100
[spark]
quick = true
conf = {{ "spark.jars" = "{jars}" }}
[[sink]]
kind = "kafka"
servers = "{servers}"
topic = "{{database}}.{{collection}}"
position = "orders.position"
tombstones = true
kafka = {{ "linger.ms" = 5 }}
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Broker]:
    (tmp_path / "kafka").mkdir()
    with broker(tmp_path / "kafka") as running:
        yield running


def records_of(kafka: Broker, topic: str, jars: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.spark.sinks.kafka_topic", kafka.address, topic, jars]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_killed_job_leaves_each_event_in_kafka_in_the_order_of_its_key(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes one to two minutes: Spark is started four times, and a broker."""
    seed = int(os.environ.get("HEADRACE_SEED") or random.randrange(10**6))
    print(f"HEADRACE_SEED={seed}", flush=True)
    choose = random.Random(seed)
    for name, value in environment_with_pyspark(PYSPARK).items():
        monkeypatch.setenv(name, value)
    jars = ",".join(resolved(WRITER, NEEDED))
    job = tmp_path / "job.toml"
    with headrace.Server() as server, MongoClient[Any](server.uri) as client:
        job.write_text(JOB.format(uri=server.uri, servers=kafka.address, jars=jars))
        orders = client.shop.orders
        orders.insert_many([{"_id": number, "list": [], "n": 0} for number in range(DOCUMENTS)])
        with orders.watch() as stream:
            with writers(server.uri, 1):
                for kind in ("all", "driver"):
                    print(run_and_kill(job, choose, kind), flush=True)
            # The last run takes larger steps, as much may be left, and has the rows in the driver, for another sink.
            text = job.read_text().replace("maxRowsPerTrigger = 100", "maxRowsPerTrigger = 5000")
            job.write_text(text + '[[sink]]\nkind = "changes"\npath = "changes"\nwriters = "driver"\n')
            command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", "--once", str(job)]
            subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
            events = list(iter(stream.try_next, None))
        documents = {json_util.dumps(each["_id"]): each for each in orders.find()}
    records = records_of(kafka, "shop.orders", jars)
    _check_records(records)
    by_key = defaultdict(list)
    for record in records:
        if record["key"] is not None and record["value"] is not None:
            by_key[record["key"]].append(record)
    wanted = defaultdict(list)
    begun = min(record["headers"]["token"] for record in records)
    for event in events:
        if event["_id"]["_data"] > begun:
            wanted[_canonical(event["documentKey"])].append(event["_id"]["_data"])
    assert events
    assert wanted
    for key, tokens in wanted.items():
        missing = set(tokens) - {record["headers"]["token"] for record in by_key[key]}
        assert not missing, (key, missing)
    state: dict[str, Any] = {}
    for key, each in by_key.items():
        fresh = _newer(each)
        snapshot = max((one["headers"]["token"] for one in each if _kind(one) == "snapshot"), default="")
        seen = [one["headers"]["token"] for one in fresh if _kind(one) != "snapshot"]
        assert seen == [token for token in wanted[key] if token > snapshot], key
        document = _document_after(fresh)
        if document is not None:
            state[json_util.dumps(document["_id"])] = document
    assert state == documents


def _kind(record: dict[str, Any]) -> str:
    return str(record["headers"]["operationType"])


def _canonical(document: Any) -> str:
    return json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS, separators=(",", ":"))


def _check_records(records: list[dict[str, Any]]) -> None:
    """The records of a key are in one partition, headers say what values say, and a tombstone follows each delete.

    A job that was killed between a delete and its tombstone has written both once more.
    """
    partitions: dict[str, set[int]] = defaultdict(set)
    before: dict[str, dict[str, Any]] = {}
    deleted: set[tuple[str, str]] = set()
    buried: set[tuple[str, str]] = set()
    for record in records:
        headers, key = record["headers"], record["key"]
        if record["value"] is None:
            assert before[key]["value"] is not None
            assert before[key]["headers"] == headers
            assert headers["operationType"] == "delete"
            buried.add((key, headers["token"]))
        else:
            value = json.loads(record["value"])
            assert (value["_id"]["_data"], value["operationType"]) == (headers["token"], headers["operationType"])
            assert value.get("clusterTime") == json.loads(headers.get("clusterTime", "null"))
        if headers["operationType"] == "delete":
            deleted.add((key, headers["token"]))
        if key is not None:
            partitions[key].add(record["partition"])
            before[key] = record
    assert deleted == buried
    assert {len(numbers) for numbers in partitions.values()} == {1}
    assert len({record["partition"] for record in records}) == 3


def _newer(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader takes of a key's records: those that are newer than all before."""
    taken: list[dict[str, Any]] = []
    for record in records:
        if not taken or record["headers"]["token"] > taken[-1]["headers"]["token"]:
            taken.append(record)
    return taken


def _document_after(records: list[dict[str, Any]]) -> Any:
    """The document of a key after its records; the writer pushes, increments, replaces and deletes."""
    document: Any = None
    for record in records:
        event = json_util.loads(record["value"])
        if event["operationType"] == "update":
            if document is None:
                continue  # the snapshot did not see it: it is deleted further on
            for path, value in event["updateDescription"]["updatedFields"].items():
                name, _, index = path.partition(".")
                if index:
                    document[name] += [value]
                    assert len(document[name]) == int(index) + 1
                else:
                    document[name] = value
        else:
            document = event.get("fullDocument")
    return document
