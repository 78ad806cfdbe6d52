"""Parser of a client's stream: a machine without I/O that receives bytes and returns messages.

Rules: the messages do not depend on how the stream is cut into pieces. Every length is checked before it is used. Bytes
that are not the protocol raise `ProtocolError`, then and at every later call, and no other exception. Only the frame is
checked: the code that decodes a document finds out whether it is well-formed BSON.

This is the hottest path of the server. So the usual messages, a document or a document and a sequence, are parsed with
one unpacking and few calls, and the pieces of a long message are joined only once.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.limits import DECODED_BYTES_MAX, MESSAGE_BYTES_MAX, WRITE_BATCH_COUNT_MAX
from headrace.values.rows import EqualRows
from headrace.wire.compression import NEVER_COMPRESSED, decompress
from headrace.wire.message import (
    CHECKSUM_PRESENT,
    MESSAGE_BYTES_MIN,
    MORE_TO_COME,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    REQUIRED_FLAGS,
    HttpRequest,
    Message,
    ProtocolError,
    TlsOnPlainSocket,
)


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    from google_crc32c import value  # few clients send checksums

    checksum: int = value(bytes(data))
    return checksum


__all__ = ["NEED_DATA", "Connection", "Message", "NeedData", "ProtocolError", "TlsOnPlainSocket", "UnopenedMessage"]


class NeedData:
    """The type of `NEED_DATA`, which means that no whole message has arrived. Falsy; it has one instance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NEED_DATA"

    def __bool__(self) -> bool:
        return False


NEED_DATA: Final = NeedData()

_START = struct.Struct("<iiiiIBi").unpack_from
"""The header and, in an OP_MSG, the flags, the kind of the first section and the length of its document."""
_INT = struct.Struct("<i").unpack_from
_UNSIGNED = struct.Struct("<I").unpack_from
_COMPRESSED = struct.Struct("<iiB").unpack_from
_SMALL, _JOINED = 1024, 64 * 1024
"""Pieces shorter than `_SMALL` are joined, into pieces of up to about `_JOINED` bytes."""
_GATHERED_BYTES = 1024 * 1024
"""The number of bytes of short messages that are joined at once."""
_TLS_RECORD = b"\x16\x03"
"""The beginning of a TLS handshake. Read as a message's length it may be valid."""
_HTTP_GET = b"GET "
"""The beginning of an HTTP request. Read as a message's length it is invalid."""
_OPCODES = frozenset({OP_COMPRESSED, OP_MSG, OP_QUERY})
_UNKNOWN_FLAGS = REQUIRED_FLAGS & ~(CHECKSUM_PRESENT | MORE_TO_COME)
_RARE_FLAGS = REQUIRED_FLAGS & ~MORE_TO_COME
_COLUMN_COUNT = 16
"""The number of documents from which on their lengths are compared as columns."""
_COLUMN_BYTES = 5 * _COLUMN_COUNT
"""The size of this number of empty documents."""
_ROW_BYTES_MAX = 64 * 1024
_SECTION_NAMES = {b"deletes": "deletes", b"documents": "documents", b"updates": "updates"}
"""The most frequent section names, decoded."""


