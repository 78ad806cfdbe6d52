"""`--metricsPort`: `GET /metrics` for Prometheus, in its text format 0.0.4, and `GET /healthz`.

Rules:
- The numbers are those of `serverStatus` and `$currentOp`. A number that is not counted is left out.
- The number of series is bounded, whatever clients do. Holders of memory are summed by kind, streams by scope; of many
  scopes only those with the greatest lag are shown.
- The text is made on the server's loop, in steps between which clients are served.
- A client that reads slowly or sends nothing holds a buffer of some kilobytes, for `SCRAPE_SECONDS` at most.
- A connection has one request and one answer. It needs no login and changes nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace import limits
from headrace.clock import monotonic
from headrace.commands.server_info import server_status
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import ClientInfo, Request
from headrace.server.failures import log_failure
from headrace.server.job_steps import let_others_run
from headrace.server.listener import bound_sockets
from headrace.server.metrics.commit_times import BOUNDS
from headrace.values.position import seconds

if TYPE_CHECKING:
    from headrace.server.core import Core


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusText:
    """Families of metrics in the order of their addition. Each name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lines: list[str] = []

    def add(self, name: str, kind: str, meaning: str, samples: Mapping[str, float] | float) -> None:
        """Add a family: a single number, or numbers by their `labels`. An empty family is left out."""
        by_labels = samples if isinstance(samples, Mapping) else {"": samples}
        if by_labels:
            self._head(name, kind, meaning)
            full = self._prefix + name
            self._lines += [
                f"{full}{{{each}}} {value}" if each else f"{full} {value}" for each, value in by_labels.items()
            ]

    def add_histogram(
        self, name: str, meaning: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:  # fmt: skip
        """Add a histogram. `bounds`: the ranges' upper ends, without the last range's; `total`: the sum of the
        values."""
        self._head(name, "histogram", meaning)
        sums, full = list(accumulate(counts)), self._prefix + name
        for bound, count in zip((*map(str, bounds), "+Inf"), sums):
            self._lines.append(f'{full}_bucket{{le="{bound}"}} {count}')
        self._lines += [f"{full}_sum {total}", f"{full}_count {sums[-1]}"]

    def _head(self, name: str, kind: str, meaning: str) -> None:
        full = self._prefix + name
        self._lines += [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def labels(**values: str) -> str:
    """Return labels with their values in the form of a sample."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_HOLDER: Final = re.compile(r"( of | since | \d).*")
"""Matches the part of a memory holder's name that distinguishes it from others of its kind."""
_STEP_COUNT: Final = 500
"""The number of items per step. Clients are served between steps."""
_UNSHOWN: Final = ("asserts", "globalLock", "repl", "security", "storageEngine", "transportSecurity")
Item = TypeVar("Item")


def _labels(name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return numbers keyed by a Prometheus label, given numbers by the label's value."""
    return {labels(**{name: value}): number for value, number in sorted(values.items())}


async def exposition(core: Core) -> str:
    """Return the server's current metrics."""
    text = PrometheusText("headrace_")
    status = _status(core)
    _add_server(text, core, status)
    _add_operations(text, status)
    _add_commits(text, core, status["metrics"])
    await let_others_run()
    await _add_cursors(text, core)
    await _add_memory(text, core, status["mem"])
    _add_storage(text, core)
    return str(text)


def _status(core: Core) -> dict[str, Any]:
    request = Request("serverStatus", "admin", b"", {}, ClientInfo(0, "metrics", "metrics"), dict.fromkeys(_UNSHOWN, 0))
    context = CommandContext(core.engine)
    try:
        return server_status.run(context, request)
    finally:
        context.close()


def _add_server(text: PrometheusText, core: Core, status: dict[str, Any]) -> None:
    text.add(
        "info", "gauge", "The version of Headrace, as a label.", {labels(version=str(status["headraceVersion"])): 1}
    )
    text.add("uptime_seconds", "gauge", "Time since the start.", status["uptimeMillis"] / 1000)
    text.add("primary", "gauge", "1 while the server takes writes.", int(core.engine.primacy.is_primary))
    text.add("connections", "gauge", "Open connections.", status["connections"]["current"])
    text.add("connections_total", "counter", "Connections that were opened.", status["connections"]["totalCreated"])
    process = status["extra_info"]
    text.add(
        "cpu_seconds_total", "counter", "Processor time of the process.",
        (process["user_time_us"] + process["system_time_us"]) / 1e6,
    )  # fmt: skip


def _add_operations(text: PrometheusText, status: dict[str, Any]) -> None:
    counters, metrics = status.get("opcounters", {}), status["metrics"]
    text.add("operations_total", "counter", "Operations, as opcounters has them.", _labels("kind", counters))
    commands = metrics.get("commands", {})
    totals = {name: counts["total"] for name, counts in commands.items() if "total" in counts}
    failures = {name: counts["failed"] for name, counts in commands.items() if "failed" in counts}
    text.add("commands_total", "counter", "Commands that were answered.", _labels("command", totals))
    text.add("commands_failed_total", "counter", "Commands answered with an error.", _labels("command", failures))
    text.add(
        "documents_total", "counter", "Documents that were inserted, returned, updated or deleted.",
        _labels("what", metrics.get("document", {})),
    )  # fmt: skip
    network = status.get("network", {})
    sizes = {"in": network.get("bytesIn", 0), "out": network.get("bytesOut", 0)}
    text.add("network_bytes_total", "counter", "Bytes from clients and to them.", _labels("direction", sizes))


def _add_commits(text: PrometheusText, core: Core, metrics: dict[str, Any]) -> None:
    times = core.writer.commit_times
    text.add_histogram("commit_seconds", "Time that commits took on the disk.", BOUNDS, times.counts, times.seconds)
    written = metrics.get("commits", {}).get("writes", 0)
    text.add("commit_writes_total", "counter", "Writes of clients that were committed.", written)
    open_count = len(core.store.transactions.open)
    text.add("transactions_open", "gauge", "Transactions of clients, and snapshots, that are open.", open_count)


def _steps(items: Iterable[Item]) -> Iterator[list[Item]]:
    left = iter(items)
    while step := list(islice(left, _STEP_COUNT)):
        yield step


async def _add_cursors(text: PrometheusText, core: Core) -> None:
    reads = {"memory": 0, "oplog": 0}
    lags: dict[str, float] = {}
    others = 0
    now_ms = core.engine.clock.now_ms()
    for step in _steps(core.engine.cursors):
        for cursor in step:
            if not cursor.is_change_stream:
                others += 1
            elif not cursor.closed:
                reads["oplog" if cursor.is_behind else "memory"] += 1
                unread = cursor.unread_since(core.store.last_position)
                lag = 0.0 if unread is None else max(0, now_ms - seconds(unread) * 1000) / 1000
                scope = _scope(cursor.namespace)
                lags[scope] = max(lags.get(scope, 0.0), lag)
        await let_others_run()
    text.add("cursors", "gauge", "Open cursors that are no change streams.", others)
    text.add("streams", "gauge", "Open change streams, by where they read.", _labels("reads", reads))
    greatest = dict(sorted(lags.items(), key=lambda item: (-item[1], item[0]))[: limits.SCRAPE_SCOPE_COUNT_MAX])
    text.add(
        "stream_lag_seconds", "gauge", "Age of the first event that the slowest change stream of a scope has not read.",
        _labels("scope", greatest),
    )  # fmt: skip


def _scope(namespace: str) -> str:
    database, _, collection = namespace.partition(".")
    if collection == "$cmd.aggregate":
        return "all databases" if database == "admin" else database
    return namespace


async def _add_memory(text: PrometheusText, core: Core, memory: dict[str, Any]) -> None:
    holders: dict[str, float] = {}
    for step in _steps(core.engine.memory.accounts()):
        for account in step:
            kind = _HOLDER.sub("", account.name).strip()
            holders[kind] = holders.get(kind, 0) + account.bytes
        await let_others_run()
    text.add(
        "memory_bytes", "gauge", "Memory that clients make the server hold, by holder.", _labels("holder", holders)
    )
    text.add("memory_limit_bytes", "gauge", "The limit of that memory.", memory["limitBytes"])
    text.add("memory_cut_off_total", "counter", "Holders that were cut off at the limit.", memory["cutOff"])
    resident = memory["resident"] * 1024 * 1024
    text.add("resident_bytes", "gauge", "Memory of the process, with pages of the data file.", resident)


def _add_storage(text: PrometheusText, core: Core) -> None:
    store = core.store
    text.add("data_file_bytes", "gauge", "Size of the data file.", store.environment.file_bytes)
    if not store.oplog_enabled:
        return
    with store.reading() as view:
        oldest = view.oldest_position()
        count = view.kv.stat(view.tables["oplog"])["entries"]
        size = view.table_bytes("oplog")
    last = seconds(store.last_position)
    text.add("oplog_window_seconds", "gauge", "Time from the oplog's first entry to its last.",
             0 if oldest is None else last - seconds(oldest))  # fmt: skip
    text.add("oplog_entries", "gauge", "Entries of the oplog.", count)
    text.add("oplog_bytes", "gauge", "Size of the oplog.", size)
    if core.engine.oplog_bytes_max is not None:
        text.add(
            "oplog_limit_bytes", "gauge", "The size from which on the oplog is pruned.", core.engine.oplog_bytes_max
        )
    if core.backup is not None:
        text.add("backup_running", "gauge", "1 while the backup ships the oplog.", int(core.backup.is_running))
        if core.backup.position is not None:
            reached = seconds(core.backup.position)
            text.add("backup_position_seconds", "gauge", "Cluster time that the archive has reached.", reached)
    text.add("last_write_seconds", "gauge", "Cluster time of the last commit.", last)


_PLAIN: Final = "text/plain; charset=utf-8"


class ScrapeListener:
    """Listens on one address for the life of a server, on the loop's thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._servers: list[asyncio.Server] = []
        self._answering: set[asyncio.Task[None] | None] = set()
        self.port = 0

    async def listen(self, address: str, port: int) -> None:
        """Listen. Raises OSError if the address is unavailable."""
        for bound in bound_sockets(address, port):
            self.port = bound.getsockname()[1]
            self._servers.append(await asyncio.start_server(self._serve, sock=bound, limit=limits.SCRAPE_BYTES_MAX))

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        for server in self._servers:
            server.close()
        for task in self._answering:
            if task is not None:
                task.cancel()

    def problem(self) -> str | None:
        """Return why the server does not serve, or None if it does. An answer alone shows that its loop runs."""
        core = self._core
        if core.failure is not None:
            return core.failure
        if core.ending:
            return "the server ends"
        since = core.writer.busy_since
        if since is not None and monotonic() - since > limits.HEALTH_STALL_SECONDS:
            return f"no write has ended for {monotonic() - since:.0f} s"
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        self._answering.add(task)
        try:
            async with asyncio.timeout(limits.SCRAPE_SECONDS):
                writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()  # until everything is sent
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._answering.discard(task)
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, path = _method_and_path(head)
        status, text, kind = 200, "", _PLAIN
        if not method:
            status, text = 400, "this is not an HTTP request\n"
        elif method not in ("GET", "HEAD"):
            status, text = 405, "only GET is possible\n"
        elif path == "/metrics":
            try:
                text, kind = await exposition(self._core), CONTENT_TYPE
            except Exception as error:
                log_failure("the metrics could not be made", error)
                status, text = 500, "the metrics could not be made; the log says why\n"
        elif path == "/healthz":
            problem = self.problem()
            status, text = 200 if problem is None else 503, f"{problem or 'ok'}\n"
        else:
            status, text = 404, "there are /metrics and /healthz\n"
        body = text.encode()
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{allow}Connection: close\r\n\r\n"
        )
        return lines.encode() + (b"" if method == "HEAD" else body)


def _method_and_path(head: bytes) -> tuple[str, str]:
    """Parse a request line; return empty words if it is not HTTP."""
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return "", ""
    return words[0].decode("latin-1"), words[1].decode("latin-1").partition("?")[0]
