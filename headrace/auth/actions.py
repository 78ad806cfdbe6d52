"""The names of all actions that a privilege may have. Source: MongoDB's manual, "Privilege Actions"."""

from __future__ import annotations

from typing import Final

ANY_ACTION: Final = "anyAction"
"""Stands for all actions."""

ACTIONS: Final = frozenset({
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
