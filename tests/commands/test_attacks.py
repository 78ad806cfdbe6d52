"""Attempts of a user to get more than his privileges: each attempt is refused, or shows and does nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson import Binary, Decimal128, Int64
from bson.code import Code

from headrace.auth.names import UserName
from headrace.commands.requirements import pipelines
from headrace.dispatch.request import parse_message
from headrace.dispatch.sessions import user_digest
from headrace.errors import CommandError
from headrace.query.pipeline import STAGES, UNSUPPORTED
from headrace.values.bson import encode
from tests.users import HERE, Users, shop_users

SHOP_ORDERS = {"db": "shop", "collection": "orders"}
SECRET = "admin.system.users"


@pytest.fixture
def users() -> Iterator[Users]:
    """`reader` and `writer` of `shop`, and others with one role, by which they are named."""
    with shop_users() as made:
        made.run("root", "admin", {"insert": "things", "documents": [{"_id": 1}]})
        made.role("none")
        for name in ("none", "readAnyDatabase", "readWriteAnyDatabase", "dbAdmin", "readWrite"):
            made.create(name, name)
        for name in ("update", "remove"):
            made.role(name, (SHOP_ORDERS, ["find", name]))
            made.create(name, name)
        yield made


def twice(name: str, first: Any, second: Any, **between: Any) -> bytes:
    """A document that has a field twice, which a parser may read in two ways."""
    body = encode({name: first, **between})[4:-1] + encode({name: second})[4:]
    return (len(body) + 4).to_bytes(4, "little") + body


def sent(users: Users, name: str, body: bytes, **sequences: list[bytes]) -> int:
    """Return the reply's error to a message of these bytes: a code, 0 for none."""
    try:
        reply = users.server.answer(parse_message(body, sequences, users.connection(name)))
    except CommandError as error:
        return error.code
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


def code(users: Users, name: str, db: str, body: dict[str, Any]) -> int:
    reply = users.answer(name, db, body) if users.connection(name) else None
    assert isinstance(reply, dict)
    return int(reply.get("code", 0))


# Namespaces that a check and a command might read in two ways.


@pytest.mark.parametrize("number", [0, Int64(0), 0.0, Decimal128("0"), 0.9])
@pytest.mark.parametrize("kind", ["delete", "insert", "update"])
def test_a_bulk_write_is_checked_however_it_numbers_its_namespaces(users: Users, kind: str, number: Any) -> None:
    rest: dict[str, Any] = {
        "delete": {"filter": {}}, "insert": {"document": {}}, "update": {"filter": {}, "updateMods": {"a": 1}},
    }  # fmt: skip
    body = {"bulkWrite": 1, "ops": [{kind: number, **rest[kind]}], "nsInfo": [{"ns": "other.orders"}]}
    for name in ("none", "reader", "writer"):
        users.refused(name, "admin", body)
    users.run("writer", "admin", {**body, "nsInfo": [{"ns": "shop.orders"}]})


def test_of_two_numbers_of_a_namespace_the_one_that_is_checked_counts(users: Users) -> None:
    body = encode({"bulkWrite": 1, "nsInfo": [{"ns": "shop.orders"}, {"ns": "other.orders"}], "$db": "admin"})
    assert sent(users, "writer", body, ops=[twice("insert", 1, 0, document={"_id": "mine"})]) == 13
    assert sent(users, "writer", body, ops=[twice("insert", 0, 1, document={"_id": "mine"})]) == 0
    assert users.run("root", "shop", {"count": "orders", "query": {"_id": "mine"}})["n"] == 1


def test_of_two_lists_of_updates_the_one_that_is_checked_counts(users: Users) -> None:
    plain, upsert = ({"q": {"_id": "new"}, "u": {"$set": {"a": 1}}, "upsert": value} for value in (False, True))
    for lists, code in ((([upsert], [plain]), 13), (([plain], [upsert]), 0)):
        twofold = encode({"update": "orders"})[4:-1] + twice("updates", *lists)[4:-1] + encode({"$db": "shop"})[4:]
        assert sent(users, "update", (len(twofold) + 4).to_bytes(4, "little") + twofold) == code
    message = encode({"update": "orders", "$db": "shop"})
    rest = {"q": plain["q"], "u": plain["u"]}
    for statement in (twice("upsert", True, False, **rest), twice("upsert", False, True, **rest)):
        assert sent(users, "update", message, updates=[statement]) == 13
    assert users.run("root", "shop", {"count": "orders", "query": {"_id": "new"}})["n"] == 0


