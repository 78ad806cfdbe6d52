"""A disk that fails in the middle of a commit: what LMDB cannot go on from ends the store, and no write is lost."""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

import headrace
from headrace.embedded.error_types import Closed
from headrace.server.failures import read_error, write_error
from headrace.store.lmdb import LmdbEnvironment, LmdbError
from tests import waiting
from tests.crashes.disk_calls import DiskObserver, observed, writes_through
from tests.server.raw import RawClient


class Failing(DiskObserver):
    """Fails the writes of pages or of meta pages, before they are done or after, or syncs."""

    def __init__(self) -> None:
        self.point = ""

    def _fail(self, point: str) -> None:
        if self.point == point:
            raise OSError(errno.EIO, "the disk fails")

    def before_write(self, descriptor: int, offset: int, data: bytes) -> None:
        self._fail("meta" if writes_through(descriptor) else "page")

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        if writes_through(descriptor):
            self._fail("meta written")

    def before_sync(self, descriptor: int) -> None:
        self._fail("sync")


@pytest.mark.parametrize("point", ["page", "sync"])
def test_a_commit_that_fails_before_it_counts_is_refused_and_the_next_is_done(tmp_path: Path, point: str) -> None:
    disk = Failing()
    with observed(disk), headrace.open(tmp_path) as store:
        store.t.c.insert_one({"_id": 1})
        disk.point = point
        with pytest.raises(OperationFailure) as refused:
            store.t.c.insert_one({"_id": 2})
        assert refused.value.code == 14031
        disk.point = ""
        store.t.c.insert_one({"_id": 3})
        assert [item["_id"] for item in store.t.c.find()] == [1, 3]
    with headrace.open(tmp_path) as store:
        assert [item["_id"] for item in store.t.c.find()] == [1, 3]


@pytest.mark.parametrize("point", ["meta", "meta written"])
def test_a_meta_page_that_cannot_be_written_closes_the_store(tmp_path: Path, point: str) -> None:
    disk = Failing()
    with observed(disk), headrace.open(tmp_path) as store:
        store.t.c.insert_one({"_id": 1})
        disk.point = point
        for _ in range(2):
            with pytest.raises(Closed, match="the disk has failed in the middle of a commit: open the store again"):
                store.t.c.insert_one({"_id": 2})
        with pytest.raises(Closed):
            store.t.c.find_one({})
        disk.point = ""
    with headrace.open(tmp_path) as store:
        assert {item["_id"] for item in store.t.c.find()} in ({1}, {1, 2})
        store.t.c.insert_one({"_id": 3})


@pytest.mark.long
def test_a_meta_page_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    disk = Failing()
    with observed(disk), headrace.Server(tmp_path) as server, RawClient(server.address) as client:
        assert client.ask({"insert": "c", "documents": [{"_id": 1}]})["ok"] == 1.0
        disk.point = "meta"
        client.send({"insert": "c", "documents": [{"_id": 2}]})
        assert client.is_cut_off()  # without an answer: nobody can know whether the write is done
        assert waiting.until(lambda: server.failure)
        disk.point = ""
    with headrace.open(tmp_path) as store:
        assert {item["_id"] for item in store.t.c.find()} in ({1}, {1, 2})


def test_each_thread_whose_write_is_in_the_failed_commit_is_told_that_the_store_is_closed(tmp_path: Path) -> None:
    disk = Failing()
    refusals: list[BaseException] = []

    def insert(store: headrace.Store, number: int) -> None:
        try:
            store.t.c.insert_one({"_id": number})
        except BaseException as error:
            refusals.append(error)

    with observed(disk), headrace.open(tmp_path) as store:
        writes = store._local.writes
        writes.gate.enter()
        threads = [threading.Thread(target=insert, args=(store, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        assert waiting.until(lambda: len(writes._queue) == 3)
        disk.point = "meta"
        writes.gate.leave()
        for thread in threads:
            thread.join()
        disk.point = ""
    assert [type(error) for error in refusals] == [Closed] * 3


def test_a_command_that_meets_the_failed_store_is_interrupted(tmp_path: Path) -> None:
    disk = Failing()
    with observed(disk), contextlib.closing(LmdbEnvironment(tmp_path)) as environment:
        transaction = environment.begin_write()
        transaction.put(b"a", b"b", db=environment.tables["meta"])
        disk.point = "meta"
        with pytest.raises(LmdbError):
            transaction.commit()
        with pytest.raises(LmdbError) as refused:
            environment.begin_read()
        disk.point = ""
    assert read_error(refused.value).code == write_error(refused.value).code == 11600
