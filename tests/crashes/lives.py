"""The lives of a store: forks of this process that open it, work and end, and their reports.

A life is of `headrace.open` or of `headrace serve`, with its clients in a process of their own. This process imports
everything first, so that a life begins in some milliseconds.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import headrace
from tests.crashes.checks import Checker, Finding
from tests.crashes.child import (
    CONFLICTS,
    DISK_FULL,
    Reports,
    Task,
    connect,
    parse_reports,
    run_clients,
    run_embedded,
    run_server,
    run_watched,
)
from tests.crashes.model import Document, Operation
from tests.server.raw import RawClient

WORKER_COUNT: Final = 3
CHILD_SECONDS_MAX: Final = 60
EXIT_STORE_FAILED: Final = 14
"""The status of a server that cannot go on from a failed commit."""
ADDRESS: Final = re.compile(r"127\.0\.0\.1:\d+")


def warm_up() -> None:
    """Import what a store and a server import when they are used, so that no fork has to."""
    with headrace.open() as store:
        store.s.shared.insert_one({"_id": 1})
        with store.start_session() as session, session.start_transaction():
            store.s.shared.insert_one({"_id": 2}, session=session)
        store.s.shared.create_index("a")
        store.prune()
        with store.watch() as stream:
            stream.try_next()
    with headrace.Server() as server, RawClient(server.address) as client:
        client.watch("c")
        client.ask({"insert": "c", "documents": [{"_id": 1}]})
    importlib.import_module("headrace.cli.serve")
    importlib.import_module("headrace.server.daemon")
    gc.collect()
    gc.freeze()


@dataclass(slots=True)
class Life:
    """The remains of a life: its reports, and the record of its disk, if that was asked for."""

    reports: list[Document] = field(default_factory=list)
    disk: bytes = b""


def live(task: Task, seconds: float, *, is_server: bool) -> Life:
    """A life that is killed after so many seconds, or ends when its workers are done. Raises `Finding`."""
    return _serve(task, seconds) if is_server else _embed(task, seconds)


def _embed(task: Task, seconds: float) -> Life:
    pipes = Pipes(task)
    store = forked(task, lambda: run_embedded(task, Reports(pipes.reports[1])), pipes, {*pipes.writing})
    return pipes.reap(store, [store], seconds)


def _serve(task: Task, seconds: float) -> Life:
    pipes, started = Pipes(task), time.monotonic()
    ready, announce = os.pipe()
    has_clients = bool(task.works or task.tokens)
    theirs = {pipes.reports[1]} if has_clients else set()
    server = forked(task, lambda: run_server(task, announce), pipes, {*pipes.writing} - theirs)
    os.close(announce)
    address = ADDRESS.search(_read_line(ready))
    os.close(ready)
    left = max(0.0, seconds - (time.monotonic() - started))
    if address is None or not has_clients:
        return pipes.reap(server, [server], left)
    clients = Task(task.path, task.life, task.seed, task.models, task.tokens, task.works, count_max=task.count_max)
    client = forked(
        clients, lambda: run_clients(clients, Reports(pipes.reports[1]), lambda: connect(address[0])), pipes,
        {pipes.reports[1]},
    )  # fmt: skip
    return pipes.reap(server, [server, client], left)


class Pipes:
    """The pipes to a life: one for its reports, and one for the record of its disk."""

    def __init__(self, task: Task) -> None:
        self._statuses = {0, signal.SIGKILL, EXIT_STORE_FAILED << 8} if task.error_share else {0, signal.SIGKILL}
        self.reports = os.pipe()
        self.disk = os.pipe() if task.records else None
        self.writing = (self.reports[1],) if self.disk is None else (self.reports[1], self.disk[1])

    def reap(self, store: int, processes: list[int], seconds: float) -> Life:
        """Read what comes; kill the store after so many seconds, or when the reports end. Raises `Finding`."""
        data = {self.reports[0]: bytearray()}
        os.close(self.reports[1])
        if self.disk is not None:
            os.close(self.disk[1])
            data[self.disk[0]] = bytearray()
        waiting, ends, killed = set(data), time.monotonic() + seconds, False
        while waiting:
            left = ends - time.monotonic()
            if not killed and (left <= 0 or self.reports[0] not in waiting):
                os.kill(store, signal.SIGKILL)
                killed, left = True, CHILD_SECONDS_MAX
                ends = time.monotonic() + left
            ready = select.select(list(waiting), [], [], max(left, 0.0))[0]
            if killed and left <= 0 and not ready:
                raise Finding("a child does not end")
            for descriptor in ready:
                if chunk := os.read(descriptor, 1 << 20):
                    data[descriptor] += chunk
                else:
                    waiting.discard(descriptor)
                    os.close(descriptor)
        os.kill(store, signal.SIGKILL)  # whose clients may have ended before it; one that has ended keeps its status
        self._wait(store, processes)
        return Life(parse_reports(bytes(data[self.reports[0]])), bytes(data[self.disk[0]]) if self.disk else b"")

    def _wait(self, store: int, processes: list[int]) -> None:
        _, status = os.waitpid(store, 0)
        for other in processes:
            if other != store:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
        if status not in self._statuses:
            raise Finding(f"a child has ended by itself, with status {status}")


def forked(task: Task, run: Callable[[], None], pipes: Pipes, keeps: set[int]) -> int:
    """A fork that runs something and ends. It keeps these ends of the pipes, as a pipe ends with its last writer."""
    process = os.fork()
    if process == 0:
        for descriptor in {*pipes.reports, *(pipes.disk or ())} - keeps:
            os.close(descriptor)
        run_watched(task, run, None if pipes.disk is None else pipes.disk[1])
    return process


def _read_line(descriptor: int) -> str:
    """A line, or nothing if the writer has ended before."""
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([descriptor], [], [], CHILD_SECONDS_MAX)[0]:
            raise Finding("a server does not start")
        if not (chunk := os.read(descriptor, 1)):
            return ""
        data += chunk
    return data.decode()


class Acknowledged:
    """The contents of the reports: the models advance, and so do the streams' events."""

    def __init__(self, checker: Checker, *, disk_is_full: bool = False) -> None:
        self.checker = checker
        self.refusals = CONFLICTS | {DISK_FULL} if disk_is_full else CONFLICTS
        self.under_way: dict[int, Operation] = {}
        self.last: dict[int, Operation] = {}
        """The operations that were acknowledged last, by worker."""
        self.counts: Counter[str] = Counter()

    def copy(self) -> Acknowledged:
        """A copy with a checker that goes on alone."""
        made = Acknowledged(self.checker.copy())
        made.under_way, made.last = dict(self.under_way), dict(self.last)
        return made

    def take(self, report: Document) -> None:
        """Take over a report. Raises `Finding` for an operation that was refused."""
        if "s" in report and "m" in report:
            if DISK_FULL not in self.refusals:
                raise Finding(f"the stream {report['s']!r} has failed: {report['m']}")
            return
        if "s" in report:
            streams = self.checker.streams
            streams.delivered[report["s"]] = [*streams.delivered[report["s"]], *report["e"]]
            streams.tokens[report["s"]] = report["t"]
            return
        worker = report["w"]
        if "o" in report:
            self.under_way[worker] = report["o"]
            self.last.pop(worker, None)
            return
        operation = self.under_way.pop(worker)
        if "e" not in report:
            self.checker.models[worker].apply(operation)
            self.last[worker] = operation
            self.counts["writes"] += 1
            return
        self.counts[f"refused with {report['e']}"] += 1
        if report["e"] not in self.refusals or not (operation["whole"] or report["e"] == DISK_FULL):
            raise Finding(f"{operation} was refused: {report['m']}")
        self.checker.models[worker].refuse(operation)
        if not operation["whole"]:
            self.under_way[worker] = operation