def test_an_update_that_says_that_it_inserts_nothing_needs_update_alone(users: Users) -> None:
    statement = {"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": False}
    body = encode({"update": "orders", "$db": "shop"})
    for value, expected in ((False, 0), (None, 0), (0, 14), (0.0, 14), (Decimal128("0"), 14)):
        assert sent(users, "update", body, updates=[encode({**statement, "upsert": value})]) == expected
    users.run("update", "shop", {"update": "orders", "updates": [statement]})
    for true in (True, 1, Int64(1), 0.5, Decimal128("1")):
        users.refused("update", "shop", {"update": "orders", "updates": [{**statement, "upsert": true}]})


def test_a_zero_of_any_type_is_false_to_the_check_as_well(users: Users) -> None:
    zero = Decimal128("0")
    change = {"findAndModify": "orders", "query": {"_id": 1}, "remove": zero, "update": {"$set": {"a": 1}}}
    users.refused("remove", "shop", change)
    users.run("update", "shop", change)
    users.refused("update", "shop", {**change, "upsert": Decimal128("1")})
    users.refused("none", "shop", {"listCollections": 1, "nameOnly": True, "authorizedCollections": False})
    users.refused("none", "shop", {"listCollections": 1, "nameOnly": zero, "authorizedCollections": True})
    users.refused("none", "admin", {"currentOp": 1, "$ownOps": zero})


@pytest.mark.parametrize("db", ["shop.orders", "admin.system"])
def test_the_name_of_a_database_has_no_dot(users: Users, db: str) -> None:
    assert sent(users, "reader", encode({"find": "users", "$db": db})) == 73


def test_a_name_of_another_type_is_no_name(users: Users) -> None:
    graph = {"startWith": 1, "connectFromField": "a", "connectToField": "b", "as": "c"}
    for value in (Code("system.users"), Binary(uuid4().bytes, 4), 1, None, ["system.users"], {"system.users": 1}):
        for body in (
            {"find": value}, {"aggregate": value, "pipeline": [], "cursor": {}}, {"count": value}, {"drop": value},
            {"insert": value, "documents": [{}]}, {"distinct": value, "key": "_id"}, {"listIndexes": value},
        ):  # fmt: skip
            assert code(users, "readWrite", "admin", body), body
        stages: list[dict[str, Any]] = [
            {"$lookup": {"from": value, "pipeline": [], "as": "x"}}, {"$unionWith": value},
            {"$unionWith": {"coll": value}}, {"$out": value}, {"$merge": value}, {"$merge": {"into": value}},
            {"$graphLookup": {**graph, "from": value}},
        ]  # fmt: skip
        for stage in stages:
            body = {"aggregate": "things", "pipeline": [stage], "cursor": {}}
            assert code(users, "readWrite", "admin", body), body


# Users and roles by another way.

READS: list[dict[str, Any]] = [
    {"find": "system.users"},
    {"aggregate": "system.users", "pipeline": [], "cursor": {}},
    {"aggregate": "system.users", "pipeline": [{"$match": {}}], "cursor": {}},
    {"aggregate": "system.users", "pipeline": [{"$changeStream": {}}], "cursor": {}},
    {"aggregate": "system.users", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}},
    {"aggregate": "system.users", "pipeline": [{"$indexStats": {}}], "cursor": {}},
    {"aggregate": "things", "pipeline": [{"$unionWith": "system.users"}], "cursor": {}},
    {"aggregate": "things", "pipeline": [{"$facet": {"a": [{"$unionWith": "system.users"}]}}], "cursor": {}},
    {"count": "system.users"},
    {"distinct": "system.users", "key": "credentials"},
    {"listIndexes": "system.users"},
    {"collStats": "system.users"},
    {"explain": {"find": "system.users"}, "verbosity": "executionStats"},
    {"explain": {"aggregate": "things", "pipeline": [{"$unionWith": "system.users"}], "cursor": {}}},
    {"headraceChanges": "system.users", "after": {"_data": "00"}},
]  # fmt: skip


@pytest.mark.parametrize("body", READS, ids=str)
@pytest.mark.parametrize("name", ["readAnyDatabase", "readWriteAnyDatabase", "readWrite", "dbAdmin"])
def test_users_are_not_read_by_readers_of_everything(users: Users, name: str, body: dict[str, Any]) -> None:
    users.refused(name, "admin", body)


