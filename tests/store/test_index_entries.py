"""Indexes hold exactly their documents: after writes of all kinds, transactions, restarts, and in older directories."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.store import catalog_changes
from headrace.store.catalog import Index
from headrace.store.check.directory import check
from headrace.store.indexes import index_builds
from headrace.store.indexes.index_entries import key_maker
from headrace.store.indexes.index_keys import UNBOUNDED, KeyMaker
from headrace.store.indexes.keys_of_many import NO_KEY, plain_keys
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode, encode
from headrace.values.order import sort_key

INDEXES: list[dict[str, Any]] = [
    {"key": {"a": 1}, "name": "a"},
    {"key": {"a": -1, "b.c": 1}, "name": "a_bc"},
    {"key": {"b.c": 1, "b.d": -1}, "name": "bc_bd"},
    {"key": {"d": 1}, "name": "sparse", "sparse": True},
    {"key": {"a": 1, "_id": -1}, "name": "partial", "partialFilterExpression": {"d": {"$gt": 2}}},
    {"key": {"u": 1}, "name": "unique", "unique": True, "sparse": True},
    {"key": {"t": 1}, "name": "ttl", "expireAfterSeconds": 5},
    {"key": {"b.0": 1}, "name": "numeric"},
]
VALUES: list[Any] = [
    None, 0, 1, 1.5, Int64(2), -3, Decimal128("1.50"), float("nan"), "", "x", "x\0y", "x" * 600, True,
    ObjectId("0" * 24), DatetimeMS(5), b"\x00", {}, {"x": 1}, {"c": 1, "d": 2}, [], [1, 2], [[1]],
    [{"c": 1}, {"c": [2, 3], "d": 1}], [None],
]  # fmt: skip


def document(chooser: random.Random) -> dict[str, Any]:
    made = {name: chooser.choice(VALUES) for name in "abdt" if chooser.random() < 0.7}
    if chooser.random() < 0.3:
        made["u"] = chooser.randrange(20)
    return made


def write(chooser: random.Random) -> dict[str, Any]:
    """A command that writes; what it meets decides whether it fails."""
    number, kind = chooser.randrange(40), chooser.random()
    if kind < 0.4:
        documents = [{"_id": chooser.randrange(40), **document(chooser)} for _ in range(chooser.randint(1, 4))]
        return {"insert": "c", "documents": documents, "ordered": chooser.random() < 0.5}
    if kind < 0.6:
        return {"update": "c", "updates": [{"q": {"_id": number}, "u": document(chooser), "upsert": kind < 0.45}]}
    if kind < 0.8:
        change = {"$set": {chooser.choice(["a", "b", "b.c", "d", "n"]): chooser.choice(VALUES)}}
        return {"update": "c", "updates": [{"q": {"_id": {"$gte": number}}, "u": change, "multi": True}]}
    return {"delete": "c", "deletes": [{"q": {"_id": {"$gte": number, "$lt": number + 3}}, "limit": 0}]}


@pytest.mark.parametrize("seed", range(4))
def test_indexes_hold_what_the_collection_holds_after_any_writes(tmp_path: Path, seed: int) -> None:
    write_at_random(tmp_path, seed)


def write_at_random(tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": [n]} for n in range(5)]})
        at.must("t", {"createIndexes": "c", "indexes": INDEXES})
        numbers = iter(range(1, 1000))
        for _ in range(40):
            if chooser.random() < 0.3:
                session = {"lsid": {"id": Binary(bytes(16), 4)}, "txnNumber": Int64(next(numbers)), "autocommit": False}
                start = {"startTransaction": True}
                for _ in range(chooser.randint(1, 3)):
                    reply = at.run("t", {**write(chooser), **session, **start})
                    start = {}
                    if isinstance(reply, dict) and "code" in reply:
                        break
                at.run("admin", {chooser.choice(["commitTransaction", "abortTransaction"]): 1, **session})
            else:
                at.run("t", write(chooser))
            if chooser.random() < 0.05:
                at.restart()
    assert check(tmp_path).problems == []


def test_a_capped_collection_drops_the_entries_of_what_it_drops(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"create": "c", "capped": True, "size": 100_000, "max": 3})
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
        for number in range(10):
            at.must("t", {"insert": "c", "documents": [{"_id": number, "a": number}]})
        with at.store.reading() as view:
            assert view.kv.stat(view.tables["indexes"])["entries"] == 3
    assert check(tmp_path).problems == []


def test_an_update_that_changes_no_key_writes_no_entry() -> None:
    with DrivenServer(clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]})
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": 1}]})
        put: list[bytes] = []
        begin = at.store.environment.begin_write

        def recording() -> Any:
            kv = begin()
            original = type(kv).put
            table = at.store.tables["indexes"]

            class Recording(type(kv)):  # type: ignore[misc]
                def put(self, key: bytes, value: bytes, *, db: Any) -> bool:
                    if db is table:
                        put.append(key)
                    return bool(original(self, key, value, db=db))

            return Recording(kv._base, kv._describe)  # type: ignore[attr-defined]

        at.store.environment.begin_write = recording  # type: ignore[method-assign]
        at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"b": 1}}}]})
        assert put == []
        at.must("t", {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]})
        assert len(put) == 1


def keys_of(key: dict[str, Any], raw: dict[str, Any], **options: Any) -> list[bytes]:
    return key_maker(Index(1, {"key": key, "name": "i", **options})).keys(encode(raw))[0]


def test_keys_are_in_the_order_of_the_values_and_inverted_in_descending_fields() -> None:
    plain = [value for value in VALUES if type(value) is not list and value != "x" * 600]
    by_order = sorted(plain, key=sort_key)
    by_key = sorted(plain, key=lambda value: keys_of({"a": 1}, {"a": value}))
    assert [sort_key(value) for value in by_key] == [sort_key(value) for value in by_order]
    backward = sorted(plain, key=lambda value: keys_of({"a": -1}, {"a": value}), reverse=True)
    assert [sort_key(value) for value in backward] == [sort_key(value) for value in by_order]


def test_keys_from_raw_documents_are_those_of_decoded_ones() -> None:
    made = encode({"_id": 1, "a": 1, "b": {"a": 2, "c": 3}})
    twice = made[:-1] + b"\x10a\0\x07\0\0\0\0"
    twice = len(twice).to_bytes(4, "little") + twice[4:]
    assert decode(twice)["a"] == 7
    one = key_maker(Index(1, {"key": {"a": 1, "b.c": -1}, "name": "i"}))
    assert one.keys(twice)[0] == list(one.rows(twice)) == keys_of({"a": 1, "b.c": -1}, {"a": 7, "b": {"c": 3}})
    assert one.keys(made)[0] == list(one.rows(made))


@pytest.mark.parametrize("decoded_count", [0, 1024])
@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"partialFilterExpression": {"d": {"$gt": 2}}},
                                     {"unique": True}, {"collation": {"locale": "sv"}}])  # fmt: skip
@pytest.mark.parametrize(
    "key",
    [{"a": 1}, {"a": -1}, {"a": 1, "d": -1}, {"b.c": 1}, {"a": 1, "b.c": -1, "t": 1}, {"b.0": 1}, {"a": "hashed"}],
)
def test_keys_of_many_documents_are_those_of_each(
    key: dict[str, Any], options: dict[str, Any], decoded_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no one plain key, it is said so."""
    monkeypatch.setattr(limits, "DECODED_COUNT", decoded_count)
    chooser = random.Random(3)
    maker = key_maker(Index(1, {"key": key, "name": "i", **options}))
    assert isinstance(maker, KeyMaker)
    flat = [
        {"_id": n, "a": value, "b": {"c": value}, "d": n} for n, value in enumerate(VALUES) if type(value) is not list
    ]
    for made in (flat, [document(chooser) for _ in range(200)]):
        raw = [encode(one) for one in made]
        plain = plain_keys(maker, raw)
        for one, quick in zip(raw, plain, strict=True):
            if quick is None:
                continue
            assert [quick] * (quick != NO_KEY) == maker.keys(one)[0], decode(one)
            assert maker.keys(one)[1] == frozenset()
        assert made is not flat or sum(quick is None for quick in plain) < len(plain) / 2
    assert plain_keys(maker, []) == []
    reference = encode({"a": {"$ref": "c", "$id": 1}})
    assert plain_keys(maker, [reference]) in ([None], maker.keys(reference)[0] or [NO_KEY])


