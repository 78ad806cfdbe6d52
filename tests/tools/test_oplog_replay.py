"""A dump with `--oplog` of a server under writes, restored with `--oplogReplay`: equal to the source at the last entry.

What is expected is computed from the source's oplog by a model of its own: documents by `tests.crashes.history`,
options and indexes here. Reads of mongodump are held by a fail point, so that writes come between its collections.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Timestamp
from pymongo import InsertOne, MongoClient, UpdateOne

import headrace
from headrace.values.bson import decode, encode
from headrace.values.position import from_timestamp
from tests.crashes.history import History
from tests.tools.programs import RAW, run, state, unpacked

pytestmark = pytest.mark.process
NAMES = ("a", "b", "c", "d")
KEYS = 300
HOLD = {"failCommands": ["find"], "appName": "mongodump", "blockConnection": True, "blockTimeMS": 150}


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    unpacked()


class Writer(threading.Thread):
    """Writes of every kind, until it is told to end."""

    def __init__(self, client: MongoClient[Any], count_min: int) -> None:
        super().__init__()
        self._count_min = count_min
        self._client = client
        self._shop = client.shop
        self._random = random.Random(7)
        self._gone = 0
        self.ends = threading.Event()
        self.has_done = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            count = 0
            while not self.ends.is_set():
                count += 1
                self._change(self._shop[self._random.choice(NAMES)], self._random.randrange(KEYS))
                if count % 25 == 0 and count <= 2500:  # a collection has 64 indexes at most
                    self._define(count)
                if count % 30 == 0:
                    self._commit(count, 300 if count % 60 == 0 else 3)
                if count == self._count_min:
                    self.has_done.set()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.has_done.set()

    def _change(self, collection: Any, key: int) -> None:
        one = {"_id": key}
        match self._random.randrange(9):
            case 0:
                collection.replace_one(one, {"n": self._random.random(), "l": [1, 2, 3]}, upsert=True)
            case 1:
                collection.update_one(one, {"$set": {f"f{key % 5}": {"x": key}}, "$unset": {"l": 1}}, upsert=True)
            case 2:
                collection.update_one(
                    one, {"$push": {"q": {"$each": [1, 2], "$slice": -3}}, "$inc": {"n": 1}}, upsert=True
                )
            case 3:
                collection.update_one({**one, "l": {"$exists": True}}, {"$set": {"l.5": key}})
            case 4:
                collection.update_one(one, [{"$set": {"sum": {"$sum": "$q"}, "new": "$$ROOT._id"}}])
            case 5:
                collection.delete_one(one)
            case 6:  # the dump of the collection may have neither, and the oplog an update of what is not there
                self._gone += 1
                collection.update_one({"_id": -self._gone}, {"$set": {"n": key}})
                collection.delete_one({"_id": -self._gone})
            case 7:
                collection.update_many({"_id": {"$gte": 0, "$lt": 20}}, {"$set": {"many": key}})
            case _:
                inserts = [
                    InsertOne({"_id": f"{key}/{self._random.random()}", "at": Timestamp(0, 0)}) for _ in range(3)
                ]
                collection.bulk_write([*inserts, UpdateOne(one, {"$rename": {"n": "m"}})])

    def _define(self, count: int) -> None:
        shop = self._shop
        shop.a.create_index(f"f{count}", sparse=True)
        if count % 50 == 0:
            shop.a.drop_index(f"f{count}_1")
        else:
            shop.command("collMod", "a", index={"name": f"f{count}_1", "hidden": True})
        shop.create_collection(f"new{count}", collation={"locale": "en", "strength": 2})
        shop[f"new{count}"].insert_one({"_id": count})
        shop[f"new{count}"].create_index([("k", -1)], expireAfterSeconds=count * 1000)
        shop.create_collection(f"view{count}", viewOn="a", pipeline=[{"$match": {"n": count}}])
        shop.command("collMod", f"new{count}", validator={"n": {"$ne": count}}, validationLevel="moderate")
        shop.command("collMod", f"view{count}", viewOn="b", pipeline=[])

    def _commit(self, count: int, size: int) -> None:
        with self._client.start_session() as session, session.start_transaction():
            self._shop.a.insert_many([{"_id": f"t{count}/{number}"} for number in range(size)], session=session)
            self._shop.b.update_many({"_id": {"$gte": 0, "$lt": 100}}, {"$set": {"by": count}}, session=session)
            self._shop.c.delete_many({"_id": {"$gte": 200, "$lt": 205}}, session=session)


@contextmanager
def written_to(server: headrace.Server, count_min: int = 10) -> Iterator[MongoClient[Any]]:
    """A server that is filled, and written to until the block ends: `count_min` times before it begins."""
    with MongoClient[Any](server.uri) as client:
        for name in NAMES:
            client.shop[name].insert_many([{"_id": key, "n": key, "l": [key]} for key in range(-KEYS, KEYS)])
        writer = Writer(client, count_min)
        writer.start()
        assert writer.has_done.wait(60)
        try:
            yield client
        finally:
            writer.ends.set()
            writer.join(60)
        assert writer.failure is None


def expected(client: MongoClient[Any], last: Timestamp) -> dict[str, Any]:
    """The database as the source's oplog says it was at its entry `last`, in the form of `programs.state`."""
    found = client.local.get_collection("oplog.rs", codec_options=RAW).find({"ts": {"$lte": last}})
    entries = [(from_timestamp(decode(item.raw)["ts"]), item.raw) for item in found]
    history = History()
    history.read(entries)
    definitions: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    views: dict[str, Any] = {}
    for _, raw in entries:
        entry = bson.decode(raw)
        if entry["ns"] == "shop.system.views":
            views[entry["o"]["_id"].partition(".")[2]] = {name: entry["o"][name] for name in ("viewOn", "pipeline")}
        if entry["op"] == "c" and entry["ns"] == "shop.$cmd":
            _define(definitions, entry["o"])
    definitions.pop("system.views", None)
    made = {
        name: (options, indexes, _raw(history.documents.get(f"shop.{name}", {})))
        for name, (options, indexes) in definitions.items()
    }
    return made | views


