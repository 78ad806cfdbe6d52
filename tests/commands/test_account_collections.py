"""`admin.system.users` and `admin.system.roles` have no second name: every command and every stage that names a
collection is tried on both, by users who may do everything to the other collections of `admin`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Int64

from headrace.commands.table import COMMANDS, TEST_COMMANDS
from headrace.errors import CommandError
from headrace.query.pipeline import STAGES, UNSUPPORTED
from headrace.query.stages.other_collections import READING
from headrace.store import catalog_changes
from tests.users import HERE, Users, shop_users

NAMES = ("system.users", "system.roles")
MARKER = "hiddenmarker"
"""Part of a user's and of a role's document. No reply to anybody but their administrators has it."""

WITHOUT_COLLECTION = frozenset({
    "abortTransaction", "authenticate", "autoCompact", "buildInfo", "commitTransaction", "configureFailPoint",
    "connPoolStats", "connectionStatus", "createRole", "createUser", "currentOp", "dropAllRolesFromDatabase",
    "dropAllUsersFromDatabase", "dropConnections", "dropRole", "dropUser", "endSessions", "features", "fsync",
    "fsyncUnlock",
    "getClusterParameter", "getCmdLineOpts", "getDefaultRWConcern", "getDiagnosticData", "getLog", "getParameter",
    "grantPrivilegesToRole", "grantRolesToRole", "grantRolesToUser", "headraceBackup", "hello", "hostInfo",
    "invalidateUserCache",
    "isMaster", "killAllSessions", "killAllSessionsByPattern", "killOp", "killSessions", "listCommands",
    "listDatabases", "lockInfo", "logApplicationMessage", "logRotate", "logout", "ping", "refreshSessions",
    "removeQuerySettings", "replSetFreeze", "replSetGetConfig", "replSetGetRBID", "replSetGetStatus",
    "replSetHeartbeat", "replSetInitiate", "replSetMaintenance", "replSetReconfig", "replSetRequestVotes",
    "replSetResizeOplog", "replSetStepDown", "replSetStepUp", "replSetSyncFrom", "replSetUpdatePosition",
    "revokePrivilegesFromRole", "revokeRolesFromRole", "revokeRolesFromUser", "rolesInfo", "rotateCertificates",
    "saslContinue", "saslStart", "serverStatus", "setClusterParameter", "setDefaultRWConcern",
    "setFeatureCompatibilityVersion", "setParameter", "setQuerySettings", "setUserWriteBlockMode", "shutdown",
    "startSession", "testVersion2", "top",
    "updateRole", "updateUser", "usersInfo", "validateDBMetadata", "whatsmyuri",
})  # fmt: skip
"""Commands that name no collection, whose own tests say what they show to whom."""

GRAPH = {"startWith": 1, "connectFromField": "a", "connectToField": "_id", "as": "x"}


def joining(name: str) -> list[dict[str, Any]]:
    """Stages that read a collection, as it is and inside other stages."""
    plain: list[dict[str, Any]] = [
        {"$lookup": {"from": name, "pipeline": [], "as": "x"}},
        {"$lookup": {"from": {"db": "admin", "coll": name}, "pipeline": [], "as": "x"}},
        {"$lookup": {"from": name, "localField": "a", "foreignField": "a", "as": "x"}},
        {"$graphLookup": {"from": name, **GRAPH}},
        {"$unionWith": name},
        {"$unionWith": {"coll": name, "pipeline": [{"$match": {}}]}},
    ]
    assert {next(iter(stage)) for stage in plain} == READING
    return [
        *plain,
        *({"$unionWith": {"coll": name, "pipeline": [{stage: {}}]}} for stage in ("$indexStats", "$planCacheStats")),
        {"$lookup": {"from": name, "pipeline": [{"$collStats": {"storageStats": {}}}], "as": "x"}},
        *({"$facet": {"x": [stage]}} for stage in plain),
        *({"$lookup": {"from": "things", "pipeline": [stage], "as": "y"}} for stage in plain),
        *({"$unionWith": {"coll": "things", "pipeline": [{"$facet": {"x": [stage]}}]}} for stage in plain),
    ]


def writing(name: str) -> list[dict[str, Any]]:
    """Stages that write a collection."""
    return [
        {"$out": name}, {"$out": {"db": "admin", "coll": name}}, {"$merge": name},
        {"$merge": {"into": {"db": "admin", "coll": name}, "whenMatched": "replace"}},
    ]  # fmt: skip


SOURCES: dict[str, Any] = {
    "$changeStream": {}, "$collStats": {"storageStats": {}}, "$indexStats": {}, "$planCacheStats": {},
}  # fmt: skip
ELSEWHERE = frozenset({
    "$currentOp", "$documents", "$facet", "$listClusterCatalog", "$listLocalSessions",
    "$listSampledQueries", "$listSessions", "$querySettings", "$queryStats",
})  # fmt: skip
"""Stages that name no collection, and read none."""


def aggregations(name: str) -> list[dict[str, Any]]:
    """Aggregations that read or write the collection in any way."""
    of_things = [[stage] for stage in (*joining(name), *writing(name))]
    of_it = [[], [{"$match": {}}], [{"$out": "copied"}], *([{stage: spec}] for stage, spec in SOURCES.items())]
    bodies = [{"aggregate": "things", "pipeline": pipeline} for pipeline in of_things]
    bodies += [{"aggregate": name, "pipeline": pipeline} for pipeline in of_it]
    return [{**body, "cursor": {}} for body in bodies]


def views(name: str) -> list[dict[str, Any]]:
    """What defines a view on the collection."""
    return [
        {"viewOn": name, "pipeline": []},
        {"viewOn": name, "pipeline": [{"$project": {"credentials": 1, "privileges": 1}}]},
        *({"viewOn": "things", "pipeline": [stage]} for stage in joining(name)),
    ]


def writes(name: str) -> list[dict[str, Any]]:
    """Commands that change documents."""
    change = {"$set": {"roles": [{"role": "root", "db": "admin"}]}}
    return [
        {"insert": name, "documents": [{"_id": "admin.x"}]},
        {"update": name, "updates": [{"q": {}, "u": change, "multi": True, "upsert": True}]},
        {"delete": name, "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": name, "query": {}, "update": change},
        {"findAndModify": name, "query": {}, "remove": True},
        *(
            {"bulkWrite": 1, "ops": [operation], "nsInfo": [{"ns": f"admin.{name}"}]}
            for operation in (
                {"insert": 0, "document": {"_id": "admin.x"}},
                {"update": 0, "filter": {}, "updateMods": change, "multi": True},
                {"delete": 0, "filter": {}, "multi": True},
            )
        ),
    ]


def applied(name: str) -> list[dict[str, Any]]:
    """Operations of an oplog that write, create, change, drop or rename the collection."""
    full, commands = f"admin.{name}", "admin.$cmd"
    return [
        {"op": "i", "ns": full, "o": {"_id": "admin.x", "user": "x", "db": "admin"}},
        {"op": "u", "ns": full, "o2": {"_id": "admin.root"}, "o": {"$v": 2, "diff": {"u": {"roles": []}}}},
        {"op": "u", "ns": full, "o2": {"_id": "admin.root"}, "o": {"$set": {"roles": []}}, "b": True},
        {"op": "d", "ns": full, "o": {"_id": "admin.root"}},
        *(
            {"op": "c", "ns": commands, "o": command}
            for command in (
                {"create": name}, {"drop": name}, {"collMod": name, "validator": {"a": 1}}, {"dropDatabase": 1},
                {"createIndexes": name, "v": 2, "key": {"a": 1}, "name": "a"}, {"dropIndexes": name, "index": "*"},
                {"renameCollection": full, "to": "admin.renamed"}, {"renameCollection": full, "to": "shop.renamed"},
                {"renameCollection": "admin.things", "to": full, "dropTarget": True},
                {"create": "applied", "viewOn": name, "pipeline": []},
                {"applyOps": [{"op": "i", "ns": full, "o": {"_id": "admin.x"}}]},
            )
        ),
    ]  # fmt: skip


def finds(name: str) -> list[dict[str, Any]]:
    """Commands that read documents."""
    return [{"find": name}, {"count": name}, {"distinct": name, "key": "_id"}, *aggregations(name)]


def bodies(name: str) -> list[dict[str, Any]]:
    """Every command of `admin` that takes a namespace, with this collection's at each place that takes one."""
    full = f"admin.{name}"
    return [
        *finds(name),
        *writes(name),
        *({"explain": body, "verbosity": "allPlansExecution"} for body in (*finds(name), *writes(name))),
        *({"create": f"view{number}", **view} for number, view in enumerate(views(name))),
        *({"collMod": "harmless", **view} for view in views(name)),
        {"create": name},
        {"create": name, "viewOn": "things", "pipeline": []},
        *({"applyOps": [operation]} for operation in applied(name)),
        {"createIndexes": name, "indexes": [{"key": {"credentials": 1}, "name": "x"}]},
        {"dropIndexes": name, "index": "*"},
        {"listIndexes": name},
        {"reIndex": name},
        {"collMod": name, "validator": {"a": 1}},
        {"drop": name},
        {"dropDatabase": 1},
        {"renameCollection": full, "to": "admin.renamed"},
        {"renameCollection": full, "to": "shop.renamed"},
        {"renameCollection": "admin.things", "to": full},
        {"renameCollection": "admin.things", "to": full, "dropTarget": True},
        {"cloneCollectionAsCapped": name, "toCollection": "clone", "size": 4096},
        {"cloneCollectionAsCapped": "things", "toCollection": name, "size": 4096},
        {"convertToCapped": name, "size": 4096},
        {"collStats": name},
        {"compact": name},
        {"dataSize": full},
        {"validate": name},
        {"createSearchIndexes": name, "indexes": []},
        {"dropSearchIndex": name},
        {"updateSearchIndex": name},
        {"mapReduce": name, "map": "", "reduce": "", "out": "x"},
        {"mapReduce": "things", "map": "", "reduce": "", "out": name},
        {"planCacheClear": name},
        {"planCacheClearFilters": name},
        {"planCacheListFilters": name},
        {"planCacheSetFilter": name, "query": {}, "indexes": ["_id_"]},
        {"headraceChanges": name, "after": {}},
        {"_mergeAuthzCollections": 1, "db": "", "tempUsersCollection": full},
        {"_mergeAuthzCollections": 1, "db": "", "tempRolesCollection": full, "drop": True},
        {"getMore": Int64(1), "collection": name},
        {"killCursors": name, "cursors": [Int64(1)]},
        {"listCollections": 1},
        {"dbHash": 1},
        {"dbStats": 1},
        {"profile": 2},
    ]


