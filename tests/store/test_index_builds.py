"""Builds of indexes go on behind a crash, wherever it comes, and the indexes hold exactly the documents."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace import limits
from headrace.store.catalog import IndexBuild
from headrace.store.check.directory import check
from headrace.store.indexes import field_keys, index_builds
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

SPECS: list[dict[str, Any]] = [
    {"v": 2, "key": {"a": 1}, "name": "a"}, {"v": 2, "key": {"b": -1}, "name": "b", "unique": True},
    {"v": 2, "key": {"$**": 1}, "name": "w"}, {"v": 2, "key": {"c": "hashed"}, "name": "h"},
    {"v": 2, "key": {"a": 1}, "name": "collated", "collation": {"locale": "sv", "strength": 1}},
]  # fmt: skip


def begun(at: DrivenServer, specs: list[dict[str, Any]]) -> bytes:
    txn = at.store.begin()
    build = index_builds.begin(txn, at.store.catalog.collections["t.c"], specs)
    at.store.commit(txn)
    return build.uuid


def piece(at: DrivenServer, uuid: bytes, count: int) -> bool:
    """Fill so many documents, and commit."""
    txn = at.store.begin()
    more = index_builds.fill(txn, txn.catalog.builds[uuid], count)
    at.store.commit(txn)
    return more


def resumed(at: DrivenServer, uuid: bytes) -> None:
    more = True
    while more:
        txn = at.store.begin()
        more = index_builds.resume(txn, uuid)
        at.store.commit(txn)


def names(at: DrivenServer) -> list[str]:
    return [item["name"] for item in at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_a_build_goes_on_behind_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    if seed % 2:
        monkeypatch.setattr(limits, "BUILD_COUNT", 8)
    if seed % 3:
        monkeypatch.setattr(limits, "BUILD_ENTRY_COUNT", seed % 3)
    chooser = random.Random(seed)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        documents = [
            {"_id": n, "a": [n, "ä", n % 9, n % 5], "b": n, "c": str(n), "d": {"e": [n % 7]}} for n in range(60)
        ]
        at.must("t", {"insert": "c", "documents": documents})
        uuid = begun(at, chooser.sample(SPECS, 3))
        more = True
        number = 60
        while more:
            step = chooser.randrange(6)
            if step == 0:
                at.restart()
            elif step == 1:
                at.must("t", {"insert": "c", "documents": [{"_id": number, "b": number, "a": "A"}]})
                number += 1
            elif step == 2:
                length = chooser.choice((1, 600_000))  # two such documents are not read at once
                values = [chooser.randrange(9) for _ in range(chooser.randrange(6))]
                fields = {"a": chooser.choice((values, len(values))), "d": 1, "e": b"e" * length}
                update = {"q": {"_id": chooser.randrange(60)}, "u": {"$set": fields}}
                at.must("t", {"update": "c", "updates": [update]})
            elif step == 3:
                at.must("t", {"delete": "c", "deletes": [{"q": {"_id": chooser.randrange(60)}, "limit": 1}]})
            else:
                more = piece(at, uuid, chooser.randrange(1, 12))
        at.restart()
        resumed(at, uuid)
        assert not at.store.catalog.builds and len(names(at)) == 4
    assert check(tmp_path).problems == []


def test_the_keys_of_long_arrays_are_put_in_many_transactions(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        documents = [{"_id": n, "a": list(range(n, n + 2000)), "b": n} for n in range(12)]
        at.must("t", {"insert": "c", "documents": documents})
        uuid = begun(at, SPECS[:2])
        done = [0]
        while piece(at, uuid, limits.BUILD_COUNT):
            done.append(at.store.catalog.builds[uuid].done)
        assert done[-1] == len(documents)
        assert 0 < max(after - before for before, after in pairwise(done)) <= 3


def test_the_keys_of_one_document_are_put_in_many_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the document changes, or another one follows in its place."""
    monkeypatch.setattr(limits, "BUILD_ENTRY_COUNT", 100)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        documents = [{"_id": n, "a": list(range(n, n + 1000)), "b": [-n, n]} for n in range(3)]
        at.must("t", {"insert": "c", "documents": documents})
        uuid = begun(at, [{"v": 2, "key": {"b": 1}, "name": "b"}, {"v": 2, "key": {"a": -1}, "name": "a"}])
        changes = {
            4: {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"a": list(range(500, 1500))}}}]},
            8: {"delete": "c", "deletes": [{"q": {"_id": 0}, "limit": 1}]},
            12: {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 5}}}]},
        }
        count = 0
        while piece(at, uuid, limits.BUILD_COUNT):
            count += 1
            if count in changes:
                at.must("t", changes[count])
        assert count == 24
        resumed(at, uuid)
        for number in (5, 700, 1001):
            query = {"find": "c", "filter": {"a": number}, "hint": "a", "projection": {"_id": 1}}
            found = [each["_id"] for each in at.must("t", query)["cursor"]["firstBatch"]]
            assert found == [n for n in (1, 2) if number in ([5] if n == 1 else range(2, 1002))]
    assert check(tmp_path).problems == []


