"""`headrace export` and `import`: what is written comes back, in each format, and what is no document is refused."""

from __future__ import annotations

import io
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pymongo
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

import headrace
from headrace import limits
from headrace.cli.main import main
from headrace.cli.transfer import dump, formats

EVERY_TYPE: list[dict[str, Any]] = [
    {"_id": 1, "int": 1, "long": Int64(2), "double": 1.0, "decimal": Decimal128("1.10"), "text": "ä\n\x00 $"},
    {"_id": ObjectId(), "date": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC), "far": DatetimeMS(10**17)},
    {"_id": {"a": 1, "b": [1, None, {}]}, "binary": Binary(b"\x00\xff", 5), "code": Code("x", {"y": 1})},
    {"_id": None, "min": MinKey(), "max": MaxKey(), "regex": Regex("a+", "i"), "timestamp": Timestamp(1, 2)},
    {"_id": True, "nan": float("nan"), "ref": DBRef("c", 1, "d"), "deep": {"a": {"b": {"c": []}}}},
]


@pytest.fixture(scope="module")
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as running:
        yield running


@pytest.fixture
def client(server: headrace.Server) -> Iterator[Any]:
    with pymongo.MongoClient[dict[str, Any]](server.uri) as opened:
        for name in ("shop", "other"):
            opened.drop_database(name)
        yield opened


def raw(client: Any, name: str) -> list[bytes]:
    database, _, collection = name.partition(".")
    options = client.codec_options.with_options(document_class=RawBSONDocument)
    return sorted(document.raw for document in client[database].get_collection(collection, options).find())


@pytest.mark.parametrize(("file", "words"), [("c.bson", []), ("c.json", ["--canonical"]), ("c", ["--format", "bson"])])
def test_every_type_comes_back(
    server: headrace.Server, client: Any, tmp_path: Path, file: str, words: list[str]
) -> None:
    client.shop.c.insert_many(EVERY_TYPE)
    path = str(tmp_path / file)
    assert main(["export", server.uri, "shop.c", "--out", path, *words]) == 0
    assert main(["import", server.uri, "other.c", path, *(word for word in words if word != "--canonical")]) == 0
    assert raw(client, "other.c") == raw(client, "shop.c") and len(raw(client, "shop.c")) == 5


