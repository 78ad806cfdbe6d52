"""Fail points: errors made on demand, for drivers' own test suites; only with `--enable-test-commands`.

`configureFailPoint` sets them, and each says by its `mode` how often it strikes. The shell asks `meet` before
it runs a command and does what the answer says; the engine asks `disturb` about the answer; getMore
asks `check_out`. On a server that has none set, `active` is False, and nobody asks.

What this does not do: simulate a fault inside the server. A fail point stands at the door of a command.

Source: the drivers' specifications, whose tests set these, and the wiki page of MongoDB on `failCommand`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bson import Int64

from headrace import errors
from headrace.commands import retryable
from headrace.commands.command import Command, Reply
from headrace.commands.hello import topology_version
from headrace.commands.request import Request
from headrace.commands.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import encode, type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

NAMES: Final = frozenset(
    {"failCommand", "failGetMoreAfterCursorCheckout", "maxTimeAlwaysTimeOut", "onPrimaryTransactionalWrite"}
)
NOT_PRIMARY_CODES: Final = frozenset({189, 10107, 11602, 13435, 13436})
"""Their errors carry the topology's version, by which a driver knows that nothing has changed."""
_STATEMENTS: Final = ("deletes", "documents", "ops", "updates")
RESUMABLE: Final = "ResumableChangeStreamError"


@dataclass(frozen=True, slots=True)
class Failure:
    """What happens to a command: first it is held up, then cut off, or failed, or run."""

    block_ms: float = 0.0
    closes: bool = False
    """The connection ends, and the command is not run."""
    error: CommandError | None = None
    """The answer, instead of what the command would say."""
    labels: tuple[str, ...] | None = None
    """The labels of the answer; None: those that the error has by itself."""


@dataclass(slots=True)
class FailPoint:
    """One that is set. It strikes after `skip` occasions, `times` times (None: always), and then only by chance."""

    data: dict[str, Any]
    times: int | None = None
    skip: int = 0
    probability: float = 1.0
    entered_count: int = field(default=0)

    def strikes(self, chance: random.Random, occasions: int = 1) -> bool:
        """Whether the point strikes on one of these occasions, which its data fit; counts it if so."""
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
        """Set a fail point, or with None take it away; returns how often the former one has struck."""
        former = self._points.pop(name, None)
        if point is not None:
            self._points[name] = point
        self.active = bool(self._points)
        return former.entered_count if former is not None else 0

    def meet(self, engine: Engine, command: Command, request: Request) -> Failure | None:
        """What becomes of a command that is about to be run; None: it is run as ever."""
        if command.name == "configureFailPoint":
            return None
        point = self._points.get("failCommand")
        if point is not None and _disturbs(point.data) and _fits(point.data, command, request):
            _check_block(point.data)
            if point.strikes(self._chance):
                return _failure(engine, request, point.data)
        if self._strikes("maxTimeAlwaysTimeOut", "maxTimeMS" in request.body):
            return Failure(error=CommandError(50, "operation exceeded time limit"))
        return None

    def disturb(self, engine: Engine, command: Command, request: Request, answer: Reply) -> Reply:
        """The answer, with the write concern error that a fail point wants in it."""
        point = self._points.get("failCommand")
        if point is None or type(answer) is Wait or "writeConcernError" not in point.data:
            return answer
        if not _fits(point.data, command, request) or not point.strikes(self._chance):
            return answer
        wanted = dict(point.data["writeConcernError"])
        code = int(wanted.get("code", 8))
        wanted.setdefault("codeName", errors.code_name(code))
        more: dict[str, Any] = {"writeConcernError": wanted}
        labels = _labels(point.data)
        if labels is None:
            found = retryable.labels_of(engine, request, CommandError(code, ""))
            labels = tuple(label for label in found if label == "RetryableWriteError")
        if labels:
            more["errorLabels"] = list(labels)
        elements = answer if type(answer) is bytes else encode(answer)[4:-1]  # type: ignore[arg-type]
        return elements + encode(more)[4:-1]

    def lose_answer(self, request: Request) -> None:
        """A retryable write is about to be done for the first time: `onPrimaryTransactionalWrite` ends its connection
        before the answer, and raises if the write itself is to be lost as well."""
        point = self._points.get("onPrimaryTransactionalWrite")
        if point is None or not point.strikes(self._chance, _statement_count(request)):
            return
        request.peer.cut_off = bool(point.data.get("closeConnection", True))
        if "failBeforeCommitExceptionCode" in point.data:
            code = int(point.data["failBeforeCommitExceptionCode"])
            raise CommandError(code, "onPrimaryTransactionalWrite failpoint throws")

    def check_out(self, engine: Engine, request: Request) -> None:
        """A getMore has found its cursor; raises the error that `failGetMoreAfterCursorCheckout` wants."""
        if self._strikes("failGetMoreAfterCursorCheckout", True):
            code = int(self._points["failGetMoreAfterCursorCheckout"].data.get("errorCode", 8))
            error = CommandError(code, "Hit the 'failGetMoreAfterCursorCheckout' failpoint")
            raise CommandError(code, error.message, labels=tuple(retryable.labels_of(engine, request, error)))

    def _strikes(self, name: str, fits: bool) -> bool:
        point = self._points.get(name)
        return fits and point is not None and point.strikes(self._chance)


