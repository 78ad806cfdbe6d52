"""The shell around an engine: interruptible connections, waiting requests, shutdown, the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.dispatch.command import Command
from headrace.dispatch.request import ClientInfo, Request
from headrace.running_command import RunningCommand, Work


class Shell:
    """The socket server as its engine sees it. The class itself is a shell without connections, log or process: its
    methods have no effect."""

    shut_down: Callable[[], None] | None = None
    """A function that ends the server cleanly once the answer is sent; None if the embedding process decides."""
    log_lines: Sequence[str] = ()
    """The last lines of the server's log."""
    startup_warnings: Sequence[str] = ()
    """The warnings at the server's start."""
    certificate: tuple[str, float] | None = None
    """The subject of the server's TLS certificate and its expiry in seconds since 1970; None without TLS."""

    def rotate_certificates(self, message: str | None = None) -> None:
        """Read the TLS certificates again, for new connections. Log `message`. Raise 140."""

    def rotate_logs(self, log: str | None = None, client: ClientInfo | None = None) -> None:
        """Begin a new file of the log `server` or `audit`; None: of both. A log without a file is unchanged. Raise 37.

        `client`: the client that requests it; None: a signal."""

    def client_introduced(self, client: ClientInfo) -> None:
        """Note that a client has introduced itself in its first hello."""

    def has_paused(self, request: Request, turn: RunningCommand) -> None:
        """Note the end of a command that has paused, and so took longer than one turn."""

    def profiled(self, namespace: str, document: bytes | None) -> None:
        """Store a document of the profiler after the command; None: create the collection if it is missing."""

    def slow(self, request: Request, duration_ms: float, work: Work | None, answer: Any) -> None:
        """Note a slow command that has not paused."""

    def waiting_requests(self) -> Sequence[Request]:
        """Return the requests that returned a `Wait` and have no answer yet."""
        return ()

    def interrupt(self, connection_id: int) -> None:
        """End the wait of a connection's request with error 11601."""

    def has_reader(self) -> bool:
        """Whether a reader process can take a long read now. Starts one if all are busy."""
        return False

    def may_move(self, command: Command, request: Request) -> bool:
        """Whether a reader process can take this read, even if it must be started. Called from any thread."""
        return False

    def reader_call(self, request: Request) -> Any:
        """Return the `execution.reader_calls.ReaderCall` of a read."""

    def wake(self, key: str) -> None:
        """Run again the requests that wait for `key`, such as the end of a transaction or a settled commit."""

    def cursor_killed(self, cursor: Any) -> None:
        """Run again the getMore that waits for this cursor, if any."""
