"""`headrace check`: a sound directory has no problems, and whatever is changed in one is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Int64

from headrace import limits
from headrace.cli.main import main
from headrace.store.check.directory import Report, check
from headrace.store.checksums.transaction import with_checksum
from headrace.store.data_file import UnusableDirectory
from headrace.store.retention import prune
from headrace.store.store import Store
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from headrace.values.bson import decode
from tests.store.test_checksums import as_format_1, damage, keys_of

SESSION = {"id": Binary(UUID(int=7).bytes, 4)}


def statement(at: DrivenServer, number: int, body: dict[str, Any], *, starts: bool = False) -> None:
    fields: dict[str, Any] = {"lsid": SESSION, "txnNumber": Int64(number), "autocommit": False}
    database = "admin" if "commitTransaction" in body else "t"
    at.must(database, {**body, **fields, **({"startTransaction": True} if starts else {})})


def fill(at: DrivenServer) -> None:
    """Everything that a directory can hold."""
    at.must("t", {"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    at.must("t", {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1", "unique": True}]})
    at.must("t", {"insert": "c", "documents": [{"_id": n, "a": [n, -n - 1]} for n in range(200)]})
    at.must("t", {"insert": "c", "documents": [{"_id": "x" * 2000, "a": "long"}]})
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$set": {"b": 1}}}]})
    at.must("t", {"create": "v", "viewOn": "c", "pipeline": []})
    at.must("t", {"collMod": "v", "viewOn": "c", "pipeline": [{"$match": {}}]})
    at.must("t", {"insert": "d", "documents": [{"_id": n, "text": "x" * 9000} for n in range(20)]})
    at.must("admin", {"renameCollection": "t.d", "to": "u.d"})
    at.must("t", {"insert": "e", "documents": [{"_id": 1}]})
    at.must("t", {"drop": "e"})
    body = {"insert": "c", "documents": [{"_id": 1000}], "lsid": SESSION, "txnNumber": Int64(1)}
    at.must("t", body)
    statement(at, 2, {"insert": "c", "documents": [{"_id": 2000, "a": "t"}]}, starts=True)
    statement(at, 2, {"insert": "new", "documents": [{"_id": 2001}]})
    statement(at, 2, {"commitTransaction": 1})
    large = "x" * (9 * 1024 * 1024)
    statement(at, 3, {"insert": "new", "documents": [{"_id": 1, "text": large}]}, starts=True)
    statement(at, 3, {"insert": "c", "documents": [{"_id": 3000, "a": "u", "text": large}]})
    statement(at, 3, {"commitTransaction": 1})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        fill(at)
    return tmp_path


def changed(path: Path, change: Callable[[Store], None]) -> Report:
    store = Store(path)
    change(store)
    store.close()
    return check(path)


def test_a_sound_directory_has_no_problems_and_is_left_as_it_is(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {item: (item.read_bytes(), item.stat().st_mtime_ns) for item in directory.iterdir()}
    assert main(["check", str(directory)]) == 0
    assert capsys.readouterr().out == (
        f"{directory}: no problems; documents 247, collections and views 4, oplog entries 260, pre-images 1\n"
    )
    assert {item: (item.read_bytes(), item.stat().st_mtime_ns) for item in directory.iterdir()} == before


def test_a_chain_whose_first_entries_are_pruned_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_ENTRY_BYTES", 300)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"create": "a"})
        fields: dict[str, Any] = {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False}
        for name in ("a", "b", "c"):
            documents = [{"_id": n} for n in range(8)]
            first = {} if name != "a" else {"startTransaction": True}
            at.must("t", {"insert": name, "documents": documents, **fields, **first})
        at.in_turns("admin", {"commitTransaction": 1, **fields})
        with at.store.reading() as view:
            chain = [position for position, entry in view.entries(0) if "applyOps" in decode(entry)["o"]]
        txn = at.store.begin()
        prune(txn, chain[3], 1000)
        at.store.commit(txn)
    assert check(tmp_path).problems == []


def test_the_rows_of_a_dropped_index_are_no_problem(directory: Path) -> None:
    with DrivenServer(directory, clock=FakeClock()) as at:
        at.must("t", {"dropIndexes": "c", "index": "a_1"})
    assert check(directory).problems == []


def test_a_directory_without_checksums_is_checked_as_it_is(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(directory)
    as_format_1(store)
    store.close()
    assert main(["check", str(directory)]) == 0
    assert capsys.readouterr().out.endswith("; format 1, without checksums\n")


def first(table: str, prefix: bytes = b"") -> Callable[[Store], bytes]:
    return lambda store: keys_of(store, table, prefix)[0]


CHANGES: list[tuple[str, Callable[[bytes, bytes], bytes | None] | None, str]] = [
    ("documents", None, "the document with record 1 of t.c does not match its checksum"),
    ("documents", lambda key, value: None, "leads to no document"),
    ("documents", lambda key, value: b"\5\0\0\0\0", "does not begin with its _id"),
    ("documents", lambda key, value: b"no document", "is not BSON"),
    ("ids", None, "in the _id index of t.c does not match its checksum"),
    ("ids", lambda key, value: None, "the _id of the document with record 1 of t.c does not lead to it"),
    ("ids", lambda key, value: bytes(7) + b"\x05", "leads to a document with another _id"),
    ("indexes", None, "in the index a_1 of t.c does not match its checksum"),
    ("indexes", lambda key, value: None, "the index a_1 does not lead to the document with record"),
    ("indexes", lambda key, value: bytes(7) + b"\x05", "leads to a document with another key"),
    ("oplog", None, "the oplog entry at Timestamp("),
    ("oplog", lambda key, value: value.replace(b"\x11ts\0", b"\x11tx\0"), "has another time in itself"),
    ("runs", None, "the oplog's index of t.$cmd at Timestamp("),
    ("runs", lambda key, value: None, "the oplog's index of t.$cmd does not lead to the oplog entry at Timestamp("),
    ("runs", lambda key, value: bytes(8), "is no run that follows the one before it"),
    ("runs", lambda key, value: b"\x7f" + value[1:], "the oplog's index of t.$cmd leads to entries of other namesp"),
    ("images", None, "the pre-image of the change at Timestamp("),
    ("images", lambda key, value: value[:8] + b"no document", "is not BSON"),
    ("sessions", None, "in the table sessions does not match its checksum"),
    ("catalog", None, "the catalog: t.c in the table catalog does not match its checksum: the data file is damaged"),
    ("meta", lambda key, value: bytes(4), "the catalog's next number is one that it has given already"),
]


@pytest.mark.parametrize(("table", "change", "problem"), CHANGES)
def test_what_was_changed_is_named(
    directory: Path, table: str, change: Callable[[bytes, bytes], bytes | None] | None, problem: str
) -> None:
    def apply(store: Store) -> None:
        prefix = {"meta": b"next-number", "runs": store.catalog.topics["t.$cmd"].to_bytes(4, "big")}.get(table, b"")
        key = keys_of(store, table, prefix)[{"oplog": 5, "runs": -1}.get(table, 0)]
        if change is None:
            damage(store, table, key)
            return
        kv = store.environment.begin_plain(write=True)
        stored = kv.get(key, db=store.tables[table])
        assert stored is not None
        value = change(key, stored[:-4])
        if value is None:
            kv.delete(key, db=store.tables[table])
        else:
            kv.put(key, with_checksum(key, value), db=store.tables[table])
        kv.commit()

    problems = changed(directory, apply).problems
    assert problems and any(problem in line for line in problems), problems


def test_an_orphan_is_named(directory: Path) -> None:
    def apply(store: Store) -> None:
        kv = store.environment.begin_plain(write=True)
        for table in ("documents", "ids", "indexes"):
            key = b"\xee" * 12
            kv.put(key, with_checksum(key, bytes(8)), db=store.tables[table])
        kv.commit()

    problems = changed(directory, apply).problems
    assert ["belongs to no" in line for line in problems] == [True] * 3


def test_a_byte_changed_anywhere_is_named_or_is_in_use_nowhere(tmp_path: Path) -> None:
    random = Random(7)
    with DrivenServer(tmp_path) as at:
        documents = [{"_id": n, "text": random.randbytes(40).hex()} for n in range(300)]
        for start in range(0, 300, 50):
            at.must("t", {"insert": "c", "documents": documents[start : start + 50]})
    file = tmp_path / "data.mdb"
    content = file.read_bytes()
    counts = {True: 0, False: 0}
    for _ in range(150):
        at_byte = random.randrange(8192, len(content))
        file.write_bytes(
            content[:at_byte] + bytes([content[at_byte] ^ 1 << random.randrange(8)]) + content[at_byte + 1 :]
        )
        problems = check(tmp_path).problems
        counts[bool(problems)] += 1
        if not problems:
            with DrivenServer(tmp_path) as at:
                reply = at.must("t", {"find": "c", "batchSize": 1000})
                assert reply["cursor"]["firstBatch"] == documents
    assert counts[True] > 50


@pytest.mark.parametrize("content", [b"", b"this is no data file" * 1000])
def test_what_is_no_directory_of_headrace_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnusableDirectory):
        check(tmp_path)
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(UnusableDirectory):
        check(tmp_path)
    assert os.listdir(tmp_path) == ["data.mdb"]


def test_a_directory_that_a_server_has_open_is_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DrivenServer(directory):
        assert main(["check", str(directory)]) == 100
    assert "is in use by another headrace process" in capsys.readouterr().err
