"""Exhaust: one request with many replies, for a streaming `hello` and a `getMore` that reads its cursor to the end.

A client sets the flag `exhaustAllowed`. The shell then runs the request again after each reply, as if the client had
sent it again, and sets `moreToCome` on every reply but the last. An error is the last reply. A hello goes on until the
client closes the connection.

Source: the drivers' specifications of OP_MSG and of server monitoring.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.values.bson import decode, encode, find_element

_CURSOR_ID: Final = Struct("<q").unpack_from
_HELLO: Final = frozenset({"hello", "isMaster", "ismaster"})
_AWAITS: Final = frozenset({"maxAwaitTimeMS", "topologyVersion"})


def check(request: Request) -> None:
    """Raise 51756 for a hello that allows many replies but has no `maxAwaitTimeMS`."""
    if request.name in _HELLO and _AWAITS.isdisjoint(request.body):
        raise CommandError(51756, "An isMaster or hello request with exhaust must specify 'maxAwaitTimeMS'")


def next_body(request: Request, answer: bytes) -> bytes | None:
    """Return the body of the request to run after this answer; None if the answer is the last one."""
    if request.name == "getMore":
        return request.raw if _has_more(answer) else None
    if request.name not in _HELLO or not request.body.keys() >= _AWAITS:
        return None
    reply = decode(answer)
    if reply["ok"] != 1:
        return None
    known = reply["topologyVersion"]
    if request.body["topologyVersion"] == known:
        return request.raw
    return encode({**request.body, "topologyVersion": known})


def _has_more(answer: bytes) -> bool:
    """Whether the cursor is still open after this getMore reply."""
    cursor = find_element(answer, b"cursor")
    if cursor is None:
        return False
    element = find_element(answer, b"id", cursor[1])
    return element is not None and _CURSOR_ID(answer, element[1])[0] != 0
