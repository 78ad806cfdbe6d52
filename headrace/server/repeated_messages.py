"""Messages that repeat a command of their connection, recognised by their bytes. Busy clients mostly send these.

    header · flags 0 · 0 · body [· 1 · size · name · document]     the whole data, and no more

Rule: the result is what `Connection.next_event` and `parse_message` make of the same bytes. They handle all other
messages.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.dispatch.request import ClientInfo, Request, UnreadRequest
from headrace.wire.message import MESSAGE_BYTES_MIN, OP_MSG

_BYTES_MAX: Final = 16 * 1024
"""Longer messages may take long."""
_START = Struct("<iiiiIBi").unpack_from
_INT = Struct("<i").unpack_from
_NAMES: Final = {name: name.encode() + b"\0" for name in ("deletes", "documents", "updates")}
_NO_SEQUENCES: Final[dict[str, list[bytes]]] = {}


def repeated_message(data: bytes, client: ClientInfo) -> tuple[int, Request] | None:
    """Return (number, request) of a repeated message with at most one document in its sequence; None for any other."""
    size = len(data)
    if not MESSAGE_BYTES_MIN <= size <= _BYTES_MAX:
        return None
    length, number, _, opcode, flags, kind, body_bytes = _START(data)
    repeated = client.commands.get(body_bytes)
    if repeated is None or length != size or opcode != OP_MSG or flags or kind or not repeated.is_repeated_at(data, 21):
        return None
    end = 21 + body_bytes
    sequences = _NO_SEQUENCES
    if end != size:
        section = repeated.section
        name = _NAMES.get(section)
        if name is None or data[end] != 1 or not data.startswith(name, end + 5):
            return None
        start = end + 5 + len(name)
        left = size - start
        if left < 5 or _INT(data, start)[0] != left or _INT(data, end + 1)[0] != size - end - 1 or data[-1]:
            return None
        sequences = {section: [data[start:]]}
    request = UnreadRequest(repeated.name, repeated.db, data[21:end], client)  # like `RepeatedCommand.request`
    request.sequences, request.repeated, request.message_bytes = sequences, repeated, size
    return number, request
