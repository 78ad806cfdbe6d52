"""`admin.system.version` and the commands that Compass and mongosh send when they connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from headrace.testing.driven import DrivenServer

FEATURE: Final = {"_id": "featureCompatibilityVersion", "version": "8.2"}
SCHEMA: Final = {"_id": "authSchema", "currentVersion": 5}
VERSIONS: Final = "system.version"


@pytest.fixture(params=["fresh", "with users"])
def at(request: pytest.FixtureRequest) -> Iterator[DrivenServer]:
    with DrivenServer() as at:
        if request.param == "with users":
            at.must("admin", {"createUser": "root", "pwd": "secret", "roles": ["root"]})
        yield at


def has_users(at: DrivenServer) -> bool:
    return bool(at.must("admin", {"usersInfo": 1})["users"])


def found(at: DrivenServer, body: dict[str, Any]) -> list[Any]:
    batch: list[Any] = at.must("admin", body)["cursor"]["firstBatch"]
    return batch


def test_the_feature_version_is_found_like_any_document(at: DrivenServer) -> None:
    everything = [FEATURE, SCHEMA] if has_users(at) else [FEATURE]
    assert found(at, {"find": VERSIONS}) == everything
    assert found(at, {"find": VERSIONS, "hint": {"_id": 1}, "sort": {"_id": -1}}) == [FEATURE, *everything[1:]]
    assert found(at, {"find": VERSIONS, "filter": {"_id": FEATURE["_id"]}}) == [FEATURE]
    assert found(at, {"find": VERSIONS, "filter": {"_id": FEATURE["_id"]}, "limit": 1, "projection": {"_id": 0}}) == [
        {"version": "8.2"}
    ]
    assert found(at, {"find": VERSIONS, "filter": {"version": {"$gt": "9"}}}) == []
    assert at.must("admin", {"count": VERSIONS})["n"] == len(everything)
    assert at.must("admin", {"count": VERSIONS, "query": {"_id": FEATURE["_id"]}})["n"] == 1
    assert at.must("admin", {"distinct": VERSIONS, "key": "version"})["values"] == ["8.2"]
    counted = {"$group": {"_id": 1, "n": {"$sum": 1}}}
    assert found(at, {"aggregate": VERSIONS, "pipeline": [counted], "cursor": {}}) == [{"_id": 1, "n": len(everything)}]
    ids = [{"$sort": {"_id": -1}}, {"$group": {"_id": "$_id"}}, {"$sort": {"_id": -1}}]
    listed = found(at, {"aggregate": VERSIONS, "pipeline": ids, "cursor": {}})
    assert [item["_id"] for item in listed] == [item["_id"] for item in everything]
    assert at.must("admin", {"explain": {"find": VERSIONS, "filter": {"_id": "x"}}})["ok"] == 1.0


def test_the_feature_version_is_what_the_parameter_says(at: DrivenServer) -> None:
    parameter = at.must("admin", {"getParameter": 1, "featureCompatibilityVersion": 1})
    (document,) = found(at, {"find": VERSIONS, "filter": {"_id": FEATURE["_id"]}})
    assert parameter["featureCompatibilityVersion"] == {"version": document["version"]}


def test_it_is_joined_with(at: DrivenServer) -> None:
    at.must("admin", {"insert": "things", "documents": [{"_id": FEATURE["_id"]}]})
    for more in ({"localField": "_id", "foreignField": "_id"}, {"pipeline": [{"$match": {"_id": FEATURE["_id"]}}]}):
        joining = [{"$lookup": {"from": VERSIONS, "as": "x", **more}}]
        assert found(at, {"aggregate": "things", "pipeline": joining, "cursor": {}})[0]["x"] == [FEATURE]


def test_it_is_listed_as_one_collection_with_one_index(at: DrivenServer) -> None:
    named = found(at, {"listCollections": 1, "filter": {"name": VERSIONS}})
    assert [(item["type"], item["idIndex"]["key"]) for item in named] == [("collection", {"_id": 1})]
    assert found(at, {"listCollections": 1, "nameOnly": True, "filter": {"name": VERSIONS}}) == [
        {"name": VERSIONS, "type": "collection"}
    ]
    (index,) = found(at, {"listIndexes": VERSIONS})
    assert index["name"] == "_id_"
    names = [item["name"] for item in at.must("admin", {"listDatabases": 1, "nameOnly": True})["databases"]]
    assert "admin" in names
    assert not found(at, {"listCollections": 1, "filter": {"name": "system.versions"}})


def test_only_the_database_admin_has_it(at: DrivenServer) -> None:
    assert at.must("t", {"find": VERSIONS})["cursor"]["firstBatch"] == []
    assert at.must("t", {"listCollections": 1})["cursor"]["firstBatch"] == []


CONNECTING: Final[list[tuple[dict[str, Any], int]]] = [
    ({"hello": 1}, 0), ({"ping": 1}, 0), ({"buildInfo": 1}, 0), ({"hostInfo": 1}, 0), ({"getCmdLineOpts": 1}, 0),
    ({"connectionStatus": 1, "showPrivileges": True}, 0), ({"getLog": "startupWarnings"}, 0), ({"whatsmyuri": 1}, 0),
    ({"getParameter": 1, "featureCompatibilityVersion": 1}, 0), ({"listDatabases": 1, "nameOnly": True}, 0),
    ({"listCollections": 1, "nameOnly": True, "authorizedCollections": True}, 0), ({"dbStats": 1}, 0),
    ({"serverStatus": 1}, 0), ({"top": 1}, 0), ({"replSetGetStatus": 1}, 0), ({"usersInfo": 1}, 0),
    ({"aggregate": "atlascli", "pipeline": [{"$match": {}}, {"$count": "n"}], "cursor": {}}, 0),
    ({"aggregate": "c", "pipeline": [{"$listSearchIndexes": {}}], "cursor": {}}, 31082),
    ({"atlasVersion": 1}, 59), ({"getFreeMonitoringStatus": 1}, 59),
    ({"isdbgrid": 1}, 59), ({"listShards": 1}, 59), ({"balancerStatus": 1}, 59), ({"setFreeMonitoring": 1}, 59),
]  # fmt: skip
"""Commands of these clients to `admin`, with the code of the error that a community server of one member answers."""


@pytest.mark.parametrize(("body", "code"), CONNECTING, ids=str)
def test_clients_that_connect_are_answered_as_by_a_set_of_one(body: dict[str, Any], code: int) -> None:
    with DrivenServer() as at:
        reply = at.run("admin", body)
        assert isinstance(reply, dict) and reply.get("code", 0) == code, reply
        if code == 59:
            assert (reply["codeName"], reply["errmsg"]) == ("CommandNotFound", f"no such command: '{next(iter(body))}'")
