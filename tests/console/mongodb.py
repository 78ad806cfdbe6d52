"""A server that answers as MongoDB 8.0's documentation shows its replies: without Headrace's fields and commands.

Source of the shapes: MongoDB's manual on each command, the drivers' specification of OP_MSG.
"""

from __future__ import annotations

import datetime
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bson import Int64, Timestamp, decode, encode

_HEAD: Final = struct.Struct("<iiii")
NOW: Final = datetime.datetime(2026, 11, 22, 10, 0, 30, tzinfo=datetime.UTC)
TIME: Final = Timestamp(1795341630, 1)
TOKEN: Final = "826B05C8FE000000012B042C0100296E5A1004" + "00" * 18
_DOCUMENTS: Final = [{"_id": number, "qty": number % 7} for number in range(5)]
_STREAM: Final = {
    "type": "idleCursor", "host": "db1:27017", "ns": "shop.orders", "appName": "orders", "client": "10.0.0.9:51000",
    "effectiveUsers": [{"user": "app", "db": "admin"}],
    "cursor": {
        "cursorId": Int64(7), "createdDate": NOW, "lastAccessDate": NOW - datetime.timedelta(seconds=20),
        "nDocsReturned": Int64(12), "nBatchesReturned": Int64(3), "noCursorTimeout": False, "tailable": True,
        "awaitData": True, "originatingCommand": {
            "aggregate": "orders", "pipeline": [{"$changeStream": {}}, {"$match": {"operationType": "insert"}}],
        },
    },
}  # fmt: skip
_SCAN: Final = {"stage": "COLLSCAN", "planNodeId": 1, "filter": {"qty": {"$eq": 3}}, "direction": "forward"}
_EXPLAIN: Final = {
    "explainVersion": "2",
    "queryPlanner": {
        "namespace": "shop.orders", "rejectedPlans": [], "parsedQuery": {"qty": {"$eq": 3}},
        "winningPlan": {"isCached": False, "queryPlan": _SCAN, "slotBasedPlan": {"slots": "$$RESULT=s4"}},
    },
    "executionStats": {
        "executionSuccess": True, "nReturned": 1, "executionTimeMillis": 2, "totalKeysExamined": 0,
        "totalDocsExamined": 5,
    },
}  # fmt: skip
_ENTRIES: Final = [
    {"ts": TIME, "t": Int64(3), "v": Int64(2), "op": "i", "ns": "shop.orders", "size": 120},
    {"ts": Timestamp(TIME.time - 60, 1), "t": Int64(3), "v": Int64(2), "op": "n", "ns": "", "size": 90},
]
_STATS: Final = {
    "size": Int64(185), "count": 5, "storageSize": Int64(36864), "nindexes": 2, "totalIndexSize": Int64(73728),
    "indexSizes": {"_id_": Int64(36864), "qty_1": Int64(36864)}, "maxSize": Int64(1038090240),
}  # fmt: skip
_PROFILED: Final = {
    "op": "query", "ns": "shop.orders", "command": {"find": "orders", "filter": {"qty": 3}, "$db": "shop"},
    "keysExamined": 0, "docsExamined": 5000, "nreturned": 1, "planSummary": "COLLSCAN", "millis": 40, "ts": NOW,
}  # fmt: skip


