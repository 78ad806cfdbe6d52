"""Privileges: actions on resources, and the rules by which they cover a resource that a command names.

A resource is a text:

    "db.coll"   that collection               "db."   all collections of the database but `system.*`
    ".coll"     that name in any database     "."     all collections but `system.*`, and those of `config` and `local`
    CLUSTER     the server                    ANY     everything

The requirements of commands are resources, too. In a requirement "db." means the database as a whole.

Source: MongoDB's manual, "Resource Document".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from headrace.errors import CommandError

ANY_ACTION: Final = "anyAction"
"""Stands for all actions."""

ACTIONS: Final = frozenset({  # MongoDB's manual, "Privilege Actions"
    "addShard", "advanceClusterTime", "allCollectionStats", "analyze", "analyzeShardKey", "appendOplogNote",
    "applicationMessage", "applyOps", "auditConfigure", "auditLogRotate", "authCheck", "authSchemaUpgrade",
    "authenticate", "bypassDefaultMaxTimeMS", "bypassDocumentValidation", "bypassWriteBlockingMode", "changeCustomData",
    "changeOwnCustomData", "changeOwnPassword", "changePassword", "changeStream", "checkFreeMonitoringStatus",
    "checkMetadataConsistency", "cleanupOrphaned", "cleanupStructuredEncryptionData", "clearJumboFlag",
    "closeAllDatabases", "collMod", "collStats", "compact", "compactStructuredEncryptionData", "configureQueryAnalyzer",
    "connPoolStats", "connPoolSync", "convertToCapped", "cpuProfiler", "createCollection", "createDatabase",
    "createIndex", "createRole", "createSearchIndexes", "createUser", "dbHash", "dbStats", "dropCollection",
    "dropConnections", "dropDatabase", "dropIndex", "dropRole", "dropSearchIndex", "dropUser", "enableProfiler",
    "enableSharding", "find", "flushRouterConfig", "forceUUID", "fsync", "getClusterParameter", "getCmdLineOpts",
    "getDatabaseVersion", "getDefaultRWConcern", "getLog", "getParameter", "getShardMap", "getShardVersion",
    "grantPrivilegesToRole", "grantRole", "grantRolesToRole", "grantRolesToUser", "hostInfo", "impersonate",
    "importCollection", "indexStats", "inprog", "insert", "internal", "invalidateUserCache",
    "issueDirectShardOperations", "killAnyCursor", "killAnySession", "killCursors", "killop",
    "listCachedAndActiveUsers", "listClusterCatalog", "listCollections", "listCursors", "listDatabases", "listIndexes",
    "listSearchIndexes", "listSessions", "listShards", "logRotate", "moveChunk", "moveCollection", "netstat",
    "oidReset", "operationMetrics", "performRawDataOperations", "planCacheIndexFilter", "planCacheRead",
    "planCacheWrite", "querySettings", "queryStatsRead", "queryStatsReadTransformed", "reIndex",
    "refineCollectionShardKey", "remove", "removeShard", "renameCollection", "renameCollectionSameDB",
    "replSetConfigure", "replSetGetConfig", "replSetGetStatus", "replSetHeartbeat", "replSetReconfig",
    "replSetResizeOplog", "replSetStateChange", "reshardCollection", "resync", "revokePrivilegesFromRole", "revokeRole",
    "revokeRolesFromRole", "revokeRolesFromUser", "rotateCertificates", "runAsLessPrivilegedUser", "runTenantMigration",
    "serverStatus", "setAuthenticationRestriction", "setChangeStreamState", "setClusterParameter",
    "setDefaultRWConcern", "setFeatureCompatibilityVersion", "setFreeMonitoring", "setParameter",
    "setUserWriteBlockMode", "shardCollection", "shardedDataDistribution", "shardingState", "shutdown", "splitChunk",
    "splitVector", "storageDetails", "top", "touch", "trafficRecord", "transitionFromDedicatedConfigServer",
    "transitionToDedicatedConfigServer", "unlock", "unshardCollection", "untrackUnshardedCollection", "update",
    "updateRole", "updateSearchIndex", "updateUser", "useTenant", "useUUID", "validate", "viewRole", "viewUser",
})  # fmt: skip


ANY: Final = "\x00any"
ANY_NORMAL: Final = "."
CLUSTER: Final = "\x00cluster"
_BUCKETS: Final = "\x00buckets:"
_INTERNAL: Final = frozenset({"config", "local"})

Privilege = tuple[str, frozenset[str]]
"""A resource and the actions on it."""
Privileges = Mapping[str, frozenset[str]]
"""Actions by resource."""


def is_system(namespace: str) -> bool:
    """Return whether privileges on its database do not cover a collection."""
    database, _, name = namespace.partition(".")
    return name.startswith("system.") or (database == "local" and name.startswith("replset."))


@lru_cache(8192)
def covering(resource: str) -> tuple[str, ...]:
    """Return the resources whose privileges also apply to `resource`."""
    if resource == CLUSTER:
        return ANY, CLUSTER
    if resource == ANY:
        return (ANY,)
    database, _, name = resource.partition(".")
    normal = () if database in _INTERNAL else (ANY_NORMAL,)
    if not name:
        return (ANY, *normal, resource) if database else (ANY, ANY_NORMAL)
    if is_system(resource):
        return ANY, f".{name}", resource
    return ANY, *normal, f"{database}.", f".{name}", resource


def allowed(privileges: Privileges, resource: str, actions: frozenset[str]) -> bool:
    """Return whether one or several privileges cover all `actions` on the resource."""
    left = actions
    for covers in covering(resource):
        held = privileges.get(covers)
        if held is not None:
            left -= held
            if not left:
                return True
    return not left


def concern_database(privileges: Privileges, database: str) -> bool:
    """Return whether any privilege applies to something in a database."""
    normal = database not in _INTERNAL
    return any(
        resource == ANY or (normal and resource == ANY_NORMAL) or resource.partition(".")[0] == database
        for resource in privileges
    )


def concern_collection(privileges: Privileges, namespace: str) -> bool:
    """Return whether any privilege applies to a collection."""
    return any(resource in privileges for resource in covering(namespace))


def merged(privileges: Iterable[Privilege]) -> dict[str, frozenset[str]]:
    """Return the privileges by resource."""
    by_resource: dict[str, frozenset[str]] = {}
    for resource, actions in privileges:
        by_resource[resource] = by_resource.get(resource, frozenset()) | actions
    return by_resource


# As documents.


def resource_document(resource: str) -> dict[str, Any]:
    """Return the resource as a role's document has it."""
    if resource == ANY:
        return {"anyResource": True}
    if resource == CLUSTER:
        return {"cluster": True}
    database, _, name = resource.partition(".")
    if name.startswith(_BUCKETS):
        return {"db": database, "system_buckets": name[len(_BUCKETS) :]}
    return {"db": database, "collection": name}


