"""The audit log: logins, refusals, users, roles, collections and indexes, in MongoDB's shape.

    {"atype": "createCollection", "ts": {"$date": "..."}, "uuid": {"$binary": "...", "$type": "04"},
     "local": {"ip": "127.0.0.1", "port": 27017}, "remote": {"ip": "127.0.0.1", "port": 51234},
     "users": [{"user": "ann", "db": "admin"}], "roles": [{"role": "readWrite", "db": "shop"}],
     "param": {"ns": "shop.orders"}, "result": 0}

Rule: the audit log delays no client. A thread writes it. Events that cannot be written (a full disk, a pipe without a
reader) wait in memory up to a limit; further events are dropped, and the server's log says so. The audit log fails no
command: no method but `rotate` raises, and an event on which the filter fails is logged (`user_filter.py`). No event
has a document or a credential.

Sources: MongoDB's "System Event Audit Messages" and "mongo Schema Audit Messages".
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from bson import json_util

from headrace import limits
from headrace.clock import Clock
from headrace.dispatch.access import ROLES, USERS, AccessEvent, Grants
from headrace.dispatch.namespaces import namespaces_of, target
from headrace.dispatch.options import AuditOptions
from headrace.dispatch.request import UNIX_SOCKET, ClientInfo, Request
from headrace.errors import CommandError
from headrace.log_lines import RepeatedLine
from headrace.query.match import parse_filter
from headrace.server.failures import shown
from headrace.server.logs import name_aside
from headrace.store.catalog_changes import ID_INDEX
from headrace.store.write_transaction import CatalogChange
from headrace.user_filter import UserFilter
from headrace.values.bson import decode

AuditEvent = tuple[str, dict[str, Any], int]
"""The action, its details, and its error code (0: no error)."""

ABORTED: Final = 276
NOT_THERE: Final = 26

_ACTIONS: Final = {"collMod": "collMod", "create": "createCollection", "drop": "dropCollection"}
_BUILD_STATES: Final = {
    "abortIndexBuild": ("IndexBuildAborted",),
    "commitIndexBuild": ("IndexBuildSucceeded",),
    "create": ("IndexBuildStarted", "IndexBuildSucceeded"),
    "createIndexes": ("IndexBuildStarted", "IndexBuildSucceeded"),
    "startIndexBuild": ("IndexBuildStarted",),
}


def events(database: str, command: dict[str, Any], databases: set[str]) -> Iterator[AuditEvent]:
    """Yield the events of one change. `databases`: the existing databases, updated by this function."""
    name, value = next(iter(command.items()))
    namespace = f"{database}.{value}"
    if name in ("create", "renameCollection"):
        into = database if name == "create" else str(command["to"]).partition(".")[0]
        if into not in databases:
            databases.add(into)
            yield "createDatabase", {"ns": into}, 0
    if name in _ACTIONS:
        viewed = {"viewOn": f"{database}.{command['viewOn']}"} if "viewOn" in command else {}
        yield _ACTIONS[name], {"ns": namespace, **viewed}, 0
        if name == "create" and not viewed:
            yield from _index_events(name, namespace, command.get("idIndex", ID_INDEX))
    elif name == "createIndexes":
        yield from _index_events(name, namespace, command)
    elif name in _BUILD_STATES:
        for spec in command["indexes"]:
            yield from _index_events(name, namespace, spec)
    elif name == "dropIndexes":
        yield "dropIndex", {"ns": namespace, "indexName": command["index"]}, 0
    elif name == "dropDatabase":
        databases.discard(database)
        yield "dropDatabase", {"ns": database}, 0
    elif name == "renameCollection":
        if "dropTarget" in command:
            yield "dropCollection", {"ns": command["to"]}, 0
        yield "renameCollection", {"old": value, "new": command["to"]}, 0
    elif name == "setClusterParameter":
        details = {"originalClusterServerParameter": value, "updatedClusterServerParameter": command["to"]}
        yield "setClusterParameter", details, 0
        yield "updateCachedClusterServerParameter", details, 0


def _index_events(command: str, namespace: str, spec: dict[str, Any]) -> Iterator[AuditEvent]:
    """Yield events with the key and options of an index, but without a partial index's filter, which has values."""
    shown = {
        name: spec[name] for name in ("v", "key", "name", "unique", "sparse", "expireAfterSeconds") if name in spec
    }
    for state in _BUILD_STATES[command]:
        details = {"ns": namespace, "indexName": spec["name"], "indexSpec": shown, "indexBuildState": state}
        yield "createIndex", details, ABORTED if command == "abortIndexBuild" else 0


