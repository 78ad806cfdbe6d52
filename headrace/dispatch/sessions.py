"""Logical sessions: the id of a request's `lsid`, and the `lsid` that oplog entries and replies carry."""

from __future__ import annotations

import hashlib
from typing import Final

from bson import Binary

from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.values.bson import encode

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
