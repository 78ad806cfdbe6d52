"""The shell around an engine: connections that can be interrupted, waiting requests, an end, a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.dispatch.request import ClientInfo, Request
from headrace.running_command import RunningCommand, Work


class Shell(Protocol):
    """The server of sockets as its engine sees it; `NoShell` where commands are driven by calling functions."""

    @property
    def shut_down(self) -> Callable[[], None] | None:
        """Ends the server cleanly, once the answer is out; None where the process that it is in decides."""

    @property
    def log_lines(self) -> Sequence[str]:
        """The last lines of the server's log."""

    @property
    def startup_warnings(self) -> Sequence[str]:
        """The warnings of the start."""

    @property
    def certificate(self) -> tuple[str, float] | None:
        """The subject of the server's TLS certificate, and when it expires, in seconds since 1970; None without TLS."""

    def rotate_certificates(self, message: str | None = None) -> None:
        """Read the TLS certificates again, for connections to come; `message` goes into the log. Raises 140."""

    def rotate_logs(self, log: str | None = None, client: ClientInfo | None = None) -> None:
        """Begin new files of the log `server` or `audit`; None: of both. No effect on a log without a file. Raises 37.

        `client`: the client that requests it; None: a signal."""

    def client_introduced(self, client: ClientInfo) -> None:
        """Note that a client has introduced itself in its first hello."""

    def has_paused(self, request: Request, turn: RunningCommand) -> None:
        """A command has ended that has paused, so that it took longer than one turn."""

    def profiled(self, namespace: str, document: bytes | None) -> None:
        """Store a document of the profiler after the command; None: create the collection if it is missing."""

    def slow(self, request: Request, duration_ms: float, work: Work | None, answer: Any) -> None:
        """A command has taken long, without a pause."""

    def waiting_requests(self) -> Sequence[Request]:
        """The requests that returned a `Wait`, and were not answered yet."""

    def interrupt(self, connection_id: int) -> None:
        """End what a connection waits for, with error 11601."""

    def has_reader(self) -> bool:
        """Whether a reader process takes a long read now."""

    def wake(self, key: str) -> None:
        """Run again what waits for `key`: a transaction that ended, a commit that is settled."""

    def cursor_killed(self, cursor: Any) -> None:
        """Run again the getMore that waits for this cursor, if there is one."""


class NoShell:
    """No connections, no log, no process to end: each call has no effect."""

    shut_down: Callable[[], None] | None = None
    log_lines: Sequence[str] = ()
    startup_warnings: Sequence[str] = ()
    certificate: tuple[str, float] | None = None

    def rotate_certificates(self, message: str | None = None) -> None:
        pass

    def rotate_logs(self, log: str | None = None, client: ClientInfo | None = None) -> None:
        pass

    def client_introduced(self, client: ClientInfo) -> None:
        pass

    def has_paused(self, request: Request, turn: RunningCommand) -> None:
        pass

    def profiled(self, namespace: str, document: bytes | None) -> None:
        pass

    def slow(self, request: Request, duration_ms: float, work: Work | None, answer: Any) -> None:
        pass

    def waiting_requests(self) -> Sequence[Request]:
        return ()

    def interrupt(self, connection_id: int) -> None:
        pass

    def has_reader(self) -> bool:
        return False

    def wake(self, key: str) -> None:
        pass

    def cursor_killed(self, cursor: Any) -> None:
        pass