def privilege_document(resource: str, actions: frozenset[str]) -> dict[str, Any]:
    """Return a privilege as a role's document has it, with its actions sorted."""
    names = [ANY_ACTION] if actions == ACTIONS else sorted(actions)
    return {"resource": resource_document(resource), "actions": names}


def documents_of(privileges: Privileges) -> list[dict[str, Any]]:
    """Return privileges as a role's document has them, in a fixed order."""
    return [privilege_document(resource, privileges[resource]) for resource in sorted(privileges)]


def parse_privilege(document: Mapping[str, Any]) -> Privilege:
    """Return the privilege of a role's document. Raises 2, 9 and 14 if it is not valid."""
    actions, resource = document.get("actions"), document.get("resource")
    if type(actions) is not list or not actions or not all(type(item) is str for item in actions):
        raise CommandError(9, "privilege must have an 'actions' array of strings that is not empty")
    if type(resource) is not dict:
        raise CommandError(9, "privilege must have a 'resource' document")
    unknown = sorted(set(actions) - ACTIONS - {ANY_ACTION})
    if unknown:
        raise CommandError(9, f"Unrecognized action privilege strings: {','.join(unknown)}")
    return parse_resource(resource), ACTIONS if ANY_ACTION in actions else frozenset(actions)


def parse_resource(document: Mapping[str, Any]) -> str:
    """Return the resource of a privilege's document. Raises 9 if it is not valid."""
    fields = dict(document)
    for name, resource in (("anyResource", ANY), ("cluster", CLUSTER)):
        if name in fields:
            if fields != {name: True}:
                raise CommandError(9, f"resource: '{name}' must be true, and the only field")
            return resource
    database, name = fields.pop("db", ""), fields.pop("collection", None)
    buckets = fields.pop("system_buckets", None)
    if fields or type(database) is not str or (name is None) is (buckets is None):
        raise CommandError(9, "resource must have 'db' and 'collection', or 'cluster', or 'anyResource'")
    if type(buckets) is str:
        return f"{database}.{_BUCKETS}{buckets}"
    if type(name) is not str or "." in database:
        raise CommandError(9, "resource: 'db' and 'collection' must be strings, and 'db' the name of a database")
    return f"{database}.{name}"
