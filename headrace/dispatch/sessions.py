"""Logical sessions: the id of a request's `lsid`, the `lsid` of oplog entries, and the commands that hold a session.

A session runs one command at a time. A command that pauses has checked out its session, and the session's next command
waits until it ends.
Source: MongoDB's session checkout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Binary

from headrace import limits
from headrace.auth.names import UserName
from headrace.dispatch.request import Request
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.hashing import sha256
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.access import CursorOwner
    from headrace.dispatch.context import CommandContext
    from headrace.dispatch.engine import Engine

NO_USER: Final = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
"""`lsid.uid` of a server without users: the digest of an empty name."""


def raw_lsid(identity: bytes) -> bytes:
    """Return the raw `lsid` for the oplog entries of a session without a user."""
    return b"".join((_RAW_HEAD, identity, _RAW_END))


_RAW: Final = encode({"id": Binary(bytes(16), 4), "uid": NO_USER})
_RAW_HEAD, _RAW_END = _RAW[:13], _RAW[29:]


def session_id(request: Request) -> bytes | None:
    """Return the 16 bytes that identify the request's session; None without `lsid`. Raise 14 if `lsid.id` is no UUID.

    They are the bytes of `lsid.id`, or a digest of `lsid.id` and the user on a server with authorization.
    """
    lsid = request.body.get("lsid")
    if lsid is None:
        return None
    identity = lsid.get("id") if type(lsid) is dict else None
    if type(identity) is not Binary or identity.subtype != 4 or len(identity) != 16:
        raise CommandError(14, "BSON field 'lsid.id' is the wrong type, expected a UUID")
    uid = request.client.uid
    return bytes(identity) if uid is None else session_key(bytes(identity), uid)


def session_key(identity: bytes, uid: bytes) -> bytes:
    """Return the 16 bytes that identify a user's session. The same id of another user is another session."""
    from hashlib import blake2b  # late, as in `hashing`

    return blake2b(identity, key=uid, digest_size=16).digest()


def user_digest(name: UserName) -> bytes:
    """Return `lsid.uid` of a user's sessions, as MongoDB computes it."""
    return sha256(name.text.encode())


def lsid_of(request: Request) -> dict[str, Any]:
    """Return the `lsid` for oplog entries and other clients: the session's id and its user's digest."""
    uid = request.client.uid
    return {"id": request.body["lsid"]["id"], "uid": NO_USER if uid is None else uid}


def owner_of(context: CommandContext, request: Request) -> CursorOwner | None:
    """Return the owner of the cursor that a request opens; None on a server without authorization."""
    engine = context.engine
    return engine.access.owner(request) if engine.authorizes or request.client.is_program else None


def checked_out_key(session: bytes) -> str:
    """Return the wake-up key of the requests that wait for a session."""
    return f"\x00session {session.hex()}"


def until_returned(engine: Engine, session: bytes) -> Wait | None:
    """Return the `Wait` for a session whose command has paused; None if no command of the session is paused."""
    if session not in engine.checked_out:
        return None
    return Wait(limits.AWAIT_MS_MAX, checked_out_key(session), over=lambda: session not in engine.checked_out)
