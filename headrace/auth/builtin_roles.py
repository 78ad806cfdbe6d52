"""The built-in roles: the privileges of each role in the database for which it is granted.

Every database has the roles of `EVERYWHERE`; only `admin` has the others. Source: MongoDB's manual of 8.0, "Built-In
Roles"; docs/security.md lists the differences.
"""

from __future__ import annotations

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


_DB: Final = "\x00db."
"""Stands for the database in which a role is granted, with its dot."""
_READ_WRITE_ONE: Final = ((_DB, _READ_WRITE), (f"{_DB}system.js", _READ_WRITE))
_DB_ADMIN_ONE: Final = ((_DB, _DB_ADMIN), (f"{_DB}system.profile", _PROFILE))
EVERYWHERE: Final[dict[str, tuple[Privilege, ...]]] = {
    "dbAdmin": _DB_ADMIN_ONE,
    "dbOwner": (*_READ_WRITE_ONE, *_DB_ADMIN_ONE, (_DB, _USER_ADMIN)),
    "enableSharding": ((ANY_NORMAL, _SHARDING),),
    "read": ((_DB, _READ), (f"{_DB}system.js", _READ)),
    "readWrite": _READ_WRITE_ONE,
    "userAdmin": ((_DB, _USER_ADMIN),),
}
_BACKUP: Final = (
    (ANY, _LIST),
    (CLUSTER, frozenset({"appendOplogNote", "getParameter", "listDatabases", "serverStatus", "setUserWriteBlockMode"})),
    (ANY_NORMAL, _FIND),
    ("config.", _FIND),
    ("local.", _FIND),
    (".system.js", _FIND),
    (".system.profile", _FIND),
    (_USERS, _FIND),
    (_ROLES, _FIND),
    ("admin.system.version", _FIND),
    ("config.settings", frozenset({"find", "insert", "update"})),
)
_CLUSTER_MANAGER: Final = (
    (CLUSTER, _MANAGE_CLUSTER),
    (ANY_NORMAL, _MANAGE_DATABASES),
    ("config.", _MANAGE_INTERNAL | _LOOK),
    ("config.system.js", _LOOK),
    ("local.", _MANAGE_INTERNAL),
    ("local.system.replset", _LOOK),
)
_CLUSTER_MONITOR: Final = (
    (CLUSTER, _MONITOR_CLUSTER),
    (ANY_NORMAL, _MONITOR_DATABASES),
    ("config.", _LOOK | _MONITOR_DATABASES),
    ("local.", _LOOK | _MONITOR_DATABASES),
    ("config.system.js", _LOOK),
    ("local.system.js", _LOOK),
    ("local.system.replset", _FIND),
    (".system.profile", _FIND),
)
_DB_ADMIN_ANY: Final = (
    (ANY_NORMAL, _DB_ADMIN),
    (".system.profile", _PROFILE),
    (CLUSTER, frozenset({"applyOps", "listDatabases"})),
)
_HOST_MANAGER: Final = ((CLUSTER, _HOST), (ANY_NORMAL, frozenset({"killCursors"})))
_CLUSTER_ADMIN: Final = (
    *_CLUSTER_MONITOR,
    *_HOST_MANAGER,
    *_CLUSTER_MANAGER,
    (ANY_NORMAL, frozenset({"dropDatabase"})),
)
_READ_WRITE_ANY: Final = ((ANY_NORMAL, _READ_WRITE), (".system.js", _READ_WRITE), _LIST_DATABASES)
_RESTORE_ANY: Final = (
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
)
_USER_ADMIN_ANY: Final = (
    (ANY_NORMAL, _USER_ADMIN),
    (CLUSTER, frozenset({"authSchemaUpgrade", "invalidateUserCache", "listDatabases"})),
    (_USERS, _ON_USERS),
    (_ROLES, _ON_USERS),
)
OF_ADMIN: Final[dict[str, tuple[Privilege, ...]]] = {
    "__system": ((ANY, ACTIONS),),
    "backup": _BACKUP,
    "clusterAdmin": _CLUSTER_ADMIN,
    "clusterManager": _CLUSTER_MANAGER,
    "clusterMonitor": _CLUSTER_MONITOR,
    "dbAdminAnyDatabase": _DB_ADMIN_ANY,
    "directShardOperations": ((CLUSTER, frozenset({"issueDirectShardOperations"})),),
    "hostManager": _HOST_MANAGER,
    "readAnyDatabase": ((ANY_NORMAL, _READ), (".system.js", _READ), _LIST_DATABASES),
    "readWriteAnyDatabase": _READ_WRITE_ANY,
    "restore": _RESTORE_ANY,
    "root": (
        *_READ_WRITE_ANY, *_USER_ADMIN_ANY, *_DB_ADMIN_ANY, *_CLUSTER_ADMIN, *_BACKUP, *_RESTORE_ANY,
        (ANY, frozenset({"validate"})), ("config.system.preimages", frozenset({"find", "remove"})),
    ),
    "userAdminAnyDatabase": _USER_ADMIN_ANY,
}  # fmt: skip
ROLES: Final = dict(sorted((EVERYWHERE | OF_ADMIN).items()))


@lru_cache(1024)
def privileges_of(name: RoleName) -> Privileges | None:
    """Return the privileges of a built-in role; None if the database has no such role."""
    held = EVERYWHERE.get(name.role)
    if held is not None and name.db != "$external":
        return merged((resource.replace(_DB, f"{name.db}."), actions) for resource, actions in held)
    held = OF_ADMIN.get(name.role)
    return merged(held) if held is not None and name.db == "admin" else None


def names_in(db: str) -> list[RoleName]:
    """Return the built-in roles of a database."""
    roles = EVERYWHERE | OF_ADMIN if db == "admin" else EVERYWHERE
    return [] if db == "$external" else [RoleName(role, db) for role in sorted(roles)]
