"""A job of twenty collections whose processes are killed, while writers write every type of BSON and rename and drop.

The tables are compared by code of this file and of `support/plain_values.py`: documents of the server and the history's
as canonical Extended JSON of the `bson` package, and values of the mirror's typed columns, which grow all the while.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from deltalake import DeltaTable
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.spark.jobs.test_job_killed import KINDS, Server, run_and_kill
from tests.spark.support.plain_values import values_of_document, values_of_row

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the job's processes in /proc"),
]

COLLECTIONS = [f"orders_{number:02}" for number in range(16)] + ["a/b c", "_x", "Ünï", "log_1"]
KEYS = 40
RARE = 100
"""Of so many writes of a writer one drops, renames or makes a collection."""
PAUSE_S = 0.05
"""Of a writer between two writes: what waits behind the last kill is some thousand events."""
JOB = """
checkpoint = "checkpoint"
report_seconds = 0.2
[source]
uri = "{uri}"
database = "shop"
collections = ["orders_*", "new_*", "a/b c", "_x", "Ünï", "log_*"]
startingPosition = "snapshot"
maxRowsPerTrigger = 150
[spark]
quick = true
[[sink]]
kind = "mirror"
path = "mirror/{{database}}/{{collection}}"
schema = "infer"
[[sink]]
kind = "history"
path = "history/{{collection}}"
"""
VALUES: tuple[Any, ...] = (
    1, 1.5, float("inf"), "text", [1, [2]], Binary(b"\0\1", 128), ObjectId(b"0" * 12), True, None,
    datetime(2026, 1, 2, tzinfo=UTC), Regex("a.b", "i"), DBRef("c", 1), Code("f()"), Code("g()", {"x": 1}),
    Timestamp(1, 2), Int64(1 << 40), Decimal128("1.00"), MinKey(), MaxKey(), -0.0,
)  # fmt: skip


def key_of(choose: random.Random) -> Any:
    number = choose.randrange(KEYS)
    return choose.choice([number, float(number), f"key {number}", {"n": number}, Int64(number + (1 << 40))])


def change(database: Any, choose: random.Random, number: int) -> None:
    """One write or, now and then, a drop, a rename, or a collection that appears."""
    collection = database[choose.choice(COLLECTIONS)]
    new = database[f"new_{choose.randrange(4)}"]
    match choose.randrange(400) if number % RARE else number // RARE % 4 - 4:
        case -4:
            collection.drop()
        case -3:
            collection.rename(new.name, dropTarget=True)
        case -2:
            new.rename(choose.choice(COLLECTIONS), dropTarget=True)
        case -1:
            collection.aggregate([{"$match": {"n": {"$gt": 1}}}, {"$out": new.name}])
        case chosen if chosen < 30:
            new.insert_one({"_id": key_of(choose), "value": choose.choice(VALUES)})
        case chosen if chosen < 80:
            collection.delete_one({"_id": key_of(choose)})
        case chosen if chosen < 130:
            document = {"value": choose.choice(VALUES), f"since_{number // RARE}": number}
            collection.replace_one({"_id": key_of(choose)}, document, upsert=True)
        case _:
            update = {"$push": {"list": number}, "$inc": {"n": 1}, "$set": {"value": choose.choice(VALUES)}}
            collection.update_one({"_id": key_of(choose)}, update, upsert=True)


@contextmanager
def writers(uri: str, count: int) -> Iterator[list[int]]:
    """Threads that write all the while; what they have done, in writes."""
    stop = threading.Event()
    done = [0] * count

    def write(number: int) -> None:
        choose = random.Random(number)
        with MongoClient[Any](uri) as client:
            while not stop.wait(PAUSE_S):
                # It is not known whether the write was done; the collections are what counts.
                with suppress(OperationFailure, PyMongoError):
                    change(client.shop, choose, done[number])
                    done[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def folder_of(name: str) -> str:
    """The folder of a collection's table, by docs/spark/jobs.md."""
    plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
    texts = [letter if letter in plain else "".join(f"~{byte:02X}" for byte in letter.encode()) for letter in name]
    return f"~{ord(name[0]):02X}{''.join(texts[1:])}" if name[0] in "_." else "".join(texts)


