"""The `mongodb` sink by name: drops and renames given again, large documents by their fields, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

import headrace
from headrace.spark.jobs.start_checks import problems
from headrace.spark.rows.events import INVALIDATING, SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.mongodb_sink import PerCollectionSink, mongodb_sink
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.progress import CollectionGone
from tests.spark.jobs.test_start_checks import job_of
from tests.spark.support.generated_changes import table_of, token_at

pytestmark = pytest.mark.long

Db = Database[dict[str, Any]]


@pytest.fixture
def target(database: Db) -> Iterator[Db]:
    yield database


def event(time: int, kind: str, collection: str = "c", key: Any = None, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    return Row(
        token_at(time), (1_700_000_000 + time) * 1_000_000, 1, kind, "source", collection,
        None if key is None else dumps({"_id": key}),
    )._replace(**texts)  # fmt: skip


EVENTS = [
    event(1, "insert", "a", 1, fullDocument={"_id": 1, "n": Int64(1)}),
    event(2, "insert", "b", 1, fullDocument={"_id": 1, "of": "b"}),
    event(3, "update", "a", 1, updateDescription={"updatedFields": {"n": 2}, "removedFields": []}),
    event(4, "rename", "a", other={"to": {"db": "source", "coll": "b"}}),
    event(5, "insert", "a", 2, fullDocument={"_id": 2}),
    event(6, "update", "b", 1, updateDescription={"updatedFields": {"m": [3]}, "removedFields": []}),
    event(7, "insert", "gone", 1, fullDocument={"_id": 1}),
    event(8, "drop", "gone"),
    event(9, "delete", "a", 2),
    event(10, "insert", "gone", 2, fullDocument={"_id": 2}),
]
EXPECTED = {"b": [{"_id": 1, "n": 2, "m": [3]}], "gone": [{"_id": 2}]}


def contents(target: Db) -> dict[str, list[dict[str, Any]]]:
    names = [name for name in target.list_collection_names() if not name.startswith("headrace.")]
    return {name: documents for name in names if (documents := list(target[name].find()))}


def test_each_row_goes_to_the_collection_of_its_name_through_renames_and_drops(uri: str, target: Db) -> None:
    sink = mongodb_sink(uri, database=target.name)
    assert sink.apply(MicroBatch("q", 0, table_of(EVENTS)))
    assert contents(target) == EXPECTED
    ended = {row.collection for row in EVENTS if row.operationType in INVALIDATING}
    named = {("source", row.collection): row.collection in ended for row in EVENTS if row.collection}
    assert isinstance(sink, PerCollectionSink) and sink.take_committed() == named and not sink.take_committed()
    assert mongodb_sink(uri, database=target.name).apply(MicroBatch("another", 0, table_of(EVENTS)))
    assert contents(target) == EXPECTED


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(40))
def test_crashed_at_any_write_and_given_again_it_ends_the_same(
    uri: str, target: Db, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    count = 0

    def crashing(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 2
            if count - 2 == step:
                raise Crash
            answer = original(*arguments, **named)
            if count - 1 == step:
                raise Crash
            return answer

        return call

    with monkeypatch.context() as patch:
        for name in ("bulk_write", "replace_one", "update_one"):
            patch.setattr(Collection, name, crashing(getattr(Collection, name)))
        for name in ("_rename", "_drop"):
            patch.setattr(PerCollectionSink, name, crashing(getattr(PerCollectionSink, name)))
        with suppress(Crash):
            mongodb_sink(uri, database=target.name).apply(MicroBatch("q", 0, table_of(EVENTS)))
    mongodb_sink(uri, database=target.name).apply(MicroBatch("q", 0, table_of(EVENTS)))
    assert contents(target) == EXPECTED


@pytest.mark.parametrize("collection", ["c", None])
def test_a_copy_that_was_removed_does_not_begin_anew_with_the_next_batch(
    uri: str, target: Db, collection: str | None
) -> None:
    first, second = ([event(time, "insert", "c", time, fullDocument={"_id": time})] for time in (1, 2))
    sink = mongodb_sink(uri, database=target.name, collection=collection)
    sink.apply(MicroBatch("q", 0, table_of(first)))
    target.c.drop()
    for each in (sink, mongodb_sink(uri, database=target.name, collection=collection)):
        with pytest.raises(TableGone, match=r"c is gone, while headrace.positions .* `headrace pipeline reset --data`"):
            each.apply(MicroBatch("q", 1, table_of(second)))
    target.client.drop_database(target.name)
    with pytest.raises(TableGone, match="c is gone, while this job knows"):
        sink.apply(MicroBatch("q", 1, table_of(second)))
    assert not contents(target)


def test_a_copy_without_documents_need_not_be_there(uri: str, target: Db) -> None:
    sink = mongodb_sink(uri, database=target.name, collection="c")
    for number in range(2):
        sink.apply(MicroBatch("q", number, table_of([event(number, "create")])))
    sink.apply(MicroBatch("q", 2, table_of([event(5, "insert", "c", 1, fullDocument={"_id": 1})])))
    sink.apply(MicroBatch("q", 3, table_of([event(6, "delete", "c", 1)])))
    sink.apply(MicroBatch("q", 4, table_of([event(7, "insert", "c", 2, fullDocument={"_id": 2})])))
    assert contents(target) == {"c": [{"_id": 2}]}


def test_a_large_document_is_updated_by_its_fields(uri: str, target: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"_id": 1, "text": "x" * 3000, "n": 1, "m": 1, "gone": 1}
    rows = [event(1, "insert", "c", 1, fullDocument=large)]
    sink = mongodb_sink(uri, database=target.name, collection="c")
    sink.apply(MicroBatch("q", 0, table_of(rows)))
    target.c.update_one({"_id": 1}, {"$set": {"theirs": True}})
    sent: list[Any] = []
    original = Collection.bulk_write

    def keep(self: Any, operations: Any, **named: Any) -> Any:
        sent.extend(operations)
        return original(self, operations, **named)

    monkeypatch.setattr(Collection, "bulk_write", keep)
    description = {"updatedFields": {"n": 2}, "removedFields": ["gone"]}
    sink.apply(MicroBatch("q", 1, table_of([event(2, "update", "c", 1, updateDescription=description)])))
    assert "x" * 100 not in str(sent)
    assert target.c.find_one() == {"_id": 1, "text": "x" * 3000, "n": 2, "m": 1, "theirs": True}


def test_with_fail_a_rename_stops_it_and_with_keep_it_is_passed_over(uri: str, target: Db) -> None:
    with pytest.raises(CollectionGone, match=r"rename of source\.a"):
        mongodb_sink(uri, database=target.name, policy="fail").apply(MicroBatch("q", 0, table_of(EVENTS)))
    assert contents(target) == {"a": [{"_id": 1, "n": 2}], "b": [{"_id": 1, "of": "b"}]}
    mongodb_sink(uri, database=target.name, policy="keep").apply(MicroBatch("q", 0, table_of(EVENTS)))
    assert contents(target)["gone"] == [{"_id": 1}, {"_id": 2}]


def test_a_collection_without_its_database_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="needs its database"):
        mongodb_sink(uri, collection="c")


def test_a_document_that_comes_back_with_a_key_of_another_type_stays(uri: str, target: Db) -> None:
    sink = mongodb_sink(uri, database=target.name, collection="c")
    sink.apply(MicroBatch("q", 0, table_of([event(1, "insert", "c", 1, fullDocument={"_id": 1})])))
    again = [event(2, "delete", "c", 1), event(3, "insert", "c", 1.0, fullDocument={"_id": 1.0, "n": 1})]
    sink.apply(MicroBatch("q", 1, table_of(again)))
    assert [repr(document) for document in target.c.find()] == ["{'_id': 1.0, 'n': 1}"]
    decimal = Decimal128("1.00")
    replaced = [event(4, "replace", "c", 1.0, fullDocument={"_id": decimal, "n": 2})]
    description = {"updatedFields": {"n": 3}, "removedFields": []}
    replaced.append(event(5, "update", "c", decimal, updateDescription=description))
    sink.apply(MicroBatch("q", 2, table_of(replaced)))
    assert list(target.c.find()) == [{"_id": decimal, "n": 3}]


def test_a_snapshot_and_the_events_before_it_agree_on_a_key_of_two_types(uri: str, target: Db) -> None:
    """The events say: 1 was inserted, deleted, inserted as 1.0; the snapshot has seen the last of these already."""
    snapshot = [
        event(0, SNAPSHOT_BEGIN),
        event(4, SNAPSHOT, "c", 1.0, fullDocument={"_id": 1.0, "n": 1}),
        event(4, SNAPSHOT_END),
    ]
    events = [
        event(1, "insert", "c", 1, fullDocument={"_id": 1}),
        event(2, "delete", "c", 1),
        event(3, "insert", "c", 1.0, fullDocument={"_id": 1.0, "n": 1}),
        event(5, "update", "c", 1.0, updateDescription={"updatedFields": {"n": 2}, "removedFields": []}),
    ]
    sink = mongodb_sink(uri, database=target.name, collection="c")
    for number, rows in enumerate([snapshot, *([row] for row in events)]):
        sink.apply(MicroBatch("q", number, table_of(rows)))
    assert [repr(document) for document in target.c.find()] == ["{'_id': 1.0, 'n': 2}"]


POISON = [
    {"_id": 1, "$set": 1, "a.b": {"$oid": "zz", "c.d": [{"$inc": 1}]}},
    {"_id": 2, "a": {"$binary": {"base64": "", "subType": "zz"}}, "": None},
    {"_id": 3, "$oid": "zz"},
    {"_id": {"a.b": 1}, "$ref": 1},
]


@pytest.mark.parametrize("before", [{}, {"text": "x" * 3000}])
def test_documents_with_dollars_and_dots_are_copied_as_they_are(uri: str, target: Db, before: dict[str, Any]) -> None:
    """The first time each is inserted, then replaced, then updated: through the redo of a commit."""
    sink = mongodb_sink(uri, database=target.name, collection="c")
    inserted = [event(n, "insert", "c", d["_id"], fullDocument=d | before) for n, d in enumerate(POISON, 1)]
    replaced = [event(n, "replace", "c", d["_id"], fullDocument=d | before) for n, d in enumerate(POISON, 11)]
    diff = {"$v": 2, "diff": {"i": {"$new": {"$oid": "yy"}}}}
    updated = [event(n, "update", "c", d["_id"], updateDescription=diff) for n, d in enumerate(POISON, 21)]
    for number, rows in enumerate([inserted, replaced, updated]):
        sink.apply(MicroBatch("q", number, table_of(rows)))
    expected = [repr(d | before | {"$new": {"$oid": "yy"}}) for d in POISON]
    assert [repr(document) for document in target.c.find()] == expected


def test_fields_that_an_update_adds_are_in_the_sources_order(uri: str, target: Db) -> None:
    sink = mongodb_sink(uri, database=target.name, collection="c")
    large = {"_id": 1, "text": "x" * 3000, "n": 1, "m": 1, "k": 1}
    sink.apply(MicroBatch("q", 0, table_of([event(1, "insert", "c", 1, fullDocument=large)])))
    diff = {"$v": 2, "diff": {"i": {"z": 1, "a": 2}}}
    sink.apply(MicroBatch("q", 1, table_of([event(2, "update", "c", 1, updateDescription=diff)])))
    assert list(target.c.find_one() or {}) == [*large, "z", "a"]


def test_a_user_without_the_right_to_write_the_target_is_named(uri: str, tmp_path: Path) -> None:
    roles = [{"role": "read", "db": "copy"}, {"role": "read", "db": "d"}]
    with headrace.Server(users={"reader": {"pwd": "pw", "roles": roles}}) as target:
        reading = target.uri.replace("mongodb://", "mongodb://reader:pw@").replace("?", "?authSource=admin&")
        sink = {"kind": "mongodb", "uri": reading, "database": "copy", "collection": "c"}
        (line,) = problems(job_of(uri, tmp_path, sink))
        assert line == (
            "MayNotWrite: the target copy.c gives the user no right to write c: it needs the role 'readWrite' on copy"
        )


@pytest.mark.parametrize("collection", ["c", None])
@pytest.mark.parametrize("database", ["copy", None])
def test_a_user_without_the_right_to_write_collections_by_their_names_is_named(
    tmp_path: Path, database: str | None, collection: str | None
) -> None:
    roles = {"reader": [{"role": "read", "db": "copy"}, {"role": "read", "db": "d"}]}
    roles["writer"] = [{"role": "readWrite", "db": database or "d"}]
    users = {name: {"pwd": "pw", "roles": some} for name, some in roles.items()}
    with headrace.Server() as source, headrace.Server(users=users) as target:
        with MongoClient[dict[str, Any]](source.uri) as client:
            client.d.c.insert_one({"_id": 1})
        for user in users:
            uri = target.uri.replace("mongodb://", f"mongodb://{user}:pw@").replace("?", "?authSource=admin&")
            sink = {"kind": "mongodb", "uri": uri} | ({"database": database} if database else {})
            lines = problems(job_of(source.uri, tmp_path, sink, collection=collection))
            name = database or "d"
            assert lines == [
                f"MayNotWrite: the target {name}.c gives the user no right to write c: it needs the role 'readWrite' "
                f"on {name}"
            ] * (user == "reader")
