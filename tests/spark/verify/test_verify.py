"""Comparing a mirror with its collection: at one token, while writers write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

import headrace.spark.verify.comparison
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition
from headrace.spark.rows.extjson import dumps
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import MirrorTable, open_mirror_table
from headrace.spark.tables.progress import NotAMirror
from headrace.spark.verify.comparison import CollectionUnstable, compare
from tests.spark.rows.test_not_held import CASES

Db = Database[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MirroredCollection:
    """A mirror without a job: its table is filled by hand."""

    uri: str
    database: str
    collection: str
    path: Path

    def table(self) -> MirrorTable:
        return open_mirror_table(self.path, "parquet")


@pytest.fixture
def mirrored(uri: str, database: Db, tmp_path: Path) -> MirroredCollection:
    return MirroredCollection(uri, database.name, "c", tmp_path / "mirror")


def fill(mirrored: MirroredCollection, database: Db, **wrong: str) -> None:
    """The mirror as it should be now, but for the documents given by name."""
    options = SourceOptions(mirrored.uri, mirrored.database, "c")
    token = MongoDBStream(options).resolve(StreamPosition("latest")).text
    rows = {dumps(document["_id"]): MirrorRow(dumps(document), token) for document in database.c.find()}
    rows |= {dumps(key): MirrorRow(text, token) for key, text in wrong.items()}
    mirrored.table().commit(MirrorChanges(MirrorState(token, token, query="q", batch=0), clear=True, upserts=rows))


def test_equal_sides_are_equal_in_every_range(
    mirrored: MirroredCollection, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headrace.spark.verify.comparison, "CHUNK_ROWS", 10)
    database.c.insert_many([{"_id": number} for number in range(35)] + [{"_id": f"k{number}"} for number in range(20)])
    fill(mirrored, database)
    seen: list[tuple[int, int]] = []
    verification = compare(mirrored, counted=lambda done, total: seen.append((done, total)))
    assert (verification.equal, str(verification)) == (True, "55 rows, 55 documents")
    assert len(seen) > 3 and seen == sorted(seen) and seen[-1] == (55, 55)


def test_what_differs_is_named(mirrored: MirroredCollection, database: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headrace.spark.verify.comparison, "CHUNK_ROWS", 10)
    database.c.insert_many([{"_id": f"k{number:02}", "n": Int64(1)} for number in range(40)])
    fill(mirrored, database, k03=dumps({"_id": "k03", "n": 1}), k99="{}")
    rows = mirrored.table()
    rows.commit(MirrorChanges(rows.position(), deletes={'"k17"'}))
    verification = compare(mirrored)
    assert (verification.missing, verification.extra, verification.different) == (('"k17"',), ('"k99"',), ('"k03"',))
    assert verification.unequal_count == 3 and not verification.equal


def test_a_mirror_that_is_behind_is_compared_as_it_will_be(mirrored: MirroredCollection, database: Db) -> None:
    database.c.insert_many([{"_id": number, "list": [1]} for number in range(9)])
    fill(
        mirrored,
        database,
    )
    database.c.update_one({"_id": 1}, {"$push": {"list": 2}})
    database.c.update_one({"_id": 1}, {"$push": {"list": 3}})
    database.c.delete_one({"_id": 2})
    database.c.insert_one({"_id": "new"})
    assert compare(mirrored).equal, compare(mirrored)
    table = mirrored.table()
    table.commit(MirrorChanges(table.position(), deletes={dumps(1)}))
    assert compare(mirrored).unequal_count == 1


def test_writes_during_the_comparison_do_not_affect_it(
    mirrored: MirroredCollection, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.c.insert_many([{"_id": number, "list": [1]} for number in range(30)])
    fill(mirrored, database)
    original = MongoDBStream.end_at

    def writing(self: MongoDBStream, moment: Any) -> Any:
        database.c.update_many({"_id": {"$lt": 5}}, {"$push": {"list": 2}})
        database.c.delete_one({"_id": 7})
        return original(self, moment)

    monkeypatch.setattr(MongoDBStream, "end_at", writing)
    assert compare(mirrored).equal, compare(mirrored)


def test_a_mirror_before_a_drop_cannot_be_compared(mirrored: MirroredCollection, database: Db) -> None:
    database.c.insert_one({"_id": 1})
    fill(mirrored, database)
    database.c.drop()
    with pytest.raises(CollectionUnstable, match="before a drop"):
        compare(mirrored)


def test_nothing_mirrored_yet_is_an_error(mirrored: MirroredCollection, database: Db) -> None:
    with pytest.raises(NotAMirror, match="nothing of"):
        compare(replace(mirrored, collection="never"))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("as_event", [False, True])
def test_a_document_that_the_table_has_changed_is_not_equal(
    mirrored: MirroredCollection, database: Db, kind: str, as_event: bool
) -> None:
    document: Any = RawBSONDocument(CASES[kind][0])
    database.c.insert_one({"_id": 0})
    if as_event:
        fill(mirrored, database)
        database.c.insert_one(document)
    else:
        database.c.insert_one(document)
        fill(mirrored, database)
    verification = compare(mirrored)
    assert not verification.equal and verification.different == (dumps(1),)


def test_a_document_that_is_held_again_is_compared(mirrored: MirroredCollection, database: Db) -> None:
    database.c.insert_one({"_id": 0})
    fill(mirrored, database)
    database.c.insert_one(RawBSONDocument(CASES["symbol"][0]))
    database.c.update_one({"_id": 1}, {"$set": {"y": 1}})
    assert compare(mirrored).different == (dumps(1),)
    database.c.replace_one({"_id": 1}, {"x": 2})
    assert compare(mirrored).equal
    database.c.delete_one({"_id": 1})
    assert compare(mirrored).equal
