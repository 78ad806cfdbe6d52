"""`writeConcern` of every command, and the defaults of `setDefaultRWConcern`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId, Timestamp

from headrace.commands.table import COMMANDS
from headrace.dispatch.concerns.write_concern import TAKEN_BY
from headrace.testing.driven import DrivenServer

Document = dict[str, Any]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": 1}]})
        yield server


def insert(at: DrivenServer, concern: Any) -> Document:
    reply: Document = at.run("t", {"insert": "c", "documents": [{}], "writeConcern": concern})
    return reply


@pytest.mark.parametrize(
    "concern",
    [
        {}, None, {"w": None}, {"w": 1}, {"w": 1.9}, {"w": Int64(1)}, {"w": Decimal128("1")}, {"w": "majority"},
        {"w": 0.0}, {"w": -0.0}, {"j": True}, {"j": 1}, {"j": math.nan}, {"j": None}, {"fsync": 2.5}, {"wtimeout": "x"},
        {"j": False, "fsync": True}, {"wtimeout": 1.5}, {"wtimeout": -1}, {"wtimeout": math.nan}, {"wtimeout": True},
        {"provenance": "clientSupplied"}, {"getLastError": "any"}, {"wElectionId": ObjectId()}, {"wOpTime": {}},
    ],
)  # fmt: skip
def test_a_write_concern_that_one_member_satisfies(at: DrivenServer, concern: Any) -> None:
    reply = insert(at, concern)
    assert reply["ok"] == 1.0 and "writeConcernError" not in reply


@pytest.mark.parametrize(
    ("concern", "code"),
    [
        (1, 14), ("majority", 14), ([], 14), (True, 14),
        ({"w": -1}, 9), ({"w": 51}, 9), ({"w": math.nan}, 9), ({"w": math.inf}, 9), ({"w": Decimal128("NaN")}, 9),
        ({"w": True}, 9), ({"w": []}, 9), ({"w": ObjectId()}, 9), ({"w": {}}, 9), ({"w": {"dc": "x"}}, 9),
        ({"w": Timestamp(1, 1)}, 9), ({"j": "x"}, 14), ({"j": {}}, 14), ({"fsync": "x"}, 14), ({"fsync": []}, 14),
        ({"j": True, "fsync": True}, 9), ({"j": 1, "fsync": 1.0}, 9), ({"wtimeout": 2**31}, 9),
        ({"wtimeout": math.inf}, 9), ({"provenance": 1}, 14), ({"provenance": "x"}, 2), ({"nope": 1}, 40415),
    ],
)  # fmt: skip
def test_a_write_concern_that_is_none(at: DrivenServer, concern: Any, code: int) -> None:
    assert insert(at, concern)["code"] == code
    assert at.must("t", {"count": "c"})["n"] == 1


def test_members_that_are_not_there_are_an_error_beside_the_reply(at: DrivenServer) -> None:
    for members, code in ((2, 100), (2.5, 100), (Decimal128("3"), 100), ({"dc": 2}, 100), ("other", 79)):
        reply = insert(at, {"w": members, "wtimeout": 10})
        assert (reply["n"], reply["writeConcernError"]["code"]) == (1, code)
        assert reply["writeConcernError"]["errInfo"]["writeConcern"]["provenance"] == "clientSupplied"


@pytest.mark.parametrize("name", sorted({command.name for command in COMMANDS.values()} - TAKEN_BY))
def test_a_command_that_writes_nothing_takes_none(at: DrivenServer, name: str) -> None:
    command = COMMANDS[name]
    if name == "headraceChanges":
        return
    kinds = command.arguments.by_name[name].kind.types
    first = next(value for value in ("c", Int64(1), {"find": "c"}, [], True) if type(value) in kinds)
    reply: Any = at.run("admin" if command.admin_only else "t", {name: first, "writeConcern": {"w": 1}})
    assert reply["code"] in (13, 72), reply


def test_an_aggregation_takes_one_only_if_it_writes(at: DrivenServer) -> None:
    command = {"aggregate": "c", "cursor": {}, "writeConcern": {"w": 1}}
    assert at.run("t", {**command, "pipeline": []})["code"] == 72
    at.must("t", {**command, "pipeline": [{"$out": "d"}]})


def test_a_standalone_satisfies_no_more_than_itself() -> None:
    with DrivenServer(oplog=False) as at:
        assert insert(at, {"w": 2})["code"] == insert(at, {"w": "other"})["code"] == 2
        assert insert(at, {"w": "majority"})["ok"] == 1.0
        for name in ("getDefaultRWConcern", "setDefaultRWConcern"):
            assert at.run("admin", {name: 1})["code"] == 51300


def test_defaults_are_set_shown_and_applied(at: DrivenServer) -> None:
    implicit = at.must("admin", {"getDefaultRWConcern": 1})
    assert implicit["defaultWriteConcern"] == {"w": "majority", "wtimeout": 0}
    assert implicit["defaultWriteConcernSource"] == implicit["defaultReadConcernSource"] == "implicit"
    changed = at.must("admin", {
        "setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 2.0, "wtimeout": 5},
        "defaultReadConcern": {"level": "majority"}, "writeConcern": {"w": 1},
    })  # fmt: skip
    assert changed["defaultWriteConcern"] == {"w": 2, "wtimeout": 5}
    assert changed["defaultReadConcern"] == {"level": "majority"}
    assert changed["defaultWriteConcernSource"] == changed["defaultReadConcernSource"] == "global"
    assert type(changed["updateOpTime"]) is Timestamp
    assert at.must("admin", {"getDefaultRWConcern": 1, "inMemory": True})["inMemory"] is True
    reply = at.run("t", {"insert": "c", "documents": [{}]})
    assert reply["writeConcernError"]["errInfo"]["writeConcern"] == {
        "w": 2, "wtimeout": 5, "provenance": "customDefault",
    }  # fmt: skip
    assert "writeConcernError" not in insert(at, {"w": 1})
    at.must("admin", {"setDefaultRWConcern": 1, "defaultReadConcern": {}, "defaultWriteConcern": {"w": 1}})
    shown = at.must("admin", {"getDefaultRWConcern": 1})
    assert (shown["defaultReadConcern"], shown["defaultReadConcernSource"]) == ({"level": "local"}, "implicit")
    unset: Any = at.run("admin", {"setDefaultRWConcern": 1, "defaultWriteConcern": {}})
    assert unset["code"] == 20
    shown = at.must("admin", {"getClusterParameter": "*"})
    assert "ReadWriteConcernDefaults" not in {item["_id"] for item in shown["clusterParameters"]}


def test_defaults_outlive_the_server(tmp_path: Path) -> None:
    with DrivenServer(tmp_path) as at:
        at.must("admin", {"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1, "j": True}})
    with DrivenServer(tmp_path) as at:
        shown = at.must("admin", {"getDefaultRWConcern": 1})["defaultWriteConcern"]
        assert shown == {"w": 1, "j": True, "wtimeout": 0}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 2), ({"defaultWriteConcern": 1}, 14), ({"defaultReadConcern": "local"}, 14), ({"nope": 1}, 40415),
        ({"defaultWriteConcern": {"w": 0}}, 2), ({"defaultWriteConcern": {"j": True}}, 2),
        ({"defaultWriteConcern": {"w": "other"}}, 79), ({"defaultWriteConcern": {"w": -1}}, 9),
        ({"defaultWriteConcern": {"w": 1, "provenance": "clientSupplied"}}, 2),
        ({"defaultReadConcern": {"level": "snapshot"}}, 2), ({"defaultReadConcern": {"level": "linearizable"}}, 2),
        ({"defaultReadConcern": {"level": "other"}}, 2), ({"defaultReadConcern": {"level": 1}}, 14),
        ({"defaultReadConcern": {"level": "local", "afterClusterTime": Timestamp(1, 1)}}, 2),
        ({"defaultReadConcern": {"level": "local", "provenance": "clientSupplied"}}, 2),
    ],
)  # fmt: skip
def test_what_cannot_be_a_default_is_refused(at: DrivenServer, body: Document, code: int) -> None:
    reply: Any = at.run("admin", {"setDefaultRWConcern": 1, **body})
    assert reply["code"] == code
    assert at.must("admin", {"getDefaultRWConcern": 1})["defaultWriteConcernSource"] == "implicit"
