"""Fail points: errors on demand, for the test suites of drivers; only with `--enable-test-commands`.

`configureFailPoint` sets a fail point, and its `mode` decides how often it is entered. The shell calls
`before_command` before it runs a command and acts on the result. The engine calls `after_reply` with the answer, and
getMore calls `after_cursor_checkout`. While no fail point is set, `active` is False and none of these is called.

Fail points do not simulate a fault inside the server. Commands fail before they run, or in their reply.

Source: the drivers' specifications, whose tests set fail points, and MongoDB's wiki page on `failCommand`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.dispatch import retryable_writes
from headrace.dispatch.command import Command, Reply
from headrace.dispatch.request import Request
from headrace.dispatch.server_info import topology_version
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

NAMES: Final = frozenset(
    {"failCommand", "failGetMoreAfterCursorCheckout", "maxTimeAlwaysTimeOut", "onPrimaryTransactionalWrite"}
)
NOT_PRIMARY_CODES: Final = frozenset({189, 10107, 11602, 13435, 13436})
"""The errors that carry the topology version, which tells a driver that the topology is unchanged."""
_STATEMENTS: Final = ("deletes", "documents", "ops", "updates")
RESUMABLE: Final = "ResumableChangeStreamError"


@dataclass(frozen=True, slots=True)
class Failure:
    """The effect of a fail point on a command: a delay, then the connection closes, the command fails, or it runs."""

    block_ms: float = 0.0
    closes: bool = False
    """Whether the connection is closed and the command is not run."""
    error: CommandError | None = None
    """The error to answer instead of the command's reply."""
    labels: tuple[str, ...] | None = None
    """The error labels of the answer; None: the labels that the error has itself."""


@dataclass(slots=True)
class FailPoint:
    """A fail point that is set. It skips `skip` matching commands, then is entered `times` times (None: always), each
    time with `probability`."""

    data: dict[str, Any]
    times: int | None = None
    skip: int = 0
    probability: float = 1.0
    entered_count: int = field(default=0)

    def should_fail(self, chance: random.Random, occasions: int = 1) -> bool:
        """Whether the fail point affects one of `occasions` matching commands or statements. If so, count the entry."""
        if self.skip >= occasions:
            self.skip -= occasions
            return False
        self.skip = 0
        if self.times == 0 or (self.probability < 1.0 and chance.random() >= self.probability):
            return False
        if self.times is not None:
            self.times -= 1
        self.entered_count += 1
        return True


