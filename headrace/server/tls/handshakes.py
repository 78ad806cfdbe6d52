"""Accepted connections of a server with TLS: the first byte tells TLS from plain, and the event loop does the rest.

A handshake needs a private key's operation, which takes a millisecond or more, so no iteration of the loop begins more
than one. A client that does not finish within ten seconds is cut off.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from headrace import limits
from headrace.dispatch.options import TlsOptions
from headrace.dispatch.request import TlsSession
from headrace.log_lines import RepeatedLine
from headrace.server.tls.context import new_context, subject_text

_HANDSHAKE_RECORD: Final = b"\x16"


class Handshakes:
    """The shared state of a server's TLS connections: the context, and the order in which handshakes begin."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: TlsOptions, context: ssl.SSLContext, metrics: dict[str, int]
    ) -> None:
        """`metrics` counts the connections of each version, as `transportSecurity.TLSv1.3`."""
        self.options = options
        self.context = context
        self._metrics = metrics
        self._loop = loop
        self._beginning = asyncio.Lock()
        """Held for an iteration of the loop by the connection whose handshake begins next."""
        self._failed = RepeatedLine()
        self._slow = RepeatedLine()
        self._plain = RepeatedLine()

    def rotate(self) -> None:
        """Read the files again, for later connections. Raises `TlsError` and then changes nothing."""
        self.context = new_context(self.options)

    async def connect(self, factory: Callable[[], asyncio.Protocol], connection: socket.socket) -> None:
        """Serve a connection, after its handshake or plain. Raises OSError for a client that left or was refused."""
        ends = self._loop.time() + limits.HANDSHAKE_SECONDS
        is_local = connection.family == socket.AF_UNIX
        address = "a Unix socket" if is_local else "{}:{}".format(*connection.getpeername())
        try:
            async with asyncio.timeout_at(ends):
                is_plain = await self._first_byte(connection) != _HANDSHAKE_RECORD
                if not is_plain:
                    async with self._beginning:
                        await asyncio.sleep(0)
            if is_plain:
                if not is_local:
                    self._check_plain(address)
                await self._loop.connect_accepted_socket(factory, connection)
                return
            await self._loop.connect_accepted_socket(
                factory, connection, ssl=self.context,
                ssl_handshake_timeout=max(ends - self._loop.time(), limits.HANDSHAKE_CLOSE_SECONDS),
                ssl_shutdown_timeout=limits.HANDSHAKE_CLOSE_SECONDS,
            )  # fmt: skip
        except (TimeoutError, ConnectionAbortedError):
            self._slow.log(f"{address} is cut off: no TLS handshake within {limits.HANDSHAKE_SECONDS:g} s")
            raise
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or error
            self._failed.log(f"the TLS handshake of {address} failed: {reason}")
            raise

    def session(self, connected: ssl.SSLObject | None) -> TlsSession | None:
        """Count a connection by its TLS version, and return its description; None for a plain connection."""
        if connected is None:
            return None
        version = connected.version() or ""
        name = f"transportSecurity.{version}"
        self._metrics[name] = self._metrics.get(name, 0) + 1
        certificate: dict[str, Any] = connected.getpeercert() or {}
        cipher = connected.cipher()
        subject = subject_text(certificate.get("subject", ())) if certificate else None
        return TlsSession(version, cipher[0] if cipher else "", subject)

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Return the first byte, which stays in the socket. Raises OSError if the client leaves without one."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        first = connection.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError
        return first

    def _check_plain(self, address: str) -> None:
        """Log that a client does not use TLS. Raises OSError if it must."""
        if self.options.mode == "requireTLS":
            self._plain.log(f"{address} is cut off: the server is configured to only allow SSL connections")
            raise ConnectionRefusedError
        if self.options.mode == "preferTLS":
            self._plain.log(f"SSL mode is set to 'preferred' and the connection of {address} is not using SSL")
