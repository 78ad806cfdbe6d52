"""What a batch does to a mirror, in every order and after every crash: always the collection's content."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.tables.fold import MirrorChanges, MirrorDiverged, MirrorRow, MirrorState, fold, key_of, keys_to_read


def event(token: str, kind: str, key: int | None = None, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    return Row(token, operationType=kind, documentKey=None if key is None else dumps({"_id": key}), **texts)


def updated(token: str, key: int, **fields: Any) -> Row:
    return event(token, "update", key, updateDescription={"updatedFields": fields, "removedFields": []})


def applied(mirror: dict[str, MirrorRow], rows: list[Row], state: MirrorState) -> MirrorState:
    """What a table does with the changes of a fold."""
    wanted = keys_to_read(rows)
    changes: MirrorChanges = fold(rows, state, {key: row for key, row in mirror.items() if key in wanted})
    if changes.clear:
        mirror.clear()
    for key in changes.deletes:
        del mirror[key]
    for key in [key for key, row in mirror.items() if row.token < changes.stale_before]:
        del mirror[key]
    mirror |= changes.upserts
    return changes.state


def test_events_of_one_key_are_folded_into_its_last_state() -> None:
    mirror: dict[str, MirrorRow] = {}
    rows = [event("1", "insert", 7, fullDocument={"_id": 7, "a": 1}), updated("2", 7, a=2), updated("3", 7, b=3)]
    state = applied(mirror, rows, MirrorState())
    assert mirror == {dumps(7): MirrorRow(dumps({"_id": 7, "a": 2, "b": 3}), "3")}
    assert state.token == "3"
    applied(mirror, [event("4", "delete", 7)], state)
    assert mirror == {}


def test_rows_given_again_change_nothing() -> None:
    mirror: dict[str, MirrorRow] = {}
    rows = [event("1", "insert", 7, fullDocument={"_id": 7, "a": [1]}), updated("2", 7, **{"a.1": 2})]
    state = applied(mirror, rows, MirrorState())
    before = dict(mirror)
    assert applied(mirror, rows, state) == state
    assert mirror == before


def test_a_deleted_document_does_not_come_back_when_its_insert_is_read_again() -> None:
    mirror: dict[str, MirrorRow] = {}
    rows = [event("1", "insert", 7, fullDocument={"_id": 7}), event("2", "delete", 7)]
    state = applied(mirror, rows, MirrorState())
    applied(mirror, rows[:1], state)
    assert mirror == {}


def test_a_stored_image_is_taken_as_it_is() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7}), "1")}
    row = event("2", "update", 7, fullDocument={"_id": 7, "z": 1}, updateDescription={"updatedFields": {"no.way": 1}})
    applied(mirror, [row], MirrorState("1"))
    assert mirror[dumps(7)].document == dumps({"_id": 7, "z": 1})


def test_events_before_a_rows_token_are_already_in_it() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7, "n": 5}), "5")}
    state = applied(mirror, [updated("4", 7, n=4), updated("6", 7, m=6)], MirrorState("1", "5"))
    assert mirror[dumps(7)] == MirrorRow(dumps({"_id": 7, "n": 5, "m": 6}), "6")
    assert state.token == "6"


def test_an_update_of_a_document_that_is_not_there_is_a_fault_except_while_a_snapshot_was_read() -> None:
    mirror: dict[str, MirrorRow] = {}
    state = applied(mirror, [updated("4", 7, n=4)], MirrorState("1", "5"))
    assert mirror == {}
    with pytest.raises(MirrorDiverged, match="has no document"):
        applied(mirror, [updated("6", 7, n=4)], state)


def test_an_update_that_does_not_fit_is_a_fault() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7}), "1")}
    with pytest.raises(MirrorDiverged, match="nothing at"):
        applied(mirror, [updated("2", 7, **{"a.b": 1})], MirrorState("1"))


def test_of_several_updates_that_do_not_fit_the_first_is_raised() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7}), "1")}
    rows = [updated("2", 7, n=1), updated("3", 8, n=1), updated("4", 7, **{"a.b": 1})]
    with pytest.raises(MirrorDiverged, match="has no document") as raised:
        applied(mirror, rows, MirrorState("1"))
    assert raised.value.token == "3"


def test_a_document_that_comes_again_behind_a_drop_is_another() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7, "a": 1}), "1")}
    rows = [
        updated("2", 7, b=2),
        event("3", "drop"),
        event("4", "insert", 7, fullDocument={"_id": 7}),
        updated("5", 7, c=3),
    ]
    applied(mirror, rows, MirrorState("1"))
    assert mirror == {dumps(7): MirrorRow(dumps({"_id": 7, "c": 3}), "5")}


@pytest.mark.parametrize("kind", ["drop", "rename", "invalidate", "dropDatabase"])
def test_when_the_collection_goes_so_do_its_rows(kind: str) -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7}), "1"), dumps(8): MirrorRow(dumps({"_id": 8}), "1")}
    rows = [updated("2", 7, a=1), event("3", kind), event("4", "insert", 9, fullDocument={"_id": 9})]
    applied(mirror, rows, MirrorState("1"))
    assert set(mirror) == {dumps(9)}


def test_a_new_snapshot_replaces_what_was_there_and_never_empties_it() -> None:
    mirror = {dumps(key): MirrorRow(dumps({"_id": key, "old": True}), "1") for key in (7, 8, 9)}
    state = applied(mirror, [event("5", SNAPSHOT_BEGIN)], MirrorState("4", "2"))
    assert state == MirrorState("5", begun="5", snapshot_began="5") and len(mirror) == 3
    state = applied(mirror, [event("6", SNAPSHOT, 8, fullDocument={"_id": 8})], state)
    assert len(mirror) == 3
    assert applied(mirror, [event("7", SNAPSHOT_END)], state) == MirrorState("5", "7", snapshot_began="5")
    assert mirror == {dumps(8): MirrorRow(dumps({"_id": 8}), "6")}


def test_a_complete_snapshot_and_its_events_in_one_batch_replace_all_rows() -> None:
    mirror = {dumps(key): MirrorRow(dumps({"_id": key, "old": True}), "1") for key in (7, 8, 9)}
    rows = [event("5", SNAPSHOT_BEGIN), event("6", SNAPSHOT, 8, fullDocument={"_id": 8})]
    state = applied(mirror, [*rows, event("7", SNAPSHOT_END), updated("8", 8, n=1)], MirrorState("4", "2"))
    assert mirror == {dumps(8): MirrorRow(dumps({"_id": 8, "n": 1}), "8")}
    assert state == MirrorState("8", "7", snapshot_began="5")


def test_a_snapshot_of_a_server_that_is_behind_the_mirror_begins_with_nothing() -> None:
    mirror = {dumps(7): MirrorRow(dumps({"_id": 7}), "1")}
    state = applied(
        mirror, [event("5", SNAPSHOT_BEGIN), event("6", SNAPSHOT, 8, fullDocument={"_id": 8})], MirrorState("9")
    )
    assert set(mirror) == {dumps(8)}
    assert applied(mirror, [event("7", SNAPSHOT_END)], state) == MirrorState("5", "7", snapshot_began="5")


def test_a_sharded_collections_key_is_its_id() -> None:
    assert key_of(Row("1", documentKey=dumps({"shard": 1, "_id": "x"}))) == '"x"'


class Collection:
    """A collection and its events, as a server would tell them; the time is the number of the event."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.documents: dict[int, dict[str, Any]] = {}
        self.events: list[Row] = []

    @property
    def token(self) -> str:
        return f"{len(self.events):05}"

    def write(self) -> None:
        key = self.random.randrange(6)
        token = f"{len(self.events) + 1:05}"
        if key not in self.documents:
            self.documents[key] = {"_id": key, "a": [1, 2]}
            self.events.append(event(token, "insert", key, fullDocument=self.documents[key]))
        elif self.random.random() < 0.3:
            del self.documents[key]
            self.events.append(event(token, "delete", key))
        else:
            self._update(token, key)

    def _update(self, token: str, key: int) -> None:
        old = self.documents[key]["a"]
        if len(old) > 2:
            self.documents[key] = {"_id": key, "a": old[:1]}
            cut = {"updatedFields": {}, "removedFields": [], "truncatedArrays": [{"field": "a", "newSize": 1}]}
            self.events.append(event(token, "update", key, updateDescription=cut))
        else:
            self.documents[key] = {"_id": key, "a": [*old, len(self.events)]}
            self.events.append(updated(token, key, **{f"a.{len(old)}": len(self.events)}))