class Connection:
    """One client's stream of bytes. Call `receive` with new bytes, then `next_event` until it returns NEED_DATA."""

    __slots__ = (
        "_at", "_buffer", "_failure", "_tail", "_tail_bytes", "_wanted_bytes", "is_at_rest", "may_have_event",
    )  # fmt: skip

    def __init__(self) -> None:
        self.may_have_event = False
        """Whether `next_event` may return a message: bytes have arrived since its last NEED_DATA, or are left."""
        self.is_at_rest = True
        """Whether the last message was taken and no bytes follow it."""
        self._buffer = b""
        self._at = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._wanted_bytes = MESSAGE_BYTES_MIN
        self._failure: ProtocolError | None = None

    @property
    def unread_bytes(self) -> int:
        """The number of bytes of messages that were not taken yet, also incomplete ones."""
        return len(self._buffer) - self._at + self._tail_bytes

    def receive(self, data: bytes) -> int:
        """Take the next bytes of the stream. They are kept without a copy, or dropped after a ProtocolError.

        Return `unread_bytes`.
        """
        self.may_have_event = True
        self.is_at_rest = False
        if self._failure is not None:
            return 0
        if self._at == len(self._buffer) and not self._tail:
            self._buffer = data
            self._at = 0
            return len(data)
        tail = self._tail
        if tail and len(data) < _SMALL and len(tail[-1]) < _JOINED:  # an object per byte would cost much more
            tail[-1] += data
        else:
            tail.append(data)
        self._tail_bytes += len(data)
        return self.unread_bytes

    def shrink(self) -> None:
        """Free the bytes of a message that was taken."""
        if self._at == len(self._buffer):
            self._buffer, self._at = b"", 0

    def next_event(self) -> Message | NeedData:
        """Return the next message, or NEED_DATA. Raises ProtocolError from the first invalid bytes on."""
        buffer = self._buffer
        at = self._at
        have = len(buffer) - at
        if have < MESSAGE_BYTES_MIN:
            return self._gather(MESSAGE_BYTES_MIN, buffer, at)
        length, request_id, _, opcode, flags, kind, document_bytes = _START(buffer, at)
        if length > have or not MESSAGE_BYTES_MIN <= length <= MESSAGE_BYTES_MAX:
            return self._gather(length, buffer, at)
        self._at = end = at + length
        self.may_have_event = may = length < have or bool(self._tail)
        self.is_at_rest = not may
        body_end = at + 21 + document_bytes
        if opcode == OP_MSG and kind == 0 and flags & _RARE_FLAGS == 0 and at + 25 < body_end <= end:
            if body_end == end:
                if buffer[end - 1] == 0:
                    return Message(request_id, OP_MSG, flags, buffer[at + 21 : end], {})
            elif buffer[body_end - 1] == 0 and buffer[body_end] == 1 and length <= DECODED_BYTES_MAX:
                sequences: dict[str, list[bytes]] = {}
                try:
                    if _sequence(buffer, body_end + 1, end, sequences) == end:
                        return Message(request_id, OP_MSG, flags, buffer[at + 21 : body_end], sequences)
                except ProtocolError as error:
                    raise self._fail(ProtocolError(str(error))) from error
        return self._take(opcode, request_id, buffer, at, end)

    def _gather(self, wanted_bytes: int, buffer: bytes, at: int) -> Message | NeedData:
        """Return the next message if the later bytes complete it, otherwise NEED_DATA. `buffer` from `at` on does not
        suffice."""
        if wanted_bytes != self._wanted_bytes or not self._tail:  # the header may have come with many bytes after it
            wait = self._wait_for(wanted_bytes, buffer, at)
            if not self._tail:
                return wait
        if len(buffer) - at + self._tail_bytes < self._wanted_bytes:
            self.may_have_event = False
            return NEED_DATA
        if self._wanted_bytes > DECODED_BYTES_MAX:
            return self._take_long(buffer, at)
        self._buffer = b"".join((buffer[at:], *self._pieces(max(self._wanted_bytes, _GATHERED_BYTES))))
        self._at = 0
        self._wanted_bytes = MESSAGE_BYTES_MIN  # the next message's length is not known yet
        return self.next_event()

    def _pieces(self, size: int) -> list[bytes]:
        """Take pieces of the tail with `size` bytes or a little more, or all pieces."""
        taken = count = 0
        while count < len(self._tail) and taken < size:
            taken += len(self._tail[count])
            count += 1
        pieces = self._tail[:count]
        del self._tail[:count]
        self._tail_bytes -= taken
        return pieces

    def _take_long(self, buffer: bytes, at: int) -> Message:
        """Return the long message whose header is in the buffer and whose end is in the tail. Its pieces are not joined
        yet."""
        length, self._wanted_bytes = self._wanted_bytes, MESSAGE_BYTES_MIN
        first = memoryview(buffer)[at:]
        *middle, last = self._pieces(length - len(first))
        end = length - len(first) - sum(map(len, middle))
        pieces: list[bytes | memoryview] = [first, *middle, memoryview(last)[:end]]
        self._buffer, self._at = last[end:], 0
        _, request_id, _, opcode, *_ = _START(buffer, at)
        try:
            unpacked = _unpacked_bytes(opcode, buffer, at, length)
            return UnopenedMessage(request_id, opcode, pieces, length, unpacked)
        except ProtocolError as error:
            raise self._fail(ProtocolError(str(error))) from error

    def _wait_for(self, wanted_bytes: int, buffer: bytes, at: int) -> NeedData:
        """Note how many bytes are needed. Raises `ProtocolError` if the present bytes cannot become a message."""
        if self._failure is not None:
            raise self._failure
        have = len(buffer) - at
        if have >= 16 and buffer.startswith(_TLS_RECORD, at) and _INT(buffer, at + 12)[0] not in _OPCODES:
            raise self._fail(TlsOnPlainSocket())
        if have >= 4:
            if buffer.startswith(_HTTP_GET, at):
                raise self._fail(HttpRequest())
            (length,) = _INT(buffer, at)
            if not MESSAGE_BYTES_MIN <= length <= MESSAGE_BYTES_MAX:
                raise self._fail(ProtocolError(f"a message of {length} bytes"))
        if have >= 16:
            (opcode,) = _INT(buffer, at + 12)
            if opcode not in _OPCODES:
                raise self._fail(ProtocolError(f"unknown opcode {opcode}"))
        self._wanted_bytes = wanted_bytes
        self.may_have_event = bool(self._tail)  # `_gather` uses the tail
        self.is_at_rest = not have and not self._tail
        return NEED_DATA

    def _take(self, opcode: int, request_id: int, buffer: bytes, at: int, end: int) -> Message:
        """Return the message at [at, end), which is not one of the usual kind."""
        try:
            if opcode == OP_MSG and end - at <= DECODED_BYTES_MAX:
                return _parse_msg(request_id, buffer, at, end)
            if opcode not in _OPCODES:
                raise ProtocolError(f"unknown opcode {opcode}")
            unpacked = _unpacked_bytes(opcode, buffer, at, end - at)
            if unpacked > DECODED_BYTES_MAX:
                return UnopenedMessage(request_id, opcode, [memoryview(buffer)[at:end]], end - at, unpacked)
            return _open(opcode, request_id, buffer, at, end)
        except ProtocolError as error:
            raise self._fail(ProtocolError(str(error))) from error

    def _fail(self, error: ProtocolError) -> ProtocolError:
        """Drop the stream and remember the error, which `_wait_for` raises at every later call."""
        self._failure = error
        self._buffer = b""
        self._at = 0
        self._tail.clear()
        self._tail_bytes = 0
        return error