@pytest.fixture
def users() -> Iterator[Users]:
    """`local` has every role on `admin` but its users', `everywhere` those of all databases; `onlooker` only reads."""
    with shop_users() as made:
        made.run("root", "admin", {"insert": "things", "documents": [{"_id": 1, "a": 1}]})
        made.run("root", "admin", {"create": "harmless", "viewOn": "things", "pipeline": []})
        made.create("local", "read", "readWrite", "dbAdmin")
        made.create("definer", "dbAdmin")
        made.create("everywhere", "readAnyDatabase", "readWriteAnyDatabase", "dbAdminAnyDatabase", "clusterAdmin")
        made.create("onlooker", "read", "readAnyDatabase")
        made.create("system", "__system")
        made.run("root", "admin", {"createUser": MARKER, "pwd": MARKER, "roles": [], "customData": {"is": MARKER}})
        made.role(MARKER, ({"db": MARKER, "collection": ""}, ["find"]))
        yield made


def stored(users: Users) -> list[Any]:
    """Everything that there is of both collections: documents, indexes, options, identity."""
    state: list[Any] = []
    for body in ({"find": name} for name in NAMES), ({"listIndexes": name} for name in NAMES):
        state += [users.run("root", "admin", each)["cursor"]["firstBatch"] for each in body]
    listed = users.run("root", "admin", {"listCollections": 1, "filter": {"name": {"$in": list(NAMES)}}})
    return [*state, listed["cursor"]["firstBatch"]]


