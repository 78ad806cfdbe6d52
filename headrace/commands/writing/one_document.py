"""Statements that change at most one document, named by its `_id`: they are seen by their bytes, and are quick.

Whatever is not recognised runs in a turn, which costs a few microseconds more.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.dispatch.request import Request

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

_INT32 = Struct("<i").unpack_from
_ID_BYTES: Final = {0x07: 12, 0x10: 4, 0x12: 8}
"""Bytes of an ObjectId, an int and a long."""
_FILTER: Final = 7  # where the filter begins behind the length of the statement and the head of `q`
_QUICK: Final = (b"$inc\0", b"$set\0", b"$unset\0")


def names_one(engine: Engine, request: Request, field: str) -> bytes | None:
    """The one statement of a write behind its filter, if that names a plain `_id` in a collection without validator."""
    statements = request.sequences.get(field)
    if statements is None or len(statements) != 1 or len(statements[0]) > limits.QUICK_STATEMENT_BYTES_MAX:
        return None
    raw = statements[0]
    if not raw.startswith(b"\x03q\0", 4) or not raw.startswith(b"_id\0", _FILTER + 5):
        return None
    id_bytes = _ID_BYTES.get(raw[_FILTER + 4])
    if id_bytes is None or _INT32(raw, _FILTER)[0] != 10 + id_bytes:
        return None
    collection = engine.store.catalog.collections.get(f"{request.db}.{request.body[request.name]}")
    if collection is not None and "validator" in collection.options:
        return None
    return raw[_FILTER + 10 + id_bytes :]


def is_quick_update(rest: bytes) -> bool:
    """Whether the update behind a filter is one operator that takes no time, without filters on array elements."""
    if not rest.startswith(b"\x03u\0") or not rest.startswith(_QUICK, 8) or b"arrayFilters" in rest:
        return False
    operand = rest.index(0, 8) + 1
    return _INT32(rest, 3)[0] == operand - 3 + _INT32(rest, operand)[0] + 1  # type: ignore[no-any-return]
