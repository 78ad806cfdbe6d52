"""The built-in roles: the privileges of each role in the database for which it is granted.

Every database has the roles of `EVERYWHERE`; only `admin` has the others. Source: MongoDB's manual of 8.0, "Built-In
Roles"; docs/security.md lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from headrace.auth.names import RoleName
from headrace.auth.privileges import ACTIONS, ANY, ANY_NORMAL, CLUSTER, Privilege, Privileges, merged

_READ: Final = frozenset({
    "changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections", "listIndexes",
    "listSearchIndexes", "planCacheRead",
})  # fmt: skip
_LOOK: Final = _READ - {"changeStream"}
_READ_WRITE: Final = _READ | {
    "cleanupStructuredEncryptionData", "compactStructuredEncryptionData", "convertToCapped", "createCollection",
    "createIndex", "createSearchIndexes", "dropCollection", "dropIndex", "dropSearchIndex", "insert",
    "performRawDataOperations", "remove", "renameCollectionSameDB", "update", "updateSearchIndex",
}  # fmt: skip
_PROFILE: Final = _READ | {"convertToCapped", "createCollection", "dropCollection"}
_DB_ADMIN: Final = frozenset({
    "bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped", "createCollection", "createIndex",
    "createSearchIndexes", "dbStats", "dropCollection", "dropDatabase", "dropIndex", "dropSearchIndex",
    "enableProfiler", "listCollections", "listIndexes", "listSearchIndexes", "planCacheIndexFilter", "planCacheRead",
    "planCacheWrite", "reIndex", "renameCollectionSameDB", "updateSearchIndex", "validate",
})  # fmt: skip
_USER_ADMIN: Final = frozenset({
    "changeCustomData", "changePassword", "createRole", "createUser", "dropRole", "dropUser", "grantRole", "revokeRole",
    "setAuthenticationRestriction", "viewRole", "viewUser",
})  # fmt: skip
_MONITOR_CLUSTER: Final = frozenset({
    "connPoolStats", "getCmdLineOpts", "getDefaultRWConcern", "getLog", "getParameter", "getShardMap", "hostInfo",
    "inprog", "listClusterCatalog", "listDatabases", "listSessions", "listShards", "queryStatsRead",
    "queryStatsReadTransformed", "replSetGetConfig", "replSetGetStatus", "serverStatus", "shardingState", "top",
    "useUUID",
})  # fmt: skip
_MONITOR_DATABASES: Final = frozenset({"collStats", "dbStats", "indexStats"})
_HOST: Final = frozenset({
    "applicationMessage", "closeAllDatabases", "compact", "connPoolSync", "flushRouterConfig", "fsync",
    "invalidateUserCache", "killAnyCursor", "killAnySession", "killop", "logRotate", "oidReset", "resync",
    "rotateCertificates", "setParameter", "shutdown", "touch", "unlock",
})  # fmt: skip
_MANAGE_CLUSTER: Final = frozenset({
    "addShard", "appendOplogNote", "applicationMessage", "checkMetadataConsistency", "cleanupOrphaned",
    "flushRouterConfig", "getClusterParameter", "getDefaultRWConcern", "listSessions", "listShards", "moveCollection",
    "removeShard", "replSetConfigure", "replSetGetConfig", "replSetGetStatus", "replSetResizeOplog",
    "replSetStateChange", "resync", "setClusterParameter", "setDefaultRWConcern", "setFeatureCompatibilityVersion",
    "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer", "unshardCollection",
})  # fmt: skip
_MANAGE_DATABASES: Final = frozenset({
    "analyzeShardKey", "clearJumboFlag", "configureQueryAnalyzer", "enableSharding", "moveChunk",
    "refineCollectionShardKey", "reshardCollection",
})  # fmt: skip
_MANAGE_INTERNAL: Final = frozenset({"enableSharding", "insert", "moveChunk", "remove", "update"})
_SHARDING: Final = frozenset({
    "analyzeShardKey", "enableSharding", "moveCollection", "refineCollectionShardKey", "reshardCollection",
    "unshardCollection",
})  # fmt: skip
_RESTORE: Final = frozenset({
    "bypassDocumentValidation", "collMod", "createCollection", "createIndex", "dropCollection", "insert",
    "updateSearchIndex",
})  # fmt: skip
_RESTORE_CLUSTER: Final = frozenset({
    "bypassWriteBlockingMode", "forceUUID", "getParameter", "setUserWriteBlockMode", "useUUID",
})  # fmt: skip
_RESTORE_USERS: Final = _USER_ADMIN - {"setAuthenticationRestriction"}
_FIND: Final = frozenset({"find"})
_LIST: Final = frozenset({"listCollections", "listDatabases", "listIndexes", "listSearchIndexes"})
_ON_USERS: Final = frozenset({
    "collStats", "createIndex", "createSearchIndexes", "dbHash", "dbStats", "dropIndex", "dropSearchIndex", "find",
    "killCursors", "planCacheRead",
})  # fmt: skip
_LIST_DATABASES: Final = (CLUSTER, frozenset({"listDatabases"}))
_USERS: Final = "admin.system.users"
_ROLES: Final = "admin.system.roles"


def _read(db: str) -> list[Privilege]:
    return [(f"{db}.", _READ), (f"{db}.system.js", _READ)]


def _read_write(db: str) -> list[Privilege]:
    return [(f"{db}.", _READ_WRITE), (f"{db}.system.js", _READ_WRITE)]


def _db_admin(db: str) -> list[Privilege]:
    return [(f"{db}.", _DB_ADMIN), (f"{db}.system.profile", _PROFILE)]


def _user_admin(db: str) -> list[Privilege]:
    return [(f"{db}.", _USER_ADMIN)]


def _db_owner(db: str) -> list[Privilege]:
    return [*_read_write(db), *_db_admin(db), *_user_admin(db)]


def _direct_shard_operations(db: str) -> list[Privilege]:
    return [(CLUSTER, frozenset({"issueDirectShardOperations"}))]


def _enable_sharding(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _SHARDING)]


def _read_any(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _READ), (".system.js", _READ), _LIST_DATABASES]


def _read_write_any(db: str) -> list[Privilege]:
    return [(ANY_NORMAL, _READ_WRITE), (".system.js", _READ_WRITE), _LIST_DATABASES]


def _user_admin_any(db: str) -> list[Privilege]:
    cluster = frozenset({"authSchemaUpgrade", "invalidateUserCache", "listDatabases"})
    return [(ANY_NORMAL, _USER_ADMIN), (CLUSTER, cluster), (_USERS, _ON_USERS), (_ROLES, _ON_USERS)]


def _db_admin_any(db: str) -> list[Privilege]:
    cluster = frozenset({"applyOps", "listDatabases"})
    return [(ANY_NORMAL, _DB_ADMIN), (".system.profile", _PROFILE), (CLUSTER, cluster)]


def _cluster_monitor(db: str) -> list[Privilege]:
    return [
        (CLUSTER, _MONITOR_CLUSTER),
        (ANY_NORMAL, _MONITOR_DATABASES),
        ("config.", _LOOK | _MONITOR_DATABASES),
        ("local.", _LOOK | _MONITOR_DATABASES),
        ("config.system.js", _LOOK),
        ("local.system.js", _LOOK),
        ("local.system.replset", _FIND),
        (".system.profile", _FIND),
    ]


def _host_manager(db: str) -> list[Privilege]:
    return [(CLUSTER, _HOST), (ANY_NORMAL, frozenset({"killCursors"}))]


def _cluster_manager(db: str) -> list[Privilege]:
    return [
        (CLUSTER, _MANAGE_CLUSTER),
        (ANY_NORMAL, _MANAGE_DATABASES),
        ("config.", _MANAGE_INTERNAL | _LOOK),
        ("config.system.js", _LOOK),
        ("local.", _MANAGE_INTERNAL),
        ("local.system.replset", _LOOK),
    ]


def _cluster_admin(db: str) -> list[Privilege]:
    dropping = (ANY_NORMAL, frozenset({"dropDatabase"}))
    return [*_cluster_monitor(db), *_host_manager(db), *_cluster_manager(db), dropping]


def _backup(db: str) -> list[Privilege]:
    cluster = frozenset({"appendOplogNote", "getParameter", "listDatabases", "serverStatus", "setUserWriteBlockMode"})
    return [
        (ANY, _LIST),
        (CLUSTER, cluster),
        (ANY_NORMAL, _FIND),
        ("config.", _FIND),
        ("local.", _FIND),
        (".system.js", _FIND),
        (".system.profile", _FIND),
        (_USERS, _FIND),
        (_ROLES, _FIND),
        ("admin.system.version", _FIND),
        ("config.settings", frozenset({"find", "insert", "update"})),
    ]


def _restore(db: str) -> list[Privilege]:
    return [
        (CLUSTER, _RESTORE_CLUSTER),
        (ANY, frozenset({"listCollections"})),
        (ANY_NORMAL, _RESTORE | _RESTORE_USERS | {"convertToCapped", "createSearchIndexes"}),
        ("config.", _RESTORE),
        ("local.", _RESTORE),
        (".system.js", _RESTORE),
        (".system.views", frozenset({"dropCollection"})),
        ("admin.system.version", _RESTORE | _FIND),
        (_ROLES, frozenset({"createIndex"})),
        (_USERS, _RESTORE | {"find", "remove", "update"}),
        ("admin.temproles", _FIND),
        ("admin.tempusers", _FIND),
    ]


def _root(db: str) -> list[Privilege]:
    of_roles = (_read_write_any, _user_admin_any, _db_admin_any, _cluster_admin, _backup, _restore)
    more = [(ANY, frozenset({"validate"})), ("config.system.preimages", frozenset({"find", "remove"}))]
    return [*(item for made in of_roles for item in made(db)), *more]


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
    "directShardOperations": _direct_shard_operations,
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
    """Return the privileges of a built-in role; None if the database has no such role."""
    made = EVERYWHERE.get(name.role)
    if made is not None and name.db != "$external":
        return merged(made(name.db))
    made = OF_ADMIN.get(name.role)
    return merged(made(name.db)) if made is not None and name.db == "admin" else None


def names_in(db: str) -> list[RoleName]:
    """Return the built-in roles of a database."""
    roles = EVERYWHERE | OF_ADMIN if db == "admin" else EVERYWHERE
    return [] if db == "$external" else [RoleName(role, db) for role in sorted(roles)]