def text_of(value: Any) -> str:
    return json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """A table's rows; none if there is no table."""
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []
    return rows


def normal(text: str) -> str:
    """The text without its spaces; `json` keeps the order of names, and reads nothing into them."""
    return json.dumps(json.loads(text), ensure_ascii=False)


class CollectionsJob:
    """A server, a job of its collections, and what the job's tables must have."""

    def __init__(self, folder: Path, seed: int, text: str = JOB) -> None:
        self.folder = folder
        self.choose = random.Random(seed)
        self.server = Server(folder / "data")
        self.job = folder / "job.toml"
        self._text = text.format(uri=self.server.uri)
        with MongoClient[Any](self.server.uri) as client:
            for name in COLLECTIONS:
                values = [self.choose.choice(VALUES) for _ in range(KEYS)]
                client.shop[name].insert_many(
                    [{"_id": key, "value": value, "n": 0, "list": []} for key, value in enumerate(values)]
                )
            client.shop.create_collection("log_capped", capped=True, size=10_000)
            client.shop.log_capped.insert_one({"_id": 1})
            client.shop.other.insert_one({"_id": 1})

    def kill(self, kind: str) -> str:
        """Run the job, and kill of it what `kind` says; return what it said last."""
        self.job.write_text(self._text, encoding="utf-8")
        return run_and_kill(self.job, self.choose, kind)

    def catch_up(self) -> None:
        """Run the job to the end of what there is, in large steps."""
        large = self._text.replace("maxRowsPerTrigger = 150", "maxRowsPerTrigger = 3000")
        self.job.write_text(large, encoding="utf-8")
        command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", "--once", str(self.job)]
        subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)

    def compare(self) -> int:
        """Compare the tables, and the copy if there is one, with the collections; return the number of documents."""
        count = 0
        with MongoClient[Any](self.server.uri, document_class=dict, datetime_conversion="DATETIME_MS") as client:
            names = set(client.shop.list_collection_names())
            for name in [*COLLECTIONS, *(f"new_{number}" for number in range(4)), "log_capped", "other"]:
                selected = name in names and name not in {"log_capped", "other"}
                documents = list(client.shop[name].find()) if selected else []
                count += len(documents)
                mirrored = Counter(map(values_of_row, rows_of(self.folder / "mirror" / "shop" / folder_of(name))))
                assert mirrored == Counter(map(values_of_document, documents)), name
                texts = Counter(normal(text_of(document)) for document in documents)
                versions = rows_of(self.folder / "history" / folder_of(name))
                assert Counter(normal(each["document"]) for each in versions if each["current"]) == texts, name
                if 'kind = "mongodb"' in self._text:
                    assert Counter(normal(text_of(each)) for each in client.copy[name].find()) == texts, name
        return count

    def close(self) -> None:
        """Kill the server."""
        self.server.process.kill()
        self.server.process.wait()


@pytest.mark.parametrize("seed", [int(os.environ.get("HEADRACE_SEED") or 7)])
def test_twenty_collections_are_right_after_each_kind_of_kill(tmp_path: Path, seed: int) -> None:
    """Takes two to four minutes: Spark is started four times, and each batch writes forty tables."""
    job = CollectionsJob(tmp_path, seed)
    try:
        with writers(job.server.uri, 2) as done:
            for number, kind in enumerate(KINDS):
                progress = job.kill(kind)
                print(f"killed {number + 1} of {len(KINDS)}, {kind}: {progress}", flush=True)
                if number == 1:
                    job.server.restart_killed()
        assert min(done) > 10
        job.catch_up()
        job.compare()
    finally:
        job.close()