@pytest.mark.parametrize(
    ("db", "name"),
    [
        ("local", "oplog.rs"), ("config", "system.preimages"), ("config", "transactions"), ("config", "settings"),
        ("admin", "system.roles"), ("admin", "system.version"), ("shop", "system.profile"), ("shop", "system.views"),
    ],
)  # fmt: skip
def test_what_is_internal_is_not_read_by_readers_of_everything(users: Users, db: str, name: str) -> None:
    for reader in ("readAnyDatabase", "readWriteAnyDatabase", "reader"):
        for body in ({"find": name}, {"aggregate": name, "pipeline": [], "cursor": {}}, {"count": name}):
            users.refused(reader, db, body)
        around = {"from": {"db": db, "coll": name}, "pipeline": [], "as": "x"}
        users.refused(reader, "shop", {"aggregate": "orders", "pipeline": [{"$lookup": around}], "cursor": {}})


def test_there_is_no_internal_command_that_does_what_it_is_given(users: Users) -> None:
    for name in ("doTxn", "eval", "godinsert", "internalRenameIfOptionsAndIndexesMatch"):
        assert code(users, "root", "admin", {name: 1}) == 59


def test_users_of_a_dump_are_merged_by_who_may_create_them_and_read_the_dump(users: Users) -> None:
    boss = {"role": "root", "db": "admin"}
    made = {"user": "x", "db": "admin", "credentials": {"external": True}, "roles": [boss]}
    users.run("readWrite", "admin", {"insert": "tempusers", "documents": [made]})
    merge = {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.tempusers", "db": ""}
    for name in ("none", "readWrite", "readWriteAnyDatabase", "dbAdmin"):
        users.refused(name, "admin", merge)
    users.create("userAdminAnyDatabase", "userAdminAnyDatabase")
    users.refused("userAdminAnyDatabase", "admin", merge)  # which may not read the collection
    everywhere = {"db": "", "collection": ""}
    users.role("creator", (everywhere, ["createRole", "createUser", "find", "grantRole", "revokeRole"]))
    users.create("creator", "creator")
    for drops in (True, 1, Decimal128("1")):
        users.refused("creator", "admin", {**merge, "drop": drops})
    for source in ("local.oplog.rs", SECRET):
        users.refused("creator", "admin", {**merge, "tempRolesCollection": source})
    assert users.server.engine.access.user(UserName("x", "admin")) is None
    users.run("creator", "admin", {**merge, "drop": Decimal128("0")})
    assert users.server.engine.access.user(UserName("x", "admin")) is not None


def test_a_view_shows_its_maker_no_users(users: Users) -> None:
    for body in (
        {"create": "shown", "viewOn": "system.users", "pipeline": []},
        {"create": "shown", "viewOn": "things", "pipeline": [{"$unionWith": "system.users"}]},
    ):
        users.refused("readWrite", "admin", body)
        users.refused("readWriteAnyDatabase", "admin", body)
        users.refused("dbAdmin", "admin", body)  # who could not read it, but others could


def test_stages_within_stages_are_looked_at(users: Users) -> None:
    inner = {"$lookup": {"from": "system.users", "pipeline": [], "as": "x"}}
    for stage in (
        {"$facet": {"a": [inner]}}, {"$unionWith": {"coll": "things", "pipeline": [inner]}},
        {"$lookup": {"from": "things", "pipeline": [inner], "as": "y"}}, {"$unionWith": {"pipeline": [inner]}},
        {"$facet": {"a": [{"$unionWith": {"coll": "things", "pipeline": [{"$facet": {"b": [inner]}}]}}]}},
    ):  # fmt: skip
        users.refused("readWrite", "admin", {"aggregate": "things", "pipeline": [stage], "cursor": {}})


def test_operations_of_others_are_not_read_by_a_stage_within_another(users: Users) -> None:
    for stage in ("$currentOp", "$listLocalSessions", "$listSessions"):
        pipeline = [{stage: {"allUsers": True}}]
        assert code(users, "none", "admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {}}) == 13
        for around in (
            [{"$documents": []}, {"$unionWith": {"pipeline": pipeline}}],
            [{"$documents": [{}]}, {"$lookup": {"pipeline": pipeline, "as": "x"}}],
            [{"$documents": [{}]}, {"$facet": {"x": pipeline}}],
        ):
            assert code(users, "none", "admin", {"aggregate": 1, "pipeline": around, "cursor": {}}), around


def test_a_stream_shows_no_system_collections_that_its_user_may_not_read(users: Users) -> None:
    users.run("root", "shop", {"insert": "system.js", "documents": [{"_id": "f"}]})
    everywhere = {"db": "", "collection": ""}
    users.role("watcher", (everywhere, ["changeStream", "find"]))
    users.create("watcher", "watcher")
    users.refused("watcher", "shop", {"find": "system.js"})
    for db, options in (("shop", {}), ("admin", {"allChangesForCluster": True})):
        watch = {"aggregate": 1, "cursor": {}}
        users.run("watcher", db, {**watch, "pipeline": [{"$changeStream": options}]})
        shown = {**watch, "pipeline": [{"$changeStream": {**options, "showSystemEvents": True}}]}
        users.refused("watcher", db, shown)
        users.run("root", db, shown)


def test_each_stage_is_known_to_the_check() -> None:
    elsewhere = {"$changeStream", "$documents", "$facet", "$graphLookup", "$lookup", "$merge", "$out", "$unionWith"}
    described = pipelines._SOURCES.keys() | pipelines._OF_USERS.keys() | pipelines._CLUSTER_WIDE.keys()
    assert set(STAGES) - HERE - set(UNSUPPORTED) <= elsewhere | described
    assert set(STAGES) >= HERE


def test_nobody_becomes_root_by_renaming(users: Users) -> None:
    role = {
        "_id": "admin.none",
        "role": "none",
        "db": "admin",
        "privileges": [],
        "roles": [{"role": "root", "db": "admin"}],
    }
    users.run("readWrite", "admin", {"insert": "made", "documents": [role]})
    for target in ("admin.system.roles", "admin.system.users", "admin.system.version", "shop.system.views"):
        for drops in (False, True):
            users.refused("readWrite", "admin", {"renameCollection": "admin.made", "to": target, "dropTarget": drops})
            body = {"renameCollection": "shop.orders", "to": "shop.system.profile", "dropTarget": drops}
            users.refused("writer", "admin", body)
    users.refused("readWrite", "admin", {"renameCollection": SECRET, "to": "admin.mine"})
    users.refused("readWriteAnyDatabase", "admin", {"renameCollection": SECRET, "to": "shop.mine"})
    users.refused("writer", "admin", {"renameCollection": "other.orders", "to": "shop.mine"})
    users.refused("writer", "admin", {"renameCollection": "shop.orders", "to": "other.mine"})
    users.run("writer", "admin", {"renameCollection": "shop.orders", "to": "shop.mine"})


@pytest.mark.parametrize(
    "body",
    [
        {"insert": "system.users", "documents": [{"_id": "admin.x"}]},
        {"update": "system.users", "updates": [{"q": {}, "u": {"$set": {"roles": []}}, "multi": True}]},
        {"delete": "system.users", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "system.users", "query": {}, "remove": True},
        {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {}}], "nsInfo": [{"ns": SECRET}]},
        {"drop": "system.users"},
        {"dropIndexes": "system.users", "index": "*"},
        {"createIndexes": "system.users", "indexes": [{"key": {"x": 1}, "name": "x", "expireAfterSeconds": 0}]},
        {"collMod": "system.users", "validator": {"$expr": False}},
        {"create": "system.roles"},
        {"aggregate": "things", "pipeline": [{"$out": "system.users"}], "cursor": {}},
        {"aggregate": "things", "pipeline": [{"$merge": {"into": "system.users"}}], "cursor": {}},
        {"createUser": "x", "pwd": "x", "roles": ["root"]},
        {"grantRolesToUser": "readWrite", "roles": ["root"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["readWrite", "readWriteAnyDatabase", "dbAdmin"])
def test_users_are_not_changed_by_writers_of_everything(users: Users, name: str, body: dict[str, Any]) -> None:
    users.refused(name, "admin", body)


def test_the_database_of_users_is_not_dropped(users: Users) -> None:
    assert code(users, "dbAdmin", "admin", {"dropDatabase": 1}) == 20
    assert users.server.engine.access.has_users


def test_a_user_s_administrator_grants_what_is_of_its_database_only(users: Users) -> None:
    users.run("root", "admin", {"createUser": "local", "pwd": "x", "roles": [{"role": "userAdmin", "db": "shop"}]})
    everywhere, cluster = {"db": "", "collection": ""}, {"cluster": True}
    for db, body in (
        ("shop", {"createUser": "x", "pwd": "x", "roles": [{"role": "root", "db": "admin"}]}),
        ("shop", {"createUser": "x", "pwd": "x", "roles": [{"role": "read", "db": "other"}]}),
        ("shop", {"createRole": "x", "privileges": [], "roles": [{"role": "root", "db": "admin"}]}),
        ("shop", {"createRole": "x", "privileges": [{"resource": everywhere, "actions": ["find"]}], "roles": []}),
        ("shop", {"createRole": "x", "privileges": [{"resource": cluster, "actions": ["inprog"]}], "roles": []}),
        ("admin", {"createUser": "x", "pwd": "x", "roles": []}),
        ("admin", {"grantRolesToUser": "local", "roles": ["root"]}),
        ("admin", {"updateUser": "root", "pwd": "mine"}),
        ("other", {"createUser": "x", "pwd": "x", "roles": [{"role": "read", "db": "shop"}]}),
    ):  # fmt: skip
        users.refused("local", db, body)


# What belongs to others.


def test_cursors_of_others_are_neither_read_nor_closed(users: Users) -> None:
    opened: list[tuple[str, dict[str, Any]]] = [
        ("shop", {"find": "orders", "batchSize": 1}),
        ("shop", {"aggregate": "orders", "pipeline": [], "cursor": {"batchSize": 1}}),
        ("shop", {"aggregate": "orders", "pipeline": [{"$changeStream": {}}], "cursor": {}}),
        ("shop", {"listCollections": 1, "cursor": {"batchSize": 0}}),
        ("shop", {"listIndexes": "orders", "cursor": {"batchSize": 0}}),
    ]
    for db, body in opened:
        cursor = users.run("writer", db, body)["cursor"]
        name = cursor["ns"].partition(".")[2]
        users.refused("reader", db, {"getMore": cursor["id"], "collection": name})
        assert code(users, "nobody", db, {"getMore": cursor["id"], "collection": name}) == 13
        users.refused("reader", db, {"killCursors": name, "cursors": [cursor["id"]]})
        assert code(users, "nobody", db, {"killCursors": name, "cursors": [cursor["id"]]}) == 13
        assert users.run("writer", db, {"killCursors": name, "cursors": [cursor["id"]]})["cursorsKilled"]


def test_sessions_of_others_are_not_named(users: Users) -> None:
    lsid = {"id": Binary(uuid4().bytes, 4)}
    start = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True}
    users.run("writer", "shop", {"insert": "orders", "documents": [{}], **start})
    (transaction,) = users.server.store.transactions.open.values()
    theirs = {**lsid, "uid": user_digest(UserName("writer", "admin"))}
    users.refused("reader", "admin", {"killSessions": [theirs]})
    users.refused("reader", "admin", {"endSessions": [theirs]})
    known_by = {"id": Binary(transaction.session, 4)}
    for session in (lsid, theirs, known_by):
        assert code(users, "nobody", "admin", {"endSessions": [session]}) == 0
    users.run("reader", "admin", {"endSessions": [lsid, known_by]})
    for name in ("abortTransaction", "commitTransaction"):
        body = {name: 1, "lsid": theirs, "txnNumber": Int64(1), "autocommit": False}
        assert code(users, "reader", "admin", body) == 251
    assert users.server.store.transactions.open
    users.run("root", "admin", {"killSessions": [theirs]})
    assert not users.server.store.transactions.open


def test_operations_of_others_are_not_killed(users: Users) -> None:
    for number in (1, 2, 3, users.connection("writer").connection_id):
        users.refused("reader", "admin", {"killOp": 1, "op": number})
        users.refused("reader", "admin", {"killOp": 1, "op": float(number)})


# Names and conversations.


def test_a_name_with_nul_is_nobody_s(users: Users) -> None:
    for body in (
        {"createUser": "a\0b", "pwd": "x", "roles": []},
        {"createRole": "a\0b", "privileges": [], "roles": []},
    ):
        assert code(users, "root", "admin", body) == 2
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=root\0,r=abc"}
    assert code(users, "nobody", "admin", start) == 0  # as for any name that there is not


@pytest.mark.parametrize("mechanism", ["X" * 100_000, "SCRAM-SHA-256\0", "PLAIN", "MONGODB-CR", "GSSAPI"])
def test_a_mechanism_that_there_is_not_is_not_echoed_at_length(users: Users, mechanism: str) -> None:
    server = users.server
    server.client = users.connection("nobody")
    request = server.request("admin", {"saslStart": 1, "mechanism": mechanism, "payload": b""})
    command = server.engine.command(request)
    server.engine.run_read(command, request)
    reply = server.engine.run_read(command, request)
    assert isinstance(reply, bytes) and len(reply) < 1000