class UnopenedMessage(Message):
    """A long message of which only the header was read. `opened` reads the rest, which takes some time."""

    __slots__ = ("_pieces", "_size", "unpacked_bytes")

    def __init__(
        self, request_id: int, opcode: int, pieces: list[bytes | memoryview], size: int, unpacked_bytes: int
    ) -> None:
        """`pieces`: the message as it arrived, with `size` bytes."""
        self.unpacked_bytes = unpacked_bytes
        """The length after decompression."""
        super().__init__(request_id, opcode, 0, b"", {})
        self._pieces = pieces
        self._size = size

    def opened(self) -> Message:
        """Return the message, decompressed and divided into sections. Raises `ProtocolError`. Called once."""
        buffer = b"".join(self._pieces)
        self._pieces = []
        return _open(self.opcode, self.request_id, buffer, 0, self._size)


def _unpacked_bytes(opcode: int, buffer: bytes, at: int, size: int) -> int:
    """Return the length of the message at `at` after decompression. Raises `ProtocolError`."""
    if opcode != OP_COMPRESSED:
        return size
    unpacked: int = _INT(buffer, at + 20)[0]
    if not MESSAGE_BYTES_MIN - 16 <= unpacked <= MESSAGE_BYTES_MAX - 16:
        raise ProtocolError(f"a compressed message of {unpacked} bytes")
    return unpacked


def _open(opcode: int, request_id: int, buffer: bytes, at: int, end: int) -> Message:
    if opcode == OP_COMPRESSED:
        return _parse_compressed(request_id, buffer, at, end)
    return _parse(opcode, request_id, buffer, at, end)


def _parse(opcode: int, request_id: int, buffer: bytes, at: int, end: int) -> Message:
    """Return the uncompressed message at [at, end)."""
    if opcode == OP_MSG:
        return _parse_msg(request_id, buffer, at, end)
    if opcode == OP_QUERY:
        return _parse_query(request_id, buffer, at + 16, end)
    raise ProtocolError(f"unknown opcode {opcode}")


def _parse_compressed(request_id: int, buffer: bytes, at: int, end: int) -> Message:
    opcode, size, compressor = _COMPRESSED(buffer, at + 16)
    header = struct.pack("<ii", size + 16, request_id) + buffer[at + 8 : at + 12] + struct.pack("<i", opcode)
    plain = decompress(compressor, memoryview(buffer)[at + 25 : end], size, header)
    message = _parse(opcode, request_id, plain, 0, size + 16)
    name = message.body[5 : message.body.find(b"\0", 5)]
    message.compressor = None if name in NEVER_COMPRESSED else compressor
    return message


