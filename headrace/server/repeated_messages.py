"""Messages that repeat a command of their connection, recognised by their bytes. Busy clients mostly send these.

    header · flags 0 · 0 · body [· 1 · size · name · document]     the whole data, and no more

Rule: the result is what `Connection.next_event` and `parse_message` make of the same bytes. They handle all other
messages.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from headrace.dispatch.request import ClientInfo, RepeatedCommand, Request, UnreadRequest
from headrace.wire.message import MESSAGE_BYTES_MIN, OP_MSG

_BYTES_MAX: Final = 16 * 1024
"""Longer messages may take long."""
_START = Struct("<ii13xi").unpack_from
_OPCODE_AT: Final = 12
_BODY_AT: Final = 21
_BEFORE_BODY: Final = Struct("<iIB").pack(OP_MSG, 0, 0)
_SECTIONS: Final = frozenset({"deletes", "documents", "updates"})


def repeated_message(data: bytes, client: ClientInfo) -> tuple[int, Request] | None:
    """Return (number, request) of a repeated message with at most one document in its sequence; None for any other."""
    size = len(data)
    if not MESSAGE_BYTES_MIN <= size <= _BYTES_MAX:
        return None
    length, number, body_bytes = _START(data)
    repeated = client.commands.get(body_bytes)
    if repeated is None or length != size:
        return None
    fixed, section_head, head_bytes, name = repeated.form or _form_of(repeated)
    for at, same in fixed:
        if not data.startswith(same, at):
            return None
    end = _BODY_AT + body_bytes
    if end == size:
        return number, UnreadRequest(repeated.name, repeated.db, data[_BODY_AT:], client, {}, repeated, size)
    start = end + head_bytes
    if section_head is None or start > size - 5 or data[-1]:
        return None
    kind, section_bytes, section, document_bytes = section_head(data, end)
    if kind != 1 or section != name or section_bytes != size - end - 1 or document_bytes != size - start:
        return None
    sequences = {repeated.section: [data[start:]]}
    return number, UnreadRequest(repeated.name, repeated.db, data[_BODY_AT:end], client, sequences, repeated, size)


def _form_of(repeated: RepeatedCommand) -> tuple[Any, ...]:
    """Return the form of a message with this body.

    (the bytes that are always the same with their offsets, a function that unpacks the head of the section and the size
    of its first document, the size of this head, the section's name); the function is None if there is no section.
    """
    (_, first), *others = repeated.fixed
    fixed = [(_OPCODE_AT, _BEFORE_BODY + first), *((_BODY_AT + at, same) for at, same in others)]
    section_head, name = None, repeated.section.encode() + b"\0"
    if repeated.section in _SECTIONS:
        section_head = Struct(f"<Bi{len(name)}si").unpack_from
    form = repeated.form = fixed, section_head, 5 + len(name), name
    return form