def test_a_failure_is_not_forgotten_by_a_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "b": n} for n in range(20)]})
        uuid = begun(at, [SPECS[1]])
        assert piece(at, uuid, 10)
        at.must("t", {"insert": "c", "documents": [{"_id": 99, "b": 3}]})
        at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]})
        at.restart()
        resumed(at, uuid)
        assert names(at) == ["_id_"] and not at.store.catalog.builds
        assert "E11000" in caplog.text
        assert at.must("t", {"count": "c"})["n"] == 20
    assert check(tmp_path).problems == []


def test_a_build_whose_keys_another_version_of_icu_made_begins_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier, DrivenServer(tmp_path, clock=FakeClock()) as at:
        earlier.setattr(field_keys, "version", lambda: "1.0")
        at.must("t", {"insert": "c", "documents": [{"_id": n, "a": "ä"} for n in range(20)]})
        uuid = begun(at, [SPECS[4]])
        piece(at, uuid, 10)
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        build: IndexBuild = at.store.catalog.builds[uuid]
        number = build.indexes[0].number
        resumed(at, uuid)
        assert at.store.catalog.collections["t.c"].indexes[1].number != number
    assert check(tmp_path).problems == []


@pytest.mark.parametrize("how", ["drop", "dropIndexes", "renameCollection"])
def test_what_ends_a_collection_ends_its_builds(tmp_path: Path, how: str) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "b": n} for n in range(20)]})
        at.must("t", {"insert": "other", "documents": [{"_id": 1}]})
        uuid = begun(at, SPECS[:2])
        piece(at, uuid, 10)
        if how == "drop":
            at.must("t", {"drop": "c"})
        elif how == "dropIndexes":
            at.must("t", {"dropIndexes": "c", "index": "*"})
        else:
            at.must("admin", {"renameCollection": "t.other", "to": "t.c", "dropTarget": True})
        assert not at.store.catalog.builds
        at.restart()
        assert not at.store.catalog.builds
    assert check(tmp_path).problems == []


def test_a_build_follows_its_collection_to_another_name(tmp_path: Path) -> None:
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        at.must("t", {"insert": "c", "documents": [{"_id": n, "b": n} for n in range(20)]})
        uuid = begun(at, SPECS[:2])
        piece(at, uuid, 10)
        at.must("admin", {"renameCollection": "t.c", "to": "t.d"})
        at.must("t", {"collMod": "d", "validationLevel": "moderate"})
        at.must("t", {"insert": "d", "documents": [{"_id": 50, "b": 50}]})
        at.restart()
        resumed(at, uuid)
        listed = at.must("t", {"listIndexes": "d"})["cursor"]["firstBatch"]
        assert [item["name"] for item in listed] == ["_id_", "a", "b"]
    assert check(tmp_path).problems == []
