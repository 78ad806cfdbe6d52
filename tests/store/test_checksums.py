"""Checksums: what was changed on the disk is an error that names it, and a directory without any is converted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bson import Int64

from headrace import limits
from headrace.server.ttl import delete_expired
from headrace.store.checksums.transaction import CHECKSUM_BYTES, DamagedValue, is_intact, with_checksum
from headrace.store.checksums.upgrade import PLAIN_KEYS
from headrace.store.data_file import UnusableDirectory
from headrace.store.retention import Retention, expired_images, first_to_keep, prune, remove
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def at(tmp_path: Path) -> Iterator[DrivenServer]:
    with DrivenServer(tmp_path, clock=FakeClock()) as driven:
        driven.must("t", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
        unique = {"key": {"a": 1}, "name": "a_1", "unique": True}
        driven.must("t", {"createIndexes": "c", "indexes": [unique]})
        driven.must("t", {"insert": "c", "documents": [{"_id": n, "a": n, "text": "x" * 50} for n in range(10)]})
        yield driven


def keys_of(store: Store, table: str, prefix: bytes = b"") -> list[bytes]:
    kv = store.environment.begin_plain()
    try:
        return [key for key, _ in kv.cursor(store.tables[table]).iternext() if key.startswith(prefix)]
    finally:
        kv.abort()


def damage(store: Store, table: str, key: bytes, change: Callable[[bytes], bytes] | None = None) -> None:
    """Change a stored value, as a failing disk does: by default its middle byte."""
    kv = store.environment.begin_plain(write=True)
    stored = kv.get(key, db=store.tables[table])
    assert stored is not None
    middle = len(stored) // 2
    flipped = stored[:middle] + bytes([stored[middle] ^ 0x40]) + stored[middle + 1 :]
    kv.put(key, flipped if change is None else change(stored), db=store.tables[table])
    kv.commit()
    store.forget_read()


def documents(at: DrivenServer, collection: str = "t.c") -> list[bytes]:
    made = at.store.catalog.collection(collection)
    assert made is not None
    return keys_of(at.store, "documents", made.number_key)


def answer(at: DrivenServer, body: dict[str, Any]) -> dict[str, Any]:
    reply = at.run("t", body)
    assert isinstance(reply, dict)
    return reply


def test_a_damaged_document_is_an_error_that_names_it_and_costs_no_other(at: DrivenServer) -> None:
    damage(at.store, "documents", documents(at)[3])
    for body in (
        {"find": "c"}, {"find": "c", "filter": {"_id": 3}}, {"count": "c", "query": {"text": {"$gt": ""}}},
        {"aggregate": "c", "pipeline": [{"$match": {"a": 3}}], "cursor": {}},
        {"findAndModify": "c", "query": {"_id": 3}, "remove": True},
    ):  # fmt: skip
        reply = answer(at, body)
        assert (reply["ok"], reply["code"], reply["codeName"]) == (0.0, 301, "DataCorruptionDetected")
        assert reply["errmsg"].startswith("the document with record 4 of t.c does not match its checksum")
    statements: tuple[dict[str, Any], ...] = (
        {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"b": 1}}}]},
        {"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]},
    )
    for body in statements:
        assert answer(at, body)["writeErrors"][0]["code"] == 301
    for number in (2, 4):
        assert at.must("t", {"find": "c", "filter": {"_id": number}})["cursor"]["firstBatch"][0]["a"] == number
    assert at.must("t", {"insert": "c", "documents": [{"_id": 11, "a": 11}]})["n"] == 1
    validated = at.must("t", {"validate": "c"})
    assert validated["corruptRecords"] == [Int64(4)] and not validated["valid"]
    at.restart()
    assert at.must("t", {"count": "c"})["n"] == 11
    assert at.must("t", {"insert": "c", "documents": [{"_id": 12, "a": 12}]})["n"] == 1
    assert at.must("t", {"drop": "c"})["ok"] == 1.0


def test_a_value_under_another_key_is_no_match(at: DrivenServer) -> None:
    first, second = documents(at)[:2]
    kv = at.store.environment.begin_plain()
    other = kv.get(second, db=at.store.tables["documents"])
    kv.abort()
    assert other is not None
    damage(at.store, "documents", first, lambda stored: other)
    assert answer(at, {"find": "c", "filter": {"_id": 0}})["code"] == 301
    assert is_intact(second, other) and not is_intact(first, other)


def test_a_damaged_row_of_the_id_index_gives_no_other_document(at: DrivenServer) -> None:
    key = keys_of(at.store, "ids")[5]
    damage(at.store, "ids", key, lambda stored: bytes(7) + b"\x02" + stored[8:])
    reply = answer(at, {"find": "c", "filter": {"_id": 5}})
    assert reply["code"] == 301 and "in the _id index of t.c" in reply["errmsg"]
    damage(at.store, "ids", key, lambda stored: with_checksum(key, bytes(7) + b"\x63"))
    reply = answer(at, {"find": "c", "filter": {"_id": 5}})
    assert reply["code"] == 301 and "names a document that is not there" in reply["errmsg"]


def watch(at: DrivenServer, **options: Any) -> dict[str, Any]:
    pipeline = [{"$changeStream": options}]
    return answer(at, {"aggregate": "c", "pipeline": pipeline, "cursor": {"batchSize": 1000}})


def test_a_damaged_entry_ends_the_streams_that_read_it_and_is_pruned_like_any_other(at: DrivenServer) -> None:
    opened = watch(at)["cursor"]["postBatchResumeToken"]
    at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(20, 25)]})
    positions = keys_of(at.store, "oplog")
    damage(at.store, "oplog", positions[-3])
    at.restart()
    reply = watch(at, resumeAfter=opened)
    events = reply["cursor"]["firstBatch"]
    assert [event["documentKey"]["_id"] for event in events] == [20, 21]
    cursor = {"getMore": reply["cursor"]["id"], "collection": "c"}
    reply = answer(at, cursor)
    seconds, increment = int.from_bytes(positions[-3][:4], "big"), int.from_bytes(positions[-3][4:], "big")
    assert (reply["code"], reply["errmsg"].split(" does")[0]) == (
        301, f"the oplog entry at Timestamp({seconds}, {increment})",
    )  # fmt: skip
    with at.store.reading() as view:
        keep = first_to_keep(view, Retention(None, None, 1), at.clock.now_ms())
    txn = at.store.begin()
    assert prune(txn, keep, 1000) == len(positions) - 1
    at.store.commit(txn)


def test_a_store_whose_newest_entry_is_damaged_opens_and_goes_on_behind_it(at: DrivenServer) -> None:
    last = keys_of(at.store, "oplog")[-1]
    damage(at.store, "oplog", last)
    at.restart()
    assert at.store.last_position == int.from_bytes(last, "big")
    at.must("t", {"insert": "c", "documents": [{"_id": 99, "a": 99}]})
    assert keys_of(at.store, "oplog")[-1] > last


def test_a_damaged_run_skips_nothing(at: DrivenServer) -> None:
    opened = watch(at)["cursor"]["postBatchResumeToken"]
    at.must("t", {"insert": "d", "documents": [{"_id": 1}]})
    at.must("t", {"insert": "c", "documents": [{"_id": n, "a": n} for n in range(20, 25)]})
    topic = at.store.catalog.topics["t.c"].to_bytes(4, "big")
    damage(at.store, "runs", keys_of(at.store, "runs", topic)[-1])
    at.restart()
    reply = watch(at, resumeAfter=opened)
    assert reply["code"] == 301 and reply["errmsg"].startswith("the oplog's index of t.c at Timestamp(")


def test_a_damaged_image_is_an_error_and_expires(at: DrivenServer) -> None:
    opened = watch(at)["cursor"]["postBatchResumeToken"]
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}}]})
    (image,) = keys_of(at.store, "images")
    damage(at.store, "images", image)
    reply = watch(at, resumeAfter=opened, fullDocumentBeforeChange="required")
    assert reply["code"] == 301 and reply["errmsg"].startswith("the pre-image of the change at Timestamp(")
    with at.store.reading() as view:
        assert expired_images(view, 3600, at.clock.now_ms(), 100) == [image]
    txn = at.store.begin()
    remove(txn, "images", [image])
    at.store.commit(txn)
    assert keys_of(at.store, "images") == []


def test_damage_holds_up_neither_ttl_nor_a_capped_collection(at: DrivenServer) -> None:
    at.must("t", {"create": "capped", "capped": True, "size": 10_000, "max": 3})
    at.must("t", {"insert": "capped", "documents": [{"_id": n} for n in range(3)]})
    damage(at.store, "documents", documents(at, "t.capped")[0])
    at.must("t", {"insert": "capped", "documents": [{"_id": 3}, {"_id": 4}]})
    assert [item["_id"] for item in at.must("t", {"find": "capped"})["cursor"]["firstBatch"]] == [2, 3, 4]
    at.must("t", {"createIndexes": "d", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0}]})
    at.must("t", {"insert": "d", "documents": [{"_id": n, "at": EPOCH} for n in range(3)]})
    collection = at.store.catalog.collection("t.d")
    assert collection is not None
    keys = documents(at, "t.d")
    damage(at.store, "documents", keys[0])
    txn = at.store.begin()
    assert delete_expired(txn, collection, collection.indexes[1], [key[4:] for key in keys], 1 << 50) == 2
    at.store.commit(txn)


def test_a_damaged_catalog_is_refused_with_one_line(at: DrivenServer, tmp_path: Path) -> None:
    damage(at.store, "catalog", b"t.c")
    at.close()
    with pytest.raises(UnusableDirectory, match=r"data\.mdb cannot be read: t\.c in the table catalog does not match"):
        Store(tmp_path)


def test_no_flipped_byte_of_any_value_gives_a_wrong_document(tmp_path: Path) -> None:
    random = Random(1)
    with DrivenServer(tmp_path) as at:
        expected = {n: {"_id": n, "text": random.randbytes(150).hex()} for n in range(3000)}
        at.must("t", {"insert": "c", "documents": list(expected.values())})
        flipped = set()
        keys = documents(at)
        for number in random.sample(range(3000), 200):
            at_byte, bit = random.randrange(300), 1 << random.randrange(8)
            damage(
                at.store, "documents", keys[number],
                lambda stored, i=at_byte, bit=bit: stored[:i] + bytes([stored[i] ^ bit]) + stored[i + 1 :],  # type: ignore[misc]
            )  # fmt: skip
            flipped.add(number)
        for number, document in expected.items():
            reply = answer(at, {"find": "c", "filter": {"_id": number}})
            if number in flipped:
                assert reply["code"] == 301
            else:
                assert reply["cursor"]["firstBatch"] == [document]


# Directories of format 1.


def rows(store: Store, *, checksums: bool) -> dict[tuple[str, bytes], bytes]:
    kv = store.environment.begin_plain()
    values = {}
    for name, table in store.tables.items():
        for key, value in kv.cursor(table).iternext():
            has_one = checksums and not (name == "meta" and key in PLAIN_KEYS)
            assert not has_one or is_intact(key, value)
            values[name, key] = value[:-CHECKSUM_BYTES] if has_one else value
    kv.abort()
    return values


def as_format_1(store: Store) -> dict[tuple[str, bytes], bytes]:
    """Take the checksums away, and return what is stored."""
    values = rows(store, checksums=True)
    values["meta", b"format"] = b"1"
    kv = store.environment.begin_plain(write=True)
    for (name, key), value in values.items():
        kv.put(key, value, db=store.tables[name])
    kv.commit()
    return values


def test_a_directory_of_format_1_is_converted_when_it_is_opened(
    at: DrivenServer, caplog: pytest.LogCaptureFixture
) -> None:
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}}]})
    opened = watch(at)["cursor"]["postBatchResumeToken"]
    before = as_format_1(at.store)
    caplog.set_level(logging.INFO)
    at.restart()
    assert "gets checksums; no earlier version opens it" in caplog.text
    assert rows(at.store, checksums=True) == before | {("meta", b"format"): b"3"}
    assert at.must("t", {"find": "c", "filter": {"_id": 1}})["cursor"]["firstBatch"][0]["b"] == 1
    at.must("t", {"insert": "c", "documents": [{"_id": 50, "a": 50}]})
    assert [event["documentKey"]["_id"] for event in watch(at, resumeAfter=opened)["cursor"]["firstBatch"]] == [50]


@pytest.mark.parametrize("crash_after", [1, 2, 5, 20])
def test_a_conversion_that_was_cut_off_goes_on(
    at: DrivenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_after: int
) -> None:
    monkeypatch.setattr(limits, "CONVERT_COUNT", 3)
    before = as_format_1(at.store)
    at.close()
    from headrace.store.checksums import upgrade

    left = crash_after
    original = upgrade._convert

    def convert(*arguments: Any) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the power went")
        return original(*arguments)

    monkeypatch.setattr(upgrade, "_convert", convert)
    with pytest.raises(OSError, match="the power went"):
        Store(tmp_path)
    left = 1 << 30
    store = Store(tmp_path)
    assert rows(store, checksums=True) == before | {("meta", b"format"): b"3"}
    store.close()


@pytest.mark.parametrize("backward", [False, True])
def test_scans_name_a_damaged_document(at: DrivenServer, backward: bool) -> None:
    made = at.store.catalog.collections["t.c"]
    keys = documents(at)
    with at.store.reading() as view:
        intact = view.scan_chunk(made, backward=backward)
    assert [record for record, _ in intact] == [key[4:] for key in (reversed(keys) if backward else keys)]
    for number in (9, 5, 0):
        damage(at.store, "documents", keys[number])
        with at.store.reading() as view, pytest.raises(DamagedValue) as caught:
            view.scan_chunk(made, backward=backward)
        first = 9 if backward else number
        assert f"record {first + 1} of t.c" in str(caught.value)
