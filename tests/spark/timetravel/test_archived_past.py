"""A collection as it was, from an archive: every state since its snapshot, whatever the server still has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pymongo.database import Database

import headrace
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.tokens import Token
from headrace.spark.source.options import parse_options
from headrace.spark.timetravel.archive import ArchiveUnfit
from headrace.spark.timetravel.archive_table import WINDOW_ROWS
from headrace.spark.timetravel.past_from_archive import base_at, documents_at
from headrace.spark.timetravel.past_from_images import PastUnknown
from headrace.values.bson import decode
from tests.spark.support.archives import Kept

pytestmark = pytest.mark.process

Db = Database[dict[str, Any]]
Documents = list[str]
States = list[tuple[Token, Documents]]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with headrace.Server() as server:
        kept = Kept(server, tmp_path / "the changes")
        yield kept
        kept.client.close()


def now(kept: Kept) -> Token:
    feed = MongoDBStream(parse_options(kept.options(archive="")))
    return feed.end_at(feed.now())


def contents(kept: Kept) -> Documents:
    return sorted(dumps(document) for document in kept.collection.find())


def as_of(kept: Kept, token: Token, **more: str) -> Documents:
    rows = kept.read(asOf=token.text, **more)
    assert {(row["operationType"], row["token"]) for row in rows} <= {("snapshot", token.text)}
    return sorted(row["fullDocument"] for row in rows)


def states_of(kept: Kept, seed: int) -> States:
    """States, half of which the archive has; the server has but the last of them."""
    random_ = random.Random(seed)
    states: States = []
    for step in range(8):
        kept.write(random_, 7)
        states.append((now(kept), contents(kept)))
        if step % 2 == 0:
            kept.archive()
            kept.prune()
    return states


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("partitions", ["1", "3"])
def test_every_state_since_the_snapshot_is_found_again_without_images(
    kept: Kept, seed: int, partitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.timetravel.archive_table.WINDOW_ROWS", 5)
    kept.write(random.Random(seed + 10), 9)
    kept.begin(startingPosition="snapshot")
    kept.collection.insert_one({"_id": "first"})
    at_first = (now(kept), contents(kept))
    states = [at_first, *states_of(kept, seed)]
    for token, documents in states:
        assert as_of(kept, token, partitions=partitions) == documents
    assert WINDOW_ROWS > 5
    # Not that it is the server that tells.
    with pytest.raises((PastUnknown, PositionLost)):
        as_of(kept, states[1][0], archive="")


def test_the_same_rows_come_when_the_table_has_grown_and_been_compacted(kept: Kept) -> None:
    kept.begin(startingPosition="snapshot")
    token, documents = states_of(kept, 1)[3]
    options = parse_options(kept.options())
    base = base_at(options, token)
    before = list(documents_at(options, token, base))
    kept.write(random.Random(2), 7)
    kept.archive()
    DeltaTable(kept.path).optimize.compact()
    kept.prune()
    assert list(documents_at(options, token, base)) == before
    assert sorted(dumps(decode(row[7])) for row in before) == documents


def test_a_drop_empties_the_collection_and_a_new_snapshot_is_a_new_beginning(kept: Kept) -> None:
    kept.write(random.Random(1), 6)
    kept.begin(startingPosition="snapshot")
    kept.collection.drop()
    dropped = now(kept)
    kept.archive()
    states = states_of(kept, 2)
    assert as_of(kept, dropped) == []
    for token, documents in states:
        assert as_of(kept, token) == documents
    kept.begin(startingPosition="snapshot")  # its checkpoint was lost: the events between are on no record
    for token, documents in states_of(kept, 3):
        assert as_of(kept, token) == documents


def test_before_the_first_snapshot_and_between_two_the_past_is_unknown(kept: Kept) -> None:
    kept.write(random.Random(3), 5)
    early = now(kept)
    kept.write(random.Random(4), 2)
    kept.begin(startingPosition="snapshot")
    kept.write(random.Random(5), 9)
    kept.archive()
    kept.write(random.Random(6), 9)
    between = now(kept)
    kept.write(random.Random(7), 9)
    kept.prune()
    kept.begin(startingPosition="snapshot")
    kept.prune()
    options = parse_options(kept.options())
    with pytest.raises(PastUnknown, match="no complete snapshot from before"):
        base_at(options, early)
    with pytest.raises(PastUnknown, match=r"are missing\. The archive"):
        base_at(options, between)
    with pytest.raises((PastUnknown, PositionLost)):
        kept.read(asOf=between.text)


def test_the_server_tells_where_the_archive_cannot(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.client.d.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    kept.collection.insert_one({"_id": 1})
    token = now(kept)
    kept.collection.update_one({"_id": 1}, {"$set": {"a": 1}})
    assert as_of(kept, token) == [dumps({"_id": 1})]
    assert "no complete snapshot" in caplog.text


def test_an_unfinished_snapshot_is_no_beginning(kept: Kept) -> None:
    kept.collection.insert_many([{"_id": number} for number in range(4)])
    job = kept.stream(archive="", startingPosition="snapshot", maxRowsPerTrigger="2")
    at = job.initialOffset()
    for number in range(2):
        end = job.latestOffset(at, job.getDefaultReadLimit())
        kept.apply("first", number, job, at, end)
        at = end
    options = parse_options(kept.options())
    with pytest.raises(PastUnknown, match="no complete snapshot"):
        base_at(options, now(kept))
    kept.begin(startingPosition="snapshot")
    assert as_of(kept, now(kept)) == contents(kept)


def test_a_collection_that_was_renamed_to_this_name_is_unknown_until_it_was_read(kept: Kept) -> None:
    kept.collection.insert_one({"_id": 1})
    kept.begin(startingPosition="snapshot")
    kept.client.d.other.insert_one({"_id": 2})
    kept.client.d.other.rename("c", dropTarget=True)
    renamed = now(kept)
    kept.archive()
    options = parse_options(kept.options())
    with pytest.raises(PastUnknown, match=r"renamed to d\.c"):
        base_at(options, renamed)
    assert as_of(kept, now(kept)) == [dumps({"_id": 2})]


def test_rows_that_were_removed_are_missed(kept: Kept) -> None:
    kept.begin(startingPosition="snapshot")
    kept.collection.insert_one({"_id": 1})
    token = now(kept)
    options = parse_options(kept.options())
    base = base_at(options, token)
    DeltaTable(kept.path).delete("operationType = 'snapshotBegin'")
    with pytest.raises(ArchiveUnfit, match="no longer its snapshot"):
        list(documents_at(options, token, base))
    with pytest.raises(PastUnknown):
        base_at(options, token)


def test_an_update_that_can_be_read_in_two_ways_is_refused(kept: Kept) -> None:
    kept.collection.insert_one({"_id": 1, "a.b": 1, "a": {"b": 1}})
    kept.begin(startingPosition="snapshot")
    kept.collection.update_one({"_id": 1}, {"$set": {"a.b": 2}})
    kept.archive()
    token = now(kept)
    with pytest.raises(PastUnknown, match="does not tell all"):
        list(documents_at(parse_options(kept.options()), token, base_at(parse_options(kept.options()), token)))


def test_a_document_that_an_update_looked_up_later_is_not_taken(kept: Kept) -> None:
    kept.collection.insert_one({"_id": 1})
    kept.begin(startingPosition="snapshot", fullDocument="updateLookup")
    kept.collection.update_one({"_id": 1}, {"$set": {"a": 1}})
    token = now(kept)
    kept.collection.update_one({"_id": 1}, {"$set": {"b": 2}})
    kept.archive()
    assert as_of(kept, token, fullDocument="updateLookup") == [dumps({"_id": 1, "a": 1})]