def test_a_pipe_has_json_lines(
    server: headrace.Server, client: Any, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    client.shop.c.insert_many([{"_id": number, "n": number, "t": {"u": 1, "v": 2}} for number in range(5)])
    query = ["--query", '{"n": {"$gt": 1}}', "--sort", '{"n": -1}', "--limit", "2", "--fields", "n,t.u"]
    assert main(["export", server.uri, "shop.c", *query]) == 0
    output = capfdbinary.readouterr()
    assert output.out == b'{"_id": 4, "n": 4, "t": {"u": 1}}\n{"_id": 3, "n": 3, "t": {"u": 1}}\n'
    assert output.err == b"2 documents of shop.c\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(output.out)))
    assert main(["import", server.uri, "other.c", "-"]) == 0
    assert list(client.other.c.find({}, sort=[("_id", 1)]))[1] == {"_id": 4, "n": 4, "t": {"u": 1}}


def test_an_array_of_documents_is_read_too(server: headrace.Server, client: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('[{"_id": 1},\n {"_id": 2}]', "utf-8")
    assert main(["import", server.uri, "other.c", str(path)]) == 0
    assert client.other.c.count_documents({}) == 2


def test_csv_has_the_columns_that_are_named(server: headrace.Server, client: Any, tmp_path: Path) -> None:
    client.shop.c.insert_many([
        {"_id": 1, "a": {"b": 'say "x"', "c": 1.5}, "tags": [1], "at": datetime(2026, 1, 2, tzinfo=UTC), "ok": True},
        {"_id": 2, "a": {"b": "007"}, "big": Int64(2**40)},
    ])  # fmt: skip
    path = tmp_path / "c.csv"
    assert main(["export", server.uri, "shop.c", "--out", str(path), "--fields", "_id,a.b,a.c,tags,at,ok,big"]) == 0
    assert path.read_text("utf-8").splitlines() == [
        "_id,a.b,a.c,tags,at,ok,big",
        '1,"say ""x""",1.5,[1],2026-01-02T00:00:00.000Z,true,',
        "2,007,,,,,1099511627776",
    ]
    assert main(["import", server.uri, "other.c", str(path)]) == 0
    assert list(client.other.c.find()) == [
        {"_id": 1, "a": {"b": 'say "x"', "c": 1.5}, "tags": "[1]", "at": "2026-01-02T00:00:00.000Z", "ok": "true"},
        {"_id": 2, "a": {"b": "007"}, "big": 2**40},
    ]


def test_columns_of_csv_can_have_types(server: headrace.Server, client: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(
        "_id.string(),n.int64(),at.date(),d.decimal(),ok.boolean(),x.json()\n7,7,2026-01-02,1.10,true,[1]\n", "utf-8"
    )
    assert main(["import", server.uri, "other.c", str(path), "--columnsHaveTypes"]) == 0
    assert list(client.other.c.find()) == [
        {"_id": "7", "n": 7, "at": datetime(2026, 1, 2), "d": Decimal128("1.10"), "ok": True, "x": [1]}
    ]


def test_documents_that_are_there_are_refused_or_replaced(
    server: headrace.Server, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"_id": 1, "sku": "a", "n": 1}\n\n{"_id": 2, "sku": "b", "n": 1}\n', "utf-8")
    client.other.c.insert_one({"_id": 1, "sku": "a", "n": 0})
    assert main(["import", server.uri, "other.c", str(path)]) == 1
    output = capsys.readouterr()
    assert "E11000 duplicate key" in output.err and output.out == "1 document, 1 refused\n"
    assert main(["import", server.uri, "other.c", str(path), "--upsert", "sku"]) == 0
    assert [document["n"] for document in client.other.c.find()] == [1, 1]
    assert main(["import", server.uri, "other.c", str(path), "--drop"]) == 0


def test_what_comes_before_a_bad_line_is_stored_and_counted(
    server: headrace.Server, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"_id": 1}\n{"_id": 2}\n{', "utf-8")
    assert main(["import", server.uri, "other.c", str(path)]) == 1
    assert capsys.readouterr().out == "2 documents\n" and client.other.c.count_documents({}) == 2


def test_a_dump_has_options_indexes_and_views(server: headrace.Server, client: Any, tmp_path: Path) -> None:
    shop = client.shop
    shop.create_collection("a/b", validator={"x": {"$type": "int"}}, changeStreamPreAndPostImages={"enabled": True})
    shop["a/b"].create_index([("x", 1), ("y", -1)], unique=True, name="xy")
    shop["a/b"].insert_many([{"_id": number, "x": number} for number in range(1500)])
    shop.create_collection("view", viewOn="a/b", pipeline=[{"$match": {"x": 1}}])
    shop.create_collection("empty", capped=True, size=4096)
    before = {info["name"]: info["options"] for info in shop.list_collections()}
    indexes, documents = shop["a/b"].index_information(), raw(client, "shop.a/b")
    assert main(["export", server.uri, "--out", str(tmp_path / "dump")]) == 0
    folder = tmp_path / "dump" / "shop"
    assert {path.name for path in folder.iterdir()} == {
        "a%2Fb.bson", "a%2Fb.metadata.json", "empty.bson", "empty.metadata.json", "view.metadata.json",
    }  # fmt: skip
    metadata = json.loads((folder / "a%2Fb.metadata.json").read_text("utf-8"))
    assert metadata["collectionName"] == "a/b" and len(metadata["uuid"]) == 32 and metadata["type"] == "collection"
    assert len(bson.decode_all((folder / "a%2Fb.bson").read_bytes())) == 1500
    client.drop_database("shop")
    assert main(["import", server.uri, str(tmp_path / "dump")]) == 0
    assert {info["name"]: info["options"] for info in shop.list_collections()} == before
    assert shop["a/b"].index_information() == indexes and raw(client, "shop.a/b") == documents
    assert main(["import", server.uri, str(folder)]) == 1  # of one database; all are there
    assert main(["import", server.uri, str(tmp_path / "dump"), "--drop"]) == 0
    assert raw(client, "shop.a/b") == documents


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("c.json", b'{"_id": 1}\n{"_id": ', "c.json:2: no Extended JSON"),
        ("c.json", b'{"_id": 1}\n[1]\n', "c.json:2: no JSON object"),
        ("c.json", b"[1]", "element 1 of the array is no JSON object"),
        ("c.json", b'{"_id": {"$oid": "zz"}}', "c.json:1: no Extended JSON"),
        ("c.bson", b"\x05\x00\x00\x00\x00\x10\x00", "there is no BSON document at byte 5"),
        ("c.bson", b"\xff\xff\xff\x7fxxx", "there is no BSON document at byte 0"),
        ("c.csv", b"a,b\n1\n", "c.csv:2: 1 cells, and 2 columns"),
        ("c.csv", b"a,a.b\n1,2\n", "exclude each other"),
        ("c.csv", b"a\n\xff\n", "no CSV in UTF-8"),
        ("c.json", b'{"_id": 1}\n{"a": 123456789012345678901}\n', "c.json:2: no BSON: MongoDB can only handle up to 8"),
        ("c.json", b'{"a\\u0000b": 1}', "c.json:1: no BSON: "),
        ("c.json", b'[{"a": "\\ud800"}]', "element 1 of the array is no BSON: "),
        ("c.txt", b"", "the format of"),
    ],
)
def test_what_is_no_document_is_said_with_its_line(
    server: headrace.Server, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes,
    text: str,
) -> None:  # fmt: skip
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["import", server.uri, "other.c", str(path)]) in (1, 2)
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["export", "shop", "x"], "too many arguments"),
        (["export", "shop"], "give --out"),
        (["export", "shop.c", "--format", "csv"], "name them with --fields"),
        (["export", "shop.c", "--limit", "-1"], "'-1' is not a whole number of at least 1"),
        (["export", "shop.c", "--limit", "1_000"], "'1_000' is not a whole number of at least 1"),
        (["serve", "--memoryLimit", "inf"], "'inf' is not a number of bytes"),
        (["import", "shop.c", "/"], "leave out shop.c"),
        (["import", "nosuch"], "is not a folder"),
        (["import", "shop", "c.json"], "names no collection"),
        (["import", "a", "b", "c"], "too many arguments"),
        (["import"], "give a file and its collection"),
        (["import", "shop.c", "nosuch"], "nosuch cannot be read"),
        (["import", "shop.c", "nosuch.json"], "nosuch.json cannot be read"),
    ],
)
def test_a_wrong_command_line_is_said(
    server: headrace.Server, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main([words[0], server.uri, *words[1:]])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert status in (1, 2) and text in printed.err
    assert "0 documents" not in printed.out


# One moment.


def move(client: Any, amount: int) -> None:
    """Move an amount from one collection to another, in a transaction."""
    with client.start_session() as session, session.start_transaction():
        client.shop.a.update_one({"_id": 1}, {"$inc": {"n": -amount}}, session=session)
        client.shop.b.update_one({"_id": 1}, {"$inc": {"n": amount}}, session=session)


@contextmanager
def between(monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], object]) -> Iterator[None]:
    """Call something each time when an export is about to read the collection for the file `name`."""
    output = dump.output

    def opened(path: Path | None) -> Any:
        if path is not None and path.name == name:
            call()
        return output(path)

    with monkeypatch.context() as patched:
        patched.setattr(dump, "output", opened)
        yield


