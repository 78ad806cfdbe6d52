"""Documents that the target of a `mongodb` sink refuses: they go to the dead letters, the others are written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pymongo import InsertOne, ReplaceOne
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import BulkWriteError

import headrace.spark.tables.dead_letters
from headrace import limits
from headrace.spark.jobs.dead_letter_jobs import replay, with_dead_letters
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.sink_states import sink_states
from headrace.spark.jobs.start_checks import problems
from headrace.spark.jobs.status import job_status
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, client_of
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.dead_letter_sink import DeadLetterSink
from headrace.spark.sinks.folding_sink import MirrorSink
from headrace.spark.tables.dead_letters import REFUSED, DeadLetters, DeadLettersFull
from headrace.spark.tables.mongodb import mongodb_mirror
from headrace.spark.tables.mongodb.mongodb_mirror import CommitRefused, MongoMirror, only_reading, write_all
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.event_rows import row_of
from tests.spark.support.generated_changes import batches, table_of, token_at

Document = dict[str, Any]
Db = Database[Document]
_NAME = "mongodb"


def row(time: int, kind: str, key: int, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    bare = Row(token_at(time), operationType=kind, database="d", collection="c", documentKey=dumps({"_id": key}))
    return bare._replace(**texts)


def insert(time: int, key: int, **fields: Any) -> Row:
    return row(time, "insert", key, fullDocument={"_id": key, **fields})


def update(time: int, key: int, **fields: Any) -> Row:
    return row(time, "update", key, updateDescription={"updatedFields": fields})


# The target takes no document whose `n` is above 100.
BATCHES = [
    [insert(1, 1, n=1), insert(2, 2, n=1)],
    [update(3, 1, n=200), update(4, 2, n=5), update(5, 1, m=1)],
    [update(6, 1, m=2), insert(7, 3, n=500), insert(8, 4, n=500)],
    [row(9, "replace", 1, fullDocument={"_id": 1, "n": 7}), update(10, 1, n=8), row(11, "delete", 3)],
    [update(12, 1, n=9), update(13, 4, n=2), row(14, "replace", 4, fullDocument={"_id": 4, "n": 600})],
    [row(15, "replace", 4, fullDocument={"_id": 4, "n": 3}), update(16, 4, n=4)],
]
REFUSED_AT = [5, 6, 7, 8, 13, 14]
DOCUMENTS = [{"_id": 1, "n": 9}, {"_id": 2, "n": 5}, {"_id": 4, "n": 4}]


class Guarded:
    """The sink with its dead letters, opened as a new process would."""

    def __init__(self, database: Db, uri: str, folder: Path, *, count_max: int = 100, rows_max: int = 1000) -> None:
        self.database, self.uri, self.folder = database, uri, folder
        self.count_max, self.rows_max = count_max, rows_max
        database.create_collection("c", validator={"n": {"$not": {"$gt": 100}}})

    def inner(self) -> MirrorSink:
        return MirrorSink(MongoMirror(client_of(self.uri), self.database.name, "c"), "follow", self.rows_max)

    def letters(self) -> DeadLetters:
        return DeadLetters(self.folder / "letters", self.count_max)

    def open(self) -> DeadLetterSink:
        return DeadLetterSink(self.inner(), self.letters(), _NAME, lambda: 0)

    def documents(self) -> list[Document]:
        return list(self.database.c.find(sort=[("_id", 1)]))

    def refused(self) -> dict[str, str]:
        rows = DeltaTable(str(self.folder / "letters")).to_pyarrow_table().to_pylist()
        return {each["token"]: each["reason"] for each in rows if each["state"] == REFUSED}

    def waiting(self) -> set[str]:
        return set(self.letters().waiting(_NAME))


@pytest.fixture
def guarded(uri: str, database: Db, tmp_path: Path) -> Guarded:
    return Guarded(database, uri, tmp_path)


def test_what_the_target_refuses_goes_to_the_table_and_the_rest_is_taken(guarded: Guarded) -> None:
    counts, waiting = [], []
    for batch in batches(BATCHES):
        report = guarded.open().apply(batch)
        assert report
        counts.append(report.dead_letter_count)
        assert guarded.open().apply(batch) is None
        waiting.append(len(guarded.waiting()))
    assert counts == [0, 1, 3, 0, 2, 0]
    assert waiting == [0, 1, 3, 1, 1, 0]
    assert guarded.documents() == DOCUMENTS
    reasons = guarded.refused()
    assert sorted(reasons) == [token_at(time) for time in REFUSED_AT]
    assert "Document failed validation (121)" in reasons[token_at(5)] and "waits" in reasons[token_at(6)]


def test_without_dead_letters_it_stops_and_stays_where_it_is(guarded: Guarded) -> None:
    first, second, *_ = batches(BATCHES)
    assert guarded.inner().apply(first)
    for _ in range(2):
        with pytest.raises(CommitRefused, match=r'refuses the document {"\$numberInt":"1"}: .*\(121\)'):
            guarded.inner().apply(second)
    guarded.database.command("collMod", "c", validator={})
    assert guarded.inner().apply(second) is None
    assert guarded.documents() == [{"_id": 1, "n": 200, "m": 1}, {"_id": 2, "n": 5}]


def test_dead_letters_that_come_later_take_what_had_stopped_it(guarded: Guarded) -> None:
    first, second, third, *_ = batches(BATCHES)
    guarded.inner().apply(first)
    with pytest.raises(CommitRefused):
        guarded.inner().apply(second)
    assert guarded.open().position().token == token_at(5)
    assert list(guarded.refused()) == [token_at(5)] and len(guarded.waiting()) == 1
    assert guarded.open().apply(second) is None
    assert guarded.open().apply(third)
    assert guarded.documents() == [{"_id": 1, "n": 1}, {"_id": 2, "n": 5}]


def test_what_comes_in_a_later_commit_of_the_batch_does_not_change_the_document_before(
    uri: str, database: Db, tmp_path: Path
) -> None:
    guarded = Guarded(database, uri, tmp_path, rows_max=1)
    for batch in batches([[insert(1, 1, n=1)], [update(2, 1, n=200), update(3, 1, m=1), update(4, 1, n=5)]]):
        assert guarded.open().apply(batch)
    assert guarded.documents() == [{"_id": 1, "n": 1}]
    assert sorted(guarded.refused()) == [token_at(time) for time in (2, 3, 4)]
    again = [row(5, "replace", 1, fullDocument={"_id": 1, "n": 6}), update(6, 1, n=7), update(7, 1, n=300)]
    guarded.open().apply(MicroBatch("q", 2, table_of(again)))
    assert guarded.documents() == [{"_id": 1, "n": 7}] and len(guarded.waiting()) == 1


def test_the_document_before_is_replaced_and_deleted_like_any_other(uri: str, database: Db, tmp_path: Path) -> None:
    """By the process that has seen the refusal, in a later commit of the batch and in a later batch."""
    guarded = Guarded(database, uri, tmp_path, rows_max=2)
    sink = guarded.open()
    inserts = [insert(time, time, n=1) for time in (1, 2, 3, 4)]
    refused = [update(5, 1, n=200), update(6, 2, n=200), row(7, "delete", 1), update(8, 3, n=200)]
    later = [row(9, "delete", 2), row(10, "replace", 3, fullDocument={"_id": 3, "n": 3}), update(11, 3, n=4)]
    for batch in batches([inserts, refused, later]):
        assert sink.apply(batch)
    assert guarded.documents() == [{"_id": 3, "n": 4}, {"_id": 4, "n": 1}]
    assert sorted(guarded.refused()) == [token_at(time) for time in (5, 6, 8)] and not guarded.waiting()


def test_too_many_stop_it_before_the_position_goes_on(uri: str, database: Db, tmp_path: Path) -> None:
    guarded = Guarded(database, uri, tmp_path, count_max=1)
    first, second, third, *_ = batches(BATCHES)
    guarded.open().apply(first)
    guarded.open().apply(second)
    with pytest.raises(DeadLettersFull, match="the job allows 1"):
        guarded.open().apply(third)
    guarded.count_max = 10
    guarded.open().apply(third)
    assert sorted(guarded.refused()) == [token_at(time) for time in (5, 6, 7, 8)]


STEPS = (
    (headrace.spark.tables.dead_letters, "write_deltalake"),
    (Collection, "bulk_write"),
    (Collection, "replace_one"),
    (Collection, "update_one"),
)


@pytest.mark.long
def test_crashed_at_any_step_and_given_again_it_ends_the_same(uri: str, database: Db, tmp_path: Path) -> None:
    """Each batch before its first step and after each, and the batches after it."""
    crashes = 0
    for number in range(len(BATCHES)):
        step, crashed = 0, True
        while crashed:
            database.client.drop_database(database.name)
            guarded = Guarded(database, uri, tmp_path / f"{number}-{step}")
            guarded.folder.mkdir()
            crashed = False
            for at, batch in enumerate(batches(BATCHES)):
                if at == number:
                    with suppress(Crash), crashing(STEPS, step) as steps:
                        guarded.open().apply(batch)
                    crashed = len(steps) > step
                guarded.open().apply(batch)
            assert guarded.documents() == DOCUMENTS
            assert sorted(guarded.refused()) == [token_at(time) for time in REFUSED_AT]
            crashes += crashed
            step += 2 if step else 1
    assert crashes > 30


def test_a_unique_value_that_is_handed_on_within_a_batch_is_taken(guarded: Guarded) -> None:
    guarded.database.c.create_index("name", unique=True)
    handed = [update(4, 1, name="b"), update(5, 2, name="c"), update(6, 3, name="d"), insert(7, 4, name="d")]
    inserts = [insert(1, 1, name="a"), insert(2, 2, name="b"), insert(3, 3, name="c")]
    for batch in batches([inserts, handed]):
        guarded.open().apply(batch)
    assert [document["name"] for document in guarded.documents()] == ["b", "c", "d"]
    assert "E11000" in guarded.refused()[token_at(7)] and len(guarded.refused()) == 1


def test_what_is_not_about_a_document_is_an_error(database: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    database.c.insert_one({"_id": 1})
    again = [InsertOne({"_id": 1}), InsertOne({"_id": 2})]
    assert list(write_all(database.c, again)) == [0]
    monkeypatch.delitem(mongodb_mirror.REFUSALS, 11000)
    with pytest.raises(BulkWriteError):
        write_all(database.c, again)


@pytest.mark.long
def test_what_is_too_large_for_a_driver_is_refused_alone(database: Db) -> None:
    sizes = [1, limits.DOCUMENT_BYTES_MAX + 64 * 1024, 2]
    writes = [ReplaceOne({"_id": n}, {"_id": n, "text": "x" * size}, upsert=True) for n, size in enumerate(sizes)]
    assert list(write_all(database.c, writes)) == [1]
    assert [document["_id"] for document in database.c.find(sort=[("_id", 1)])] == [0, 2]


@pytest.mark.long
def test_a_document_of_16_mb_is_updated(guarded: Guarded) -> None:
    texts = [letter * (limits.DOCUMENT_BYTES_MAX - 100) for letter in "ab"]
    for batch in batches([[insert(1, 1, text=texts[0])], [update(2, 1, text=texts[1])]]):
        assert guarded.open().apply(batch)
    assert guarded.documents() == [{"_id": 1, "text": texts[1]}]


def job_of(uri: str, target: Db, folder: Path) -> Job:
    given = {
        "checkpoint": "checkpoint",
        "errors": "deadletter",
        "deadletter": "letters",
        "source": {"uri": uri, "database": target.name, "collection": "source", "startingPosition": "snapshot"},
        "sink": [{"kind": "mongodb", "uri": uri, "database": target.name, "collection": "c"}],
    }
    return parse_job(given, "job", folder)


def test_a_replayed_document_is_not_changed_by_events_that_it_has_already(guarded: Guarded) -> None:
    """The job reads on from its position, which is before the document's."""
    job = job_of(guarded.uri, guarded.database, guarded.folder)
    source = guarded.database["source"]
    options = SourceOptions(guarded.uri, guarded.database.name, "source")
    stream = MongoDBStream(options)
    start = stream.end_at(stream.now())

    def rows(after: Any) -> list[Row]:
        return [row_of(event) for event in stream.read(after, stream.end_at(stream.now()))]

    def apply(number: int, some: list[Row]) -> None:
        (sink,) = with_dead_letters(job, [job.sinks[0].open()])
        sink.apply(MicroBatch("q", number, table_of(some)))

    source.insert_one({"_id": 1, "n": 500})
    source.insert_one({"_id": 2})
    first = rows(start)
    ends = [Row(start.text, operationType=kind) for kind in (SNAPSHOT_BEGIN, SNAPSHOT_END)]
    apply(0, [*ends, *first])
    assert guarded.documents() == [{"_id": 2}]
    source.update_one({"_id": 1}, {"$set": {"n": 1, "list": [1, 2, 3]}})
    source.update_one({"_id": 1}, {"$push": {"list": {"$each": [], "$slice": 2}}})
    source.update_one({"_id": 2}, {"$set": {"n": 1}})
    source.update_one({"_id": 1}, {"$push": {"list": 4}})
    (line,) = replay(job)
    assert "replayed" in line
    later = rows(start)[len(first) :]
    for number, each in enumerate(later):
        apply(number + 1, [each])
        assert guarded.documents()[0] == {"_id": 1, "n": 1, "list": [1, 2, 4]}
    source.update_one({"_id": 1}, {"$set": {"n": 2}})
    apply(9, rows(start)[-1:])
    assert guarded.documents() == list(source.find(sort=[("_id", 1)]))