_WRITES: Final = frozenset({"bulkWrite", "delete", "findAndModify", "findandmodify", "insert", "update"})
_HIDDEN: Final = frozenset({"customData", "pwd"})
"""Fields of an event's details that the log leaves out."""


class AuditError(Exception):
    """The audit options cannot be used."""


Method = TypeVar("Method", bound=Callable[..., None])


def _never_raises(method: Method) -> Method:
    """Wrap a method of `Audit` that runs after a command is done. An event that cannot be made is dropped."""

    @wraps(method)
    def call(audit: Audit, *arguments: Any) -> None:
        try:
            method(audit, *arguments)
        except Exception as error:
            audit.drop(shown(error))

    return cast("Method", call)


class Audit:
    """The audit log of one server."""

    def __init__(self, options: AuditOptions, clock: Clock) -> None:
        """Raises `AuditError` if the filter or the file cannot be used."""
        self._clock = clock
        self._matches = _filter(options.filter)
        self._destination = _destination(options)
        self._queue: queue.Queue[str | Callable[[], None] | None] = queue.Queue(limits.AUDIT_EVENT_COUNT_MAX)
        self._dropped = RepeatedLine()
        self.databases: set[str] = set()
        """The existing databases. A collection in any other database creates that database."""
        self._process = uuid.uuid4()
        self._thread = threading.Thread(target=self._run, name="headrace-audit", daemon=True)
        self._thread.start()

    @_never_raises
    def system(self, action: str, details: dict[str, Any], code: int = 0) -> None:
        """Log an action of the server itself: its start, its end, the rest of an index build."""
        nobody = {"isSystemUser": True}
        self._log(action, nobody, nobody, None, self._process, details, code)

    @_never_raises
    def access(self, event: AccessEvent) -> None:
        """Log a login, a refusal, or a change of users and roles. A listener of `Access`."""
        action, client, details, code = event
        self._of_client(action, client, details, code)

    @_never_raises
    def introduced(self, client: ClientInfo) -> None:
        """Log a client's description of itself."""
        details = {"localEndpoint": _local(client), "clientMetadata": client.metadata}
        self._of_client("clientMetadata", client, details, 0)

    @_never_raises
    def changed(self, request: Request | None, changes: list[CatalogChange]) -> None:
        """Log a request's committed changes of collections, views and indexes. None: the server's own changes."""
        for database, command in changes:
            for action, details, code in events(database, command, self.databases):
                if request is None:
                    self.system(action, details, code)
                else:
                    self._of_client(action, request.client, details, code)

    def wants(self, request: Request) -> bool:
        """Return whether `wrote` may log this write."""
        return request.name == "drop" or (request.db == "admin" and request.name in _WRITES)

    @_never_raises
    def wrote(self, request: Request, answer: bytes) -> None:
        """Log changes of users or roles by ordinary write commands, and drops of collections that do not exist."""
        reply = decode(answer)
        if reply.get("ok") != 1.0:
            return
        if request.name == "drop":
            if "ns" not in reply:
                self._of_client("dropCollection", request.client, {"ns": target(request)}, NOT_THERE)
            return
        namespaces = namespaces_of(request) if request.name == "bulkWrite" else [target(request)]
        for namespace in sorted({USERS, ROLES}.intersection(namespaces)):
            details = {"ns": namespace, "operation": request.name}
            self._of_client("directAuthMutation", request.client, details, 0)

    def rotate(self, client: ClientInfo | None = None) -> None:
        """Begin a new file after the queued events. Raises OSError if the old file cannot be renamed. `client`: the
        client that requested it; None: a signal."""
        try:
            renamed = self._destination.rename()
            self._queue.put_nowait(self._destination.reopen)
        except queue.Full:
            raise OSError("the audit log waits for what it is written to") from None
        status = {"status": "OK", "rotatedLogPath": renamed, "errors": []}
        details = {
            "pid": os.getpid(), "osInfo": {"name": platform.system(), "version": platform.release()},
            "logRotationStatus": status,
        }  # fmt: skip
        if client is None:
            self.system("rotateLog", details)
        else:
            self._of_client("rotateLog", client, details, 0)

    def close(self) -> None:
        """Write the queued events, within the time that the server may take to stop, and close the log."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1.0)
        self._thread.join(limits.AUDIT_CLOSE_SECONDS)

    def drop(self, reason: str) -> None:
        """Note in the server's log that an event is dropped."""
        self._dropped.log(f"an event of the audit log is dropped: {reason}")

    def _of_client(self, action: str, client: ClientInfo, details: dict[str, Any], code: int) -> None:
        identity = uuid.uuid5(self._process, str(client.connection_id))
        shown = {name: value for name, value in details.items() if name not in _HIDDEN}
        self._log(action, _local(client), _remote(client), client.grants, identity, shown, code)

    def _log(
        self, action: str, local: dict[str, Any], remote: dict[str, Any], grants: Grants | None, identity: uuid.UUID,
        details: dict[str, Any], code: int,
    ) -> None:  # fmt: skip
        users, roles = [], []
        if grants is not None:
            users = [{"user": grants.name.user, "db": grants.name.db}]
            roles = list(grants.document.get("roles", []))
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone()
        event = {
            "atype": action, "ts": moment, "uuid": identity, "local": local, "remote": remote, "users": users,
            "roles": roles, "param": details, "result": code,
        }  # fmt: skip
        if not self._matches(event):
            return
        try:
            self._queue.put_nowait(_line(event))
        except queue.Full:
            self._dropped.log("the audit log cannot be written as quickly as events come: they are dropped")

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                if callable(line):
                    line()
                else:
                    self._destination.write(line)
            except Exception as error:
                self.drop(shown(error))
        with contextlib.suppress(OSError):
            self._destination.close()


