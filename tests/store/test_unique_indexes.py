"""Unique indexes: which documents collide, and that a refused write leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.store.catalog_changes import collect_garbage
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer


def server(key: dict[str, Any], **options: Any) -> DrivenServer:
    made = DrivenServer(clock=FakeClock())
    made.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i", "unique": True, **options}]})
    return made


def insert(at: DrivenServer, **document: Any) -> int:
    """0, or the code with which the document was refused."""
    try:
        at.must("t", {"insert": "c", "documents": [document]})
    except CommandError as error:
        return error.code
    return 0


COLLISIONS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], int]] = [
    ({"a": 1}, {}, {"a": 1}, {"a": 1.0}, 11000),
    ({"a": 1}, {}, {"a": 1}, {"a": "1"}, 0),
    ({"a": 1}, {}, {"a": 1}, {"a": True}, 0),
    ({"a": 1}, {}, {}, {}, 11000),
    ({"a": 1}, {}, {}, {"a": None}, 11000),
    ({"a": 1}, {}, {"a": []}, {"a": None}, 0),
    ({"a": 1}, {}, {"a": []}, {"a": []}, 11000),
    ({"a": 1}, {}, {"a": [1, 2]}, {"a": 2}, 11000),
    ({"a": 1}, {}, {"a": [1, 2]}, {"a": [2, 3]}, 11000),
    ({"a": 1}, {}, {"a": [1, 2]}, {"a": [3]}, 0),
    ({"a": 1}, {}, {"a": [[1, 2]]}, {"a": [1]}, 0),
    ({"a": 1}, {}, {"a": [[1, 2]]}, {"a": [[1, 2]]}, 11000),
    ({"a": 1}, {}, {"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, 0),
    ({"a.b": 1}, {}, {"a": [{"b": 1}, {"b": 2}]}, {"a": {"b": 2}}, 11000),
    ({"a.b": 1}, {}, {"a": [{"b": [1, 2]}, {"b": 3}]}, {"a": {"b": 2}}, 11000),
    ({"a.b": 1}, {}, {"a": [1, {"b": 2}]}, {}, 11000),
    ({"a.b": 1}, {}, {"a": []}, {"a": 5}, 11000),
    ({"a.0": 1}, {}, {"a": [1, 2]}, {"a": [2, 1]}, 0),
    ({"a.0": 1}, {}, {"a": [1, 2]}, {"a": [1, 3]}, 11000),
    ({"a.0.b": 1}, {}, {"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 2}]}, 0),
    ({"a": 1, "b": 1}, {}, {"a": 1, "b": 1}, {"a": 1, "b": 2}, 0),
    ({"a": 1, "b": 1}, {}, {"a": 1, "b": [1, 2]}, {"a": 1, "b": 2}, 11000),
    ({"a.b": 1, "a.c": 1}, {}, {"a": [{"b": 1, "c": 1}, {"b": 2, "c": 2}]}, {"a": {"b": 1, "c": 2}}, 0),
    ({"a.b": 1, "a.c": 1}, {}, {"a": [{"b": 1, "c": 1}, {"b": 2, "c": 2}]}, {"a": {"b": 2, "c": 2}}, 11000),
    ({"a": 1, "a.b": 1}, {}, {"a": [{"b": 1}]}, {"a": {"b": 1}}, 11000),
    ({"a": 1}, {"sparse": True}, {}, {}, 0),
    ({"a": 1}, {"sparse": True}, {"a": None}, {"a": None}, 11000),
    ({"a": 1, "b": 1}, {"sparse": True}, {"b": 1}, {"b": 1}, 11000),
    ({"a": 1, "b": 1}, {"sparse": True}, {"c": 1}, {"c": 1}, 0),
    ({"a.b": 1}, {"sparse": True}, {"a": [{"c": 1}, {"b": 1}]}, {"a": {"c": 1}}, 0),
    ({"a": 1}, {"partialFilterExpression": {"n": {"$gt": 5}}}, {"a": 1, "n": 1}, {"a": 1, "n": 9}, 0),
    ({"a": 1}, {"partialFilterExpression": {"n": {"$gt": 5}}}, {"a": 1, "n": 8}, {"a": 1, "n": 9}, 11000),
]  # fmt: skip


@pytest.mark.parametrize(("key", "options", "first", "second", "code"), COLLISIONS)
def test_two_documents_collide_or_do_not(
    key: dict[str, Any], options: dict[str, Any], first: dict[str, Any], second: dict[str, Any], code: int
) -> None:
    with server(key, **options) as at:
        assert insert(at, _id=1, **first) == 0
        assert insert(at, _id=2, **second) == code
        at.must("t", {"dropIndexes": "c", "index": "i"})
        assert insert(at, _id=2, **second) == (0 if code else 11000)
        again = at.run("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i", "unique": True, **options}]})
        assert isinstance(again, dict) and again.get("code", 0) == code


def test_paths_through_two_arrays_are_refused() -> None:
    with server({"a": 1, "b": 1}) as at:
        assert insert(at, _id=1, a=[1], b=[2]) == 171
        assert insert(at, _id=1, a=[1], b=2) == 0


def test_an_update_frees_what_the_document_held_and_takes_what_it_has() -> None:
    with server({"a": 1}) as at:
        assert insert(at, _id=1, a=[1, 2]) == 0 and insert(at, _id=2, a=9) == 0
        at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": [2, 3]}}}]})
        assert insert(at, _id=3, a=1) == 0
        assert insert(at, _id=4, a=2) == 11000 and insert(at, _id=4, a=3) == 11000
        with pytest.raises(CommandError) as refused:
            at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 9}}}]})
        assert refused.value.code == 11000 and insert(at, _id=4, a=3) == 11000
        at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
        assert insert(at, _id=4, a=3) == 0


def test_a_document_that_leaves_a_partial_index_frees_its_key() -> None:
    with server({"a": 1}, partialFilterExpression={"live": True}) as at:
        assert insert(at, _id=1, a=1, live=True) == 0
        at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"live": False}}}]})
        assert insert(at, _id=2, a=1, live=True) == 0
        with pytest.raises(CommandError) as refused:
            at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"live": True}}}]})
        assert refused.value.code == 11000


def test_a_refused_index_leaves_only_garbage() -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n, "b": 0} for n in range(3)]})
        specs = [{"key": {name: 1}, "name": name, "unique": True} for name in ("a", "b")]
        reply = at.run("t", {"createIndexes": "c", "indexes": specs})
        assert isinstance(reply, dict) and reply["code"] == 11000
        txn = at.store.begin()
        while collect_garbage(txn, 1000):
            pass
        at.store.commit(txn)
        with at.store.reading() as view:
            assert view.kv.stat(view.tables["indexes"])["entries"] == 0


def test_a_batch_goes_as_far_as_the_first_collision_or_past_it_when_unordered() -> None:
    with server({"a": 1}) as at:
        documents = [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}, {"_id": 3, "a": 3}]
        reply = at.run("t", {"insert": "c", "documents": documents})
        assert isinstance(reply, dict) and (reply["n"], [item["index"] for item in reply["writeErrors"]]) == (1, [1])
        reply = at.run("t", {"insert": "c", "documents": documents, "ordered": False})
        assert isinstance(reply, dict)
        assert (reply["n"], [item["index"] for item in reply["writeErrors"]]) == (1, [0, 1])


def test_a_unique_index_with_a_collation_refuses_what_the_collation_calls_equal() -> None:
    import pymongo
    from pymongo.collation import Collation
    from pymongo.errors import DuplicateKeyError

    import headrace

    with headrace.Server() as server, pymongo.MongoClient(server.uri) as client:
        client.t.c.create_index("a", unique=True, collation=Collation("en", strength=2))
        client.t.c.insert_one({"a": "Straße"})
        client.t.c.insert_one({"a": "other"})
        with pytest.raises(DuplicateKeyError):
            client.t.c.insert_one({"a": "STRASSE".replace("SS", "ß")})
        client.t.create_collection("d", collation=Collation("en", strength=1))
        client.t.d.create_index("a", unique=True)
        client.t.d.insert_one({"a": ["e"]})
        with pytest.raises(DuplicateKeyError):
            client.t.d.insert_one({"a": "É"})
