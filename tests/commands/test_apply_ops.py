"""applyOps: operations of an oplog applied in order, as mongorestore sends them, and what may be sent by whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode
from tests.users import Users, shop_users

UUID = Binary(b"0123456789abcdef", 4)
OTHER = Binary(b"fedcba9876543210", 4)


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1, "x": 1}]})
        yield server


def insert(key: Any, ns: str = "t.c", **fields: Any) -> dict[str, Any]:
    return {"op": "i", "ns": ns, "o": {"_id": key, **fields}, "o2": {"_id": key}, "ts": Timestamp(1, 1), "v": Int64(2)}


def update(key: Any, change: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": "u", "ns": "t.c", "o": change, "o2": {"_id": key}, **more}


def diff(**sections: Any) -> dict[str, Any]:
    return {"$v": 2, "diff": sections}


def delete(key: Any) -> dict[str, Any]:
    return {"op": "d", "ns": "t.c", "o": {"_id": key}}


def command(db: str = "t", **o: Any) -> dict[str, Any]:
    return {"op": "c", "ns": f"{db}.$cmd", "o": o}


def apply(server: DrivenServer, *operations: dict[str, Any], **more: Any) -> Any:
    return server.run("admin", {"applyOps": list(operations), **more})


def applied(server: DrivenServer, *operations: dict[str, Any], **more: Any) -> list[bool]:
    reply = apply(server, *operations, **more)
    assert reply["ok"] == 1.0, reply
    assert reply["applied"] == len(operations)
    results: list[bool] = reply["results"]
    return results


def documents(server: DrivenServer, name: str = "c") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.must("t", {"find": name})["cursor"]["firstBatch"]
    return found


def collections(server: DrivenServer, db: str = "t") -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in server.must(db, {"listCollections": 1})["cursor"]["firstBatch"]}


def indexes(server: DrivenServer, name: str = "c") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.must("t", {"listIndexes": name})["cursor"]["firstBatch"]
    return found


# Documents.


def test_no_operations_are_none_applied(server: DrivenServer) -> None:
    assert applied(server) == []


def test_an_insert_is_stored_as_it_is(server: DrivenServer) -> None:
    assert applied(server, insert(2, at=Timestamp(0, 0)), {"op": "n", "ns": "", "o": {"msg": "x"}}) == [True, True]
    assert documents(server)[1] == {"_id": 2, "at": Timestamp(0, 0)}


def test_an_insert_of_a_document_that_is_there_replaces_it(server: DrivenServer) -> None:
    assert applied(server, insert(1, y=2)) == [True]
    assert documents(server) == [{"_id": 1, "y": 2}]


def test_updates_in_every_form_are_applied(server: DrivenServer) -> None:
    assert applied(server, update(1, {"_id": 1, "x": 2, "$y": {"z": 1}})) == [True]
    assert documents(server) == [{"_id": 1, "x": 2, "$y": {"z": 1}}]
    assert applied(server, update(1, {"$v": 1, "$set": {"y": 2, "b.c": [1]}, "$unset": {"x": True}})) == [True]
    assert documents(server) == [{"_id": 1, "$y": {"z": 1}, "b": {"c": [1]}, "y": 2}]
    change = diff(d={"$y": False, "y": False}, i={"n": 1}, sb={"sc": {"a": True, "l": 3, "u0": 5}})
    assert applied(server, update(1, change)) == [True]
    assert documents(server) == [{"_id": 1, "b": {"c": [5, None, None]}, "n": 1}]


def test_a_diff_is_in_the_oplog_as_it_came(server: DrivenServer) -> None:
    applied(server, update(1, diff(u={"x": 2})))
    entry = server.must("local", {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1})["cursor"]["firstBatch"][0]
    assert (entry["op"], entry["o"], entry["o2"]) == ("u", diff(u={"x": 2}), {"_id": 1})


def test_an_update_that_changes_nothing_has_no_entry(server: DrivenServer) -> None:
    before = server.store.last_position
    assert applied(server, update(1, diff(u={"x": 1}))) == [True]
    assert server.store.last_position == before


def test_an_update_of_a_document_that_is_not_there_is_not_applied(server: DrivenServer) -> None:
    assert applied(server, update(9, diff(u={"x": 2})), update(1, diff(u={"x": 2}))) == [False, True]
    assert documents(server) == [{"_id": 1, "x": 2}]


def test_an_upsert_inserts(server: DrivenServer) -> None:
    assert applied(server, update(9, {"$set": {"x": 2}}, b=True), update(8, {"_id": 8, "y": 1}, b=True)) == [True, True]
    assert documents(server)[1:] == [{"_id": 9, "x": 2}, {"_id": 8, "y": 1}]


def test_a_delete_is_applied_once_or_twice(server: DrivenServer) -> None:
    assert applied(server, delete(1), delete(1), {**delete(1), "ns": "t.nope"}) == [True, True, True]
    assert documents(server) == []


@pytest.mark.parametrize("operation", [insert(1, "t.nope"), {**update(1, diff(u={"x": 1})), "ns": "nope.c"}], ids=str)
def test_what_is_no_collection_is_not_written_to(server: DrivenServer, operation: dict[str, Any]) -> None:
    reply = apply(server, operation, {**operation, "op": "n"})
    assert (reply["code"], reply["applied"], reply["results"]) == (26, 1, [False])
    assert apply(server, command(applyOps=[operation]))["code"] == 26


def test_an_error_leaves_what_came_before_it(server: DrivenServer) -> None:
    server.must("t", {"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x", "unique": True}]})
    reply = apply(server, insert(2, x=2), insert(3, x=1), insert(4, x=4))
    assert (reply["code"], reply["applied"], reply["results"]) == (11000, 2, [True, False])
    assert [item["_id"] for item in documents(server)] == [1, 2]


def test_documents_are_found_by_the_id_that_they_have(server: DrivenServer) -> None:
    server.must("t", {"create": "d", "collation": {"locale": "en", "strength": 2}})
    keys: list[Any] = ["A", None, {"a": 1}, b"x", Timestamp(1, 2), "x" * 2000]
    assert all(applied(server, *(insert(key, "t.d", n=1) for key in keys)))
    changes = [{**update(key, diff(u={"n": number})), "ns": "t.d"} for number, key in enumerate(keys, 2)]
    assert all(applied(server, *changes, {**update("a", diff(u={"n": 9})), "ns": "t.d"})[:-1])
    assert [(item["_id"], item["n"]) for item in documents(server, "d")] == list(zip(keys, range(2, 8), strict=True))


def test_a_uuid_names_the_collection_whatever_it_is_called_now(server: DrivenServer) -> None:
    applied(server, {**command(create="d"), "ui": UUID})
    server.must("admin", {"renameCollection": "t.d", "to": "t.e"})
    assert applied(server, {**insert(1, "t.d"), "ui": UUID}) == [True]
    assert documents(server, "e") == [{"_id": 1}]
    assert apply(server, {**insert(1, "t.c"), "ui": OTHER})["code"] == 26


def test_validators_hold_unless_bypassed(server: DrivenServer) -> None:
    server.must("t", {"collMod": "c", "validator": {"x": {"$lt": 5}}})
    for operation in (insert(2, x=7), update(1, diff(u={"x": 7}))):
        assert apply(server, operation)["code"] == 121
        assert applied(server, operation, bypassDocumentValidation=True) == [True]


def test_a_capped_collection_makes_room(server: DrivenServer) -> None:
    server.must("t", {"create": "d", "capped": True, "size": 4096, "max": 2})
    applied(server, *(insert(number, "t.d") for number in range(4)))
    assert [item["_id"] for item in documents(server, "d")] == [2, 3]


def test_events_are_of_what_was_applied(server: DrivenServer) -> None:
    stages = [{"$changeStream": {"showExpandedEvents": True}}]
    cursor = server.must("t", {"aggregate": 1, "pipeline": stages, "cursor": {}})["cursor"]
    inner = command(applyOps=[insert(3, "t.d"), delete(1)])
    applied(server, insert(2), update(2, diff(i={"n": 1})), command(create="d"), inner, command(drop="d"))
    more: list[dict[str, Any]] = []
    while "drop" not in (kinds := [event["operationType"] for event in more]):  # what a slow machine reads in slices
        more += server.must("t", {"getMore": cursor["id"], "collection": "$cmd.aggregate"})["cursor"]["nextBatch"]
    assert kinds == ["insert", "update", "create", "insert", "delete", "drop"]
    assert more[1]["updateDescription"]["updatedFields"] == {"n": 1}


# Commands.


def test_a_collection_is_created_with_its_uuid(server: DrivenServer) -> None:
    create = command(create="d", capped=True, size=4096, idIndex={"v": 2, "key": {"_id": 1}, "name": "_id_"})
    assert applied(server, {**create, "ui": UUID}, {**create, "ui": UUID}, create) == [True, True, True]
    made = collections(server)["d"]
    assert (made["info"]["uuid"], made["options"]) == (UUID, {"capped": True, "size": 4096})
    assert apply(server, {**create, "ui": OTHER})["code"] == 48


def test_a_collection_that_has_the_uuid_gets_the_name(server: DrivenServer) -> None:
    applied(server, {**command(create="d"), "ui": UUID}, insert(5, "t.d"))
    server.must("admin", {"renameCollection": "t.d", "to": "t.e"})
    assert applied(server, {**command(create="d"), "ui": UUID}) == [True]
    assert (documents(server, "d"), "e" in collections(server)) == ([{"_id": 5}], False)
    assert apply(server, {**command("other", create="d"), "ui": UUID})["code"] == 48


def test_commands_are_applied_once_or_twice(server: DrivenServer) -> None:
    spec = {"v": 2, "key": {"x": 1}, "name": "x_1"}
    for _ in range(2):
        assert applied(server, command(createIndexes="c", **spec, sparse=True)) == [True]
    assert [item["name"] for item in indexes(server)] == ["_id_", "x_1"]
    assert indexes(server)[1]["sparse"] is True
    assert applied(server, command(collMod="c", index={"name": "x_1", "hidden": True})) == [True]
    assert indexes(server)[1]["hidden"] is True
    for _ in range(2):
        assert applied(server, command(dropIndexes="c", index="x_1")) == [True]
    rename = {**command("admin", renameCollection="t.c", to="t.d", stayTemp=False)}
    assert applied(server, rename, rename) == [True, True]
    assert applied(server, command(create="c"), insert(7)) == [True, True]
    assert applied(server, command("admin", renameCollection="t.c", to="t.d", dropTarget=UUID)) == [True]
    assert documents(server, "d") == [{"_id": 7}]
    for _ in range(2):
        assert applied(server, command(drop="d"), command("other", dropDatabase=1)) == [True, True]
    assert collections(server) == {}


def test_views_are_documents_of_an_oplog(server: DrivenServer) -> None:
    view = {"viewOn": "c", "pipeline": [{"$match": {"x": 1}}]}
    create = {"op": "i", "ns": "t.system.views", "o": {"_id": "t.v", **view}}
    assert applied(server, command(create="system.views"), create, create) == [True, True, True]
    assert documents(server, "v") == [{"_id": 1, "x": 1}]
    key = {"ns": "t.system.views", "o2": {"_id": "t.v"}}
    assert applied(server, {"op": "u", **key, "o": {"$v": 2, "diff": {"u": {"pipeline": []}}}}) == [True]
    assert applied(server, {"op": "u", **key, "o": {"_id": "t.v", "viewOn": "d", "pipeline": []}}) == [True]
    assert collections(server)["v"]["options"] == {"viewOn": "d", "pipeline": []}
    assert applied(server, *2 * [{"op": "d", "ns": "t.system.views", "o": {"_id": "t.v"}}], create) == [True] * 3
    assert applied(server, command(drop="system.views")) == [True]
    assert list(collections(server)) == ["c"]
    assert apply(server, {**create, "o": {"_id": "other.v", **view}})["code"] == 73


# What is refused.


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ({}, 40414),
        ({"op": "i"}, 40414),
        ({"op": 1, "ns": "t.c"}, 14),
        ({"op": "", "ns": "t.c"}, 2),
        ({"op": "x", "ns": "t.c"}, 2),
        ({"op": "i", "ns": 1}, 14),
        ({"op": "i", "ns": ""}, 73),
        ({"op": "d", "ns": "c", "o": {"_id": 1}}, 73),
        ({"op": "i", "ns": "t.c"}, 4),
        ({"op": "i", "ns": "t.c", "o": "x"}, 14),
        ({"op": "i", "ns": "t.c", "o": {"x": 1}}, 4),
        ({"op": "i", "ns": "t.c", "o": {"_id": [1]}}, 2),
        ({"op": "u", "ns": "t.c", "o": {"x": 1}}, 4),
        ({**insert(5), "ui": Binary(b"x")}, 14),
        (insert(1, "local.oplog.rs"), 13),
        (update(1, {"_id": 2}), 66),
        (update(1, {"$v": 0, "$set": {"x": 1}}), 4772600),
        (update(1, {"$v": 3, "diff": {}}), 4772600),
        (update(1, {"$inc": {"x": 1}}), 4772600),
        (update(1, {"$v": 2}), 9),
        (update(1, diff(x=0)), 9),
        (update(1, diff(u=0)), 9),
        (update(1, diff(sx=[])), 9),
        (update(1, diff(u={"_id": 2})), 66),
        (update(1, diff(sx={"a": True, "u": 1})), 9),
        (update(1, diff(sx={"a": True, "u99999999999": 1})), 9),
        (update(1, diff(sx={"a": True, "l": -1})), 9),
        (update(1, diff(sx={"a": True, "l": 1 << 30})), 9),
        (update(1, diff(sx={"a": True, "s0": 1})), 9),
        (command(), 9),
        (command(a=1), 9),
        (command(drop=1), 14),
        (command(create="d", nope=1), 40415),
        (command(startIndexBuild="c"), 115),
        (command(commitIndexBuild="c"), 115),
        (command(applyOps=1), 14),
        (command(applyOps=[1]), 14),
        (command(dbCheck="c"), 9),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_operation_is_refused(server: DrivenServer, operation: dict[str, Any], code: int) -> None:
    assert apply(server, operation)["code"] == code
    assert documents(server) == [{"_id": 1, "x": 1}]


def test_operations_may_be_nested_ten_deep(server: DrivenServer) -> None:
    operation = insert(2)
    for _ in range(9):
        operation = command(applyOps=[operation])
    assert applied(server, operation) == [True]
    assert apply(server, command(applyOps=[operation]))["code"] == 9


def test_options_of_former_releases_are_refused_as_there(server: DrivenServer) -> None:
    assert applied(server, insert(2), allowAtomic=False) == [True]
    reply = apply(server, insert(3), preCondition=[{"ns": "t.c", "q": {}, "res": {}}])
    assert (reply["code"], reply["errmsg"]) == (
        6711600,
        "applyOps command no longer supports the 'preCondition' option",
    )
    assert apply(server, insert(3), alwaysUpsert=True)["code"] == 6711601
    assert server.run("admin", {"applyOps": "c"})["code"] == 14
    assert server.run("admin", {"applyOps": None})["code"] == 40414


def test_no_transaction_applies_operations(server: DrivenServer) -> None:
    session = {"lsid": {"id": UUID}, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    assert apply(server, insert(2), **session)["code"] == 263


# Locks and pauses.


def begun(server: DrivenServer, body: dict[str, Any]) -> None:
    session = {"lsid": {"id": UUID}, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    server.must("t", {**body, **session})


def test_a_command_waits_for_a_transaction_that_uses_its_collection(server: DrivenServer) -> None:
    begun(server, {"find": "c"})
    for operation in (command(drop="c"), command(applyOps=[command(dropDatabase=1)])):
        assert type(apply(server, operation)).__name__ == "Wait"
    assert applied(server, command(create="d"), {"op": "n", "ns": ""}) == [True, True]


def test_a_replay_pauses_and_goes_on(server: DrivenServer) -> None:
    operations = [insert(number) for number in range(2, 40)] + [update(5, diff(i={"n": 1})), delete(6)]
    seen: list[int] = []
    reply, pauses = server.in_turns("admin", {"applyOps": operations}, lambda _: seen.append(len(documents(server))))
    assert reply["ok"] == 1.0 and pauses > 10
    assert seen == sorted(seen[:-1]) + seen[-1:] and len(documents(server)) == 38


# Who may.


@pytest.fixture
def users() -> Iterator[Users]:
    with shop_users() as made:
        yield made


def allowed(users: Users, name: str, *operations: dict[str, Any]) -> bool:
    reply: Any = users.answer(name, "admin", {"applyOps": list(operations)})
    assert reply["ok"] == 1.0 or reply["code"] == 13, reply
    return bool(reply["ok"])


def shop(operation: dict[str, Any]) -> dict[str, Any]:
    return {**operation, "ns": operation["ns"].replace("t.c", "shop.orders").replace("t.$", "shop.$")}


def test_each_operation_requires_what_its_command_does(users: Users) -> None:
    operations = [
        shop(insert(1000)), shop(update(1, diff(i={"x": 1}))), shop(delete(2)), shop(command(create="d")),
        shop(command(createIndexes="orders", key={"x": 1}, name="x")), shop(command(drop="d")),
    ]  # fmt: skip
    for operation in operations:
        nested = shop(command(applyOps=[operation]))
        assert not allowed(users, "reader", operation) and not allowed(users, "reader", nested), operation
        assert allowed(users, "writer", operation) and allowed(users, "root", nested), operation
        assert not allowed(users, "writer", operation, {**operation, "ns": operation["ns"].replace("shop", "other")})
    assert not allowed(users, "writer", {"op": "n", "ns": ""}) and allowed(users, "root", {"op": "n", "ns": ""})
    assert not allowed(users, "writer", shop(command(dropDatabase=1)))
    assert allowed(users, "reader")


def test_nobody_applies_anything(users: Users) -> None:
    assert users.refused("nobody", "admin", {"applyOps": []}) == "Command applyOps requires authentication"


def test_a_uuid_requires_more_and_names_no_collection_of_another(users: Users) -> None:
    create = {**shop(command(create="d")), "ui": UUID}
    assert not allowed(users, "writer", create) and allowed(users, "root", create)
    cluster = {"cluster": True}
    users.role("uuids", (cluster, ["forceUUID", "useUUID"]))
    users.create("tool", "uuids", {"role": "readWrite", "db": "shop"})
    assert allowed(users, "tool", {**insert(1, "shop.d"), "ui": UUID})
    listed = users.run("root", "other", {"listCollections": 1})["cursor"]["firstBatch"]
    assert not allowed(users, "tool", {**insert(1, "shop.d"), "ui": listed[0]["info"]["uuid"]})
    assert not allowed(users, "tool", {**shop(command(drop="d")), "ui": listed[0]["info"]["uuid"]})
    assert not allowed(users, "tool", {**shop(command(create="e")), "ui": listed[0]["info"]["uuid"]})


def test_a_uuid_makes_no_collection_of_roles(users: Users, server: DrivenServer) -> None:
    create = {**command("admin", create="system.roles"), "ui": UUID}
    applied(server, {**command("admin", create="mine"), "ui": UUID})
    assert apply(server, create)["code"] == 20
    users.run("root", "admin", {"create": "mine"})
    listed = users.run("root", "admin", {"listCollections": 1, "filter": {"name": "mine"}})["cursor"]["firstBatch"]
    assert not allowed(users, "root", {**create, "ui": listed[0]["info"]["uuid"]})


def test_users_and_roles_are_no_exception(users: Users) -> None:
    forged = insert("admin.reader", "admin.system.users", user="reader", db="admin", roles=[])
    assert not allowed(users, "writer", forged)
    users.create("restorer", "restore")
    assert not allowed(users, "restorer", shop(delete(1)))


def test_a_refused_request_shows_no_more_than_others(users: Users) -> None:
    message = users.refused("reader", "admin", {"applyOps": [shop(delete(1))]})
    assert message.startswith("not authorized on admin to execute command { applyOps: ")
    assert len(encode({"": message})) < 300


@pytest.mark.parametrize(
    "options", [{"size": 5000}, {"expireAfterSeconds": Int64(60)}, {"capped": True, "size": 2**51}]
)
def test_a_logged_create_may_have_options_that_earlier_releases_allowed(options: dict[str, Any]) -> None:
    with DrivenServer() as at:
        uuid = Binary(b"u" * 16, 4)
        at.must("admin", {"applyOps": [{"op": "c", "ns": "t.$cmd", "ui": uuid, "o": {"create": "c", **options}}]})
        listed = at.must("t", {"listCollections": 1})["cursor"]["firstBatch"][0]
        assert listed["options"] == options and listed["info"]["uuid"] == uuid
        assert at.run("t", {"create": "d", **options})["code"] in (2, 72)