def test_long_documents_are_not_decoded_for_their_keys() -> None:
    maker = key_maker(Index(1, {"key": {"a": 1}, "name": "i"}))
    assert isinstance(maker, KeyMaker)
    assert plain_keys(maker, [encode({"a": 1, "text": "x" * 5000})]) == [None]


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"partialFilterExpression": {"d": {"$gt": 2}}},
                                     {"unique": True}, {"collation": {"locale": "sv"}}])  # fmt: skip
@pytest.mark.parametrize(
    "key",
    [{"a": 1}, {"a": -1}, {"a": 1, "d": -1}, {"b.c": 1}, {"a": 1, "b.c": -1, "t": 1}, {"b.0": 1}, {"a": "hashed"}],
)
def test_keys_made_without_rows_are_those_of_the_rows(key: dict[str, Any], options: dict[str, Any]) -> None:
    """Where they cannot be, it is said so."""
    chooser = random.Random(3)
    maker = key_maker(Index(1, {"key": key, "name": "i", **options}))
    assert isinstance(maker, KeyMaker)
    flat = [
        {"_id": n, "a": value, "b": {"c": value}, "d": n} for n, value in enumerate(VALUES) if type(value) is not list
    ]
    for made in (flat, [document(chooser) for _ in range(200)]):
        quick = [maker._plain_keys(one, UNBOUNDED) for one in map(decode, map(encode, made))]
        for one, keys in zip(made, quick, strict=True):
            if keys is not None:
                rows = maker._rows(decode(encode(one)))
                assert keys == (list(rows), maker._traits(one, rows) if rows else frozenset()), one
        assert made is not flat or sum(keys is None for keys in quick) < len(quick) / 2