@pytest.mark.parametrize("seed", range(60))
def test_a_snapshot_read_while_writers_write_and_the_events_since_it_began_give_the_collection(seed: int) -> None:
    """Each key is read at another moment; arrays grow and shrink, so an event applied twice would show."""
    collection = Collection(seed)
    for _ in range(20):
        collection.write()
    begun = collection.token
    mirror: dict[str, MirrorRow] = {}
    state = applied(mirror, [event(begun, SNAPSHOT_BEGIN)], MirrorState())
    for key in range(6):
        for _ in range(collection.random.randrange(8)):
            collection.write()
        if key in collection.documents:
            row = event(collection.token, SNAPSHOT, key, fullDocument=collection.documents[key])
            state = applied(mirror, [row], state)
    state = applied(mirror, [event(collection.token, SNAPSHOT_END)], state)
    for _ in range(30):
        collection.write()
    pending = [row for row in collection.events if row.token > begun]
    while pending:
        size = collection.random.randrange(1, 9)
        state = applied(mirror, pending[:size], state)
        # A crash after the commit and before Spark's own note: the batch, or more, comes again.
        if collection.random.random() < 0.3:
            state = applied(mirror, pending[: size + 2], state)
        pending = pending[size:]
    expected = {dumps(key): dumps(document) for key, document in collection.documents.items()}
    assert {key: row.document for key, row in mirror.items()} == expected


