"""A collection as it was, from an archive: every state since its snapshot, whatever the server still has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson import Decimal128, Int64
from bson.raw_bson import RawBSONDocument
from deltalake import DeltaTable
from pymongo.database import Database

import headrace
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.not_held import NotHeld, reason_of
from headrace.spark.rows.tokens import Token
from headrace.spark.source.options import parse_options
from headrace.spark.timetravel.archive import WINDOW_ROWS, ArchiveUnfit
from headrace.spark.timetravel.past import _NAMES, PastUnknown, _rows, base_at, documents_by_archive
from headrace.values.bson import decode, encode
from tests.spark.rows.test_not_held import CASES, element, inside, text
from tests.spark.support.archives import ArchivedServer

pytestmark = pytest.mark.process

Db = Database[dict[str, Any]]
Documents = list[str]
States = list[tuple[Token, Documents]]


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[ArchivedServer]:
    with headrace.Server() as server:
        archived = ArchivedServer(server, tmp_path / "the changes")
        yield archived
        archived.client.close()


def now(archived: ArchivedServer) -> Token:
    feed = MongoDBStream(parse_options(archived.options(archive="")))
    return feed.end_at(feed.now())


def contents(archived: ArchivedServer) -> Documents:
    return sorted(dumps(document) for document in archived.collection.find())


def as_of(archived: ArchivedServer, token: Token, **more: str) -> Documents:
    rows = archived.read(asOf=token.text, **more)
    assert {(row["operationType"], row["token"]) for row in rows} <= {("snapshot", token.text)}
    return sorted(row["fullDocument"] for row in rows)


def states_of(archived: ArchivedServer, seed: int) -> States:
    """States, half of which the archive has; the server has but the last of them."""
    random_ = random.Random(seed)
    states: States = []
    for step in range(8):
        archived.write(random_, 7)
        states.append((now(archived), contents(archived)))
        if step % 2 == 0:
            archived.archive()
            archived.prune()
    return states


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("partitions", ["1", "3"])
def test_every_state_since_the_snapshot_is_read_without_images(
    archived: ArchivedServer, seed: int, partitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.timetravel.archive.WINDOW_ROWS", 5)
    archived.write(random.Random(seed + 10), 9)
    archived.begin(startingPosition="snapshot")
    archived.collection.insert_one({"_id": "first"})
    at_first = (now(archived), contents(archived))
    states = [at_first, *states_of(archived, seed)]
    for token, documents in states:
        assert as_of(archived, token, partitions=partitions) == documents
    assert WINDOW_ROWS > 5
    # Not that it is the server that tells.
    with pytest.raises((PastUnknown, PositionLost)):
        as_of(archived, states[1][0], archive="")


@pytest.mark.parametrize("partitions", ["1", "2", "5"])
def test_a_document_whose_key_changes_its_type_stays_in_its_slice(archived: ArchivedServer, partitions: str) -> None:
    """1, 1.0 and Decimal128 "1.00" are one key, which a replacement writes in another way; updates come behind it."""
    keys: list[list[Any]] = [[n, float(n), Int64(n), Decimal128(f"{n}.00")] for n in range(6)]
    archived.collection.insert_many([{"_id": same[0], "n": 0} for same in keys])
    archived.begin(startingPosition="snapshot")
    states = []
    for step in range(1, 4):
        for same in keys:
            archived.collection.replace_one({"_id": same[0]}, {"_id": same[step], "n": step})
            archived.collection.update_one({"_id": same[0]}, {"$push": {"list": step}})
        if step == 2:
            archived.collection.delete_one({"_id": 3})
            archived.collection.insert_one({"_id": 3.0, "n": "again"})
        states.append((now(archived), contents(archived)))
        archived.archive()
        archived.prune()
    for token, documents in states:
        assert as_of(archived, token, partitions=partitions) == documents


def test_the_same_rows_come_when_the_table_has_grown_and_been_compacted(archived: ArchivedServer) -> None:
    archived.begin(startingPosition="snapshot")
    token, documents = states_of(archived, 1)[3]
    options = parse_options(archived.options())
    base = base_at(options, token)
    before = list(documents_by_archive(options, token, base))
    archived.write(random.Random(2), 7)
    archived.archive()
    DeltaTable(archived.path).optimize.compact()
    archived.prune()
    assert list(documents_by_archive(options, token, base)) == before
    assert sorted(dumps(decode(row[7])) for row in before) == documents


def test_a_drop_empties_the_collection_and_a_new_snapshot_is_a_new_beginning(archived: ArchivedServer) -> None:
    archived.write(random.Random(1), 6)
    archived.begin(startingPosition="snapshot")
    archived.collection.drop()
    dropped = now(archived)
    archived.archive()
    states = states_of(archived, 2)
    assert as_of(archived, dropped) == []
    for token, documents in states:
        assert as_of(archived, token) == documents
    archived.begin(startingPosition="snapshot")  # its checkpoint was lost: the events between are on no record
    for token, documents in states_of(archived, 3):
        assert as_of(archived, token) == documents


def test_before_the_first_snapshot_and_between_two_the_past_is_unknown(archived: ArchivedServer) -> None:
    archived.write(random.Random(3), 5)
    early = now(archived)
    archived.write(random.Random(4), 2)
    archived.begin(startingPosition="snapshot")
    archived.write(random.Random(5), 9)
    archived.archive()
    archived.write(random.Random(6), 9)
    between = now(archived)
    archived.write(random.Random(7), 9)
    archived.prune()
    archived.begin(startingPosition="snapshot")
    archived.prune()
    options = parse_options(archived.options())
    with pytest.raises(PastUnknown, match="no complete snapshot from before"):
        base_at(options, early)
    with pytest.raises(PastUnknown, match=r"are missing\. The archive"):
        base_at(options, between)
    with pytest.raises((PastUnknown, PositionLost)):
        archived.read(asOf=between.text)


def test_the_server_is_read_where_the_archive_has_no_answer(
    archived: ArchivedServer, caplog: pytest.LogCaptureFixture
) -> None:
    archived.client.d.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    archived.collection.insert_one({"_id": 1})
    token = now(archived)
    archived.collection.update_one({"_id": 1}, {"$set": {"a": 1}})
    assert as_of(archived, token) == [dumps({"_id": 1})]
    assert "no complete snapshot" in caplog.text


def test_an_unfinished_snapshot_is_no_beginning(archived: ArchivedServer) -> None:
    archived.collection.insert_many([{"_id": number} for number in range(4)])
    job = archived.stream(archive="", startingPosition="snapshot", maxRowsPerTrigger="2")
    at = job.initialOffset()
    for number in range(2):
        end = job.latestOffset(at, job.getDefaultReadLimit())
        archived.apply("first", number, job, at, end)
        at = end
    options = parse_options(archived.options())
    with pytest.raises(PastUnknown, match="no complete snapshot"):
        base_at(options, now(archived))
    archived.begin(startingPosition="snapshot")
    assert as_of(archived, now(archived)) == contents(archived)


def test_a_collection_that_was_renamed_to_this_name_is_unknown_until_it_was_read(archived: ArchivedServer) -> None:
    archived.collection.insert_one({"_id": 1})
    archived.begin(startingPosition="snapshot")
    archived.client.d.other.insert_one({"_id": 2})
    archived.client.d.other.rename("c", dropTarget=True)
    renamed = now(archived)
    archived.archive()
    options = parse_options(archived.options())
    with pytest.raises(PastUnknown, match=r"renamed to d\.c"):
        base_at(options, renamed)
    assert as_of(archived, now(archived)) == [dumps({"_id": 2})]


def test_rows_that_were_removed_are_missed(archived: ArchivedServer) -> None:
    archived.begin(startingPosition="snapshot")
    archived.collection.insert_one({"_id": 1})
    token = now(archived)
    options = parse_options(archived.options())
    base = base_at(options, token)
    DeltaTable(archived.path).delete("operationType = 'snapshotBegin'")
    with pytest.raises(ArchiveUnfit, match="no longer its snapshot"):
        list(documents_by_archive(options, token, base))
    with pytest.raises(PastUnknown):
        base_at(options, token)


def test_an_update_that_can_be_read_in_two_ways_is_refused(archived: ArchivedServer) -> None:
    archived.collection.insert_one({"_id": 1, "a.b": 1, "a": {"b": 1}})
    archived.begin(startingPosition="snapshot")
    archived.collection.update_one({"_id": 1}, {"$set": {"a.b": 2}})
    archived.archive()
    token = now(archived)
    with pytest.raises(PastUnknown, match="does not tell all"):
        options = parse_options(archived.options())
        list(documents_by_archive(options, token, base_at(options, token)))


def test_a_document_that_an_update_looked_up_later_is_not_taken(archived: ArchivedServer) -> None:
    archived.collection.insert_one({"_id": 1})
    archived.begin(startingPosition="snapshot", fullDocument="updateLookup")
    archived.collection.update_one({"_id": 1}, {"$set": {"a": 1}})
    token = now(archived)
    archived.collection.update_one({"_id": 1}, {"$set": {"b": 2}})
    archived.archive()
    assert as_of(archived, token, fullDocument="updateLookup") == [dumps({"_id": 1, "a": 1})]


@pytest.mark.parametrize("kind", ["duplicate below", "symbol", "NaN payload"])
def test_a_document_that_has_no_text_is_refused_and_not_changed(archived: ArchivedServer, kind: str) -> None:
    """Its event is on the server, and not in the archive, which cannot have it."""
    data, reason = CASES[kind]
    archived.collection.insert_one({"_id": 0})
    archived.begin(startingPosition="snapshot")
    before = (now(archived), contents(archived))
    archived.collection.insert_one(RawBSONDocument(data))
    archived.collection.update_one({"_id": 1}, {"$set": {"y.z": 1}})
    token = now(archived)
    with pytest.raises(NotHeld, match=rf'document {{"_id":{{"\$numberInt":"1"}}}} has BSON .*{reason}'):
        as_of(archived, token)
    archived.collection.replace_one({"_id": 1}, {"x": 2})
    after = (now(archived), contents(archived))
    for at, documents in (before, after):
        assert as_of(archived, at) == documents


def test_an_update_that_has_no_text_makes_its_document_one_that_is_refused() -> None:
    event = dict.fromkeys(_NAMES) | {"operationType": "update", "token": "82", "documentKey": encode({"_id": 1})}
    event["updateDescription"] = inside(element(3, inside(element(14, text(b"s"))), b"updatedFields"))
    columns = [pa.array([event[name]]) for name in _NAMES]
    (row,) = _rows(pa.RecordBatch.from_arrays(columns, names=list(_NAMES)))
    assert (row.operationType, row.updateDescription) == ("replace", None)
    assert reason_of(row.fullDocument) == "updatedFields.x is a symbol"
