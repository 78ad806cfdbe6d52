"""The layer between a socket and its peer. The first byte tells TLS from plain; then bytes are decrypted and encrypted.

    FIRST       nothing has come: 0x16 begins a TLS handshake, any other byte a plain client's message
    HANDSHAKE   steps are computed in a thread, one at a time; meanwhile nothing is read
    OPEN        the peer sees this layer as its transport

Rule: decrypted bytes are passed on at once, so that the peer's limits hold as for plain bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from headrace import limits
from headrace.dispatch.request import TlsSession
from headrace.server.tls.handshakes import Handshakes
from headrace.server.tls.subject import subject_text

_HANDSHAKE_RECORD: Final = 0x16
_READ_BYTES: Final = 256 * 1024


class Phase(Enum):
    """The phase of a connection, which determines how its bytes are handled."""

    FIRST = auto()
    HANDSHAKE = auto()
    OPEN = auto()
    CLOSED = auto()


class TlsLayer(asyncio.Protocol):
    """The protocol of a socket that may speak TLS, and the transport of its peer."""

    def __init__(
        self, handshakes: Handshakes, loop: asyncio.AbstractEventLoop, new_peer: Callable[[], asyncio.Protocol]
    ) -> None:
        self._handshakes = handshakes
        self._loop = loop
        self._new_peer = new_peer
        self._phase = Phase.FIRST
        self._peer: Any = None
        self._transport: Any = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session: ssl.SSLObject | None = None
        self._handshake_bytes = 0
        self._info: TlsSession | None = None
        self._closing = False
        self.address = ""
        """The client's address, for the log."""

    # Called by asyncio.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        name = transport.get_extra_info("peername")
        self._is_local = not isinstance(name, tuple)
        self.address = "a Unix socket" if self._is_local else f"{name[0]}:{name[1]}"
        self._handshakes.begin(self)

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.OPEN:
            self._incoming.write(data)
            self._decrypt()
        elif self._phase is Phase.HANDSHAKE:
            self._shake_hands(data)
        elif self._phase is Phase.FIRST:
            self._begin(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = Phase.CLOSED
        self._handshakes.end(self)
        if self._peer is not None:
            self._peer.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.pause_writing()

    def resume_writing(self) -> None:
        if self._peer is not None and not self._closing:
            self._peer.resume_writing()

    # The beginning.

    def _begin(self, data: bytes) -> None:
        if data[0] == _HANDSHAKE_RECORD:
            self._session = self._handshakes.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._phase = Phase.HANDSHAKE
            self._shake_hands(data)
            return
        refused = self._handshakes.options.mode == "requireTLS" and not self._is_local
        if not self._is_local:
            self._handshakes.log_plain(self, refused=refused)
        if refused:
            self.abort()
            return
        self._handshakes.end(self)
        self._phase = Phase.CLOSED
        peer = self._new_peer()
        self._transport.set_protocol(peer)
        peer.connection_made(self._transport)
        peer.data_received(data)

    def _shake_hands(self, data: bytes) -> None:
        self._handshake_bytes += len(data)
        self._incoming.write(data)
        self._transport.pause_reading()
        self._handshakes.compute(self._step, self._stepped)

    def _step(self) -> bool:
        """Run a step of the handshake, in the thread; return whether the handshake is over."""
        assert self._session is not None
        if self._phase is not Phase.HANDSHAKE:
            return False  # cut off while it waited for this thread
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        certificate = self._session.getpeercert() or {}
        name: Any = certificate.get("subject", ())
        cipher = self._session.cipher()
        self._info = TlsSession(
            self._session.version() or "", cipher[0] if cipher else "", subject_text(name) if certificate else None
        )
        return True

    def _stepped(self, result: bool | Exception) -> None:
        if self._phase is not Phase.HANDSHAKE or self._transport.is_closing():
            return
        if isinstance(result, Exception):
            self._handshakes.failed(self, result)
        self._flush()
        if isinstance(result, Exception):
            self._transport.close()
            return
        if not result:
            if self._handshake_bytes > limits.HANDSHAKE_BYTES_MAX:
                self.abort()
                return
            self._transport.resume_reading()
            return
        assert self._session is not None
        self._handshakes.end(self)
        self._handshakes.opened(self._session)
        self._phase = Phase.OPEN
        self._transport.resume_reading()
        self._peer = self._new_peer()
        self._peer.connection_made(self)
        self._decrypt()

    # Bytes.

    def _decrypt(self) -> None:
        session, pieces, ended = self._session, [], False
        assert session is not None
        try:
            while self._incoming.pending or session.pending():
                piece = session.read(_READ_BYTES)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._handshakes.failed(self, error)
            self._flush()
            self._transport.abort()
            return
        if self._outgoing.pending:
            self._flush()
        if pieces:
            self._peer.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ended:
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    # Called by the peer: the methods of an asyncio.Transport.

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._closing or self._phase is not Phase.OPEN:
            return
        assert self._session is not None
        try:
            self._session.write(data)
        except ssl.SSLError as error:
            self._handshakes.failed(self, error)
            self._transport.abort()
            return
        self._flush()

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the number of unread bytes above which the peer pauses."""
        self._transport.set_write_buffer_limits(high=high)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the client has not read."""
        return int(self._transport.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport does; `tls` is the session."""
        return self._info if name == "tls" else self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._transport.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the connection is being closed."""
        return self._closing or bool(self._transport.is_closing())

    def close(self) -> None:
        """Send the rest, and close the TLS session and the connection."""
        if self._closing:
            return
        self._closing = True
        assert self._session is not None
        with contextlib.suppress(ssl.SSLError):  # does not wait for the client's close_notify
            self._session.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self._transport.abort()
