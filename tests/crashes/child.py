"""The process that is killed: a store with workers and watchers, which reports each acknowledgement through a pipe.

    {w: worker, o: operation}          an operation begins
    {w: worker}                        it is acknowledged;  {w: worker, e: code}: it is refused
    {s: stream, e: events, t: token}   events were delivered;  {s: stream, m: message}: it has failed

Each has the time in `at`, by the clock of the record of the disk.

A report is written behind what it says, so that the parent knows of nothing that was not acknowledged.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bson import Int64

import headrace
from headrace import limits, running_command, turns
from headrace.embedded.error_types import Closed
from headrace.embedded.jobs import _Job
from headrace.server import background
from headrace.store.data_file import UnusableDirectory
from headrace.store.store import Store
from headrace.values.bson import decode, encode
from tests.crashes.checks import open_stream
from tests.crashes.disk_calls import DiskObserver, observed, writes_through
from tests.crashes.disk_record import Recorder
from tests.crashes.model import Document, Model, Operation
from tests.crashes.workload import Ask, CommandFailed, Worker, must, perform, session_of
from tests.server.raw import RawClient

STORE_POINTS: Final = ("begin", "prepare", "sync", "publish")
DISK_POINTS: Final = ("write", "written", "syncing", "synced", "meta")
CONFLICTS: Final = frozenset({112, 246})
"""Errors that a transaction may have: another one, or an index that a job completes, came in between."""
DISK_FULL: Final = 14031
INTERRUPTED_AT_SHUTDOWN: Final = 11600
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Task:
    """The work of a child, and where it kills itself, if anywhere."""

    path: Path
    life: int
    seed: int
    models: list[Model]
    tokens: dict[str, Document]
    works: bool = True
    point: str = ""
    """One of the points above; empty: it is killed from outside."""
    count: int = 0
    """How often the point is passed before."""
    sync_ms: int = 0
    """How slow the disk is."""
    error_share: float = 0.0
    """The share of calls to the disk that fail: before they are made, or after."""
    free_bytes: int | None = None
    """How much the data file may grow before the disk is full; None: without a limit."""
    count_max: int = 1 << 30
    """Operations of each worker."""
    records: bool = False
    """Whether the writes to the disk are recorded."""


def use_small_limits() -> None:
    """Make pieces small and turns short, so that a crash finds much half done."""
    limits.TRANSACTION_ENTRY_BYTES = 500  # type: ignore[misc]
    limits.BUILD_COUNT = 6  # type: ignore[misc]
    limits.PRUNE_COUNT_MAX = 50  # type: ignore[misc]
    running_command.TURN_SECONDS = 0.0003  # type: ignore[misc]
    turns.Turns.__init__.__defaults__ = (0.0003,)  # type: ignore[misc]
    background.TICK_MS = 5  # type: ignore[misc]


class Reports:
    """The pipe to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, report: Document) -> None:
        """Write a report, in one piece to the parent."""
        data = encode({**report, "at": Int64(time.monotonic_ns())})
        with self._lock:
            write_all(self._descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, waiting where the pipe is full."""
    while data:
        data = data[os.write(descriptor, data) :]


def parse_reports(data: bytes) -> list[Document]:
    """The reports that are complete: the process may have been killed while it wrote the last one."""
    reports, at = [], 0
    while at + 4 <= len(data) and at + (size := _LENGTH.unpack_from(data, at)[0]) <= len(data):
        reports.append(decode(data[at : at + size]))
        at += size
    return reports


# Killing itself.


def kill_self() -> None:
    """End as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


class KillAt(DiskObserver):
    """Kills this process at a point, the n-th time that it comes there; syncs may be slow."""

    def __init__(self, task: Task) -> None:
        self._point = task.point
        self._left = task.count
        self._sync_seconds = task.sync_ms / 1000
        self._error_share = task.error_share
        self._random = Random(task.seed)

    def _fail(self) -> None:
        if self._error_share and self._random.random() < self._error_share:
            raise OSError(errno.EIO, "the disk fails")

    def reached(self, point: str) -> None:
        """The process is at a point."""
        if point == self._point:
            self._left -= 1
            if self._left < 0:
                kill_self()

    def before_write(self, descriptor: int, offset: int, data: bytes) -> None:
        self._fail()
        self.reached("meta" if writes_through(descriptor) else "write")

    def after_write(self, descriptor: int, offset: int, data: bytes) -> None:
        if not writes_through(descriptor):
            self.reached("written")
        self._fail()

    def before_sync(self, descriptor: int) -> None:
        self._fail()
        self.reached("syncing")
        if self._sync_seconds:
            time.sleep(self._sync_seconds)

    def after_sync(self, descriptor: int) -> None:
        self._fail()
        self.reached("synced")

    def watch_store(self) -> None:
        """Be told by every store of this process."""
        for name in STORE_POINTS:
            original = getattr(Store, name)

            def method(
                *arguments: Any, name: str = name, original: Callable[..., Any] = original, **named: Any
            ) -> Any:  # fmt: skip
                self.reached(name)
                return original(*arguments, **named)

            setattr(Store, name, method)


# The embedded store.


def run_embedded(task: Task, reports: Reports) -> None:
    """Open the store, work until killed; the disk is watched already."""
    store = headrace.open(task.path, oplog_entries_max=1000)
    local = store._local

    def ask(database: str, body: Document) -> Document:
        raw = encode({**body, "$db": database})
        return decode(local.execute(database, next(iter(body)), decode(raw), raw))

    def run_jobs() -> None:
        while local.unusable is None:
            for job in store._jobs._jobs().jobs():
                with suppress(Exception):  # the disk is full or fails, and the next round tries again
                    run = _Job(local, job())
                    while not run.step():
                        pass
            time.sleep(0.005)

    threading.Thread(target=run_jobs, daemon=True).start()
    run_clients(task, reports, lambda: ask)


def run_server(task: Task, ready: int) -> None:
    """Serve the store until killed."""
    from headrace.cli.main import main

    os.dup2(ready, 1)
    main(["serve", "--port", "0", "--nounixsocket", "--quiet", "--oplogEntriesMax", "1000", "--dbpath", str(task.path)])


def connect(address: str) -> Ask:
    """The commands of one connection; the process ends with the server."""
    try:
        client = RawClient(address)
    except OSError:
        os._exit(0)

    def ask(database: str, body: Document) -> Document:
        try:
            return client.ask(body, database)
        except OSError:
            os._exit(0)

    return ask


# Workers and watchers.


def run_clients(task: Task, reports: Reports, new_ask: Callable[[], Ask]) -> None:
    """Work and watch, each in a thread; return when the workers are done."""
    threads = []
    if task.works:
        for number, model in enumerate(task.models):
            worker = Worker(number, task.life, model, Random(f"{task.seed} {number}"))
            threads.append(threading.Thread(target=work, args=(task, worker, new_ask(), reports), daemon=True))
    for name, token in task.tokens.items():
        threading.Thread(target=watch, args=(name, token, new_ask(), reports), daemon=True).start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not task.works:
        threading.Event().wait(60)


def work(task: Task, worker: Worker, ask: Ask, reports: Reports) -> None:
    """Do one operation after the other."""
    for _ in range(task.count_max):
        operation = worker.next_operation()
        reports.send({"w": worker.number, "o": operation})
        try:
            perform(ask, operation, worker.number)
        except Closed:
            return
        except CommandFailed as error:
            if error.code == INTERRUPTED_AT_SHUTDOWN:  # the disk has failed under a command that waited
                return
            reports.send({"w": worker.number, "e": error.code, "m": str(error)})
            if not operation["whole"]:  # nobody knows how much of it is done
                return
            if operation["do"] == "transaction":
                abort(ask, operation, worker.number)
        else:
            reports.send({"w": worker.number})
            worker.model.apply(operation)


def abort(ask: Ask, operation: Operation, worker: int) -> None:
    """End a transaction that has failed, if it has not ended."""
    fields = {"lsid": session_of(worker), "txnNumber": Int64(operation["number"]), "autocommit": False}
    ask("admin", {"abortTransaction": 1, **fields})


def watch(name: str, token: Document, ask: Ask, reports: Reports) -> None:
    """Report what a stream delivers, until the store is closed, and how it fails."""
    try:
        follow(name, token, ask, reports)
    except Closed:
        return
    except CommandFailed as error:
        reports.send({"s": name, "m": str(error)})


def follow(name: str, token: Document, ask: Ask, reports: Reports) -> None:
    """Report what a stream delivers."""
    cursor = open_stream(ask, name, token)
    database, _, collection = cursor["ns"].partition(".")
    events, reply = cursor["firstBatch"], cursor
    while True:
        if events:
            reports.send({"s": name, "e": events, "t": reply["postBatchResumeToken"]})
        body = {"getMore": Int64(cursor["id"]), "collection": collection, "maxTimeMS": 50}
        reply = must(ask, database, body)["cursor"]
        events = reply["nextBatch"]


def run_watched(task: Task, run: Callable[[], None], disk: int | None) -> None:
    """Run something in this process, a fork, which ends with it; the record of the disk goes into a pipe."""
    try:
        if task.free_bytes is not None:
            size = max(item.stat().st_size for item in task.path.iterdir())
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + task.free_bytes, resource.RLIM_INFINITY))
        killer = KillAt(task)
        if task.point in STORE_POINTS:
            killer.watch_store()
        observer = killer if disk is None else Recorder(lambda data: write_all(disk, data), task.sync_ms)
        needs_disk = task.point in DISK_POINTS or task.sync_ms or task.records or task.error_share
        with observed(observer) if needs_disk else nullcontext():
            run()
    except UnusableDirectory:  # a disk that fails already when the store is opened
        os._exit(0 if task.error_share else 70)
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)
