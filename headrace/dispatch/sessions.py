"""Logical sessions: the id of a request's `lsid`, the `lsid` that oplog entries carry, and who has checked one out.

A session runs one command at a time. One that pauses has checked out its session; the next waits until it ends.
Source: MongoDB's session checkout.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from bson import Binary

from headrace import limits
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

NO_USER: Final = hashlib.sha256(b"").digest()
"""`lsid.uid` of a server without users: the digest of an empty name."""


def session_id(request: Request) -> bytes | None:
    """The 16 bytes of the request's `lsid.id`; raises 14 if there is one that is no UUID."""
    lsid = request.body.get("lsid")
    if lsid is None:
        return None
    identity = lsid.get("id") if type(lsid) is dict else None
    if type(identity) is not Binary or identity.subtype != 4 or len(identity) != 16:
        raise CommandError(14, "BSON field 'lsid.id' is the wrong type, expected a UUID")
    return bytes(identity)


def lsid_document(session: bytes) -> bytes:
    """The `lsid` of an oplog entry: the session's id and its user."""
    return encode({"id": Binary(session, 4), "uid": NO_USER})


def checked_out_key(session: bytes) -> str:
    """The wake-up key of those who wait for a session."""
    return f"\x00session {session.hex()}"


def until_returned(engine: Engine, session: bytes) -> Wait | None:
    """How to wait for a session whose command has paused; None: nothing of it is running."""
    if session not in engine.checked_out:
        return None
    return Wait(limits.AWAIT_MS_MAX, checked_out_key(session), over=lambda: session not in engine.checked_out)