def without_entries(path: Path) -> None:
    """Make of a directory what a version has written in which only unique indexes had entries."""
    store = Store(path)
    txn = store.begin()
    table = store.tables["indexes"]
    for collection in store.catalog.collections.values():
        for index in collection.indexes:
            index.has_entries = False
            prefix = index.number.to_bytes(4, "big")
            with txn.kv.cursor(table) as cursor:
                while not index.unique and cursor.set_range(prefix) and cursor.key()[:4] == prefix:
                    cursor.delete()
        txn.catalog.save(txn.kv, collection)
    store.commit(txn)
    kv = store.environment.begin_plain(write=True)
    kv.put(b"format", b"2", db=store.tables["meta"])
    kv.commit()
    store.close()


def filled(path: Path) -> None:
    with DrivenServer(path, clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": INDEXES[:7]})
        chooser = random.Random(7)
        for number in range(60):
            at.run("t", {"insert": "c", "documents": [{"_id": number, **document(chooser)}]})


def collect(store: Store) -> None:
    while True:
        txn = store.begin()
        left = catalog_changes.collect_garbage(txn, 1000)
        store.commit(txn)
        if not left:
            return


def rows(path: Path) -> dict[str, list[bytes]]:
    """What follows the number in the keys of each index."""
    store = Store(path)
    collect(store)
    names = {index.number: index.name for index in store.catalog.collections["t.c"].indexes}
    made: dict[str, list[bytes]] = {name: [] for name in names.values()}
    with store.reading() as view:
        for key in view.kv.cursor(store.tables["indexes"]).iternext(values=False):
            made[names[int.from_bytes(key[:4], "big")]].append(key[4:])
    store.close()
    return made


@pytest.mark.parametrize("fails_after", [None, 0, 1, 3, 8])
def test_an_older_directory_gets_its_entries_at_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails_after: int | None
) -> None:
    filled(tmp_path)
    expected = rows(tmp_path)
    without_entries(tmp_path)
    monkeypatch.setattr(limits, "BUILD_COUNT", 5)
    monkeypatch.setattr(index_builds, "_PIECE_COUNT", 5)
    if fails_after is not None:
        left = fails_after
        original = index_builds.fill

        def fill(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("the power went")
            return original(*arguments)

        monkeypatch.setattr(index_builds, "fill", fill)
        with pytest.raises(OSError, match="the power went"):
            Store(tmp_path)
        left = 1000
    assert rows(tmp_path) == expected
    assert "the index a_bc of t.c is built" in caplog.text
    caplog.clear()
    assert rows(tmp_path) == expected and not caplog.text
    assert check(tmp_path).problems == []


def test_an_index_that_cannot_hold_a_document_of_an_older_directory_is_listed_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1, "b": 1}, "name": "ab"}]})
        at.must("t", {"insert": "c", "documents": [{"_id": 1, "a": [1], "b": 1}]})
    without_entries(tmp_path)
    store = Store(tmp_path)
    txn = store.begin()
    collection = store.catalog.collections["t.c"]
    catalog_changes.drop_index(txn, collection, collection.indexes[1])
    txn.insert(collection, encode({"_id": 2, "a": [1], "b": [1]}))
    spec = {"v": 2, "key": {"a": 1, "b": 1}, "name": "ab"}
    listed = Index(txn.catalog.new_number(txn.kv), spec, has_entries=False)
    collection = txn.catalog.current(collection)
    txn.catalog.save(txn.kv, collection.changed(indexes=(*collection.indexes, listed)))
    store.commit(txn)
    store.close()
    caplog.clear()
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert "the indexes ab of t.c are not built: cannot index parallel arrays" in caplog.text
        assert len(at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]) == 2
        at.must("t", {"insert": "c", "documents": [{"_id": 3, "a": [1], "b": [1]}]})
    assert check(tmp_path).problems == []
