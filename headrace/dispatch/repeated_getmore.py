"""A change stream's getMore as its client repeats it: recognised by its bytes, so that it is decoded once only.

    body    int32 size | getMore: cursor id | collection | ... | $clusterTime: {...} | ... 00
                       |------------ head ---------------------|              |--- tail ---|

Rule: a getMore is the same as the one before if it has the same bytes but for what is in `$clusterTime`, which
drivers send back and the server ignores. Its offset is known, since all bytes before it are the same.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.dispatch.request import ClientInfo, Request, UnreadRequest
from headrace.values.bson import find_element

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

BEGIN: Final = b"\x12getMore\x00"
"""The first bytes of the body after its size."""
_CURSOR_ID = Struct("<q").unpack_from
_SIZE = Struct("<i").unpack_from


class RepeatedGetMore:
    """The last getMore of a cursor, parsed."""

    __slots__ = ("count_max", "db", "head", "tail", "wait_ms")

    def __init__(self, request: Request, count_max: int, wait_ms: float) -> None:
        body = request.raw
        self.db = request.db
        self.count_max = count_max
        """Events that a batch holds at most."""
        self.wait_ms = wait_ms
        """How long it waits for the first."""
        self.head = body[4:]
        self.tail: bytes | None = None
        element = find_element(body, b"$clusterTime")
        if element is not None and element[0] == 3:
            self.head, self.tail = body[4 : element[1]], body[element[2] :]

    def is_repeated_by(self, body: bytes) -> bool:
        """Whether a message's body is this getMore again."""
        head, tail = self.head, self.tail
        at = len(head) + 4
        if tail is None:
            return at == len(body) and body.endswith(head)
        if not body.startswith(head, 4) or at + 4 > len(body):
            return False
        return at + int(_SIZE(body, at)[0]) + len(tail) == len(body) and body.endswith(tail)


def recognised(engine: Engine, body: bytes, client: ClientInfo) -> Request | None:
    """The request, if it repeats the last getMore of an open stream; None while fail points or profiles are set."""
    if len(body) < 21 or engine.fail_points.active or engine.profiler.active:
        return None
    cursor = engine.cursors.peek(_CURSOR_ID(body, 13)[0])
    if cursor is None or not cursor.is_change_stream:
        return None
    repeated = cursor.repeated_getmore
    if repeated is None or not repeated.is_repeated_by(body):
        return None
    if engine.authorizes and not engine.access.still_owns(client, engine.cursors.owners.get(cursor.id)):
        return None
    request = UnreadRequest("getMore", repeated.db, body, client)
    request.cursor = cursor
    return request
