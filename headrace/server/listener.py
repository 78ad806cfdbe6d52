"""Listening sockets. Without free descriptors, new connections wait in the kernel.

If there is no descriptor, an event loop's own server either accepts and closes the connections (libuv) or logs an error
each second (asyncio). This listener pauses, logs it once, and continues after a client has left. Some descriptors are
reserved for files.

Clients may connect more quickly than they can be served: serving takes 200 µs and more. So each iteration of the loop
accepts some, and the others wait in the kernel's queue. A client that has left by then is not served.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import select
import socket
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from headrace import limits
from headrace.server.tls.handshakes import Handshakes

LOG = logging.getLogger("headrace.server")
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """The listening sockets of one server."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.Protocol], handshakes: Handshakes | None
    ) -> None:
        """`factory` makes the protocol of a new connection. `handshakes`: None without TLS."""
        self._loop = loop
        self._factory = factory
        self._handshakes = handshakes
        self.paused = False
        """Whether no descriptors are left for more connections."""
        self._has_warned = False
        self._closed = False
        self._connecting: set[asyncio.Task[None]] = set()
        self.sockets: list[socket.socket] = []

    def add(self, listening: socket.socket) -> None:
        """Accept connections of a bound socket. `close` closes it."""
        listening.setblocking(False)
        listening.listen(limits.LISTEN_BACKLOG)
        self.sockets.append(listening)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept and serve some connections. Others wait in the kernel's queue for the next iteration of the loop."""
        for _ in range(limits.CONNECT_COUNT_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._say_that_no_client_waits()
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause()
                return
            if _has_left(connection):
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
            if connection.fileno() >= descriptor_count() - limits.DESCRIPTOR_RESERVE:
                self._pause()
                return

    async def _connect(self, connection: socket.socket) -> None:
        try:
            if self._handshakes is None:
                await self._loop.connect_accepted_socket(self._factory, connection)
            else:
                await self._handshakes.connect(self._factory, connection)
        except (OSError, asyncio.CancelledError):  # the client has left already, was refused, or the server ends
            connection.close()

    def _pause(self) -> None:
        if self.paused or self._closed:
            return
        self.paused = True
        for listening in self.sockets:
            self._loop.remove_reader(listening)
        if not self._has_warned:
            self._has_warned = True
            LOG.warning(
                "the process has no descriptors left (its limit is %d): new connections wait until clients leave",
                descriptor_count(),
            )
        self._loop.call_later(limits.ACCEPT_RETRY_SECONDS, self._retry)

    def _say_that_no_client_waits(self) -> None:
        if self._has_warned:
            self._has_warned = False
            LOG.warning("there are descriptors again: no connection waits any more")

    def _retry(self) -> None:
        self.client_left()
        if self.paused and not self._closed:
            self._loop.call_later(limits.ACCEPT_RETRY_SECONDS, self._retry)

    def client_left(self) -> None:
        """Accept connections again if that was paused and descriptors are free."""
        if not self.paused or self._closed or not _has_free_descriptors():
            return
        self.paused = False
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting; connections that are being served stay open, those before the end of a handshake do not."""
        self._closed = True
        for task in self._connecting:
            task.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets.clear()


def set_socket_options(connection: Any) -> None:
    """Send small replies at once, and let the kernel detect a client whose machine or network has failed. Shorter
    timeouts of the system are kept."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # macOS has TCP_KEEPALIVE
    times = ((idle, limits.KEEPALIVE_SECONDS_MAX), (socket.TCP_KEEPINTVL, limits.KEEPALIVE_ANSWER_SECONDS_MAX))
    for option, seconds_max in times:
        if option is not None and connection.getsockopt(socket.IPPROTO_TCP, option) > seconds_max:
            connection.setsockopt(socket.IPPROTO_TCP, option, seconds_max)


def _has_left(connection: socket.socket) -> bool:
    """Return whether the client has already closed its side. Only Linux tells this before the rest is read."""
    if sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _has_free_descriptors() -> bool:
    """Return whether more descriptors are free than are reserved for files. The lowest free one shows how many are
    used."""
    try:
        with socket.socket() as probe:
            return probe.fileno() < descriptor_count() - limits.DESCRIPTOR_RESERVE
    except OSError:
        return False


def bound_sockets(address: str, port: int, but: Collection[str] = ()) -> list[socket.socket]:
    """Return sockets bound to the addresses of a name, except those in `but`. Raises OSError if an address is
    unavailable."""
    bound: list[socket.socket] = []
    names = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, name in dict.fromkeys(names):
            if name[0] in but:
                continue
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind((name[0], port, *name[2:]))
                port = listening.getsockname()[1]
            except OSError as error:
                raise OSError(error.errno, f"cannot listen on {address}:{port}: {error.strerror}") from None
    except BaseException:
        for listening in bound:
            listening.close()
        raise
    return bound


def bound_unix_socket(path: Path, mode: int) -> socket.socket:
    """Return a Unix socket bound to a free path, with these permissions. Raises OSError if the path is not free."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        path.chmod(mode)  # no client can connect before it listens
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from None
    return listening


def descriptor_count() -> int:
    """Return how many descriptors the process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors as far as the operating system allows without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS reports "unlimited" but allows less
            return