class FailPoints:
    """The fail points that are set, by name."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.active = False
        self._points: dict[str, FailPoint] = {}
        self._chance = chance or random.Random()

    def set(self, name: str, point: FailPoint | None) -> int:
        """Set a fail point, or remove it with None. Return how often the previous one was entered."""
        former = self._points.pop(name, None)
        if point is not None:
            self._points[name] = point
        self.active = bool(self._points)
        return former.entered_count if former is not None else 0

    def before_command(self, engine: Engine, command: Command, request: Request) -> Failure | None:
        """Return the effect on a command that is about to run; None: the command runs normally."""
        if command.name == "configureFailPoint":
            return None
        point = self._points.get("failCommand")
        if point is not None and _acts_before(point.data) and _fits(point.data, command, request):
            if point.data.get("blockConnection") and "blockTimeMS" not in point.data:
                raise CommandError(72, "must specify 'blockTimeMS' when 'blockConnection' is true")
            if point.should_fail(self._chance):
                return _failure(engine, request, point.data)
        if self._should_fail("maxTimeAlwaysTimeOut", "maxTimeMS" in request.body and command.name != "getMore"):
            return Failure(error=CommandError(50, "operation exceeded time limit"))
        return None

    def after_reply(self, engine: Engine, command: Command, request: Request, answer: Reply) -> Reply:
        """Return the answer, with the `writeConcernError` of a fail point that sets one."""
        point = self._points.get("failCommand")
        if point is None or type(answer) is Wait or "writeConcernError" not in point.data:
            return answer
        if not _fits(point.data, command, request) or not point.should_fail(self._chance):
            return answer
        wanted = point.data["writeConcernError"]
        code = int(wanted.get("code", 8))
        more: dict[str, Any] = {"writeConcernError": wanted}
        labels = _labels(point.data)
        if labels is None:
            candidates = retryable_writes.labels_of(engine, request, CommandError(code, ""))
            labels = tuple(label for label in candidates if label == "RetryableWriteError")
        if labels:
            more["errorLabels"] = list(labels)
        elements = answer if type(answer) is bytes else encode(answer)[4:-1]  # type: ignore[arg-type]
        return elements + encode(more)[4:-1]

    def before_retryable_write(self, request: Request) -> None:
        """Apply `onPrimaryTransactionalWrite` before the first run of a retryable write.

        The connection closes before the answer. Raise an error if the fail point lets the write itself fail."""
        point = self._points.get("onPrimaryTransactionalWrite")
        if point is None or not point.should_fail(self._chance, _statement_count(request)):
            return
        request.client.cut_off = bool(point.data.get("closeConnection", True))
        if "failBeforeCommitExceptionCode" in point.data:
            code = int(point.data["failBeforeCommitExceptionCode"])
            raise CommandError(code, "onPrimaryTransactionalWrite failpoint throws")

    def after_cursor_checkout(self, engine: Engine, request: Request, *, has_deadline: bool) -> None:
        """Raise the error of `failGetMoreAfterCursorCheckout`, after a getMore has looked up its cursor.

        Raise 50 for `maxTimeAlwaysTimeOut` if the cursor has a deadline, from the `maxTimeMS` of its command."""
        if self._should_fail("maxTimeAlwaysTimeOut", has_deadline):
            raise CommandError(50, "operation exceeded time limit")
        if self._should_fail("failGetMoreAfterCursorCheckout", True):
            code = int(self._points["failGetMoreAfterCursorCheckout"].data.get("errorCode", 8))
            error = CommandError(code, "Hit the 'failGetMoreAfterCursorCheckout' failpoint")
            raise CommandError(code, error.message, labels=tuple(retryable_writes.labels_of(engine, request, error)))

    def _should_fail(self, name: str, fits: bool) -> bool:
        point = self._points.get(name)
        return fits and point is not None and point.should_fail(self._chance)


def _acts_before(data: dict[str, Any]) -> bool:
    """Whether `failCommand` acts before the command runs. A `writeConcernError` is added after the run."""
    return bool(data.get("closeConnection") or data.get("blockConnection") or "errorCode" in data)


def _fits(data: dict[str, Any], command: Command, request: Request) -> bool:
    """Whether a `failCommand` applies to this command of this client."""
    if not data.get("failAllCommands"):
        names = data.get("failCommands")
        if type(names) is not list or not any(name == command.name or name in command.aliases for name in names):
            return False
    if "appName" in data and data["appName"] != _application(request):
        return False
    return "namespace" not in data or data["namespace"] == _namespace(request)


def _application(request: Request) -> str | None:
    """Return the application name from the client's first hello, which may be this request."""
    client = request.client.metadata or request.body.get("client")
    application = client.get("application") if isinstance(client, dict) else None
    return application.get("name") if isinstance(application, dict) else None


def _namespace(request: Request) -> str:
    collection = request.body.get("collection" if request.name == "getMore" else request.name)
    return f"{request.db}.{collection}" if type(collection) is str else request.db


def _statement_count(request: Request) -> int:
    """Return the number of statements of a write, as `occasions` for a fail point."""
    for name in _STATEMENTS:
        candidates = request.sequences.get(name) or request.body.get(name)
        if type(candidates) is list:
            return len(candidates)
    return 1


def _labels(data: dict[str, Any]) -> tuple[str, ...] | None:
    labels = data.get("errorLabels")
    return tuple(label for label in labels if type(label) is str) if type(labels) is list else None


def _failure(engine: Engine, request: Request, data: dict[str, Any]) -> Failure:
    """Return the effect of a `failCommand`, in MongoDB's order: delay, close the connection, fail.

    A getMore that never reached its cursor is not known to read a change stream, so its error has no resumable label.
    """
    block_ms = float(data["blockTimeMS"]) if data.get("blockConnection") else 0.0
    if data.get("closeConnection"):
        return Failure(block_ms=block_ms, closes=True)
    if "errorCode" not in data:
        return Failure(block_ms=block_ms)
    code = int(data["errorCode"])
    extra = {"topologyVersion": topology_version(engine)} if code in NOT_PRIMARY_CODES else None
    error = CommandError(code, "Failing command via 'failCommand' failpoint", extra=extra)
    labels = _labels(data)
    if labels is None:
        candidates = retryable_writes.labels_of(engine, request, error)
        labels = tuple(label for label in candidates if (label, request.name) != (RESUMABLE, "getMore"))
    return Failure(block_ms=block_ms, error=error, labels=labels)
