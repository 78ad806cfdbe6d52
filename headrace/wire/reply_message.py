"""Conversion of a reply's document to bytes: OP_MSG, the legacy OP_REPLY, or either inside OP_COMPRESSED."""

from __future__ import annotations

import struct
from typing import Final

from headrace.wire.compression import compress
from headrace.wire.message import OP_COMPRESSED, OP_MSG, OP_REPLY

_MSG = struct.Struct("<iiiiIB").pack
"""Header, flags, and the kind of the only section."""
_REPLY = struct.Struct("<iiiiiqii").pack
"""Header, response flags, cursor id, starting from, number returned."""
_COMPRESSED = struct.Struct("<iiiiiiB").pack
"""Header, opcode inside, size inside, compressor."""
_AWAIT_CAPABLE: Final = 8


def plain_head(request_id: int, response_to: int, body_bytes: int, flags: int = 0) -> bytes:
    """Return the bytes that `plain_reply` puts before the body."""
    return _MSG(21 + body_bytes, request_id, response_to, OP_MSG, flags, 0)


def plain_reply(request_id: int, response_to: int, body: bytes, flags: int = 0) -> bytes:
    """Return the usual reply, an uncompressed OP_MSG, as `encode_reply` does."""
    return _MSG(21 + len(body), request_id, response_to, OP_MSG, flags, 0) + body


def encode_reply(
    request_id: int,
    response_to: int,
    body: bytes,
    *,
    legacy: bool = False,
    compressor: int | None = None,
    flags: int = 0,
) -> bytes:
    """Return the reply as bytes.

    `request_id` is the server's own number for this message, `response_to` the request's id. `legacy`: the request was
    an OP_QUERY. `compressor`: the request's (`Message.compressor`). `flags`: those of OP_MSG, such as MORE_TO_COME on
    all replies but the last of an exhaust request.
    """
    if legacy:
        head = _REPLY(36 + len(body), request_id, response_to, OP_REPLY, _AWAIT_CAPABLE, 0, 0, 1)
    else:
        head = _MSG(21 + len(body), request_id, response_to, OP_MSG, flags, 0)
    if compressor is None:
        return head + body
    plain = head[16:] + body
    data = compress(compressor, plain)
    opcode = OP_REPLY if legacy else OP_MSG
    size = 25 + len(data)
    return _COMPRESSED(size, request_id, response_to, OP_COMPRESSED, opcode, len(plain), compressor) + data
