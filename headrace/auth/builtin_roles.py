"""The built-in roles: which privileges each has, in the database that it is granted for.

Source: MongoDB's manual, "Built-In Roles". Roles of `EVERYWHERE` are there in every database, the others in `admin`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from headrace.auth.actions import ACTIONS
from headrace.auth.names import RoleName
from headrace.auth.privileges import ANY, ANY_NORMAL, CLUSTER, Privilege, Privileges, merged

_READ: Final = frozenset({
    "changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections", "listIndexes",
    "listSearchIndexes", "planCacheRead",
})  # fmt: skip
_READ_WRITE: Final = _READ | {
    "convertToCapped", "createCollection", "createIndex", "createSearchIndexes", "dropCollection", "dropIndex",
    "dropSearchIndex", "insert", "remove", "renameCollectionSameDB", "update", "updateSearchIndex",
}  # fmt: skip
_DB_ADMIN: Final = frozenset({
    "analyze", "bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped", "createCollection",
    "createIndex", "createSearchIndexes", "dbStats", "dropCollection", "dropDatabase", "dropIndex", "dropSearchIndex",
    "enableProfiler", "indexStats", "listCollections", "listIndexes", "listSearchIndexes", "planCacheIndexFilter",
    "planCacheRead", "planCacheWrite", "reIndex", "renameCollectionSameDB", "storageDetails", "updateSearchIndex",
    "validate",
})  # fmt: skip
_USER_ADMIN: Final = frozenset({
    "changeCustomData", "changePassword", "createRole", "createUser", "dropRole", "dropUser", "grantRole", "revokeRole",
    "setAuthenticationRestriction", "viewRole", "viewUser",
})  # fmt: skip
_MONITOR_CLUSTER: Final = frozenset({
    "checkFreeMonitoringStatus", "connPoolStats", "getClusterParameter", "getCmdLineOpts", "getDefaultRWConcern",
    "getLog", "getParameter", "getShardMap", "hostInfo", "inprog", "listDatabases", "listSessions", "listShards",
    "netstat", "operationMetrics", "queryStatsRead", "queryStatsReadTransformed", "replSetGetConfig",
    "replSetGetStatus", "serverStatus", "setFreeMonitoring", "shardingState", "top", "useUUID",
})  # fmt: skip
_MONITOR_DATABASES: Final = frozenset({"collStats", "dbStats", "getDatabaseVersion", "getShardVersion", "indexStats"})
_MONITOR_INTERNAL: Final = _MONITOR_DATABASES | {
    "dbHash", "find", "killCursors", "listCollections", "listIndexes", "planCacheRead",
}  # fmt: skip
_HOST: Final = frozenset({
    "applicationMessage", "auditLogRotate", "closeAllDatabases", "connPoolSync", "cpuProfiler", "dropConnections",
    "flushRouterConfig", "fsync", "invalidateUserCache", "killAnyCursor", "killAnySession", "killop", "logRotate",
    "oidReset", "resync", "rotateCertificates", "setParameter", "shutdown", "touch", "unlock",
})  # fmt: skip
_MANAGE_CLUSTER: Final = frozenset({
    "addShard", "appendOplogNote", "applicationMessage", "cleanupOrphaned", "flushRouterConfig", "getClusterParameter",
    "getDefaultRWConcern", "listSessions", "listShards", "querySettings", "removeShard", "replSetConfigure",
    "replSetGetConfig", "replSetGetStatus", "replSetResizeOplog", "replSetStateChange", "resync", "setClusterParameter",
    "setDefaultRWConcern", "setFeatureCompatibilityVersion", "setFreeMonitoring",
    "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer",
})  # fmt: skip
_SHARDING: Final = frozenset({
    "analyzeShardKey", "clearJumboFlag", "configureQueryAnalyzer", "enableSharding", "moveChunk", "moveCollection",
    "refineCollectionShardKey", "reshardCollection", "shardedDataDistribution", "splitChunk", "splitVector",
    "unshardCollection",
})  # fmt: skip
_RESTORE: Final = frozenset({
    "bypassDocumentValidation", "collMod", "convertToCapped", "createCollection", "createIndex", "createSearchIndexes",
    "dropCollection", "insert",
})  # fmt: skip
_RESTORE_USERS: Final = _USER_ADMIN - {"setAuthenticationRestriction"}
_FIND: Final = frozenset({"find"})
_LIST: Final = frozenset({"listCollections", "listDatabases", "listIndexes", "listSearchIndexes"})
_LIST_DATABASES: Final = (CLUSTER, frozenset({"listDatabases"}))
_USERS: Final = "admin.system.users"
_ROLES: Final = "admin.system.roles"


def _read(db: str) -> list[Privilege]:
    return [(f"{db}.", _READ), (f"{db}.system.js", _READ)]


def _read_write(db: str) -> list[Privilege]:
    return [(f"{db}.", _READ_WRITE), (f"{db}.system.js", _READ_WRITE)]


def _db_admin(db: str) -> list[Privilege]:
    profile = _READ | {"convertToCapped", "createCollection", "dropCollection"}
    return [
        (f"{db}.", _DB_ADMIN),
        (f"{db}.system.profile", profile),
        (f"{db}.system.views", _READ | _DB_ADMIN),
    ]


def _user_admin(db: str) -> list[Privilege]:
    return [(f"{db}.", _USER_ADMIN)]


def _db_owner(db: str) -> list[Privilege]:
    return [*_read_write(db), *_db_admin(db), *_user_admin(db)]


def _enable_sharding(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _SHARDING)]


def _read_any(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _READ), (".system.js", _READ), _LIST_DATABASES]


def _read_write_any(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _READ_WRITE), (".system.js", _READ_WRITE), _LIST_DATABASES]


def _user_admin_any(db: str) -> list[Privilege]:
    on_users = _READ | {"createIndex", "dropIndex"}
    cluster = frozenset({"authSchemaUpgrade", "invalidateUserCache", "listDatabases"})
    external = ("$external.", _USER_ADMIN)
    return [(ANY_NORMAL, _USER_ADMIN), external, (CLUSTER, cluster), (_USERS, on_users), (_ROLES, on_users)]


def _db_admin_any(db: str) -> list[Privilege]:
    profile = _READ | {"convertToCapped", "createCollection", "dropCollection"}
    return [
        (ANY_NORMAL, _DB_ADMIN), (".system.profile", profile), (".system.views", _READ | _DB_ADMIN), _LIST_DATABASES,
    ]  # fmt: skip


def _cluster_monitor(db: str) -> list[Privilege]:
    return [
        (CLUSTER, _MONITOR_CLUSTER),
        (ANY_NORMAL, _MONITOR_DATABASES),
        ("config.", _MONITOR_INTERNAL),
        ("local.", _MONITOR_INTERNAL),
        ("config.system.js", _READ),
        ("local.system.js", _READ),
        ("local.system.replset", _FIND),
        (".system.profile", _FIND),
    ]


def _host_manager(db: str) -> list[Privilege]:
    return [(CLUSTER, _HOST), (ANY_NORMAL, frozenset({"killCursors"}))]


def _cluster_manager(db: str) -> list[Privilege]:
    internal = _SHARDING | {"insert", "remove", "update"}
    return [
        (CLUSTER, _MANAGE_CLUSTER),
        (ANY_NORMAL, _SHARDING),
        ("config.", internal | _READ),
        ("config.system.js", _READ),
        ("local.", internal),
        ("local.system.replset", _READ),
    ]


def _cluster_admin(db: str) -> list[Privilege]:
    dropping = (ANY_NORMAL, frozenset({"dropDatabase"}))
    return [*_cluster_monitor(db), *_host_manager(db), *_cluster_manager(db), dropping]


def _backup(db: str) -> list[Privilege]:
    cluster = frozenset({"appendOplogNote", "getParameter", "listDatabases", "serverStatus", "setUserWriteBlockMode"})
    changes = frozenset({"insert", "update"})
    return [
        (ANY, _LIST),
        (CLUSTER, cluster),
        (ANY_NORMAL, _FIND),
        ("config.", _FIND),
        ("local.", _FIND),
        (".system.js", _FIND),
        (".system.profile", _FIND),
        (".system.views", _FIND),
        (_USERS, _FIND),
        (_ROLES, _FIND),
        ("admin.system.version", _FIND),
        ("admin.mms.backup", changes),
        ("config.settings", changes | _FIND),
    ]


def _restore(db: str) -> list[Privilege]:
    on_users = _RESTORE | {"find", "remove", "update"}
    cluster = frozenset({
        "bypassWriteBlockingMode", "getClusterParameter", "getParameter", "listDatabases", "setClusterParameter",
        "setUserWriteBlockMode",
    })  # fmt: skip
    return [
        (CLUSTER, cluster),
        (ANY, frozenset({"listCollections"})),
        (ANY_NORMAL, _RESTORE | _RESTORE_USERS),
        ("$external.", _RESTORE_USERS),
        ("config.", _RESTORE),
        ("local.", _RESTORE),
        (".system.js", _RESTORE),
        (".system.views", _RESTORE | _FIND),
        ("admin.system.version", _RESTORE | _FIND),
        (_ROLES, on_users),
        (_USERS, on_users),
    ]


def _root(db: str) -> list[Privilege]:
    of_roles = (
        _read_write_any, _user_admin_any, _db_admin_any, _cluster_admin, _backup, _restore,
    )  # fmt: skip
    return [item for made in of_roles for item in made(db)] + [(ANY, frozenset({"validate"}))]


def _system(db: str) -> list[Privilege]:
    return [(ANY, ACTIONS)]


_Made = Callable[[str], list[Privilege]]
EVERYWHERE: Final[dict[str, _Made]] = {
    "dbAdmin": _db_admin,
    "dbOwner": _db_owner,
    "enableSharding": _enable_sharding,
    "read": _read,
    "readWrite": _read_write,
    "userAdmin": _user_admin,
}
OF_ADMIN: Final[dict[str, _Made]] = {
    "__system": _system,
    "backup": _backup,
    "clusterAdmin": _cluster_admin,
    "clusterManager": _cluster_manager,
    "clusterMonitor": _cluster_monitor,
    "dbAdminAnyDatabase": _db_admin_any,
    "hostManager": _host_manager,
    "readAnyDatabase": _read_any,
    "readWriteAnyDatabase": _read_write_any,
    "restore": _restore,
    "root": _root,
    "userAdminAnyDatabase": _user_admin_any,
}
ROLES: Final = dict(sorted((EVERYWHERE | OF_ADMIN).items()))


@lru_cache(1024)
def privileges_of(name: RoleName) -> Privileges | None:
    """The privileges of a built-in role; None: there is none of that name in that database."""
    made = EVERYWHERE.get(name.role)
    if made is not None and name.db != "$external":
        return merged(made(name.db))
    made = OF_ADMIN.get(name.role)
    return merged(made(name.db)) if made is not None and name.db == "admin" else None


def names_in(db: str) -> list[RoleName]:
    """The built-in roles of a database."""
    roles = EVERYWHERE | OF_ADMIN if db == "admin" else EVERYWHERE
    return [] if db == "$external" else [RoleName(role, db) for role in sorted(roles)]