def test_a_refused_commit_stops_a_job_at_its_start_unless_it_has_dead_letters(guarded: Guarded) -> None:
    job = job_of(guarded.uri, guarded.database, guarded.folder)
    first, second, *_ = batches(BATCHES)
    guarded.inner().apply(first)
    with pytest.raises(CommitRefused):
        guarded.inner().apply(second)
    (state,) = sink_states(job)
    assert state.position.token == token_at(5) and state.exists
    with pytest.raises(CommitRefused, match="121"):
        sink_states(replace(job, deadletter=""))


def test_who_looks_at_a_job_leaves_a_commit_to_it(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may be at it: what a reader wrote could come behind the job's next commit."""
    job = job_of(guarded.uri, guarded.database, guarded.folder)
    first, second, third, *_ = batches([BATCHES[0], [update(3, 2, n=5)], [update(4, 2, n=6)]])
    guarded.inner().apply(first)
    with pytest.raises(Crash), crashing(((Collection, "bulk_write"),), 0):
        guarded.inner().apply(second)
    before = list(guarded.database["headrace.positions"].find())
    assert "pending" in before[0]
    (sink,) = job_status(job).sinks
    assert (sink.token, sink.error) == (token_at(2), "")
    assert not any("CommitRefused" in line for line in problems(job))
    assert list(guarded.database["headrace.positions"].find()) == before
    assert guarded.documents() == [{"_id": 1, "n": 1}, {"_id": 2, "n": 1}]
    guarded.inner().apply(third)
    assert guarded.documents() == [{"_id": 1, "n": 1}, {"_id": 2, "n": 6}]


def test_a_comparison_waits_for_a_commit(guarded: Guarded) -> None:
    guarded.inner().apply(batches(BATCHES[:1])[0])
    table = guarded.inner().table
    assert isinstance(table, MongoMirror) and table.is_complete()
    with pytest.raises(Crash), crashing(((Collection, "bulk_write"),), 0):
        guarded.inner().apply(batches([BATCHES[0], [update(3, 2, n=5)]])[1])
    assert not table.is_complete()
    with only_reading():
        assert table.position().token == token_at(2)
    assert not table.is_complete()
    assert table.position().token == token_at(3) and table.is_complete()


def test_a_document_of_a_snapshot_that_is_refused_waits(guarded: Guarded) -> None:
    rows = [
        row(1, SNAPSHOT, 1, fullDocument={"_id": 1, "n": 200}),
        row(1, SNAPSHOT, 2, fullDocument={"_id": 2, "n": 2}),
        update(2, 1, n=1),
    ]
    for batch in batches([rows[:2], rows[2:]]):
        guarded.open().apply(batch)
    assert guarded.documents() == [{"_id": 2, "n": 2}]
    assert len(guarded.waiting()) == 1 and sorted(guarded.refused()) == [token_at(1), token_at(2)]
