"""The server's log: lines as text, or in MongoDB's structured form (`--logFormat json`).

    {"t":{"$date":"2026-11-22T07:31:05.123+00:00"},"s":"I","c":"COMMAND","id":51803,"ctx":"conn3","msg":"Slow query",
     "attr":{"ns":"shop.orders", ...}}

Rule: a line has no content of a document and no credential. For a command it has the name, database and collection.
Events that MongoDB also logs have MongoDB's numbers. Others have a number from 9000000 on, a hash of their text.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections import deque
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.clock import SystemClock
from headrace.commands.table import STATIC_COMMANDS
from headrace.dispatch.access import AccessEvent, shortened
from headrace.dispatch.profiling.profiler import answer_counts
from headrace.dispatch.request import ClientInfo, Request
from headrace.log_lines import emit
from headrace.running_command import Work

LOG = logging.getLogger("headrace.events")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SEVERITIES: Final = {"CRITICAL": "F", "DEBUG": "D1", "ERROR": "E", "INFO": "I", "WARNING": "W"}
_COMPONENTS: Final = {"headrace.memory": "QUERY", "headrace.server": "NETWORK", "headrace.store": "STORAGE"}
_NUMBERS: Final = range(9_000_000, 10_000_000)
_TEXT_LENGTH_MAX: Final = 500


def log_event(
    number: int, component: str, message: str, attributes: dict[str, Any], context: str, *, level: int = logging.INFO
) -> None:
    """Log an event that MongoDB also logs, with its number. `context`: the connection or thread."""
    if LOG.isEnabledFor(level):
        event = {"attr": attributes, "c": component, "ctx": context, "id": number, "msg": message}
        emit(LOG, level, "%s %s", message, _Lazily(attributes), extra={"event": event})


class _Lazily:
    """Attributes that become JSON only when a line is formatted as text."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes

    def __str__(self) -> str:
        return _json(self._attributes)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON."""

    def __init__(self, length_max: int | None = None) -> None:
        """`length_max`: a longer line loses its attributes and the end of its message, so that it stays valid JSON."""
        super().__init__()
        self._length_max = length_max

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = self._line(record, cut=False)
        return line if self._length_max is None or len(line) <= self._length_max else self._line(record, cut=True)

    def _line(self, record: logging.LogRecord, *, cut: bool) -> str:
        event: dict[str, Any] | None = getattr(record, "event", None)
        if event is None:
            event = {
                "c": _COMPONENTS.get(record.name, "-"),
                "id": _NUMBERS[zlib.crc32(str(record.msg).encode()) % len(_NUMBERS)],
                "ctx": record.threadName or "-",
                "msg": record.getMessage(),
            }
            if record.exc_info:
                event["attr"] = {"error": self.formatException(record.exc_info)}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"t": {"$date": moment}, "s": _SEVERITIES.get(record.levelname, "I")}
        fields |= {name: event[name] for name in ("c", "id", "ctx", "msg")}
        if cut:
            return _json({**fields, "msg": event["msg"][:_TEXT_LENGTH_MAX], "truncated": True})
        return _json({**fields, "attr": event["attr"]} if "attr" in event else fields)


def formatter(log_format: str, length_max: int | None = None) -> logging.Formatter:
    """Return the formatter of `--logFormat`."""
    return JsonFormatter(length_max) if log_format == "json" else logging.Formatter(TEXT)


# Events.


def connection_accepted(client: ClientInfo, count: int) -> None:
    """Log that a client has connected."""
    attributes = {"remote": client.address, "connectionId": client.connection_id, "connectionCount": count}
    log_event(22943, "NETWORK", "Connection accepted", attributes, "listener")


def connection_ended(client: ClientInfo, count: int) -> None:
    """Log that a client has left."""
    attributes = {"remote": client.address, "connectionId": client.connection_id, "connectionCount": count}
    log_event(22944, "NETWORK", "Connection ended", attributes, context_of(client))


def client_metadata(client: ClientInfo, *, unprotected: bool) -> None:
    """Log a client's description of itself. `unprotected`: the server is exposed, and clients need not log in."""
    attributes: dict[str, Any] = {
        "remote": client.address, "client": context_of(client), "doc": _shortened(client.metadata or {})
    }  # fmt: skip
    if client.tls is not None:
        attributes["tls"] = {"version": client.tls.version, "cipher": client.tls.cipher}
    if unprotected:
        attributes["accessControl"] = "not enabled, on an address that other machines reach"
    log_event(51800, "NETWORK", "client metadata", attributes, context_of(client))


_ACCESS: Final = {
    ("authCheck", True): (20436, "Checking authorization failed"),
    ("authenticate", False): (5286306, "Successfully authenticated"),
    ("authenticate", True): (5286307, "Failed to authenticate"),
}
"""Log lines about users, by the event and whether it failed."""


def access_event(event: AccessEvent) -> None:
    """Log a login, or a command that its user may not run. A listener of `Access`."""
    what, client, details, code = event
    number, message = _ACCESS.get((what, bool(code)), (0, ""))
    if number:
        attributes = {"client": client.address, **_shortened(details), "code": code}
        level = logging.WARNING if code else logging.INFO
        log_event(number, "ACCESS", message, attributes, context_of(client), level=level)


def _shortened(value: Any) -> Any:
    """Return a document with JSON's types only. A hello's limit of 512 bytes keeps the line short."""
    if isinstance(value, dict):
        return {str(name): _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    return value if isinstance(value, bool | float | int | str) or value is None else str(value)


def slow_operation(request: Request, duration_ms: float, turns: int, work: Work | None, answer: Any) -> None:
    """Log a slow command. `turns`: how often it has let others run. `work`: what it has examined, or None. `answer`:
    its reply, an error, or None."""
    collection = request.body.get(request.name)
    if not isinstance(collection, str):
        collection = request.body.get("collection") if request.name == "getMore" else None
    has_name = isinstance(collection, str) and request.name not in STATIC_COMMANDS
    db, name = shortened(request.db), shortened(collection) if has_name and isinstance(collection, str) else None
    attributes: dict[str, Any] = {
        "type": "command",
        "ns": f"{db}.{'$cmd' if name is None else name}",
        "command": {request.name: 1 if name is None else name, "$db": db},
    }
    if work is not None:
        attributes |= {"planSummary": work.plan, "keysExamined": work.keys, "docsExamined": work.documents}
    if answer is not None:
        attributes |= answer_counts(request.name, answer)
    attributes |= {"numYields": turns, "remote": request.client.address, "durationMillis": int(duration_ms)}
    log_event(51803, "COMMAND", "Slow query", attributes, context_of(request.client))


def context_of(client: ClientInfo) -> str:
    """Return the name of a connection in the log."""
    return f"conn{client.connection_id}"


# Files.


def name_aside(path: Path) -> Path:
    """Return a free name for an old log, as mongod does: its name and the UTC time."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%S")
    names = (path.with_name(f"{path.name}.{now}{f'-{number}' if number else ''}") for number in count())
    return next(name for name in names if not name.exists())


# The last lines, for `getLog`.


class LogTail(logging.Handler):
    """A `logging.Handler` that retains its last formatted lines."""

    def __init__(self, log_format: str) -> None:
        """`log_format`: `text` or `json`."""
        super().__init__()
        self.lines: deque[str] = deque(maxlen=limits.LOG_LINE_COUNT_MAX)
        self.setFormatter(formatter(log_format, limits.LOG_LINE_LENGTH_MAX))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record)[: limits.LOG_LINE_LENGTH_MAX])