def _line(event: dict[str, Any]) -> str:
    shown = {
        **event,
        "ts": {"$date": event["ts"].isoformat(timespec="milliseconds")},
        "uuid": {"$binary": b64encode(event["uuid"].bytes).decode(), "$type": "04"},
    }
    return json.dumps(shown, default=_plain, separators=(",", ":")) + "\n"


def _plain(value: Any) -> Any:
    return json_util.default(value, json_util.RELAXED_JSON_OPTIONS)


def _filter(text: str | None) -> Callable[[dict[str, Any]], bool]:
    if text is None:
        return lambda event: True
    try:
        document = json_util.loads(text)
        if not isinstance(document, dict):
            raise AuditError("--auditFilter is no document")
        result = "the event is logged as if it matched"
        return UserFilter(parse_filter(document).test, "the audit filter", otherwise=True, result=result)
    except (CommandError, ValueError, TypeError) as error:
        reason = error.message if isinstance(error, CommandError) else str(error)
        raise AuditError(f"--auditFilter cannot be used: {reason}") from None


class _Destination:
    """The destination of the lines: standard output or syslog."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write

    def rename(self) -> str:
        """Rename the present file and return its new name. Lines still go to that file until `reopen`."""
        return ""

    def reopen(self) -> None:
        """Begin a new file."""

    def close(self) -> None:
        """Close the destination."""


class _File(_Destination):
    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        super().__init__(lambda line: _write_all(self._file, line))
        self._path = path
        self._file = self._open()

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        os.set_blocking(file, True)  # opening a pipe without a reader would wait
        if os.fstat(file).st_mode & 0o077 and self._path.is_file():
            os.fchmod(file, 0o600)
        return file

    def rename(self) -> str:
        return str(self._path.rename(name_aside(self._path))) if self._path.is_file() else ""

    def reopen(self) -> None:
        old, self._file = self._file, self._open()
        os.close(old)

    def close(self) -> None:
        os.close(self._file)


def _destination(options: AuditOptions) -> _Destination:
    if options.destination == "console":
        return _Destination(lambda line: _write_all(1, line))
    if options.destination == "syslog":
        import syslog

        syslog.openlog("headrace", facility=syslog.LOG_USER)
        return _Destination(lambda line: syslog.syslog(syslog.LOG_INFO, line.rstrip()))
    assert options.path is not None
    try:
        return _File(options.path)
    except OSError as error:
        raise AuditError(f"cannot write {options.path}: {error.strerror}") from None


def _write_all(file: int, line: str) -> None:
    data = line.encode()
    while data:
        data = data[os.write(file, data) :]


def _local(client: ClientInfo) -> dict[str, Any]:
    if isinstance(client.local_address, str):
        return {"unix": client.local_address}
    return {"ip": client.local_address[0], "port": client.local_address[1]}


def _remote(client: ClientInfo) -> dict[str, Any]:
    if client.address == UNIX_SOCKET:
        return {"unix": UNIX_SOCKET}
    host, _, port = client.address.rpartition(":")
    return {"ip": host, "port": int(port)}
