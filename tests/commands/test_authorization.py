"""Rights of users, on a server with authorization: connections of several users, driven command by command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson import Binary, Int64

from headrace.dispatch.request import ClientInfo
from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer
from headrace.thread_calls import ThreadCall
from headrace.turns import Turn, Turns
from headrace.values.bson import decode
from tests.users import Users, shop_users

SHOP = {"createRole": "clerk", "privileges": [], "roles": []}


@pytest.fixture
def users() -> Iterator[Users]:
    with shop_users() as made:
        yield made


def orders(db: str = "shop", collection: str = "orders") -> dict[str, Any]:
    return {"db": db, "collection": collection}


def test_nobody_may_do_nothing_but_log_in(users: Users) -> None:
    message = users.refused("nobody", "shop", {"find": "orders"})
    assert message == "Command find requires authentication"
    for body in ({"hello": 1}, {"ping": 1}, {"connectionStatus": 1}, {"buildInfo": 1}, {"whatsmyuri": 1}):
        users.run("nobody", "admin", body)


def test_the_text_of_the_error_is_mongodb_s(users: Users) -> None:
    message = users.refused("reader", "shop", {"insert": "orders", "documents": [{"_id": 1}]})
    assert message == (
        'not authorized on shop to execute command { insert: "orders", documents: [ { _id: 1 } ], $db: "shop" }'
    )
    long = users.refused("reader", "shop", {"insert": "orders", "documents": [{"text": "x" * 20_000}]})
    assert long == 'not authorized on shop to execute command { insert: "orders", $db: "shop" }'


def test_a_password_is_not_in_an_error(users: Users) -> None:
    assert "secret" not in users.refused("reader", "shop", {"createUser": "x", "pwd": "secret", "roles": []})


def test_the_localhost_exception_is_for_the_first_user() -> None:
    with DrivenServer(auth=True) as server:
        local = server.client
        server.client = ClientInfo(2, "10.1.2.3:5", ("10.0.0.1", 27017))
        first = {"createUser": "root", "pwd": "x", "roles": ["root"]}
        assert server.run("admin", first)["errmsg"] == "Command createUser requires authentication"
        server.client = local
        assert server.run("shop", {"find": "orders"})["code"] == 13
        assert server.run("shop", {"createUser": "x", "pwd": "x", "roles": []})["code"] == 13
        server.must("admin", first)
        again = server.run("admin", {"createUser": "second", "pwd": "x", "roles": ["root"]})
        assert again["errmsg"] == "Command createUser requires authentication"


def test_without_the_localhost_exception_there_is_no_first_user_by_a_client() -> None:
    with DrivenServer(auth=True, localhost_exception=False) as server:
        first = server.run("admin", {"createUser": "root", "pwd": "x", "roles": ["root"]})
        assert first["errmsg"] == "Command createUser requires authentication"


def test_of_two_that_use_the_localhost_exception_at_once_one_is_the_first() -> None:
    with DrivenServer(auth=True) as server:
        engine = server.engine
        requests = [server.request("admin", {"createUser": name, "pwd": "x", "roles": ["root"]}) for name in "ab"]
        commands = [engine.command(request) for request in requests]
        txn = server.store.begin()
        answers = [engine.run_write(command, request, txn) for command, request in zip(commands, requests, strict=True)]
        server.store.commit(txn)
        codes = [decode(answer).get("code") for answer in answers if isinstance(answer, bytes)]
        assert codes == [None, 13]


def test_of_two_whose_passwords_are_computed_at_once_one_is_the_first() -> None:
    with DrivenServer(auth=True) as server:
        engine, store, turns = server.engine, server.store, Turns()
        requests = [server.request("admin", {"createUser": name, "pwd": "x", "roles": ["root"]}) for name in "ab"]
        txn = store.begin()
        paused = [turns.run(engine.run_write, engine.command(request), request, txn) for request in requests]
        store.commit(txn)
        assert all(type(turn.waits_for) is ThreadCall for turn in paused)
        codes = []
        for answer in paused:
            while type(answer) is Turn:
                txn = store.begin()
                answer = turns.resume(answer, txn)
                store.commit(txn)
            codes.append(decode(answer).get("code"))
        assert codes == [None, 13]


def test_without_authorization_nobody_is_asked() -> None:
    with DrivenServer() as server:
        server.must("admin", {"createUser": "root", "pwd": "x", "roles": []})
        server.must("shop", {"insert": "orders", "documents": [{}]})


# Reading and writing.


def test_a_reader_reads_one_database(users: Users) -> None:
    for body in ({"find": "orders"}, {"count": "orders"}, {"distinct": "orders", "key": "_id"}, {"listCollections": 1},
                 {"listIndexes": "orders"}, {"collStats": "orders"}, {"dbStats": 1},
                 {"explain": {"find": "orders"}}, {"aggregate": "orders", "pipeline": [], "cursor": {}}):  # fmt: skip
        users.run("reader", "shop", body)
        users.refused("reader", "other", body)
    for body in ({"insert": "orders", "documents": [{}]}, {"drop": "orders"}, {"create": "x"}, {"dropDatabase": 1},
                 {"delete": "orders", "deletes": [{"q": {}, "limit": 1}]},
                 {"update": "orders", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]},
                 {"createIndexes": "orders", "indexes": [{"key": {"a": 1}, "name": "a"}]},
                 {"findAndModify": "orders", "query": {}, "remove": True},
                 {"explain": {"delete": "orders", "deletes": [{"q": {}, "limit": 1}]}}):  # fmt: skip
        users.refused("reader", "shop", body)


def test_a_writer_writes_one_database(users: Users) -> None:
    for body in ({"insert": "orders", "documents": [{}]}, {"create": "x"},
                 {"delete": "orders", "deletes": [{"q": {}, "limit": 1}]},
                 {"update": "orders", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "upsert": True}]},
                 {"findAndModify": "orders", "query": {}, "remove": True}, {"drop": "orders"}):  # fmt: skip
        users.run("writer", "shop", body)
        users.refused("writer", "other", body)
    users.refused("writer", "shop", {"collMod": "x"})


def test_an_upsert_needs_insert(users: Users) -> None:
    users.role("changer", (orders(), ["find", "update"]))
    users.create("changer", "changer")
    update: dict[str, Any] = {"q": {"_id": 1}, "u": {"$set": {"a": 1}}}
    users.run("changer", "shop", {"update": "orders", "updates": [update]})
    users.refused("changer", "shop", {"update": "orders", "updates": [{**update, "upsert": True}]})
    change = {"findAndModify": "orders", "query": {"_id": 1}, "update": {"$set": {"a": 2}}}
    users.run("changer", "shop", change)
    users.refused("changer", "shop", {**change, "upsert": True})
    for kind in ({"insert": 0, "document": {}}, {"delete": 0, "filter": {}}):
        users.refused("changer", "admin", {"bulkWrite": 1, "ops": [kind], "nsInfo": [{"ns": "shop.orders"}]})
    one = {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 3}}}
    users.run("changer", "admin", {"bulkWrite": 1, "ops": [one], "nsInfo": [{"ns": "shop.orders"}]})
    users.refused("changer", "admin", {"bulkWrite": 1, "ops": [one], "nsInfo": [{"ns": "other.orders"}]})
    users.refused(
        "changer", "admin", {"bulkWrite": 1, "ops": [{**one, "upsert": True}], "nsInfo": [{"ns": "shop.orders"}]}
    )


def test_bypassing_validation_is_a_privilege(users: Users) -> None:
    insert = {"insert": "orders", "documents": [{}], "bypassDocumentValidation": True}
    users.refused("writer", "shop", insert)
    users.create("owner", {"role": "dbOwner", "db": "shop"})
    users.run("owner", "shop", insert)
    out = {"aggregate": "orders", "pipeline": [{"$out": "x"}], "cursor": {}, "bypassDocumentValidation": True}
    users.refused("writer", "shop", out)
    users.run("owner", "shop", out)


@pytest.mark.parametrize(
    "stage",
    [
        {"$lookup": {"from": "secret", "as": "x", "pipeline": []}},
        {"$lookup": {"from": "orders", "as": "x", "pipeline": [{"$unionWith": "secret"}]}},
        {"$graphLookup": {"from": "secret", "startWith": 1, "connectFromField": "a", "connectToField": "b", "as": "x"}},
        {"$unionWith": "secret"},
        {"$unionWith": {"coll": "orders", "pipeline": [{"$lookup": {"from": "secret", "as": "x", "pipeline": []}}]}},
        {"$facet": {"a": [{"$unionWith": {"coll": "secret", "pipeline": []}}]}},
        {"$out": "secret"},
        {"$out": {"db": "other", "coll": "orders"}},
        {"$merge": "secret"},
        {"$merge": {"into": {"db": "other", "coll": "orders"}}},
    ],
)
def test_a_pipeline_needs_what_its_stages_do(users: Users, stage: dict[str, Any]) -> None:
    users.role("narrow", (orders(), ["find"]))
    users.create("narrow", "narrow")
    users.refused("narrow", "shop", {"aggregate": "orders", "pipeline": [stage], "cursor": {}})
    users.run("narrow", "shop", {"aggregate": "orders", "pipeline": [{"$match": {}}], "cursor": {}})


def test_stages_about_the_server_have_other_actions(users: Users) -> None:
    users.refused("reader", "shop", {"aggregate": "orders", "pipeline": [{"$indexStats": {}}], "cursor": {}})
    users.run("reader", "shop", {"aggregate": "orders", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}})
    inner = [{"$indexStats": {}}]
    for joining in (
        {"$unionWith": {"coll": "secret", "pipeline": inner}},
        {"$facet": {"a": [{"$lookup": {"from": "secret", "pipeline": inner, "as": "x"}}]}},
    ):
        users.refused("reader", "shop", {"aggregate": "orders", "pipeline": [joining], "cursor": {}})
        users.run("root", "shop", {"aggregate": "orders", "pipeline": [joining], "cursor": {}})
    everybody = {"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}], "cursor": {}}
    users.refused("reader", "admin", everybody)
    users.run("reader", "admin", {**everybody, "pipeline": [{"$currentOp": {}}]})
    users.run("root", "admin", everybody)
    sessions = {"aggregate": "system.sessions", "pipeline": [{"$listSessions": {"allUsers": True}}], "cursor": {}}
    users.refused("reader", "config", sessions)
    users.run("reader", "config", {**sessions, "pipeline": [{"$listSessions": {}}]})


def test_a_view_is_read_with_privileges_on_the_view(users: Users) -> None:
    users.run("root", "shop", {"create": "few", "viewOn": "orders", "pipeline": [{"$limit": 2}]})
    users.role("viewer", (orders(collection="few"), ["find"]))
    users.create("viewer", "viewer")
    assert len(users.run("viewer", "shop", {"find": "few"})["cursor"]["firstBatch"]) == 2
    users.refused("viewer", "shop", {"find": "orders"})


def test_a_view_shows_nobody_more_than_he_may_see(users: Users) -> None:
    users.role("maker", (orders(collection="mine"), ["find", "createCollection", "collMod"]))
    users.create("maker", "maker")
    users.refused("maker", "shop", {"create": "mine", "viewOn": "orders", "pipeline": []})
    users.role("other", (orders(collection="allowed"), ["find"]))
    users.run("root", "admin", {"grantRolesToUser": "maker", "roles": ["other"]})
    users.run("maker", "shop", {"create": "mine", "viewOn": "allowed", "pipeline": []})
    users.refused("maker", "shop", {"collMod": "mine", "viewOn": "orders", "pipeline": []})
    users.refused("maker", "shop", {"collMod": "mine", "viewOn": "allowed", "pipeline": [{"$unionWith": "orders"}]})


def test_system_collections_and_internal_databases_are_apart(users: Users) -> None:
    users.create("all", "readAnyDatabase")
    for db, collection in (("admin", "system.users"), ("local", "oplog.rs"), ("config", "transactions")):
        users.refused("all", db, {"find": collection})
    users.run("all", "other", {"find": "orders"})
    users.create("monitor", "clusterMonitor")
    users.run("monitor", "local", {"find": "oplog.rs", "limit": 1})
    users.refused("monitor", "local", {"insert": "x", "documents": [{}]})
    users.create("saver", "backup")
    users.run("saver", "admin", {"find": "system.users"})


def test_a_rename_needs_what_it_amounts_to(users: Users) -> None:
    users.run("writer", "admin", {"renameCollection": "shop.orders", "to": "shop.renamed"})
    users.refused("writer", "admin", {"renameCollection": "shop.renamed", "to": "other.renamed"})
    users.refused("reader", "admin", {"renameCollection": "shop.renamed", "to": "shop.orders"})


# Change streams.


def _watch(name: str | int = "orders", **options: Any) -> dict[str, Any]:
    return {"aggregate": name, "pipeline": [{"$changeStream": options}], "cursor": {}}


@pytest.mark.parametrize(
    ("resource", "db", "watch", "wider"),
    [
        (orders(), "shop", _watch(), ("shop", _watch(1))),
        (orders(collection=""), "shop", _watch(1), ("admin", _watch(1, allChangesForCluster=True))),
        (orders(db="", collection=""), "admin", _watch(1, allChangesForCluster=True), None),
    ],
    ids=["collection", "database", "deployment"],
)
def test_the_manual_s_examples_of_access_to_change_streams(
    users: Users, resource: dict[str, Any], db: str, watch: dict[str, Any], wider: tuple[str, dict[str, Any]] | None
) -> None:
    users.role("watcher", (resource, ["find", "changeStream"]))
    users.role("half", (resource, ["find"]))
    users.create("watcher", "watcher")
    users.create("half", "half")
    users.run("watcher", db, watch)
    users.refused("half", db, watch)
    if wider is not None:
        users.refused("watcher", *wider)


def test_a_stream_of_a_user_that_loses_the_role_ends(users: Users) -> None:
    cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
    more = {"getMore": Int64(cursor), "collection": "orders"}
    assert isinstance(users.answer("reader", "shop", more), Wait)
    users.run("root", "admin", {"revokeRolesFromUser": "reader", "roles": [{"role": "read", "db": "shop"}]})
    users.run("root", "shop", {"insert": "orders", "documents": [{"_id": "unseen"}]})
    reply = users.answer("reader", "shop", more)
    assert isinstance(reply, dict) and reply["code"] == 13
    assert cursor not in [item.id for item in users.server.engine.cursors]


def test_a_stream_of_a_user_that_is_dropped_is_gone(users: Users) -> None:
    cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
    users.run("root", "admin", {"dropUser": "reader"})
    reply = users.answer("reader", "shop", {"getMore": Int64(cursor), "collection": "orders"})
    assert isinstance(reply, dict) and reply["errmsg"] == "Command getMore requires authentication"
    assert not len(users.server.engine.cursors)


def test_a_waiting_stream_is_run_again_and_refused(users: Users) -> None:
    woken: list[Any] = []
    users.server.engine.shell.cursor_killed = woken.append  # type: ignore[method-assign]
    cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
    users.server.client = users.connection("reader")
    request = users.server.request("shop", {"getMore": Int64(cursor), "collection": "orders"})
    command = users.server.engine.command(request)
    assert isinstance(users.server.engine.run_read(command, request), Wait)
    request.wait_until_ms = 1e9  # as the shell notes it
    users.run("root", "admin", {"updateUser": "reader", "roles": []})
    assert [item.id for item in woken] == [cursor]
    users.run("root", "shop", {"insert": "orders", "documents": [{"_id": "unseen"}]})
    answer = users.server.engine.run_read(command, request)
    assert isinstance(answer, bytes) and b"not authorized on shop to execute command { getMore" in answer


def test_privileges_that_are_left_alone_end_nothing(users: Users) -> None:
    cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
    users.create("somebody")
    users.run("root", "shop", {"insert": "orders", "documents": [{"_id": "seen"}]})
    batch = users.run("reader", "shop", {"getMore": Int64(cursor), "collection": "orders"})["cursor"]["nextBatch"]
    assert batch[0]["documentKey"] == {"_id": "seen"}


# Whose a thing is.


def test_a_cursor_is_its_user_s(users: Users) -> None:
    cursor = users.run("reader", "shop", {"find": "orders", "batchSize": 1})["cursor"]["id"]
    more = {"getMore": Int64(cursor), "collection": "orders"}
    assert users.refused("writer", "shop", more) == f"cursor id {cursor} was not created by the authenticated user"
    users.refused("writer", "shop", {"killCursors": "orders", "cursors": [Int64(cursor)]})
    users.run("reader", "shop", more)
    users.run("root", "shop", {"killCursors": "orders", "cursors": [Int64(cursor)]})


def test_a_repeated_getmore_is_its_user_s(users: Users) -> None:
    from headrace.dispatch import repeated_getmore

    cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
    users.answer("reader", "shop", {"getMore": Int64(cursor), "collection": "orders"})
    engine, reader, writer = users.server.engine, users.connection("reader"), users.connection("writer")
    raw = users.server.request("shop", {"getMore": Int64(cursor), "collection": "orders"}).raw
    assert repeated_getmore.recognised(engine, raw, reader) is not None
    assert repeated_getmore.recognised(engine, raw, writer) is None
    users.run("root", "admin", {"updateUser": "reader", "roles": []})
    assert repeated_getmore.recognised(engine, raw, reader) is None
    users.answer("reader", "shop", {"connectionStatus": 1})  # which looks the user up again
    assert repeated_getmore.recognised(engine, raw, reader) is None


def test_a_getmore_that_was_recognised_is_checked_again_where_users_have_changed(users: Users) -> None:
    from headrace.dispatch import repeated_getmore

    engine, reader = users.server.engine, users.connection("reader")
    for roles, code in ([{"role": "readWrite", "db": "shop"}], None), ([], 13):
        cursor = users.run("reader", "shop", _watch())["cursor"]["id"]
        body = {"getMore": Int64(cursor), "collection": "orders"}
        users.answer("reader", "shop", body)
        request = repeated_getmore.recognised(engine, users.server.request("shop", body).raw, reader)
        assert request is not None
        users.run("root", "admin", {"updateUser": "reader", "roles": roles})
        assert repeated_getmore.from_feed(engine, request) is None
        answer = engine.run_stream(engine.commands["getMore"], request)
        assert (decode(answer)["code"] if isinstance(answer, bytes) else None) == code


def test_a_session_is_its_user_s(users: Users) -> None:
    users.create("second", {"role": "readWrite", "db": "shop"})
    lsid = {"id": Binary(uuid4().bytes, 4)}
    statement = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False}
    users.run(
        "writer", "shop", {"insert": "orders", "documents": [{"_id": "t"}], "startTransaction": True, **statement}
    )
    other = users.answer("second", "shop", {"find": "orders", **statement})
    assert isinstance(other, dict) and other["code"] == 251
    users.answer("second", "admin", {"abortTransaction": 1, **statement})
    users.answer("second", "admin", {"endSessions": [lsid]})
    users.run("writer", "admin", {"commitTransaction": 1, **statement})
    retry = {"insert": "orders", "documents": [{"_id": "r"}], "lsid": lsid, "txnNumber": Int64(2)}
    users.run("writer", "shop", retry)
    users.run("writer", "shop", retry)
    foreign = users.answer("second", "shop", {"findAndModify": "orders", "query": {"_id": "none"}, "remove": True,
                                              "lsid": lsid, "txnNumber": Int64(2)})  # fmt: skip
    assert isinstance(foreign, dict) and foreign["value"] is None


def test_sessions_are_shown_by_their_ids_to_their_users(users: Users) -> None:
    lsid = {"id": Binary(uuid4().bytes, 4)}
    users.run("writer", "shop", {"insert": "orders", "documents": [{}], "lsid": lsid, "txnNumber": Int64(1)})
    listing = {"aggregate": "system.sessions", "pipeline": [{"$listSessions": {}}], "cursor": {}}
    shown = users.run("writer", "config", listing)["cursor"]["firstBatch"]
    assert [item["_id"]["id"] for item in shown] == [lsid["id"]]
    assert users.run("reader", "config", listing)["cursor"]["firstBatch"] == []
    everybody = {**listing, "pipeline": [{"$listSessions": {"allUsers": True}}]}
    assert len(users.run("root", "config", everybody)["cursor"]["firstBatch"]) == 1


def test_sessions_of_others_are_ended_by_who_may(users: Users) -> None:
    lsid = {"id": Binary(uuid4().bytes, 4)}
    start = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    users.refused("reader", "admin", {"killAllSessions": []})
    for patterns in ([], [{"user": "writer", "db": "admin"}]):
        users.run("writer", "shop", {"insert": "orders", "documents": [{}], **start})
        users.run("reader", "admin", {"killSessions": [lsid]})
        assert users.server.store.transactions.open
        users.run("root", "admin", {"killAllSessions": patterns})
        assert not users.server.store.transactions.open
        start["txnNumber"] = Int64(2)


def test_operations_of_others_are_shown_to_who_may(users: Users) -> None:
    users.refused("reader", "admin", {"currentOp": 1})
    assert users.run("reader", "admin", {"currentOp": 1, "$ownOps": True})["inprog"]
    users.refused("reader", "admin", {"killOp": 1, "op": 999})
    users.run("root", "admin", {"killOp": 1, "op": 999})
    users.run("reader", "shop", {"find": "orders", "batchSize": 1})
    users.run("writer", "shop", {"find": "orders", "batchSize": 1})
    pipeline = [{"$currentOp": {"idleCursors": True}}, {"$match": {"type": "idleCursor"}}]
    body = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
    assert len(users.run("reader", "admin", body)["cursor"]["firstBatch"]) == 1


def test_databases_and_collections_are_listed_for_their_users(users: Users) -> None:
    def databases(name: str, **options: Any) -> list[str]:
        listed = users.run(name, "admin", {"listDatabases": 1, "nameOnly": True, **options})["databases"]
        return [item["name"] for item in listed]

    assert databases("reader") == ["shop"]
    assert databases("root") == ["admin", "config", "local", "other", "shop"]
    assert "shop" in databases("root", authorizedDatabases=True)
    users.refused("reader", "admin", {"listDatabases": 1, "authorizedDatabases": False})
    users.role("narrow", (orders(), ["find"]))
    users.create("narrow", "narrow")
    users.run("root", "shop", {"create": "secret"})
    users.refused("narrow", "shop", {"listCollections": 1})
    mine = {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}
    assert [item["name"] for item in users.run("narrow", "shop", mine)["cursor"]["firstBatch"]] == ["orders"]


# Users and roles.


def test_users_change_their_password_where_they_may(users: Users) -> None:
    users.refused("reader", "admin", {"updateUser": "reader", "pwd": "new"})
    users.role("own", (orders(db="admin", collection=""), ["changeOwnPassword", "changeOwnCustomData"]))
    users.run("root", "admin", {"grantRolesToUser": "reader", "roles": ["own"]})
    users.run("reader", "admin", {"updateUser": "reader", "pwd": "new", "customData": {"a": 1}})
    users.refused("reader", "admin", {"updateUser": "writer", "pwd": "new"})
    users.refused("reader", "admin", {"updateUser": "reader", "roles": ["root"]})


def test_a_user_admin_grants_roles_of_its_database(users: Users) -> None:
    users.create("boss", {"role": "userAdmin", "db": "shop"})
    create = {"createUser": "new", "pwd": "x", "roles": ["read"]}
    users.run("boss", "shop", create)
    users.refused("boss", "other", create)
    users.refused("boss", "shop", {**create, "createUser": "x", "roles": [{"role": "root", "db": "admin"}]})
    users.run("boss", "shop", {"grantRolesToUser": "new", "roles": ["dbAdmin"]})
    users.refused("boss", "shop", {"grantRolesToUser": "new", "roles": [{"role": "read", "db": "other"}]})
    privilege = {"resource": orders(), "actions": ["find"]}
    users.run("boss", "shop", {"createRole": "r", "privileges": [privilege], "roles": ["read"]})
    users.run("boss", "shop", {"usersInfo": 1})
    users.refused("boss", "shop", {"usersInfo": {"forAllDBs": True}})
    users.refused("boss", "admin", {"usersInfo": "reader"})
    users.run("boss", "shop", {"dropUser": "new"})


def test_users_see_themselves_and_their_roles(users: Users) -> None:
    assert users.run("reader", "admin", {"usersInfo": "reader", "showPrivileges": True})["users"]
    users.refused("reader", "admin", {"usersInfo": "reader", "showCredentials": True})
    users.refused("reader", "admin", {"usersInfo": "writer"})
    assert users.run("reader", "admin", {"rolesInfo": {"role": "read", "db": "shop"}})["roles"]
    users.refused("reader", "admin", {"rolesInfo": "root"})
    status = users.run("reader", "admin", {"connectionStatus": 1, "showPrivileges": True})["authInfo"]
    assert status["authenticatedUserRoles"] == [{"role": "read", "db": "shop"}]
    assert {"db": "shop", "collection": ""} in [item["resource"] for item in status["authenticatedUserPrivileges"]]


def test_what_is_granted_counts_at_once(users: Users) -> None:
    insert = {"insert": "orders", "documents": [{}]}
    users.refused("reader", "shop", insert)
    users.run("root", "admin", {"grantRolesToUser": "reader", "roles": [{"role": "readWrite", "db": "shop"}]})
    users.run("reader", "shop", insert)
    users.run("root", "admin", {"revokeRolesFromUser": "reader", "roles": [{"role": "readWrite", "db": "shop"}]})
    users.refused("reader", "shop", insert)


def test_the_server_is_governed_by_who_may_from_anywhere(users: Users) -> None:
    body = {"setParameter": 1, "quiet": True}
    users.refused("reader", "admin", body)
    client = users.connection("root")
    client.address = "10.1.2.3:5"
    users.run("root", "admin", body)
