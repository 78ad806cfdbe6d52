"""A job that follows one collection, or several, of two servers into histories and mirrors; its processes are killed.

Writers write to both servers, with the same keys; one server is killed and started again, and collections are dropped.
The tables are compared by code of this file and of `support/plain_values.py`: documents of each server, and the rows of
the tables that name it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.spark.jobs.test_collections_killed import VALUES, folder_of, key_of, normal, text_of
from tests.spark.jobs.test_job_killed import KINDS, Server, run_and_kill
from tests.spark.support.plain_values import values_of_document, values_of_row

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the job's processes in /proc"),
]

PAUSE_S = 0.02
"""Of a writer between two writes."""
DROPPED_AT = 400
"""This write of the first writer drops its server's collection."""
SOURCE = """
checkpoint = "checkpoint"
report_seconds = 0.2
[spark]
quick = true
[source]
uri = {uris}
database = "shop"
startingPosition = "snapshot"
maxRowsPerTrigger = 300
"""
JOB = f"""{SOURCE}
collection = "orders"
[[sink]]
kind = "mirror"
path = "mirror"
[[sink]]
kind = "mirror"
path = "typed"
schema = "infer"
[[sink]]
kind = "history"
path = "history"
"""
COLLECTIONS_JOB = f"""{SOURCE}
[[sink]]
kind = "mirror"
path = "mirror/{{{{collection}}}}"
[[sink]]
kind = "mirror"
path = "typed/{{{{collection}}}}"
schema = "infer"
[[sink]]
kind = "history"
path = "history/{{{{collection}}}}"
"""
NAMES = ("orders", "customers", "a/b")
RARE = 60
"""Of so many writes of a writer to several collections one drops, renames or makes a collection."""


def change(orders: Any, choose: random.Random, number: int) -> None:
    key = {"_id": key_of(choose)}
    value = choose.choice(VALUES)
    match choose.randrange(6):
        case 0:
            orders.delete_one(key)
        case 1:
            orders.replace_one(key, {"value": value, f"since_{number // 100 * 100}": number}, upsert=True)
        case _:
            orders.update_one(key, {"$push": {"list": number}, "$inc": {"n": 1}, "$set": {"value": value}}, upsert=True)


def change_one(database: Any, choose: random.Random, number: int) -> None:
    """As the writer of one collection does, which is dropped once on the first server."""
    change(database.orders, choose, number)


def change_several(database: Any, choose: random.Random, number: int) -> None:
    """One write to one of the collections or, now and then, a drop, a rename, or a collection that appears."""
    collection = database[choose.choice(NAMES)]
    match number // RARE % 3 if number % RARE == RARE - 1 else -1:
        case 0:
            collection.drop()
        case 1:
            collection.rename(choose.choice([*NAMES, "new"]), dropTarget=True)
        case 2:
            collection.aggregate([{"$match": {"n": {"$gt": 1}}}, {"$out": "new"}])
        case _:
            change(collection, choose, number)


@contextmanager
def writers(uris: list[str], write_one: Callable[[Any, random.Random, int], None]) -> Iterator[list[int]]:
    """A thread for each server that writes all the while; what they have done, in writes."""
    stop = threading.Event()
    done = [0] * len(uris)

    def write(server: int) -> None:
        choose = random.Random(server)
        with MongoClient[Any](uris[server]) as client:
            while not stop.wait(PAUSE_S):
                # It is not known whether the write was done; the collections are what counts.
                with suppress(PyMongoError):
                    if server == 0 and done[server] == DROPPED_AT:
                        client.shop.orders.drop()
                    write_one(client.shop, choose, done[server])
                    done[server] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(uris))]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def rows_of(path: Path, server: str) -> list[dict[str, Any]]:
    """A table's rows of the server; those of a history that are true now."""
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row.get("server", row.get("_server")) == server and row.get("current", True)]


@pytest.mark.soak
def test_both_servers_collections_are_right_after_many_kills(tmp_path: Path) -> None:
    """Takes several minutes: Spark is started 16 times."""
    kill_again_and_again(tmp_path, 5 * len(KINDS))


def test_several_collections_of_both_servers_are_right_after_each_kind_of_kill(tmp_path: Path) -> None:
    """Takes one to two minutes: Spark is started four times."""
    kill_again_and_again(tmp_path, len(KINDS), several=True)


def kill_again_and_again(tmp_path: Path, kills: int, *, several: bool = False) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or random.randrange(10**6))
    print(f"HEADRACE_SEED={seed}", flush=True)
    choose = random.Random(seed)
    servers = [Server(tmp_path / name) for name in ("one", "two")]
    job = tmp_path / "job.toml"
    job.write_text((COLLECTIONS_JOB if several else JOB).format(uris=[server.uri for server in servers]))
    try:
        for server in servers:
            with MongoClient[Any](server.uri) as client:
                client.shop.orders.insert_many([{"_id": f"first {number}", "n": 0} for number in range(400)])
        with writers([server.uri for server in servers], change_several if several else change_one) as done:
            for number in range(kills):
                kind = KINDS[number % len(KINDS)]
                progress = run_and_kill(job, choose, kind)
                print(f"killed {number + 1} of {kills}, {kind}: {progress}", flush=True)
                if number % 5 == 1:
                    servers[1].restart_killed()
        assert done[0] > DROPPED_AT
        # What is left may be much: the last run takes larger steps.
        job.write_text(job.read_text().replace("maxRowsPerTrigger = 300", "maxRowsPerTrigger = 3000"))
        command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", "--once", str(job)]
        subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
        for server in servers:
            compare_several(server, tmp_path) if several else compare(server, tmp_path)
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


def compare_several(server: Server, folder: Path) -> None:
    """As `compare`, of each collection's tables."""
    name = f"127.0.0.1:{server.port}"
    count = 0
    with MongoClient[Any](server.uri, document_class=dict, datetime_conversion="DATETIME_MS") as client:
        for collection in (*NAMES, "new"):
            documents = list(client.shop[collection].find())
            rows = {
                kind: rows_of(path, name) if (path := folder / kind / folder_of(collection)).exists() else []
                for kind in ("mirror", "typed", "history")
            }
            values = Counter(map(values_of_row, rows["typed"]))
            assert values == Counter(map(values_of_document, documents)), (name, collection)
            texts = Counter(normal(text_of(document)) for document in documents)
            for kind in ("mirror", "history"):
                assert Counter(normal(row["document"]) for row in rows[kind]) == texts, (name, collection, kind)
            count += len(documents)
    assert count > 30


def compare(server: Server, folder: Path) -> None:
    """What each table has of the server must be its collection: no document less, none twice."""
    name = f"127.0.0.1:{server.port}"
    with MongoClient[Any](server.uri, document_class=dict, datetime_conversion="DATETIME_MS") as client:
        documents = list(client.shop.orders.find())
    assert len(documents) > 30
    texts = Counter(normal(text_of(document)) for document in documents)
    for table in ("mirror", "history"):
        assert Counter(normal(row["document"]) for row in rows_of(folder / table, name)) == texts, (name, table)
    values = Counter(map(values_of_document, documents))
    assert Counter(map(values_of_row, rows_of(folder / "typed", name))) == values, name
