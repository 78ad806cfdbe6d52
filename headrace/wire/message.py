"""Messages of MongoDB's wire protocol: its numbers, `Message`, and `ProtocolError`.

    header    int32 length (of the whole message) · int32 request id · int32 response to · int32 opcode
    OP_MSG    header · uint32 flags · sections · [uint32 CRC-32C]
                kind 0: byte 0 · one document                                          (exactly one)
                kind 1: byte 1 · int32 size (from itself on) · cstring name · documents  (any number)
    OP_QUERY  header · int32 flags · cstring collection · int32 skip · int32 limit · document [· document]
    OP_COMPRESSED  header · int32 opcode inside · int32 size inside · byte compressor · bytes (without the header)

Source: the wire protocol's specification.
"""

from __future__ import annotations

from typing import Final

OP_REPLY: Final = 1
OP_QUERY: Final = 2004
OP_COMPRESSED: Final = 2012
OP_MSG: Final = 2013

CHECKSUM_PRESENT: Final = 1 << 0
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
REQUIRED_FLAGS: Final = 0xFFFF
"""The flags that a receiver must know: a message with an unknown one is refused. Other unknown flags are ignored."""

MESSAGE_BYTES_MIN: Final = 26
"""The length of the shortest message: an OP_MSG with an empty document."""


class ProtocolError(Exception):
    """The bytes are not the protocol. Later bytes cannot be trusted, so the socket must be closed."""


class TlsOnPlainSocket(ProtocolError):
    """The client speaks TLS, but the server does not expect it."""

    def __init__(self) -> None:
        super().__init__("SSL handshake received but server is started without SSL support")


class HttpRequest(ProtocolError):
    """The client speaks HTTP, like a browser. `HTTP_RESPONSE` explains the mistake to the user."""

    def __init__(self) -> None:
        super().__init__("Client sent an HTTP request over a native MongoDB connection")


_HTTP_TEXT: Final = b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"
HTTP_RESPONSE: Final = (
    b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_HTTP_TEXT), _HTTP_TEXT)
)
"""MongoDB's answer to a `GET`."""


class Message:
    """One request, still raw BSON. `sequences` maps the names of its kind-1 sections to their documents."""

    __slots__ = ("body", "collection", "compressor", "flags", "opcode", "request_id", "sequences")

    def __init__(
        self,
        request_id: int,
        opcode: int,
        flags: int,
        body: bytes,
        sequences: dict[str, list[bytes]],
        collection: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.opcode = opcode
        """OP_MSG or OP_QUERY. A compressed message has its inner opcode."""
        self.flags = flags
        self.body = body
        """The document of the kind-0 section, or the query of an OP_QUERY (which may be wrapped in `$query`)."""
        self.sequences = sequences
        self.collection = collection
        """The full name in an OP_QUERY, such as `admin.$cmd`; otherwise None."""
        self.compressor: int | None = None
        """The id of the request's compressor, which its reply uses, too; None: not compressed."""

    def opened(self) -> Message:
        """Return the message itself, or the content of an `UnopenedMessage`."""
        return self

    def __repr__(self) -> str:
        return f"Message({self.request_id}, opcode={self.opcode}, flags={self.flags}, {len(self.body)} bytes)"