def readable(users: Users, name: str) -> str:
    """All that a user finds in all collections and views that there are."""
    found = []
    for database in ("admin", "shop"):
        for item in users.server.store.catalog.in_database(database):
            collection = item.namespace.partition(".")[2]
            found.append(users.answer(name, database, {"find": collection}))
    return str(found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attacker", ["local", "definer", "everywhere"])
def test_no_command_reaches_users_or_roles(users: Users, attacker: str, name: str) -> None:
    before = stored(users)
    users.connection(attacker)
    for body in bodies(name):
        answer = users.answer(attacker, "admin", body)
        assert MARKER not in str(answer), body
        assert stored(users) == before, body
    for reader in ("onlooker", "everywhere", "local", "definer"):
        users.connection(reader)
        assert MARKER not in readable(users, reader)


@pytest.mark.parametrize("options", [{}, {"showExpandedEvents": True, "fullDocument": "updateLookup"}])
def test_a_stream_of_the_deployment_shows_no_users(users: Users, options: dict[str, Any]) -> None:
    watch = {"$changeStream": {**options, "allChangesForCluster": True}}
    opened = users.run("everywhere", "admin", {"aggregate": 1, "pipeline": [watch], "cursor": {}})["cursor"]
    users.run("root", "admin", {"createUser": "x", "pwd": "x", "roles": [], "customData": {"is": MARKER}})
    users.role("x", ({"db": MARKER, "collection": ""}, ["find"]))
    users.run("root", "shop", {"insert": "orders", "documents": [{"_id": "seen"}]})
    more = {"getMore": opened["id"], "collection": "$cmd.aggregate"}
    events = users.run("everywhere", "admin", more)["cursor"]["nextBatch"]
    assert [event["documentKey"] for event in events] == [{"_id": "seen"}]


@pytest.mark.parametrize("name", NAMES)
def test_no_user_may_make_a_view_of_users_or_roles(users: Users, name: str) -> None:
    for view in views(name):
        for maker in ("root", "system"):
            for body in ({"create": "shown", **view}, {"collMod": "harmless", **view}):
                with pytest.raises(CommandError) as refused:
                    users.run(maker, "admin", body)
                assert refused.value.code in (9, 13, 73), refused.value  # 9: not the form of a stage
                assert refused.value.message == f"A view may not read 'admin.{name}'" or refused.value.code < 73


@pytest.mark.parametrize("name", NAMES)
def test_a_view_of_users_that_is_stored_already_is_not_read(users: Users, name: str) -> None:
    for number, view in enumerate(views(name)):
        txn = users.server.store.begin()
        catalog_changes.create_view(txn, f"admin.old{number}", view)
        catalog_changes.create_view(txn, f"admin.above{number}", {"viewOn": f"old{number}", "pipeline": []})
        users.server.store.commit(txn)
    for number in range(len(views(name))):
        for body in (
            {"find": f"old{number}"}, {"find": f"above{number}"}, {"count": f"old{number}"},
            {"distinct": f"old{number}", "key": "_id"}, {"explain": {"find": f"old{number}"}},
            {"aggregate": f"above{number}", "pipeline": [], "cursor": {}},
            {"aggregate": "things", "pipeline": [{"$unionWith": f"old{number}"}], "cursor": {}},
            {"aggregate": "things", "pipeline": [{"$graphLookup": {"from": f"above{number}", **GRAPH}}], "cursor": {}},
        ):  # fmt: skip
            with pytest.raises(CommandError) as refused:
                users.run("onlooker", "admin", body)
            assert refused.value.code == 73, body
        users.run("root", "admin", {"drop": f"old{number}"})


@pytest.mark.parametrize("name", NAMES)
def test_users_and_roles_are_not_renamed(users: Users, name: str) -> None:
    full = f"admin.{name}"
    for source, target in ((full, "admin.mine"), (full, "shop.mine"), ("admin.things", full)):
        with pytest.raises(CommandError) as refused:
            users.run("system", "admin", {"renameCollection": source, "to": target, "dropTarget": True})
        assert refused.value.code == 20
        assert refused.value.message == f"renaming {name} collection or renaming to {name} is not allowed"


def test_a_view_has_no_name_of_the_system_s(users: Users) -> None:
    for name in ("system.users", "system.roles", "system.version", "system.x"):
        with pytest.raises(CommandError) as refused:
            users.run("system", "other", {"create": name, "viewOn": "things", "pipeline": []})
        assert refused.value.code == 73


def test_who_makes_a_view_of_a_system_collection_may_read_it(users: Users) -> None:
    users.role("maker", ({"db": "shop", "collection": ""}, ["createCollection", "collMod"]))
    users.create("maker", "maker")
    users.create("owner", {"role": "dbAdmin", "db": "shop"})
    profile = {"create": "slow", "viewOn": "system.profile", "pipeline": []}
    users.refused("maker", "shop", profile)
    users.run("owner", "shop", profile)
    users.run("maker", "shop", {"create": "plain", "viewOn": "orders", "pipeline": []})
    for view in ({"viewOn": "system.profile"}, {"viewOn": "orders", "pipeline": [{"$unionWith": "system.profile"}]}):
        users.refused("maker", "shop", {"collMod": "plain", **view})


def test_each_command_and_stage_is_tried_or_names_no_collection() -> None:
    tried = {next(iter(body)) for body in bodies("system.users")}
    assert {command.name for command in (COMMANDS | TEST_COMMANDS).values()} == tried | WITHOUT_COLLECTION
    assert not tried & WITHOUT_COLLECTION
    stages = READING | SOURCES.keys() | {next(iter(stage)) for stage in writing("x")}
    assert set(STAGES) == stages | HERE | ELSEWHERE | set(UNSUPPORTED)