class MongoDB(socketserver.ThreadingTCPServer):
    """The server. `refused`: commands, and first stages of pipelines, that end with error 13."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.refused = refused
        self.operations = 0

    @property
    def uri(self) -> str:
        """Its address."""
        return f"mongodb://127.0.0.1:{self.server_address[1]}/?directConnection=true"

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command."""
        name = next(iter(body))
        self.operations += 1
        pipeline = body.get("pipeline") or [{}]
        if self.refused & {name, *pipeline[0]}:
            return {"ok": 0.0, "errmsg": f"not authorized on {body['$db']}", "code": 13, "codeName": "Unauthorized"}
        answer = getattr(self, f"_{name}", None)
        if answer is None:
            return {"ok": 0.0, "errmsg": f"no such command: '{name}'", "code": 59, "codeName": "CommandNotFound"}
        return {"ok": 1.0, "operationTime": TIME, **answer(body)}

    def _hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "helloOk": True, "isWritablePrimary": True, "setName": "rs0", "setVersion": 1, "me": "db1:27017",
            "hosts": ["db1:27017"], "primary": "db1:27017", "maxBsonObjectSize": 16777216, "localTime": NOW,
            "maxMessageSizeBytes": 48000000, "maxWriteBatchSize": 100000, "minWireVersion": 0, "maxWireVersion": 25,
            "logicalSessionTimeoutMinutes": 30,
        }  # fmt: skip

    _ismaster = _isMaster = _hello

    def _ping(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}

    _endSessions = _killCursors = _ping

    def _connectionStatus(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"authInfo": {"authenticatedUsers": [], "authenticatedUserRoles": []}}

    def _buildInfo(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"version": "8.0.4", "versionArray": [8, 0, 4, 0], "storageEngines": ["wiredTiger"]}

    def _serverStatus(self, body: dict[str, Any]) -> dict[str, Any]:
        latency = {
            "latency": Int64(self.operations * 300),
            "ops": Int64(self.operations),
            "queryableEncryptionLatencyMicros": Int64(0),
        }
        names = ("insert", "query", "update", "delete", "getmore", "command")
        return {
            "host": "db1", "version": "8.0.4", "process": "mongod", "pid": Int64(1), "uptime": 5000.0, "localTime": NOW,
            "connections": {"current": 4, "available": 800, "totalCreated": 10},
            "mem": {"bits": 64, "resident": 180, "virtual": 2700, "supported": True},
            "network": {"bytesIn": Int64(self.operations * 100), "bytesOut": Int64(self.operations * 900)},
            "opcounters": dict.fromkeys(names, Int64(self.operations)),
            "opLatencies": {"reads": latency, "writes": latency, "commands": latency},
            "metrics": {"cursor": {"open": {"total": Int64(1)}}},
        }  # fmt: skip

    def _listDatabases(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"databases": [{"name": name} for name in ("admin", "config", "local", "shop")]}

    def _listCollections(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [{"name": "orders", "type": "collection", "options": {}}] if body["$db"] == "shop" else []
        return _batch(body, "$cmd.listCollections", rows)

    def _listIndexes(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [{"v": 2, "key": {"_id": 1}, "name": "_id_"}, {"v": 2, "key": {"qty": 1}, "name": "qty_1"}]
        return _batch(body, "orders", rows)

    def _find(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["find"] == "oplog.rs":
            return _batch(body, "oplog.rs", _ENTRIES[1:] if body["sort"] == {"$natural": 1} else _ENTRIES)
        return _batch(body, body["find"], [_PROFILED] if body["find"] == "system.profile" else _DOCUMENTS)

    def _aggregate(self, body: dict[str, Any]) -> dict[str, Any]:
        stage = next(iter(body["pipeline"][0]))
        rows: list[dict[str, Any]] = {
            "$collStats": [{"ns": "shop.orders", "storageStats": _STATS}],
            "$currentOp": [_STREAM],
            "$indexStats": [{"name": name, "accesses": {"ops": Int64(3), "since": NOW}} for name in ("_id_", "qty_1")],
        }.get(stage, _DOCUMENTS)  # fmt: skip
        if stage == "$changeStream":
            event = {
                "_id": {"_data": TOKEN}, "operationType": "insert", "clusterTime": TIME, "wallTime": NOW,
                "fullDocument": {"_id": 9}, "ns": {"db": "shop", "coll": "orders"}, "documentKey": {"_id": 9},
            }  # fmt: skip
            answer = _batch(body, "orders", [event], cursor=7)
            answer["cursor"]["postBatchResumeToken"] = {"_data": TOKEN}
            return answer
        return _batch(body, body["aggregate"], rows)

    def _getMore(self, body: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait(0.05)
        batch = {"nextBatch": [], "id": body["getMore"], "ns": "shop.orders", "postBatchResumeToken": {"_data": TOKEN}}
        return {"cursor": batch}

    def _explain(self, body: dict[str, Any]) -> dict[str, Any]:
        if "find" in body["explain"]:
            return _EXPLAIN
        group = {"$group": {"_id": "$qty"}, "nReturned": Int64(5), "executionTimeMillisEstimate": Int64(1)}
        return {"explainVersion": "1", "stages": [{"$cursor": _EXPLAIN, "nReturned": Int64(5)}, group]}

    def _profile(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"was": 1, "slowms": 100, "sampleRate": 1.0}


def _batch(body: dict[str, Any], name: Any, rows: list[dict[str, Any]], cursor: int = 0) -> dict[str, Any]:
    return {"cursor": {"firstBatch": rows, "id": Int64(cursor), "ns": f"{body['$db']}.{name}"}}


class _Client(socketserver.BaseRequestHandler):
    """A connection: OP_MSG, and the OP_QUERY of a first hello."""

    def handle(self) -> None:
        file = self.request.makefile("rb")
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, number, _, code = _HEAD.unpack(head)
            raw = file.read(size - _HEAD.size)
            body = decode(raw[5:] if code == 2013 else raw[raw.index(b"\0", 4) + 9 :])
            reply = encode(self.server.reply(body))  # type: ignore[attr-defined]
            if code == 2013:
                answer, code = b"\0\0\0\0\0" + reply, 2013
            else:
                answer, code = struct.pack("<iqii", 8, 0, 0, 1) + reply, 1
            self.request.sendall(_HEAD.pack(_HEAD.size + len(answer), 1, number, code) + answer)


@contextmanager
def mongodb(*refused: str) -> Iterator[MongoDB]:
    """A running server."""
    with MongoDB(frozenset(refused)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
