"""The profiler: commands and how long they took, as documents of `DATABASE.system.profile`.

    engine.profiler.active        whether any database is profiled; if not, a command checks only this
    engine.profiler.profiled(...) the command, wrapped to measure it

The level of a database is 0 (nothing), 1 (a share `sample_rate` of the commands slower than `slow_ms`, or those that
match its filter) or 2 (all). The shell stores the documents after the command, without oplog entries. A read or a drop
of `system.profile` waits until all documents recorded before it are stored. One command is one document. If it has one
statement, the document's `command` is that statement, as in MongoDB.

Source: MongoDB's manual, "Database Profiler Output". Fields that are not counted here (locks, storage, plan cache keys)
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.profiling.profile_document import profile_document
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import AnsweredError
from headrace.log_lines import RepeatedLine
from headrace.running_command import TURN_SECONDS, running_command
from headrace.values.bson import encode

COLLECTION: Final = "system.profile"
STORED: Final = "stored profiles"
"""The wake-up key of reads of `system.profile`."""
STORED_MS: Final = 1000.0
"""The maximum wait of such a read."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profiler settings of a database."""

    level: int
    filter: dict[str, Any] | None = None
    matches: Callable[[dict[str, Any]], bool] | None = None
    """The parsed filter, a `UserFilter`. It replaces `slow_ms` and `sample_rate`."""


OFF: Final = Profile(0)


class Profiler:
    """The profiler settings of all databases of one server, and the threshold for slow commands."""

    def __init__(self, slow_ms: int | None, sample_rate: float = 1.0, level: int = 0) -> None:
        """`slow_ms` None: no command is slow. `level`: the level of a database without its own."""
        self.slow_ms = slow_ms
        self.sample_rate = sample_rate
        self.profiles: dict[str, Profile] = {}
        self.default = Profile(level) if level else OFF
        self._unrecorded = RepeatedLine()
        self.recorded_count = 0  # documents that the shell has accepted to store
        self.stored_count = 0  # accepted documents that the shell has stored or given up
        self._share = 0.0  # sum of `sample_rate` over slow commands; at 1 the next is recorded
        self.active = False
        self._look()

    def set(self, database: str, profile: Profile) -> None:
        """Set the profiler settings of a database."""
        self.profiles[database] = profile
        self._look()

    def set_slow(self, slow_ms: int | None, sample_rate: float) -> None:
        """Set the duration from which a command is slow, in all databases, and the share of slow commands to record."""
        self.slow_ms, self.sample_rate = slow_ms, sample_rate
        self._look()

    def of(self, database: str) -> Profile:
        """Return the profiler settings of a database."""
        return self.profiles.get(database, self.default)

    def _look(self) -> None:
        measures_all = self.slow_ms is not None and self.slow_ms < TURN_SECONDS * 1000
        levels = [profile.level for profile in self.profiles.values()]
        self.active = bool(measures_all or self.default.level or any(levels))

    def is_slow(self, duration_ms: float) -> bool:
        """Whether a command is slow and is in the recorded share. This counts the command."""
        if self.slow_ms is None or duration_ms < self.slow_ms:
            return False
        self._share += self.sample_rate
        if self._share < 1.0:
            return False
        self._share -= 1.0
        return True

    def profiled(self, command: Command, request: Request) -> Command:
        """Return the command wrapped to measure it, if its database is profiled. It runs in a turn, which counts
        examined documents."""
        measures_all = self.slow_ms is not None and self.slow_ms < TURN_SECONDS * 1000
        if not self.of(request.db).level and not measures_all:
            return command
        return replace(command, run=self._measured(command), pauses=bool(command.pauses))

    def reading(self, command: Command, request: Request) -> Command:
        """Return the command as it runs while documents wait to be stored: a read or drop of the profile waits first.

        A getMore does not wait: a tailing one would always wait for the document that the getMore before it recorded.
        """
        if request.body.get(request.name) != COLLECTION:
            return command
        recorded = self.recorded_count

        def is_stored() -> bool:
            return self.stored_count >= recorded

        def run(context: CommandContext, request: Request) -> Any:
            if is_stored() or request.time_is_up:
                return command.run(context, request)
            return Wait(STORED_MS, STORED, is_stored)

        return replace(command, run=run)

    def _measured(self, command: Command) -> Any:
        def run(context: CommandContext, request: Request) -> Any:
            now_ms = context.clock.monotonic_ms()
            began_ms = min(now_ms, getattr(request, "since_ms", now_ms))  # earlier if the command has waited
            try:
                answer = command.run(context, request)
            except AnsweredError as error:
                self._record(context, request, began_ms, error)
                raise
            if type(answer) is not Wait:
                self._record(context, request, began_ms, answer)
            return answer

        return run

    def _record(self, context: CommandContext, request: Request, began_ms: float, answer: Any) -> None:
        """Record a command that ended with an answer or an error. If recording fails, log it and keep the answer."""
        try:
            self._note(context, request, began_ms, answer)
        except Exception as error:
            self._unrecorded.log(f"a command is not profiled, since that failed with {type(error).__name__}")

    def _note(self, context: CommandContext, request: Request, began_ms: float, answer: Any) -> None:
        profile = self.of(request.db)
        duration_ms = context.clock.monotonic_ms() - began_ms
        turn = running_command()
        if profile.matches is None:
            is_slow = self.is_slow(duration_ms)
            if is_slow and (turn is None or not turn.pause_count):  # otherwise the shell logs it
                context.engine.shell.slow(request, duration_ms, None if turn is None else turn.work, answer)
            if not profile.level or (profile.level == 1 and not is_slow):
                return
        elif not profile.level:
            return
        document = profile_document(context.engine, request, duration_ms, answer, context.pause_count)
        if profile.level == 2 or profile.matches is None or profile.matches(document):
            context.engine.shell.profiled(f"{request.db}.{COLLECTION}", encode(document))
