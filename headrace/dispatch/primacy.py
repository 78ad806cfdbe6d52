"""Primary or secondary: the server is always the primary of its set of one, except after a forced `replSetStepDown`.

A secondary reports so in `hello`, begins no transactions, and refuses commands that write with error 10107, which
drivers retry. Reads, open cursors and connections go on. After its time the server becomes the primary again, because
there is no other member. The data files stay writable: TTL indexes and the server's own oplog entries go on.

Source: MongoDB's manual, and the observed replies of a set of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.clock import Clock
from headrace.dispatch.server_info import topology_version
from headrace.errors import CommandError

if TYPE_CHECKING:
    from headrace.dispatch.command import Command
    from headrace.dispatch.engine import Engine
    from headrace.dispatch.request import Request

TOPOLOGY: Final = "\0topology"
"""The wait key of an awaitable hello. No namespace begins with a zero byte."""


class Primacy:
    """The primary or secondary state of one server, and how often it has changed."""

    __slots__ = ("_change_count", "_clock", "ends_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._change_count = 0
        self.ends_ms: float | None = None
        """The monotonic time at which the server will be the primary again; None: it has not stepped down."""

    @property
    def is_primary(self) -> bool:
        """Whether the server takes writes now."""
        self._note_end()
        return self.ends_ms is None

    @property
    def change_count(self) -> int:
        """How often the server has become a secondary, or the primary again."""
        self._note_end()
        return self._change_count

    def _note_end(self) -> None:
        if self.ends_ms is not None and self._clock.monotonic_ms() >= self.ends_ms:
            self.ends_ms = None
            self._change_count += 1

    @property
    def left_ms(self) -> float | None:
        """How long the server remains a secondary, in milliseconds; None for the primary."""
        return None if self.is_primary or self.ends_ms is None else self.ends_ms - self._clock.monotonic_ms()

    def step_down(self, ms: float) -> None:
        """Become a secondary for `ms` milliseconds. The caller wakes the requests that wait for `TOPOLOGY`."""
        self.ends_ms = self._clock.monotonic_ms() + ms
        self._change_count += 1


def require_primary(engine: Engine, command: Command, request: Request) -> None:
    """Raise 10107 on a secondary for a command that writes, or that belongs to a transaction."""
    writes = command.writes if isinstance(command.writes, bool) else command.writes(request)
    if (writes or "autocommit" in request.body) and not engine.primacy.is_primary:
        raise CommandError(10107, "not primary", extra={"topologyVersion": topology_version(engine)})
