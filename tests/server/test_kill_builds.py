"""kill -9 of the server while it builds indexes and others write: the builds end well, and hold what is there."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError

from headrace.store.check.directory import check

from .test_kill import Process

pytestmark = pytest.mark.process

MODELS = [
    pymongo.IndexModel([("n", 1)], name="n", unique=True),
    pymongo.IndexModel([("tags", -1), ("n", 1)], name="tags"),
    pymongo.IndexModel([("$**", 1)], name="wildcard", wildcardProjection={"text": 1, "inner": 1}),
    pymongo.IndexModel([("text", "hashed")], name="hashed"),
    pymongo.IndexModel([("text", 1)], name="collated", collation={"locale": "sv", "strength": 1}),
]
COUNT = 12_000


def write(server: Process, seed: int) -> None:
    """Write until the server is gone."""
    chooser = random.Random(seed)
    with server.client(serverSelectionTimeoutMS=500) as client:
        try:
            for number in range(1_000_000):
                key = COUNT + seed * 1_000_000 + number
                client.t.c.insert_one({"_id": key, "n": key, "tags": [1, number], "text": "å"})
                client.t.c.update_one(
                    {"_id": chooser.randrange(COUNT)}, {"$set": {"text": f"Å{number}", "inner.x": [1]}}
                )
                client.t.c.delete_one({"_id": chooser.randrange(COUNT)})
        except PyMongoError:
            return


def build(server: Process) -> None:
    with server.client(serverSelectionTimeoutMS=500) as client:
        try:
            client.t.c.create_indexes(MODELS)
        except PyMongoError:
            return


def built(client: pymongo.MongoClient[dict[str, Any]]) -> bool:
    shown = client.t.command("listIndexes", "c", includeBuildUUIDs=True)["cursor"]["firstBatch"]
    return len(shown) == 6 and all("buildUUID" not in item for item in shown)


def test_a_killed_server_goes_on_with_its_builds(tmp_path: Path) -> None:
    """Takes some ten seconds: 12,000 documents are indexed five times over, and the server is started four times."""
    with Process(tmp_path) as server:
        with server.client() as client:
            documents = [{"_id": n, "n": n, "tags": [n % 7, n % 3], "text": f"Text {n % 50}"} for n in range(COUNT)]
            client.t.c.insert_many(documents)
        done = -1
        for life in range(3):
            threads = [threading.Thread(target=write, args=(server, life))]
            if life == 0:
                threads.append(threading.Thread(target=build, args=(server,)))
            for thread in threads:
                thread.start()
            with server.client() as client:
                while True:  # until the build has come further than in the life before
                    operations = client.admin.command("currentOp")["inprog"]
                    progress = [item["progress"]["done"] for item in operations if "progress" in item]
                    if (progress and progress[0] > done) or (life and built(client)):
                        break
            done = max([done, *progress])
            server.kill()
            for thread in threads:
                thread.join()
            assert check(tmp_path).problems == []
            server.start()
        with server.client() as client:
            while not built(client):
                pass
            assert client.t.c.count_documents({"text": "TEXT 7"}, collation=MODELS[4].document["collation"]) == (
                client.t.c.count_documents({"text": {"$regex": "^text 7$", "$options": "i"}}, hint={"$natural": 1})
            )
        server.kill()
    assert check(tmp_path).problems == []