def _parse_msg(request_id: int, buffer: bytes, at: int, end: int) -> Message:
    """Parse an OP_MSG with any sections, with or without a checksum."""
    (flags,) = _UNSIGNED(buffer, at + 16)
    if flags & _UNKNOWN_FLAGS:
        raise ProtocolError(f"unknown flags {flags:#x} in a message")
    if flags & CHECKSUM_PRESENT:
        end -= 4
        if end < at + 20 or crc32c(memoryview(buffer)[at:end]) != _UNSIGNED(buffer, end)[0]:
            raise ProtocolError("the checksum of a message does not match its contents")
    at += 20
    body = None
    sequences: dict[str, list[bytes]] = {}
    while at < end:
        kind = buffer[at]
        at += 1
        if kind == 0:
            if body is not None:
                raise ProtocolError("a message with two bodies")
            body, at = _document(buffer, at, end)
        elif kind == 1:
            at = _sequence(buffer, at, end, sequences)
        else:
            raise ProtocolError(f"unknown kind of section {kind}")
    if body is None:
        raise ProtocolError("a message without a body")
    return Message(request_id, OP_MSG, flags, body, sequences)


def _sequence(buffer: bytes, at: int, end: int, sequences: dict[str, list[bytes]]) -> int:
    """Read the kind-1 section whose size is at `at` into `sequences`; return its end.

    After one document more than a command's largest batch, the rest is not read.
    """
    if end - at < 4:
        raise ProtocolError("a section is cut off")
    size: int = _INT(buffer, at)[0]
    section_end = at + size
    if size < 5 or section_end > end:
        raise ProtocolError(f"a section of {size} bytes does not fit its message")
    stop = buffer.find(b"\0", at + 4, section_end)
    if stop > 0 and (name := _SECTION_NAMES.get(buffer[at + 4 : stop])):  # saves the call of `_cstring`
        at = stop + 1
    else:
        name, at = _cstring(buffer, at + 4, section_end)
    if name in sequences:
        raise ProtocolError(f"two sections named {name}")
    documents: list[bytes] = []
    sequences[name] = documents
    if section_end - at >= _COLUMN_BYTES and _INT(buffer, at)[0] <= (section_end - at) // _COLUMN_COUNT:
        rows = _of_one_length(buffer, at, section_end)
        if rows is not None:
            sequences[name] = rows
            return section_end
    append = documents.append
    unpack = _INT
    last = section_end - 5
    for _ in range(WRITE_BATCH_COUNT_MAX + 1):
        if at > last:
            break
        (size,) = unpack(buffer, at)
        after = at + size
        if size < 5 or after > section_end or buffer[after - 1]:
            raise ProtocolError(f"a document in section {name} does not fit it")
        append(buffer[at:after])
        at = after
    else:
        return section_end
    if at != section_end:
        raise ProtocolError(f"section {name} is not filled by its documents")
    return section_end


def _of_one_length(buffer: bytes, at: int, end: int) -> EqualRows | None:
    """Return the documents in [at, end) if all have the length of the first, at most `_ROW_BYTES_MAX`.

    The lengths, and the zeros at the ends, are compared as columns: one byte of all documents at a time.
    """
    (size,) = _INT(buffer, at)
    if not 5 <= size <= _ROW_BYTES_MAX or (end - at) % size:
        return None
    count = (end - at) // size
    if count > WRITE_BATCH_COUNT_MAX or buffer[at + size - 1 : end : size] != bytes(count):
        return None
    for place in range(at, at + 4):
        if buffer[place:end:size] != buffer[place : place + 1] * count:
            return None
    cut = struct.Struct(f"{size}s").iter_unpack(memoryview(buffer)[at:end])
    return EqualRows([row for (row,) in cut], size)


def _document(buffer: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the document at `at`, and its end."""
    if end - at < 5:
        raise ProtocolError("a document is cut off")
    (size,) = _INT(buffer, at)
    after = at + size
    if size < 5 or after > end or buffer[after - 1]:
        raise ProtocolError(f"a document of {size} bytes does not fit its message")
    return buffer[at:after], after


def _cstring(buffer: bytes, at: int, end: int) -> tuple[str, int]:
    """Return the text up to the next zero byte before `end`, and the offset after that byte."""
    stop = buffer.find(b"\0", at, end)
    if stop < 0:
        raise ProtocolError("a name is cut off")
    try:
        return buffer[at:stop].decode(), stop + 1
    except UnicodeDecodeError as error:
        raise ProtocolError("a name is not UTF-8") from error


def _parse_query(request_id: int, buffer: bytes, at: int, end: int) -> Message:
    """Parse a legacy OP_QUERY, which drivers still use for the first hello."""
    (flags,) = _INT(buffer, at)
    collection, at = _cstring(buffer, at + 4, end)
    body, at = _document(buffer, at + 8, end)
    if at != end:
        _, at = _document(buffer, at, end)
    if at != end:
        raise ProtocolError("bytes left over after a query")
    return Message(request_id, OP_QUERY, flags, body, {}, collection)