def _raw(documents: dict[Any, Any]) -> dict[Any, bytes]:
    return {document["_id"]: encode(document) for document in documents.values()}


def _define(definitions: dict[str, tuple[dict[str, Any], dict[str, Any]]], o: dict[str, Any]) -> None:
    command, name = next(iter(o.items()))
    rest = {field: value for field, value in o.items() if field != command}
    if command == "create":
        id_index = rest.pop("idIndex")
        definitions[name] = rest, {id_index["name"]: id_index}
    elif command in ("createIndexes", "commitIndexBuild"):
        for spec in rest["indexes"] if command == "commitIndexBuild" else [rest]:
            definitions[name][1][spec["name"]] = spec
    elif command == "dropIndexes":
        del definitions[name][1][rest["index"]]
    elif command == "collMod":
        change = rest.pop("index", {})
        if change:
            definitions[name][1][change["name"]] |= change
        definitions[name][0].update(rest)


@pytest.mark.parametrize("words", [(), ("--preserveUUID", "--drop")], ids=str)
def test_a_dump_under_writes_is_restored_as_of_its_last_entry(tmp_path: Path, words: tuple[str, ...]) -> None:
    with headrace.Server(enable_test_commands=True) as source, written_to(source) as client:
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=HOLD)
        run("mongodump", source.uri, "--oplog", "--out", tmp_path)
        with headrace.Server() as target, MongoClient[Any](target.uri) as restored:
            run("mongorestore", target.uri, "--oplogReplay", *words, tmp_path)
            now = state(restored)
        entries = bson.decode_all((tmp_path / "oplog.bson").read_bytes())
        assert len(entries) > 20
        then = expected(client, entries[-1]["ts"])
        assert now.keys() == then.keys()
        for name, content in then.items():
            assert now[name] == content, name


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_the_whole_oplog_leads_to_any_entry(tmp_path: Path, share: float) -> None:
    with headrace.Server() as source, MongoClient[Any](source.uri) as client:
        with written_to(source, 130):
            pass
        run("mongodump", source.uri, "--db", "local", "--collection", "oplog.rs", "--out", tmp_path)
        file = tmp_path / "local" / "oplog.rs.bson"
        entries = bson.decode_all(file.read_bytes())
        last = entries[int(len(entries) * share) - 1]["ts"]
        (tmp_path / "empty").mkdir()
        limit = f"--oplogLimit={last.time}:{last.inc + 1}"
        with headrace.Server() as target, MongoClient[Any](target.uri) as restored:
            run("mongorestore", target.uri, "--oplogReplay", f"--oplogFile={file}", limit, tmp_path / "empty")
            now = state(restored)
        assert now == expected(client, last)
