"""Every command by every built-in role: allowed or error 13, as docs/security.md has it; and its tables up to date."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName, UserName
from headrace.auth.privileges import ANY_NORMAL, CLUSTER
from headrace.dispatch.command import Command
from headrace.dispatch.request import ClientInfo
from headrace.dispatch.wait import Wait
from headrace.testing.driven import DrivenServer

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "security_tables.py"
MADE: Any = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.mark.parametrize("role", [None, *MADE.ROLES])
def test_each_command_by_each_role(role: str | None) -> None:
    with DrivenServer(auth=True) as server:
        admin = server.client
        server.must("admin", {"createUser": "root", "pwd": "x", "roles": ["root"], "mechanisms": ["SCRAM-SHA-1"]})
        server.engine.access.log_in(admin, UserName("root", "admin"))
        _fill(server)
        if role is not None:
            name = MADE.role_name(role)
            create = {"createUser": "somebody", "pwd": "x", "roles": [name.document], "mechanisms": ["SCRAM-SHA-1"]}
            server.must("admin", create)
        wrong = {}
        for command in MADE.commands():
            wanted = MADE.is_allowed(server.engine, command, role)
            code = _code(server, command, role)
            if (code != 13) is not wanted:
                wrong[command.name] = code
        assert not wrong


def _fill(server: DrivenServer) -> None:
    for collection in ("orders", "spare"):
        server.must("shop", {"insert": collection, "documents": [{"_id": 1}]})
    server.must("shop", {"createUser": "ann", "pwd": "x", "roles": [], "mechanisms": ["SCRAM-SHA-1"]})
    server.must("shop", {"createRole": "clerk", "privileges": [], "roles": []})


def _code(server: DrivenServer, command: Command, role: str | None) -> int:
    """Return the code of the reply to a user with this role, 0 for no error."""
    server.client = ClientInfo(9, "127.0.0.1:9", ("127.0.0.1", 27017))
    if role is not None:
        server.engine.access.log_in(server.client, UserName("somebody", "admin"))
    db, body = MADE.example(command.name)
    reply = server.run(db, body)
    return 0 if isinstance(reply, Wait) else int(reply.get("code", 0))


def test_the_page_is_up_to_date() -> None:
    assert MADE.PAGE.read_text("utf-8") == MADE.current_page(), "run: python docs/reference/security_tables.py"


def test_a_command_without_a_declaration_is_none() -> None:
    command = MADE.commands()[0]
    with pytest.raises(TypeError, match="requires"):
        Command("x", command.run, command.fields)  # type: ignore[call-arg]


READ = {
    "changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections", "listIndexes",
    "listSearchIndexes", "planCacheRead",
}  # fmt: skip
READ_WRITE = READ | {
    "cleanupStructuredEncryptionData", "compactStructuredEncryptionData", "convertToCapped", "createCollection",
    "createIndex", "createSearchIndexes", "dropCollection", "dropIndex", "dropSearchIndex", "insert",
    "performRawDataOperations", "remove", "renameCollectionSameDB", "update", "updateSearchIndex",
}  # fmt: skip
DB_ADMIN = {
    "bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped", "createCollection", "createIndex",
    "createSearchIndexes", "dbStats", "dropCollection", "dropDatabase", "dropIndex", "dropSearchIndex",
    "enableProfiler", "listCollections", "listIndexes", "listSearchIndexes", "planCacheIndexFilter", "planCacheRead",
    "planCacheWrite", "reIndex", "renameCollectionSameDB", "updateSearchIndex", "validate",
}  # fmt: skip
USER_ADMIN = {
    "changeCustomData", "changePassword", "createRole", "createUser", "dropRole", "dropUser", "grantRole", "revokeRole",
    "setAuthenticationRestriction", "viewRole", "viewUser",
}  # fmt: skip
MONITOR = {
    "connPoolStats", "getCmdLineOpts", "getDefaultRWConcern", "getLog", "getParameter", "getShardMap", "hostInfo",
    "inprog", "listClusterCatalog", "listDatabases", "listSessions", "listShards", "replSetGetConfig",
    "replSetGetStatus", "serverStatus", "shardingState", "top",
}  # fmt: skip
HOST = {
    "applicationMessage", "closeAllDatabases", "compact", "connPoolSync", "flushRouterConfig", "fsync",
    "invalidateUserCache", "killAnyCursor", "killAnySession", "killop", "logRotate", "oidReset", "resync",
    "rotateCertificates", "setParameter", "shutdown", "touch", "unlock",
}  # fmt: skip
MANAGER = {
    "addShard", "appendOplogNote", "applicationMessage", "checkMetadataConsistency", "cleanupOrphaned",
    "flushRouterConfig", "getClusterParameter", "getDefaultRWConcern", "listSessions", "listShards", "moveCollection",
    "removeShard", "replSetConfigure", "replSetGetConfig", "replSetGetStatus", "replSetStateChange", "resync",
    "setClusterParameter", "setDefaultRWConcern", "setFeatureCompatibilityVersion",
    "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer", "unshardCollection",
}  # fmt: skip
BACKUP = {"appendOplogNote", "getParameter", "listDatabases", "serverStatus", "setUserWriteBlockMode"}
RESTORE = {
    "bypassDocumentValidation", "collMod", "createCollection", "createIndex", "dropCollection", "insert",
    "updateSearchIndex",
}  # fmt: skip
ON_USERS = {
    "collStats", "createIndex", "createSearchIndexes", "dbHash", "dbStats", "dropIndex", "dropSearchIndex", "find",
    "killCursors", "planCacheRead",
}  # fmt: skip
ADDED = {"queryStatsRead", "queryStatsReadTransformed", "replSetResizeOplog", "useUUID"}
"""Actions on the cluster that other pages of the manual grant these roles."""


@pytest.mark.parametrize(
    ("role", "resource", "listed"),
    [
        (RoleName("read", "shop"), "shop.", READ),
        (RoleName("readWrite", "shop"), "shop.", READ_WRITE),
        (RoleName("dbAdmin", "shop"), "shop.", DB_ADMIN),
        (RoleName("userAdmin", "shop"), "shop.", USER_ADMIN),
        (RoleName("dbOwner", "shop"), "shop.", READ_WRITE | DB_ADMIN | USER_ADMIN),
        (RoleName("readAnyDatabase", "admin"), ANY_NORMAL, READ),
        (RoleName("readWriteAnyDatabase", "admin"), ANY_NORMAL, READ_WRITE),
        (RoleName("dbAdminAnyDatabase", "admin"), ANY_NORMAL, DB_ADMIN),
        (RoleName("userAdminAnyDatabase", "admin"), ANY_NORMAL, USER_ADMIN),
        (RoleName("clusterMonitor", "admin"), CLUSTER, MONITOR),
        (RoleName("hostManager", "admin"), CLUSTER, HOST),
        (RoleName("clusterManager", "admin"), CLUSTER, MANAGER),
        (RoleName("clusterAdmin", "admin"), CLUSTER, MONITOR | HOST | MANAGER),
        (
            RoleName("clusterAdmin", "admin"),
            "config.",
            (READ - {"changeStream"}) | {"enableSharding", "indexStats", "insert", "moveChunk", "remove", "update"},
        ),
        (RoleName("backup", "admin"), CLUSTER, BACKUP),
        (RoleName("backup", "admin"), "config.settings", {"find", "insert", "update"}),
        (RoleName("restore", "admin"), "config.", RESTORE),
        (RoleName("restore", "admin"), "admin.system.users", RESTORE | {"find", "remove", "update"}),
        (RoleName("restore", "admin"), "admin.system.roles", {"createIndex"}),
        (RoleName("restore", "admin"), ".system.views", {"dropCollection"}),
        (
            RoleName("restore", "admin"),
            ANY_NORMAL,
            RESTORE | {"convertToCapped", "createSearchIndexes"} | (USER_ADMIN - {"setAuthenticationRestriction"}),
        ),
        (RoleName("userAdminAnyDatabase", "admin"), "admin.system.users", ON_USERS),
        (
            RoleName("dbAdmin", "shop"),
            "shop.system.profile",
            READ | {"convertToCapped", "createCollection", "dropCollection"},
        ),
        (RoleName("root", "admin"), "config.system.preimages", {"find", "remove"}),
    ],
)
def test_built_in_roles_are_those_of_the_manual(role: RoleName, resource: str, listed: set[str]) -> None:
    privileges = builtin_roles.privileges_of(role)
    assert privileges is not None
    assert privileges[resource] - (ADDED if resource == CLUSTER else set()) == listed