def _disturbs(data: dict[str, Any]) -> bool:
    """Whether `failCommand` wants something before the command is run; a write concern error comes after it."""
    return bool(data.get("closeConnection") or data.get("blockConnection") or "errorCode" in data)


def _fits(data: dict[str, Any], command: Command, request: Request) -> bool:
    """Whether a `failCommand` means this command of this client."""
    if not data.get("failAllCommands"):
        names = data.get("failCommands")
        if type(names) is not list or not any(name == command.name or name in command.aliases for name in names):
            return False
    if "appName" in data and data["appName"] != _application(request):
        return False
    return "namespace" not in data or data["namespace"] == _namespace(request)


def _application(request: Request) -> str | None:
    """The name that the client's application gave itself at its first hello, which may be this very command."""
    client = request.peer.client or request.body.get("client")
    application = client.get("application") if isinstance(client, dict) else None
    return application.get("name") if isinstance(application, dict) else None


def _namespace(request: Request) -> str:
    collection = request.body.get("collection" if request.name == "getMore" else request.name)
    return f"{request.db}.{collection}" if type(collection) is str else request.db


def _statement_count(request: Request) -> int:
    """How many statements a write has: its occasions for a fail point that counts them."""
    for name in _STATEMENTS:
        found = request.sequences.get(name) or request.body.get(name)
        if type(found) is list:
            return len(found)
    return 1


def _check_block(data: dict[str, Any]) -> None:
    if data.get("blockConnection") and "blockTimeMS" not in data:
        raise CommandError(72, "must specify 'blockTimeMS' when 'blockConnection' is true")


def _labels(data: dict[str, Any]) -> tuple[str, ...] | None:
    labels = data.get("errorLabels")
    return tuple(label for label in labels if type(label) is str) if type(labels) is list else None


def _failure(engine: Engine, request: Request, data: dict[str, Any]) -> Failure:
    """What a `failCommand` does. MongoDB's order: hold up, then cut off, then fail.

    A getMore that never came to its cursor is not known to read a change stream, and its error not labelled so.
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
        found = retryable.labels_of(engine, request, error)
        labels = tuple(label for label in found if (label, request.name) != (RESUMABLE, "getMore"))
    return Failure(block_ms=block_ms, error=error, labels=labels)


def configure(engine: Engine, request: Request) -> dict[str, Any]:
    """configureFailPoint: set one, or `mode: "off"`. Raises 266 for a name that is none, 2, 9, 14 for a bad mode."""
    body = request.body
    name = body["configureFailPoint"]
    if type(name) is not str:
        raise CommandError(14, f"configureFailPoint names a fail point by a string, not by {type_name(name)}")
    if name not in NAMES:
        raise CommandError(266, f"{name} not found")
    data = body.get("data", {})
    if type(data) is not dict:
        raise CommandError(14, "the 'data' option must be an object")
    if "mode" not in body:
        raise CommandError(20, "When setting a failpoint, you must supply a 'mode'")
    count = engine.failpoints.set(name, _parse_mode(body["mode"], data))
    return {"count": Int64(count)}


def _parse_mode(mode: Any, data: dict[str, Any]) -> FailPoint | None:
    if mode == "off":
        return None
    if mode == "alwaysOn":
        return FailPoint(data)
    if type(mode) is str:
        raise CommandError(2, f"unknown mode: {mode}")
    if type(mode) is not dict:
        raise CommandError(14, "'mode' must be a string or JSON object")
    if "times" in mode:
        return FailPoint(data, times=_count("times", mode["times"]))
    if "skip" in mode:
        return FailPoint(data, skip=_count("skip", mode["skip"]))
    if "activationProbability" in mode:
        return FailPoint(data, probability=_probability(mode["activationProbability"]))
    raise CommandError(2, "'mode' must be one of 'off', 'alwaysOn', 'times', 'skip', and 'activationProbability'")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(14, f"'{name}' option to 'mode' must be a number, not {type_name(value)}")
    if not 0 <= value <= 0x7FFFFFFF:
        raise CommandError(2, f"'{name}' option to 'mode' must be positive")
    return int(value)


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(14, "the value supplied for 'activationProbability' must be a number")
    if not 0 <= value <= 1:
        raise CommandError(2, f"activationProbability must be between 0.0 and 1.0; found {value}")
    return float(value)


COMMANDS: Final = (Command("configureFailPoint", configure, admin_only=True),)
