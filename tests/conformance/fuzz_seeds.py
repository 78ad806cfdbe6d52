"""Commands of which the mutation fuzz makes others: those that no recording has."""

from __future__ import annotations

from typing import Any, Final

from bson import Binary
from bson.datetime_ms import DatetimeMS

Command = tuple[str, dict[str, Any]]


def agg(*stages: dict[str, Any], source: str = "c") -> Command:
    """Return an aggregation."""
    return "hr", {"aggregate": source, "pipeline": list(stages), "cursor": {}}


POINT: Final = {"type": "Point", "coordinates": [1.0, 2.0]}
AREA: Final = {"type": "Polygon", "coordinates": [[[0, 0], [0, 5], [5, 5], [5, 0], [0, 0]]]}
MORE_SEEDS: Final[list[Command]] = [
    (
        "hr",
        {
            "createIndexes": "g",
            "indexes": [
                {"key": {"p": "2dsphere"}, "name": "p"},
                {"key": {"q": "2d"}, "name": "q", "min": -180, "max": 180, "bits": 26},
            ],
        },
    ),
    (
        "hr",
        {
            "createIndexes": "x",
            "indexes": [
                {
                    "key": {"t": "text", "a": 1},
                    "name": "t",
                    "weights": {"t": 5},
                    "default_language": "english",
                    "language_override": "l",
                }
            ],
        },
    ),
    ("hr", {"createIndexes": "w", "indexes": [{"key": {"$**": 1}, "name": "w", "wildcardProjection": {"a": 1}}]}),
    (
        "hr",
        {
            "createIndexes": "c",
            "indexes": [
                {"key": {"a": "hashed"}, "name": "h"},
                {
                    "key": {"b": 1},
                    "name": "ttl",
                    "expireAfterSeconds": 100,
                    "sparse": True,
                    "collation": {"locale": "fr", "strength": 2},
                },
            ],
            "commitQuorum": "majority",
        },
    ),
    ("hr", {"insert": "g", "documents": [{"_id": 1, "p": POINT, "q": [1, 2]}, {"_id": 2, "p": AREA, "q": [3, 4]}]}),
    ("hr", {"find": "g", "filter": {"p": {"$near": {"$geometry": POINT, "$maxDistance": 1000, "$minDistance": 1}}}}),
    ("hr", {"find": "g", "filter": {"p": {"$geoWithin": {"$geometry": AREA}}}}),
    ("hr", {"find": "g", "filter": {"q": {"$geoWithin": {"$centerSphere": [[1, 2], 0.1]}}}}),
    ("hr", {"find": "g", "filter": {"q": {"$geoWithin": {"$box": [[0, 0], [5, 5]]}}}}),
    ("hr", {"find": "g", "filter": {"p": {"$geoIntersects": {"$geometry": AREA}}}}),
    ("hr", {"find": "g", "filter": {"q": {"$nearSphere": [1, 2], "$maxDistance": 1}}}),
    agg(
        {
            "$geoNear": {
                "near": POINT,
                "distanceField": "d",
                "maxDistance": 1000,
                "query": {},
                "spherical": True,
                "key": "p",
                "includeLocs": "l",
                "distanceMultiplier": 2,
            }
        },
        source="g",
    ),
    (
        "hr",
        {
            "insert": "x",
            "documents": [{"_id": 1, "t": "the quick brown fox"}, {"_id": 2, "t": "lazy dogs", "l": "none"}],
        },
    ),
    (
        "hr",
        {
            "find": "x",
            "filter": {"$text": {"$search": 'fox "quick" -dog', "$language": "en", "$caseSensitive": False}},
            "projection": {"s": {"$meta": "textScore"}},
            "sort": {"s": {"$meta": "textScore"}},
        },
    ),
    (
        "hr",
        {
            "create": "ts",
            "timeseries": {"timeField": "t", "metaField": "m", "granularity": "minutes"},
            "expireAfterSeconds": 1000,
        },
    ),
    (
        "hr",
        {
            "insert": "ts",
            "documents": [
                {"_id": 1, "t": DatetimeMS(1000), "m": {"a": 1}, "v": 1},
                {"t": DatetimeMS(2000), "m": 2, "v": [1]},
            ],
        },
    ),
    ("hr", {"delete": "ts", "deletes": [{"q": {"m": 2}, "limit": 0}]}),
    ("hr", {"update": "ts", "updates": [{"q": {"m": 2}, "u": {"$set": {"m": 3}}, "multi": True}]}),
    (
        "hr",
        {"find": "ts", "filter": {"t": {"$gte": DatetimeMS(0)}, "m.a": 1}, "sort": {"t": -1}, "hint": {"m": 1, "t": 1}},
    ),
    (
        "hr",
        {
            "createIndexes": "ts",
            "indexes": [{"key": {"m.a": 1, "t": -1}, "name": "i", "partialFilterExpression": {"m.a": {"$gt": 1}}}],
        },
    ),
    agg(
        {
            "$lookup": {
                "from": "d",
                "localField": "a",
                "foreignField": "b",
                "as": "x",
                "let": {"q": "$a"},
                "pipeline": [{"$match": {"$expr": {"$eq": ["$$q", "$a"]}}}],
            }
        }
    ),
    agg(
        {
            "$graphLookup": {
                "from": "c",
                "startWith": "$a",
                "connectFromField": "a",
                "connectToField": "_id",
                "as": "g",
                "maxDepth": 2,
                "depthField": "n",
                "restrictSearchWithMatch": {"a": 1},
            }
        }
    ),
    agg({"$facet": {"x": [{"$count": "n"}], "y": [{"$group": {"_id": "$a", "s": {"$sum": 1}}}]}}),
    agg({"$bucket": {"groupBy": "$a", "boundaries": [0, 5, 10], "default": "o", "output": {"n": {"$sum": 1}}}}),
    agg({"$bucketAuto": {"groupBy": "$a", "buckets": 2, "granularity": "R5"}}),
    agg({"$densify": {"field": "a", "partitionByFields": ["b"], "range": {"step": 1, "bounds": [0, 5]}}}),
    agg({"$densify": {"field": "d", "range": {"step": 1, "unit": "day", "bounds": "full"}}}),
    agg({"$fill": {"partitionBy": "$a", "sortBy": {"b": 1}, "output": {"v": {"method": "locf"}, "w": {"value": 1}}}}),
    agg(
        {
            "$setWindowFields": {
                "partitionBy": "$a",
                "sortBy": {"b": 1},
                "output": {
                    "x": {"$expMovingAvg": {"input": "$b", "N": 2}},
                    "y": {"$derivative": {"input": "$b", "unit": "hour"}, "window": {"range": [-1, 1]}},
                    "z": {"$shift": {"output": "$b", "by": 1, "default": 0}},
                    "r": {"$denseRank": {}},
                    "q": {"$linearFill": "$b"},
                    "k": {"$minMaxScaler": {"input": "$b"}},
                },
            }
        }
    ),
    agg(
        {
            "$group": {
                "_id": {"a": "$a"},
                "t": {"$top": {"sortBy": {"b": 1}, "output": "$b"}},
                "p": {"$percentile": {"input": "$b", "p": [0.5], "method": "approximate"}},
                "m": {"$median": {"input": "$b", "method": "approximate"}},
                "f": {"$firstN": {"input": "$b", "n": 2}},
                "s": {"$stdDevPop": "$b"},
                "c": {"$concatArrays": "$x"},
            }
        }
    ),
    agg(
        {
            "$merge": {
                "into": "d",
                "on": "_id",
                "whenMatched": [{"$set": {"a": "$$new.a"}}],
                "whenNotMatched": "insert",
                "let": {"z": 1},
            }
        }
    ),
    agg({"$out": {"db": "hr", "coll": "o", "timeseries": {"timeField": "t"}}}),
    agg(
        {"$unionWith": {"coll": "d", "pipeline": [{"$match": {"a": 1}}]}},
        {"$sortByCount": "$a"},
        {"$sample": {"size": 2}},
    ),
    agg({"$redact": {"$cond": [{"$eq": ["$a", 1]}, "$$PRUNE", "$$DESCEND"]}}),
    agg({"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"x": 1}]}}}),
    agg(
        {
            "$rankFusion": {
                "input": {"pipelines": {"a": [{"$sort": {"a": 1}}], "b": [{"$sort": {"b": -1}}]}},
                "combination": {"weights": {"a": 1, "b": 2}},
                "scoreDetails": True,
            }
        }
    ),
    agg(
        {
            "$scoreFusion": {
                "input": {
                    "pipelines": {"a": [{"$score": {"score": "$a", "normalization": "sigmoid", "weight": 0.5}}]},
                    "normalization": "none",
                },
                "combination": {"method": "avg"},
            }
        }
    ),
    agg(
        {
            "$project": {
                "a": {"$dateToString": {"date": "$d", "format": "%Y", "timezone": "Europe/Berlin", "onNull": "x"}},
                "b": {"$dateTrunc": {"date": "$d", "unit": "week", "binSize": 2, "startOfWeek": "mon"}},
                "c": {"$regexFindAll": {"input": "$s", "regex": "a", "options": "i"}},
                "d": {"$switch": {"branches": [{"case": True, "then": 1}], "default": 2}},
                "e": {"$zip": {"inputs": ["$x", "$y"], "useLongestLength": True, "defaults": [1, 2]}},
                "f": {
                    "$convert": {"input": "$a", "to": {"type": "binData", "subtype": 0}, "format": "hex", "onError": 1}
                },
                "g": {"$sortArray": {"input": "$x", "sortBy": {"a": 1}}},
                "h": {"$function": {"body": "x", "args": [], "lang": "js"}},
                "i": {"$getField": {"field": "a", "input": "$$ROOT"}},
                "j": {"$setField": {"field": "a", "input": "$$ROOT", "value": 1}},
                "k": {"$reduce": {"input": "$x", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}},
                "l": {"$dateFromParts": {"year": 2020, "month": 1, "timezone": "UTC"}},
            }
        }
    ),
    agg({"$listSessions": {}}, source="system.sessions"),
    (
        "admin",
        {
            "aggregate": 1,
            "pipeline": [{"$currentOp": {"allUsers": True, "idleConnections": True, "localOps": True}}],
            "cursor": {},
        },
    ),
    ("admin", {"aggregate": 1, "pipeline": [{"$listClusterCatalog": {}}], "cursor": {}}),
    ("admin", {"aggregate": 1, "pipeline": [{"$querySettings": {}}], "cursor": {}}),
    ("hr", {"aggregate": 1, "pipeline": [{"$documents": [{"a": 1}]}], "cursor": {}}),
    agg({"$collStats": {"storageStats": {"scale": 1}, "count": {}, "latencyStats": {"histograms": True}}}),
    agg({"$indexStats": {}}),
    agg({"$planCacheStats": {}}),
    (
        "hr",
        {
            "createUser": "u",
            "pwd": "p",
            "roles": ["read", {"role": "readWrite", "db": "hr"}],
            "mechanisms": ["SCRAM-SHA-256"],
            "customData": {"a": 1},
            "authenticationRestrictions": [{"clientSource": ["127.0.0.1"]}],
        },
    ),
    ("hr", {"updateUser": "u", "pwd": "q", "roles": []}),
    ("hr", {"usersInfo": {"user": "u", "db": "hr"}, "showPrivileges": True}),
    ("hr", {"grantRolesToUser": "u", "roles": ["read"]}),
    ("hr", {"revokeRolesFromUser": "u", "roles": ["read"]}),
    (
        "hr",
        {
            "createRole": "r",
            "privileges": [{"resource": {"db": "hr", "collection": ""}, "actions": ["find"]}],
            "roles": [],
        },
    ),
    ("hr", {"updateRole": "r", "privileges": []}),
    ("hr", {"rolesInfo": 1, "showPrivileges": True}),
    ("hr", {"grantPrivilegesToRole": "r", "privileges": [{"resource": {"cluster": True}, "actions": ["shutdown"]}]}),
    ("hr", {"revokePrivilegesFromRole": "r", "privileges": []}),
    ("hr", {"dropUser": "u"}),
    ("hr", {"dropRole": "r"}),
    (
        "admin",
        {
            "saslStart": 1,
            "mechanism": "SCRAM-SHA-256",
            "payload": Binary(b"n,,n=u,r=abc"),
            "options": {"skipEmptyExchange": True},
        },
    ),
    ("admin", {"saslContinue": 1, "conversationId": 1, "payload": Binary(b"c=biws,r=abc,p=xx")}),
    ("admin", {"logout": 1}),
    ("hr", {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}}),
    ("hr", {"collMod": "c", "index": {"name": "h", "hidden": True}}),
    ("hr", {"collMod": "v", "viewOn": "c", "pipeline": []}),
    (
        "admin",
        {
            "applyOps": [
                {"op": "i", "ns": "hr.c", "o": {"_id": 5}},
                {"op": "u", "ns": "hr.c", "o2": {"_id": 5}, "o": {"$v": 2, "diff": {"u": {"a": 1}}}},
                {"op": "d", "ns": "hr.c", "o": {"_id": 5}},
                {"op": "c", "ns": "hr.$cmd", "o": {"create": "z"}},
            ]
        },
    ),
    ("hr", {"compact": "c", "force": True}),
    ("hr", {"convertToCapped": "c", "size": 4096}),
    ("hr", {"cloneCollectionAsCapped": "c", "toCollection": "cc", "size": 4096}),
    ("hr", {"dataSize": "hr.c", "keyPattern": {"_id": 1}, "min": {"_id": 1}, "max": {"_id": 9}}),
    ("hr", {"dbHash": 1, "collections": ["c"]}),
    ("admin", {"validateDBMetadata": 1, "apiParameters": {"version": "1", "strict": True}}),
    ("hr", {"planCacheSetFilter": "c", "query": {"a": 1}, "sort": {}, "projection": {}, "indexes": ["a_1"]}),
    ("hr", {"planCacheListFilters": "c"}),
    ("hr", {"planCacheClear": "c", "query": {"a": 1}}),
    (
        "admin",
        {
            "setQuerySettings": {"find": "c", "filter": {"a": 1}, "$db": "hr"},
            "settings": {"indexHints": [{"ns": {"db": "hr", "coll": "c"}, "allowedIndexes": ["a_1"]}], "reject": False},
        },
    ),
    ("admin", {"removeQuerySettings": {"find": "c", "filter": {"a": 1}, "$db": "hr"}}),
    (
        "hr",
        {
            "explain": {"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": "$a"}}], "cursor": {}},
            "verbosity": "executionStats",
        },
    ),
    ("hr", {"explain": {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}}]}}),
    ("hr", {"explain": {"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 1}]}}),
    ("hr", {"explain": {"findAndModify": "c", "query": {"a": 1}, "remove": True}}),
    ("hr", {"explain": {"count": "c", "query": {"a": 1}}}),
    ("hr", {"explain": {"distinct": "c", "key": "a"}}),
    (
        "hr",
        {
            "find": "c",
            "filter": {"a": {"$elemMatch": {"b": {"$gt": 1}}}},
            "projection": {
                "a.$": 1,
                "b": {"$slice": [1, 2]},
                "c": {"$elemMatch": {"x": 1}},
                "d": {"$meta": "recordId"},
            },
            "min": {"a": 1},
            "max": {"a": 5},
            "hint": {"a": 1},
            "returnKey": True,
            "showRecordId": True,
            "collation": {"locale": "en", "strength": 1, "numericOrdering": True},
        },
    ),
    (
        "hr",
        {
            "find": "c",
            "filter": {
                "$jsonSchema": {
                    "bsonType": "object",
                    "required": ["a"],
                    "properties": {
                        "a": {"type": "number", "minimum": 1, "multipleOf": 2},
                        "s": {"pattern": "^a", "maxLength": 5},
                        "x": {"items": [{"type": "string"}], "additionalItems": False, "uniqueItems": True},
                    },
                    "patternProperties": {"^z": {"enum": [1, 2]}},
                    "dependencies": {"a": ["b"]},
                    "anyOf": [{"minProperties": 1}],
                }
            },
        },
    ),
    (
        "hr",
        {
            "update": "c",
            "updates": [
                {
                    "q": {"_id": 2},
                    "u": {
                        "$push": {"a": {"$each": [3], "$position": 0, "$sort": -1, "$slice": 5}},
                        "$bit": {"z": {"or": 1}},
                        "$rename": {"q": "r"},
                        "$currentDate": {"d": {"$type": "timestamp"}},
                        "$setOnInsert": {"n": 1},
                        "$mul": {"y": 2},
                        "$pullAll": {"p": [1]},
                        "$addToSet": {"t": {"$each": [1]}},
                    },
                    "arrayFilters": [{"e": {"$gt": 1}}],
                    "hint": {"_id": 1},
                    "collation": {"locale": "en"},
                    "sort": {"a": 1},
                    "upsert": True,
                }
            ],
        },
    ),
    ("hr", {"headraceChanges": "c", "after": {}, "maxEvents": 10, "maxBytes": 1000}),
    ("hr", {"headraceArrowChanges": "c", "maxEvents": 10}),
    ("hr", {"validate": "c", "full": True, "metadata": False, "checkBSONConformance": True}),
    ("admin", {"renameCollection": "hr.c", "to": "hr2.d", "dropTarget": True}),
    (
        "hr",
        {
            "listCollections": 1,
            "filter": {"name": "c"},
            "nameOnly": True,
            "authorizedCollections": True,
            "cursor": {"batchSize": 1},
        },
    ),
    (
        "hr",
        {
            "create": "cl",
            "clusteredIndex": {"key": {"_id": 1}, "unique": True, "name": "x"},
            "expireAfterSeconds": 100,
            "validator": {"a": 1},
            "validationLevel": "moderate",
            "validationAction": "warn",
        },
    ),
    (
        "hr",
        {
            "create": "enc",
            "encryptedFields": {
                "fields": [
                    {
                        "path": "a",
                        "bsonType": "string",
                        "keyId": Binary(b"1" * 16, 4),
                        "queries": {"queryType": "equality"},
                    }
                ]
            },
        },
    ),
]
