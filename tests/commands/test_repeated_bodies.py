"""Commands whose body is known: they answer, store and log as the same commands do that are read and checked anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64, ObjectId, Regex, Timestamp
from bson.errors import BSONError, InvalidBSON

from headrace.auth.names import UserName
from headrace.dispatch.request import ClientInfo, parse_message, remember
from headrace.errors import CommandError
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode
from tests.users import Users

COLLECTIONS = ("plain", "plain", "plain", "indexed", "capped", "checked", "seen", "absent", "sorted", "a$b", "system.x")
SESSIONS = [{"id": Binary.from_uuid(UUID(int=number))} for number in (1, 2)]
Message = tuple[dict[str, Any], dict[str, list[bytes]]]


class Server:
    """A server that is sent messages as they come from a socket; with `short`, it knows the bodies that come again."""

    def __init__(self, server: DrivenServer, *, short: bool, user: str | None) -> None:
        self.short = short
        self.server = server
        self.taken = 0
        self.client = ClientInfo(9, "127.0.0.1:9", ("127.0.0.1", 27017))
        if user is not None:
            server.engine.access.log_in(self.client, UserName(user, "admin"))

    def ask(self, message: Message) -> Any:
        body, sequences = message
        try:
            request = parse_message(encode({**body, "$db": "t"}), sequences, self.client)
        except CommandError as error:
            return error.code, error.message
        self.taken += request.repeated is not None
        try:
            reply = self.server.answer(request)
        except (BSONError, UnicodeDecodeError) as error:  # a server answers 22
            return type(error)
        if self.short and request.repeated is None and isinstance(reply, dict) and reply["ok"]:
            remember(request)
        return reply


def prepare(server: DrivenServer) -> None:
    for body in (
        {"create": "plain"}, {"create": "capped", "capped": True, "size": 4096, "max": 3}, {"create": "indexed"},
        {"createIndexes": "indexed", "indexes": [{"key": {"a": 1}, "name": "a", "unique": True}]},
        {"create": "checked", "validator": {"a": {"$type": "int"}}},
        {"create": "seen", "viewOn": "plain", "pipeline": [{"$match": {"a": 1}}]},
        {"create": "sorted", "collation": {"locale": "en", "strength": 2}},
    ):  # fmt: skip
        server.must("t", body)


def identities(chance: random.Random) -> Any:
    return chance.choice([
        chance.randrange(9), chance.randrange(9), Int64(chance.randrange(9)), ObjectId(f"{chance.randrange(4):024}"),
        "x", float(chance.randrange(9)), None, {"a": 1}, {"$a": 1}, [1], Regex("a"), True,
    ])  # fmt: skip


def options(chance: random.Random, number: int) -> dict[str, Any]:
    """Generic fields, mostly none."""
    return chance.choice([
        {}, {}, {}, {}, {"lsid": chance.choice(SESSIONS)}, {"lsid": chance.choice(SESSIONS)},
        {"$clusterTime": {"clusterTime": Timestamp(number, 1), "signature": {"keyId": Int64(0)}}},
        {"comment": "x"}, {"maxTimeMS": 60_000}, {"unknown": 1}, {"writeConcern": {"w": 1}}, {"writeConcern": {"w": 3}},
        {"apiVersion": "1", "apiStrict": True}, {"readConcern": {"level": "local"}}, {"lsid": {"id": 1}},
    ])  # fmt: skip


def documents_of(chance: random.Random) -> list[bytes]:
    document: dict[str, Any] = {"a": chance.randrange(5)}
    if chance.random() < 0.9:
        identity = {"_id": identities(chance)}
        document = {**identity, **document} if chance.random() < 0.9 else {**document, **identity}
        if chance.random() < 0.1:
            document["at"] = Timestamp(0, 0)
    raw = encode(document)
    if "_id" not in document:
        raw = encode({"_id": ObjectId(bytes(8) + chance.randbytes(4)), **document})
    return [raw] if chance.random() < 0.97 else [raw[:-4] + b"\2" + raw[-3:]]


def shape(chance: random.Random, number: int) -> tuple[int, str, dict[str, Any]]:
    return chance.randrange(10), chance.choice(COLLECTIONS), options(chance, number)


def message(chance: random.Random, shape: tuple[int, str, dict[str, Any]], last: dict[Any, int]) -> Message:
    kind, collection, fields = shape
    fields = dict(fields)
    if fields.get("lsid") in SESSIONS and chance.random() < 0.2:
        fields["lsid"] = chance.choice(SESSIONS)
    if kind < 2:
        return {"find": collection, "filter": {"_id": identities(chance)}, "limit": 1, **fields}, {}
    if kind == 2:
        more = chance.choice([{"projection": {"a": 1}}, {"collation": {"locale": "en"}}, {"hint": "_id_"}, {"skip": 1}])
        return {"find": collection, "filter": {"_id": identities(chance)}, **more, **fields}, {}
    if kind == 3:
        return {"ping": 1, **fields}, {}
    if fields.get("lsid") in SESSIONS and chance.random() < 0.9:
        index = SESSIONS.index(fields["lsid"])
        last[index] = last.get(index, 0) + chance.choice([0, 1, 1, 1, 1, -1])
        fields["txnNumber"] = Int64(last[index])
    if chance.random() < 0.1:
        fields[chance.choice(["bypassDocumentValidation", "bypassEmptyTsReplacement"])] = True
    if kind < 6:
        query: dict[str, Any] = {"q": {"_id": identities(chance)}, "u": change(chance)}
        if chance.random() < 0.2:
            query = {**query, "q": {"_id": chance.randrange(20)}, "upsert": True}
        statement = encode(query) if "upsert" in query else perhaps_damaged(chance, encode(query))
        return {"update": collection, "ordered": True, **fields}, {"updates": [statement]}
    if kind == 6:
        statement = perhaps_damaged(chance, encode({"q": {"_id": identities(chance)}, "limit": 1}))
        return {"delete": collection, **fields}, {"deletes": [statement]}
    documents = documents_of(chance) if chance.random() < 0.9 else documents_of(chance) + documents_of(chance)
    return {"insert": collection, "ordered": chance.random() < 0.9, **fields}, {"documents": documents}


def perhaps_damaged(chance: random.Random, statement: bytes) -> bytes:
    """Return the statement, at times with another byte somewhere after its size."""
    if chance.random() < 0.8:
        return statement
    at = chance.randrange(4, len(statement))
    return statement[:at] + bytes([chance.choice([0, 1, 255, chance.randrange(256)])]) + statement[at + 1 :]


def change(chance: random.Random) -> Any:
    number = chance.randrange(2)
    return chance.choice([
        {"$inc": {"a": number}}, {"$inc": {"a": number}}, {"$set": {"a": number, "b.c": number}}, {"$unset": {"a": 1}},
        {"$set": {"a": number}}, {"$max": {"a": 3}, "$set": {"at": Timestamp(1, 0), "list": [number]}},
        {"$set": {"_id": number}}, {"a": number}, {"at": Timestamp(0, 0)}, {"$push": {"list": number}},
        {"$pop": {"a": 1}}, {"$currentDate": {"at": {"$type": "timestamp"}}}, [{"$set": {"a": number}}], {},
        {"$bad": {"a": 1}},
    ])  # fmt: skip


def stored(server: DrivenServer) -> dict[str, list[bytes]]:
    with server.store.reading() as view:
        of_t = [collection for collection in view.catalog.collections.values() if collection.database == "t"]
        return {collection.name: [raw for _, raw in view.scan(collection)] for collection in of_t}


def oplog(server: DrivenServer) -> Iterator[dict[str, Any]]:
    view = server.engine.store.begin()
    try:
        for position in sorted(int.from_bytes(key, "big") for key in _keys(view)):
            entry = decode(view.entry(position) or b"")
            entry.pop("ui", None)
            entry.pop("o2", None) if entry["op"] == "c" else None
            if not entry["ns"].startswith("admin."):  # users, whose salts are random
                yield entry
    finally:
        server.engine.store.abandon(view)


def _keys(view: Any) -> list[bytes]:
    with view.kv.cursor(view.tables["oplog"]) as cursor:
        return list(cursor.iternext(values=False)) if cursor.first() else []


def test_a_filter_without_its_end_is_refused_though_the_body_is_known() -> None:
    statements = {"updates": {"q": {"_id": 1}, "u": {"$set": {"a": 2}}}, "deletes": {"q": {"_id": 1}, "limit": 1}}
    for sequence, statement in statements.items():
        with DrivenServer() as driven:
            driven.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
            server, raw = Server(driven, short=True, user=None), encode(statement)
            body = {sequence.removesuffix("s"): "c"}
            for _ in range(3):
                server.ask((body, {sequence: [encode({**statement, "q": {"_id": 2}})]}))
            known = server.taken
            end = 7 + raw[7]
            reply = server.ask((body, {sequence: [raw[: end - 1] + b"\1" + raw[end:]]}))
            assert reply is InvalidBSON or reply["code"] == 22
            assert server.taken == known + 1 > 1 and [decode(document) for document in stored(driven)["c"]] == [
                {"_id": 1, "a": 1}
            ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("auth", [False, True])
def test_a_known_body_is_answered_as_one_that_is_read_anew(seed: int, auth: bool) -> None:
    results, taken = [], []
    for short in (False, True):
        chance, last = random.Random(seed), dict[Any, int]()
        with DrivenServer(auth=auth, clock=FakeClock(), enable_test_commands=True) as driven:
            if auth:
                driven.client = Users(driven).connection("root")
            prepare(driven)
            server = Server(driven, short=short, user="root" if auth else None)
            replies, of = [], shape(chance, 0)
            for number in range(400):
                if number % 8 == 0:
                    of = shape(chance, number)
                replies.append(server.ask(message(chance, of, last)))
                if number % 100 == 50:
                    mode = {"times": 3} if number > 200 else "off"
                    data = {"failCommands": ["insert", "find", "update"], "errorCode": 91}
                    driven.must("admin", {"configureFailPoint": "failCommand", "mode": mode, "data": data})
            counts = {name: count for name, count in driven.engine.metrics.items() if "." in name}
            results.append((replies, list(oplog(driven)), stored(driven), counts))
            taken.append(server.taken)
    (replies, entries, documents, counts), (short_replies, short_entries, short_documents, short_counts) = results
    assert short_replies == replies
    assert short_entries == entries
    assert short_documents == documents
    assert short_counts == counts
    assert taken[0] == 0 and taken[1] > 50


@pytest.mark.parametrize("identity", [7, Int64(7), ObjectId(), 7.0, "seven"])
@pytest.mark.parametrize("asked", [int, Int64, lambda identity: identity])
def test_an_update_by_id_logs_the_stored_id(identity: Any, asked: Callable[[Any], Any]) -> None:
    if type(identity) in (ObjectId, str) and asked in (int, Int64):
        return
    with DrivenServer() as driven:
        driven.must("t", {"insert": "c", "documents": [{"_id": identity, "a": 0}]})
        server = Server(driven, short=True, user=None)
        statement = encode({"q": {"_id": asked(identity)}, "u": {"$inc": {"a": 1}}})
        for number in range(5):
            assert server.ask(({"update": "c", "ordered": True}, {"updates": [statement]}))["nModified"] == 1
            with driven.store.reading() as view:
                entry = view.entry(driven.store.last_position) or b""
            assert decode(entry)["o"]["diff"]["u"] == {"a": number + 1}
            assert b"\x03o2\0" + encode({"_id": identity}) in entry
        assert server.taken > 2
