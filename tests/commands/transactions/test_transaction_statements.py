"""Multi-document transactions as clients see them: statements, conflicts, ends, and what the oplog tells."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp

from headrace.dispatch import transactions
from headrace.dispatch.wait import Wait
from headrace.store.catalog import Catalog
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode

INC = {"$inc": {"a": 1}}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        server.must("d", {"insert": "c", "documents": [{"_id": 1, "a": 0}, {"_id": 2, "a": 0}]})
        yield server


class Session:
    """A client's session: adds to its statements what ties them to its transaction."""

    def __init__(self, at: DrivenServer, number: int) -> None:
        self.at = at
        self.lsid = {"id": Binary(bytes([number]) * 16, 4)}
        self.number = 0
        self._begins = False

    def begin(self) -> Session:
        self.number += 1
        self._begins = True
        return self

    def run(self, body: dict[str, Any], database: str = "d") -> Any:
        more: dict[str, Any] = {"lsid": self.lsid, "txnNumber": Int64(self.number), "autocommit": False}
        if self._begins:
            more["startTransaction"], self._begins = True, False
        return self.at.run(database, {**body, **more})

    def code(self, body: dict[str, Any], database: str = "d") -> int:
        reply = self.run(body, database)
        return int(reply.get("code", 0))

    def insert(self, *ids: Any, into: str = "c") -> Any:
        return self.run({"insert": into, "documents": [{"_id": number} for number in ids]})

    def inc(self, spec: dict[str, Any], **more: Any) -> Any:
        return self.run({"update": "c", "updates": [{"q": spec, "u": INC, **more}]})

    def find(self, spec: dict[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
        return list(self.run({"find": "c", "filter": spec or {}, **more})["cursor"]["firstBatch"])

    def commit(self) -> Any:
        return self.run({"commitTransaction": 1}, "admin")

    def abort(self) -> Any:
        return self.run({"abortTransaction": 1}, "admin")


def documents(at: DrivenServer, collection: str = "c") -> list[dict[str, Any]]:
    return list(at.must("d", {"find": collection})["cursor"]["firstBatch"])


def oplog(at: DrivenServer) -> list[dict[str, Any]]:
    with at.store.reading() as view:
        return [decode(entry) for _, entry in view.entries(0)]


def inc(spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"update": "c", "updates": [{"q": spec, "u": INC, **more}]}


# What statements see and do.


def test_only_the_transaction_sees_its_writes_before_the_commit(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    assert one.insert(3)["n"] == 1
    assert one.inc({"_id": 1})["nModified"] == 1
    one.run({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]})
    assert one.find() == [{"_id": 1, "a": 1}, {"_id": 3}]
    assert documents(at) == [{"_id": 1, "a": 0}, {"_id": 2, "a": 0}]
    assert one.commit()["ok"] == 1.0
    assert documents(at) == [{"_id": 1, "a": 1}, {"_id": 3}]


def test_every_reading_statement_reads_the_snapshot(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.find()
    at.must("d", inc({}, multi=True))
    at.must("d", {"insert": "c", "documents": [{"_id": 3, "a": 9}]})
    assert one.find({"_id": 1}) == [{"_id": 1, "a": 0}] and one.find({"_id": 3}) == []
    assert one.find({"a": 1}) == [] and one.find(sort={"_id": -1})[0] == {"_id": 2, "a": 0}
    assert one.run({"distinct": "c", "key": "a"})["values"] == [0]
    total = {"$group": {"_id": None, "n": {"$sum": 1}}}
    assert one.run({"aggregate": "c", "pipeline": [total], "cursor": {}})["cursor"]["firstBatch"] == [
        {"_id": None, "n": 2}
    ]


def test_a_cursor_belongs_to_its_transaction_and_ends_with_it(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    cursor = one.run({"find": "c", "batchSize": 1})["cursor"]["id"]
    more = {"getMore": cursor, "collection": "c"}
    assert at.run("d", more)["code"] == 50740  # type: ignore[index]
    at.must("d", inc({}, multi=True))
    assert one.run(more)["cursor"]["nextBatch"] == [{"_id": 2, "a": 0}]
    cursor = one.run({"find": "c", "batchSize": 1})["cursor"]["id"]
    one.commit()
    assert at.run("d", {"getMore": cursor, "collection": "c"})["code"] == 43  # type: ignore[index]


def test_find_and_modify_in_a_transaction_replies_with_the_transactions_state(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    for expected in (1, 2):
        reply = one.run({"findAndModify": "c", "query": {"_id": 1}, "update": INC, "new": True})
        assert reply["value"]["a"] == expected
    upsert = {"findAndModify": "c", "query": {"_id": 7}, "update": INC, "upsert": True, "new": True}
    assert one.run(upsert)["value"] == {"_id": 7, "a": 1}
    one.commit()
    assert [document["a"] for document in documents(at)] == [2, 0, 1]


def test_documents_stand_in_natural_order_as_of_the_commit(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(8, 7)
    at.must("d", {"insert": "c", "documents": [{"_id": 9}]})
    one.commit()
    assert [document["_id"] for document in documents(at)] == [1, 2, 9, 8, 7]
    at.must("d", {"insert": "c", "documents": [{"_id": 10}]})
    assert at.must("d", {"count": "c"})["n"] == 6 and documents(at)[-1] == {"_id": 10}


def test_a_collection_made_in_a_transaction_is_there_after_the_commit_with_its_indexes(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    assert one.run({"create": "e"})["ok"] == 1.0
    index = {"key": {"k": 1}, "name": "k_1", "unique": True}
    assert one.run({"createIndexes": "e", "indexes": [index]})["numIndexesAfter"] == 2
    one.run({"insert": "e", "documents": [{"_id": 1, "k": 1}]})
    assert at.must("d", {"listCollections": 1, "nameOnly": True})["cursor"]["firstBatch"] == [
        {"name": "c", "type": "collection"}
    ]
    one.commit()
    reply = at.run("d", {"insert": "e", "documents": [{"_id": 2, "k": 1}]})
    assert reply["writeErrors"][0]["code"] == 11000  # type: ignore[index]
    items = oplog(at)[-1]["o"]["applyOps"]
    assert [(item["op"], next(iter(item["o"]))) for item in items] == [
        ("c", "create"),
        ("c", "createIndexes"),
        ("i", "_id"),
    ]
    assert items[2]["ui"] == items[0]["ui"]


def test_what_was_made_and_removed_again_leaves_nothing_but_its_entry(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5)
    one.run({"delete": "c", "deletes": [{"q": {"_id": 5}, "limit": 1}]})
    one.commit()
    assert [document["_id"] for document in documents(at)] == [1, 2] and at.must("d", {"count": "c"})["n"] == 2
    assert [item["op"] for item in oplog(at)[-1]["o"]["applyOps"]] == ["i", "d"]


# Conflicts.


def test_the_second_transaction_to_write_a_document_is_aborted(at: DrivenServer) -> None:
    one, two = Session(at, 1).begin(), Session(at, 2).begin()
    one.inc({"_id": 1})
    reply = two.inc({"_id": 1})
    assert (reply["code"], reply["codeName"], reply["errorLabels"]) == (
        112,
        "WriteConflict",
        ["TransientTransactionError"],
    )
    assert two.code({"find": "c"}) == 251
    assert one.commit()["ok"] == 1.0
    assert two.begin().inc({"_id": 1})["n"] == 1 and two.commit()["ok"] == 1.0
    assert documents(at)[0] == {"_id": 1, "a": 2}


@pytest.mark.parametrize(
    "statement",
    [
        {"insert": "c", "documents": [{"_id": 5}]},
        {"update": "c", "updates": [{"q": {"_id": 1}, "u": INC}]},
        {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]},
        {"findAndModify": "c", "query": {"_id": 1}, "update": INC},
    ],
    ids=lambda statement: next(iter(statement)),
)
def test_what_others_changed_after_the_start_conflicts(at: DrivenServer, statement: dict[str, Any]) -> None:
    one = Session(at, 1).begin()
    one.find()
    at.must("d", inc({"_id": 1}))
    at.must("d", {"insert": "c", "documents": [{"_id": 5}]})
    assert one.code(statement) == 112


def test_one_unique_key_cannot_be_taken_by_two_transactions(at: DrivenServer) -> None:
    at.must("d", {"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k", "unique": True, "sparse": True}]})
    one, two = Session(at, 1).begin(), Session(at, 2).begin()
    assert one.run({"insert": "c", "documents": [{"_id": 5, "k": 1}]})["n"] == 1
    assert two.code({"insert": "c", "documents": [{"_id": 6, "k": 1}]}) == 112
    assert one.run({"insert": "c", "documents": [{"_id": 7, "k": 1}]})["writeErrors"][0]["code"] == 11000


def test_a_failed_statement_aborts_its_transaction(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5)
    assert one.insert(1)["writeErrors"][0]["code"] == 11000
    assert one.commit()["errorLabels"] == ["TransientTransactionError"]
    assert one.begin().code({"find": "c", "filter": {"$no": 1}}) == 2
    assert one.code({"find": "c"}) == 251
    assert len(documents(at)) == 2


def test_a_collection_that_changed_after_the_start_has_no_snapshot(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.find()
    at.must("d", {"create": "e"})
    reply = one.run({"find": "e"})
    assert (reply["code"], reply["errorLabels"]) == (246, ["TransientTransactionError"])


# Writes outside transactions.


@pytest.mark.parametrize(
    "body",
    [
        inc({}, multi=True),
        {"insert": "c", "documents": [{"_id": 8}, {"_id": 5}]},
        {"delete": "c", "deletes": [{"q": {}, "limit": 0}]},
        {"findAndModify": "c", "query": {"_id": 1}, "remove": True},
        {"insert": "e", "documents": [{"_id": 1}]},
        {"aggregate": "c", "pipeline": [{"$set": {"z": 1}}, {"$merge": "c"}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$out": "c"}], "cursor": {}},
        {"drop": "c"},
        {"dropDatabase": 1},
        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_write_waits_for_the_transaction_in_its_way_and_has_done_nothing(
    at: DrivenServer, body: dict[str, Any]
) -> None:
    one = Session(at, 1).begin()
    one.inc({"_id": 1})
    one.insert(5)
    one.insert(1, into="e")
    before, entries = documents(at), len(oplog(at))
    answer = at.run("d", body)
    assert isinstance(answer, Wait) and answer.over is not None and not answer.over()
    assert at.run("d", body, time_is_up=True)["code"] == 50  # type: ignore[index]
    assert documents(at) == before and len(oplog(at)) == entries
    one.abort()
    assert answer.over()
    assert at.must("d", body)


def test_a_rename_waits_for_who_has_read_the_collection(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.find()
    rename = {"renameCollection": "d.c", "to": "d.z"}
    assert isinstance(at.run("admin", rename), Wait)
    one.commit()
    assert at.must("admin", rename)


def test_a_write_elsewhere_does_not_wait(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.inc({"_id": 1})
    assert at.must("d", inc({"_id": 2}))["nModified"] == 1
    assert one.commit()["ok"] == 1.0
    assert [document["a"] for document in documents(at)] == [1, 1]


def test_a_write_behind_the_commit_in_the_same_group_need_not_wait(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.inc({"_id": 1})
    commit = {"commitTransaction": 1, "lsid": one.lsid, "txnNumber": Int64(1), "autocommit": False}
    replies = at.together([("admin", commit), ("admin", commit), ("d", inc({"_id": 1}))])
    assert [reply["ok"] for reply in replies] == [1.0, 1.0, 1.0] and documents(at)[0]["a"] == 2


def test_a_commit_that_was_given_up_may_be_sent_again(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5, into="e")
    commit = {"commitTransaction": 1, "lsid": one.lsid, "txnNumber": Int64(1), "autocommit": False}
    at.given_up([("admin", commit)])
    assert documents(at, "e") == []
    assert one.run({"find": "e"})["cursor"]["firstBatch"] == [{"_id": 5}]
    assert one.commit()["ok"] == 1.0 and documents(at, "e") == [{"_id": 5}]


def test_while_a_commit_is_on_its_way_to_the_disk_transactions_wait(at: DrivenServer) -> None:
    one, two = Session(at, 1).begin(), Session(at, 2).begin()
    one.inc({"_id": 1})
    seen: list[Any] = []
    at.between = lambda stage: seen.extend([two.begin().run({"find": "c"}), one.run({"find": "c"}), one.abort()])
    woken: list[str] = []
    at.store.transactions.wake_listeners.append(woken.append)
    assert one.commit()["ok"] == 1.0
    assert len(seen) == 6 and all(isinstance(answer, Wait) for answer in seen)
    assert set(woken) == {answer.scope for answer in seen}


# Numbers, ends and errors.


def test_commits_and_aborts_say_what_became_of_the_transaction(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5)
    assert one.commit()["ok"] == one.commit()["ok"] == 1.0
    assert (one.abort()["code"], one.code({"find": "c"})) == (256, 256)
    one.begin().insert(6)
    assert one.abort()["ok"] == 1.0
    reply = one.abort()
    assert (reply["code"], reply["errorLabels"]) == (251, ["TransientTransactionError"])
    assert one.commit()["errmsg"] == "Transaction 2 has been aborted."
    one.number = 1
    assert one.code({"find": "c"}) == 225
    one.number = 9
    assert "The active transaction number is 2" in one.commit()["errmsg"]


def test_a_number_is_used_once(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5)
    one.number -= 1
    assert one.begin().code({"find": "c"}) == 117
    assert one.insert(6)["n"] == 1 and one.commit()["ok"] == 1.0
    retryable = {"insert": "c", "documents": [{"_id": 7}], "lsid": one.lsid}
    assert at.run("d", {**retryable, "txnNumber": Int64(1)})["code"] == 72  # type: ignore[index]
    assert at.must("d", {**retryable, "txnNumber": Int64(2)})["n"] == 1
    one.number = 1
    assert one.begin().code({"find": "c"}) == 117


def test_a_later_number_aborts_what_the_session_has_open(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(5)
    assert one.begin().insert(5)["n"] == 1
    at.must("d", {"insert": "c", "documents": [{"_id": 6}], "lsid": one.lsid, "txnNumber": Int64(3)})
    assert one.code({"find": "c"}) == 225
    assert [document["_id"] for document in documents(at)] == [1, 2, 6]


@pytest.mark.parametrize(
    ("body", "database", "code"),
    [
        ({"count": "c"}, "d", 263),
        ({"drop": "c"}, "d", 263),
        ({"listCollections": 1}, "d", 263),
        ({"find": "c"}, "admin", 263),
        ({"find": "c"}, "config", 263),
        ({"find": "oplog.rs"}, "local", 263),
        ({"getMore": Int64(1), "collection": "c"}, "d", 263),
        ({"commitTransaction": 1}, "admin", 263),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}, "d", 263),
        ({"aggregate": "c", "pipeline": [{"$out": "e"}], "cursor": {}}, "d", 263),
        ({"create": "v", "viewOn": "c"}, "d", 263),
        ({"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}, "d", 263),
        ({"insert": "capped", "documents": [{}]}, "d", 263),
        ({"insert": "c", "documents": [{}], "writeConcern": {"w": 1}}, "d", 72),
        ({"find": "c", "readConcern": {"level": "available"}}, "d", 72),
        ({"find": "c", "readConcern": {"level": "snapshot", "atClusterTime": Timestamp(1, 1)}}, "d", 246),
    ],
)  # fmt: skip
def test_what_a_transaction_may_not_begin_with(
    at: DrivenServer, body: dict[str, Any], database: str, code: int
) -> None:
    at.must("d", {"create": "capped", "capped": True, "size": 4096})
    assert Session(at, 1).begin().code(body, database) == code
    assert not at.store.transactions.open


def test_an_index_that_is_there_may_be_asked_for_and_one_on_documents_may_not(at: DrivenServer) -> None:
    index = {"createIndexes": "c", "indexes": [{"key": {"_id": 1}, "name": "_id_"}]}
    assert Session(at, 1).begin().run(index)["numIndexesAfter"] == 1
    two = Session(at, 2).begin()
    two.insert(1, into="e")
    assert two.code({"createIndexes": "e", "indexes": [{"key": {"a": 1}, "name": "a"}]}) == 263


@pytest.mark.parametrize("level", ["local", "majority", "snapshot"])
def test_read_concern_is_said_at_the_start_and_nowhere_else(at: DrivenServer, level: str) -> None:
    one = Session(at, 1).begin()
    concern = {"level": level, "afterClusterTime": Timestamp(1, 1)}
    assert one.find(readConcern=concern) == documents(at)
    assert one.code({"find": "c", "readConcern": {"level": level}}) == 72


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"autocommit": True}, 72),
        ({"autocommit": 0}, 14),
        ({"startTransaction": False}, 72),
        ({"startTransaction": 1}, 14),
        ({"txnNumber": 1}, 14),
        ({"txnNumber": Int64(-1)}, 72),
        ({"txnNumber": None}, 72),
        ({"lsid": None}, 72),
        ({"autocommit": None}, 72),
    ],
)
def test_options_that_do_not_go_together(at: DrivenServer, more: dict[str, Any], code: int) -> None:
    body: dict[str, Any] = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(1), "autocommit": False}
    body = {"find": "c", **body, "startTransaction": True, **more}
    assert at.run("d", {name: value for name, value in body.items() if value is not None})["code"] == code  # type: ignore[index]


def test_an_end_outside_a_transaction_is_refused(at: DrivenServer) -> None:
    assert at.run("admin", {"commitTransaction": 1})["code"] == 125  # type: ignore[index]
    assert at.run("d", {"abortTransaction": 1})["code"] == 13  # type: ignore[index]
    assert Session(at, 1).commit()["code"] == 251


def test_a_standalone_has_no_transactions() -> None:
    with DrivenServer(clock=FakeClock(), oplog=False) as at:
        assert Session(at, 1).begin().code({"find": "c"}) == 20


def test_a_transaction_open_for_a_minute_is_aborted(at: DrivenServer) -> None:
    one, two = Session(at, 1).begin(), Session(at, 2).begin()
    one.inc({"_id": 1})
    at.clock.advance(59_000)  # type: ignore[attr-defined]
    two.inc({"_id": 2})
    transactions.retire(at.engine, at.clock.monotonic_ms())
    assert len(at.store.transactions.open) == 2
    at.clock.advance(1_000)  # type: ignore[attr-defined]
    assert one.code({"find": "c"}) == 251
    assert two.commit()["ok"] == 1.0
    at.clock.advance(31 * 60_000)  # type: ignore[attr-defined]
    transactions.retire(at.engine, at.clock.monotonic_ms())
    assert not at.store.transactions.latest


@pytest.mark.parametrize("command", ["endSessions", "killSessions", "killAllSessions", "killAllSessionsByPattern"])
def test_a_session_that_ends_takes_its_transaction_and_its_cursors_along(at: DrivenServer, command: str) -> None:
    one = Session(at, 1).begin()
    one.inc({"_id": 1})
    cursor = at.must("d", {"find": "c", "batchSize": 1, "lsid": one.lsid})["cursor"]["id"]
    listed = {"killAllSessions": [], "killAllSessionsByPattern": [{"lsid": one.lsid}]}.get(command, [one.lsid])
    at.must("admin", {command: listed})
    assert one.commit()["code"] == 251 and at.must("d", inc({"_id": 1}))["n"] == 1
    assert at.run("d", {"getMore": cursor, "collection": "c"})["code"] == 43  # type: ignore[index]


# What is kept.


def test_a_commit_is_one_entry_in_mongodbs_form(at: DrivenServer) -> None:
    one = Session(at, 1).begin()
    one.insert(3)
    one.inc({"_id": 1})
    one.run({"update": "c", "updates": [{"q": {"_id": 2}, "u": {"b": 1}}]})
    one.run({"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]})
    one.commit()
    entry = oplog(at)[-1]
    assert list(entry) == ["lsid", "txnNumber", "op", "ns", "o", "ts", "t", "v", "wall", "prevOpTime"]
    assert entry["prevOpTime"] == {"ts": Timestamp(0, 0), "t": Int64(-1)} and entry["ns"] == "admin.$cmd"
    items = entry["o"]["applyOps"]
    assert [list(item) for item in items] == [
        ["op", "ns", "ui", "o"],
        *[["op", "ns", "ui", "o", "o2"]] * 2,
        ["op", "ns", "ui", "o"],
    ]
    assert items[1]["o"] == {"$v": 2, "diff": {"u": {"a": 1}}} and items[2]["o"] == {"_id": 2, "b": 1}


def test_a_transaction_that_wrote_nothing_leaves_no_entry(at: DrivenServer) -> None:
    before = oplog(at)
    one = Session(at, 1).begin()
    one.find()
    assert one.commit()["ok"] == one.commit()["ok"] == 1.0 and oplog(at) == before


def test_a_large_transaction_is_a_chain_of_entries_and_one_sequence_of_events(at: DrivenServer) -> None:
    stream = at.must(
        "d", {"aggregate": "c", "pipeline": [{"$changeStream": {}}, {"$unset": "fullDocument.t"}], "cursor": {}}
    )
    one = Session(at, 1).begin()
    for number in range(5):
        one.run({"insert": "c", "documents": [{"_id": 10 + number, "t": "x" * 7_000_000}]})
    one.commit()
    chain = oplog(at)[-3:]
    assert [(len(entry["o"]["applyOps"]), *list(entry["o"])[1:]) for entry in chain] == [
        (2, "partialTxn"), (2, "partialTxn"), (1, "count"),
    ]  # fmt: skip
    assert chain[2]["o"]["count"] == 5 and [entry["prevOpTime"]["ts"] for entry in chain[1:]] == [
        entry["ts"] for entry in chain[:2]
    ]
    more = {"getMore": stream["cursor"]["id"], "collection": "c"}
    events = at.must("d", more)["cursor"]["nextBatch"]
    assert [event["documentKey"]["_id"] for event in events] == [10, 11, 12, 13, 14]
    assert {event["clusterTime"] for event in events} == {chain[2]["ts"]}


def test_events_of_a_transaction_have_their_pre_images(at: DrivenServer) -> None:
    at.must("d", {"collMod": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    options = {"fullDocumentBeforeChange": "required", "fullDocument": "required"}
    stream = at.must("d", {"aggregate": "c", "pipeline": [{"$changeStream": options}], "cursor": {}})
    one = Session(at, 1).begin()
    for _ in range(2):
        one.inc({"_id": 1})
    one.run({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    one.commit()
    events = at.must("d", {"getMore": stream["cursor"]["id"], "collection": "c"})["cursor"]["nextBatch"]
    assert [event["fullDocumentBeforeChange"]["a"] for event in events] == [0, 1, 2]
    assert [event["fullDocument"]["a"] for event in events[:2]] == [1, 2]


def test_a_commit_is_remembered_over_a_restart_and_an_open_transaction_is_not(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        one, two = Session(at, 1).begin(), Session(at, 2).begin()
        one.insert(1)
        two.insert(2)
        one.commit()
        at.restart()
        assert one.commit()["ok"] == 1.0 and one.abort()["code"] == 256
        assert two.commit()["code"] == 251
        assert documents(at) == [{"_id": 1}]
        one.number -= 1
        assert one.begin().code({"find": "c"}) == 117
        assert one.begin().insert(3)["n"] == 1 and one.commit()["ok"] == 1.0


def test_a_transaction_that_has_ended_holds_no_catalog(at: DrivenServer) -> None:
    """Every change of the catalog makes a new one, with all collections: each must be freed with its last reader."""

    def catalogs() -> int:
        gc.collect()
        return sum(issubclass(type(item), Catalog) for item in gc.get_objects())

    before = catalogs()
    for number in range(1, 9):
        session = Session(at, number).begin()
        session.insert(number)
        (session.abort if number % 2 else session.commit)()
        at.must("d", {"create": f"new{number}"})
    assert catalogs() <= before + 1