def keyed(token: str, kind: str, key: Any, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    return Row(token, operationType=kind, documentKey=dumps({"_id": key}), **texts)


def test_a_replacement_that_changes_the_type_of_a_key_moves_the_row() -> None:
    mirror: dict[str, MirrorRow] = {}
    state = applied(mirror, [keyed("1", "insert", 1, fullDocument={"_id": 1})], MirrorState())
    state = applied(mirror, [keyed("2", "replace", 1, fullDocument={"_id": 1.0})], state)
    assert mirror == {dumps(1.0): MirrorRow(dumps({"_id": 1.0}), "2")}
    changed = keyed("3", "update", 1.0, updateDescription={"updatedFields": {"n": 2}, "removedFields": []})
    applied(mirror, [changed], state)
    assert mirror == {dumps(1.0): MirrorRow(dumps({"_id": 1.0, "n": 2}), "3")}


def test_rows_of_one_key_in_two_types_end_as_the_newest() -> None:
    """The first is from before a snapshot, the second the snapshot's; the events between come after it."""
    mirror = {dumps(1): MirrorRow(dumps({"_id": 1}), "1"), dumps(1.0): MirrorRow(dumps({"_id": 1.0}), "4")}
    rows = [keyed("2", "delete", 1), keyed("3", "insert", 1.0, fullDocument={"_id": 1.0})]
    applied(mirror, rows, MirrorState("1", "4"))
    assert mirror == {dumps(1.0): MirrorRow(dumps({"_id": 1.0}), "4")}


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_several_types_in_batches_of_any_size_are_what_the_collection_has(seed: int) -> None:
    choose = random.Random(seed)
    spellings = [1, 1.0, Int64(1), Decimal128("1.00"), 2, Decimal128("2")]
    documents: dict[int, Any] = {}
    rows: list[Row] = []
    for number in range(60):
        key = choose.choice(spellings)
        identity = int(str(key)[0])
        token = f"{number:03}"
        there = documents.get(identity)
        if there is None:
            documents[identity] = {"_id": key, "n": number}
            rows.append(keyed(token, "insert", key, fullDocument=documents[identity]))
        elif choose.random() < 0.4:
            rows.append(keyed(token, "delete", documents.pop(identity)["_id"]))
        elif choose.random() < 0.5:
            documents[identity] = {"_id": key, "n": number}
            rows.append(keyed(token, "replace", there["_id"], fullDocument=documents[identity]))
        else:
            documents[identity] = there | {"n": number}
            description = {"updatedFields": {"n": number}, "removedFields": []}
            rows.append(keyed(token, "update", there["_id"], updateDescription=description))
    mirror: dict[str, MirrorRow] = {}
    state = MirrorState()
    while rows:
        size = choose.randrange(1, 6)
        state = applied(mirror, rows[:size], state)
        rows = rows[size:]
    assert {key: row.document for key, row in mirror.items()} == {
        dumps(document["_id"]): dumps(document) for document in documents.values()
    }