def total(folder: Path) -> int:
    """The sum of `n` in the files of a dump."""
    return sum(item["n"] for name in ("a", "b") for item in bson.decode_all((folder / f"{name}.bson").read_bytes()))


def test_a_dump_beside_transactions_is_of_one_moment(
    server: headrace.Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        client.shop[name].insert_one({"_id": 1, "n": 10})
    client.other.create_collection("capped", capped=True, size=4096, max=3).insert_many([{"_id": n} for n in range(3)])
    words = ["export", server.uri, "--out", str(tmp_path)]

    def interfere() -> None:
        move(client, 1)
        client.other.capped.insert_many([{"_id": n} for n in range(3, 5)])

    with between(monkeypatch, "capped.bson", interfere), between(monkeypatch, "b.bson", lambda: move(client, 2)):
        assert main(words) == 0
    assert total(tmp_path / "shop") == 20
    pushed_out = bson.decode_all((tmp_path / "other" / "capped.bson").read_bytes())
    assert [item["_id"] for item in pushed_out] == [0, 1, 2]
    with between(monkeypatch, "b.bson", lambda: move(client, 2)):
        assert main([*words, "--live"]) == 0
    assert total(tmp_path / "shop") == 22  # `a` before the transaction, `b` after it


def test_a_dump_starts_again_when_the_server_lets_go_of_its_snapshot(
    server: headrace.Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client.shop.a.insert_one({"_id": 1, "n": 10})
    client.shop.b.insert_one({"_id": 1, "n": 10})
    lost: list[str] = []

    def lose() -> None:
        if not lost:
            lost.append("the snapshot")
            client.shop.b.drop()
            lose_snapshots(server)

    with between(monkeypatch, "a.bson", lose), between(monkeypatch, "b.bson", lose):
        assert main(["export", server.uri, "shop", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "the dump starts again: the server no longer has the snapshot" in printed.err
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == ["a.bson", "a.metadata.json"]


def test_a_dump_that_never_gets_its_snapshot_says_so_and_leaves_no_part(
    server: headrace.Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client.shop.a.insert_one({"_id": 1, "n": 10})
    with between(monkeypatch, "a.bson", lambda: again(server, client)):
        assert main(["export", server.uri, "shop", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "cannot be read at one time, tried 5 times" in printed.err and "--live" in printed.err
    assert list((tmp_path / "shop").iterdir()) == []


def lose_snapshots(server: headrace.Server) -> None:
    """Let the server let go of all snapshots, as it does when nothing has read at them for a minute."""
    core, done = server._running, threading.Event()
    core.loop.call_soon_threadsafe(core.engine.snapshots.end_older, math.inf)
    core.loop.call_soon_threadsafe(done.set)
    assert done.wait(60)


def again(server: headrace.Server, client: Any) -> None:
    """Change the collection, and lose the snapshot of what it was before."""
    client.shop.a.update_one({"_id": 1}, {"$inc": {"n": 1}})
    lose_snapshots(server)


def test_a_dump_starts_again_when_collections_come_while_it_begins(
    server: headrace.Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client.shop.a.insert_one({"_id": 1, "n": 10})
    opened = dump.snapshot_session
    created: list[str] = []

    def late(*arguments: Any) -> Any:
        if not created:
            created.append("b")
            client.shop.b.insert_one({"_id": 1, "n": 10})
        return opened(*arguments)

    monkeypatch.setattr(dump, "snapshot_session", late)
    assert main(["export", server.uri, "shop", "--out", str(tmp_path)]) == 0
    assert "the dump starts again: collections were created" in capsys.readouterr().err
    assert total(tmp_path / "shop") == 20


def use_up_snapshots(client: Any) -> None:
    """Read at so many other times that the server drops the first snapshot."""
    for _ in range(limits.SNAPSHOT_COUNT_MAX + 1):
        client.other.c.insert_one({})
        with client.start_session(snapshot=True) as session:
            client.other.c.find_one(session=session)


def test_one_collection_is_exported_as_it_was_at_one_time(
    server: headrace.Server, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client.shop.a.insert_many([{"_id": key, "n": 1} for key in range(300)])
    path = tmp_path / "a.bson"
    writer_of = formats.writer_of

    def interrupted(change: Callable[[], object]) -> Callable[..., Any]:
        def writer(*arguments: Any) -> Callable[[RawBSONDocument], None]:
            write = writer_of(*arguments)

            def first_changes(document: RawBSONDocument) -> None:
                if document["_id"] == 0:
                    change()
                write(document)

            return first_changes

        return writer

    monkeypatch.setattr(formats, "writer_of", interrupted(lambda: client.shop.a.delete_many({"_id": {"$gt": 5}})))
    assert main(["export", server.uri, "shop.a", "--out", str(path)]) == 0
    assert len(bson.decode_all(path.read_bytes())) == 300
    client.shop.a.insert_many([{"_id": key, "n": 1} for key in range(6, 300)])
    monkeypatch.setattr(formats, "writer_of", interrupted(lambda: use_up_snapshots(client)))
    assert main(["export", server.uri, "shop.a", "--out", str(path)]) == 1
    error = capsys.readouterr().err
    assert "no longer has the snapshot of shop.a" in error and "--live" in error
    assert len(bson.decode_all(path.read_bytes())) == 300  # the last complete one
    assert [item.name for item in tmp_path.iterdir()] == ["a.bson"]


def test_a_server_without_snapshots_is_exported_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with headrace.Server(oplog=False) as plain, pymongo.MongoClient[dict[str, Any]](plain.uri) as client:
        client.shop.a.insert_one({"_id": 1, "n": 10})
        client.shop.b.insert_one({"_id": 1, "n": 10})
        assert main(["export", plain.uri, "shop", "--out", str(tmp_path)]) == 0
    assert "warning: the server reads no snapshots" in capsys.readouterr().err
    assert total(tmp_path / "shop") == 20


def test_a_dump_without_documents_makes_the_collections_and_indexes(
    server: headrace.Server, client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.shop.create_collection("orders", validator={"qty": {"$gt": 0}})
    client.shop.orders.create_index("item", unique=True)
    client.shop.orders.insert_one({"qty": 1})
    client.shop.create_collection("few", viewOn="orders", pipeline=[{"$limit": 1}])
    assert main(["export", server.uri, "shop", "--no-documents", "--out", str(tmp_path)]) == 0
    assert sorted(capsys.readouterr().out.split()) == ["shop.few", "shop.orders"]
    assert not list(tmp_path.rglob("*.bson"))
    client.drop_database("shop")
    assert main(["import", server.uri, str(tmp_path)]) == 0
    assert client.shop.orders.options() == {"validator": {"qty": {"$gt": 0}}}
    assert client.shop.orders.index_information()["item_1"]["unique"]
    assert client.shop.list_collection_names(filter={"type": "view"}) == ["few"]
    assert main(["export", server.uri, "shop.orders", "--no-documents"]) == 2
