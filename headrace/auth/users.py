"""Users in the form of `admin.system.users`.

    {_id: "db.user", userId: UUID, user, db, credentials: {"SCRAM-SHA-256": {...}, ...}, roles: [{role, db}],
     customData?, authenticationRestrictions?}

A user whose credentials are in a certificate has `credentials: {external: true}`, in the database `$external`.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.auth.names import UserName
from headrace.auth.scram import SHA_1, SHA_256, Credentials, derive, derived_from_digest

MECHANISMS: Final = (SHA_1, SHA_256)
"""The default mechanisms of a user with a password, in MongoDB's order."""


def derive_all(
    name: UserName, password: str, mechanisms: tuple[str, ...], salts: dict[str, bytes], digested: bool
) -> dict[str, Any]:
    """Return the `credentials` of a password. Takes milliseconds. `digested`: the password is SCRAM-SHA-1's digest
    already."""
    if digested:
        return {SHA_1: derived_from_digest(password, salts[SHA_1]).document}
    return {item: derive(item, name.user, password, salts[item]).document for item in mechanisms}


def credentials_of(document: dict[str, Any], mechanism: str) -> Credentials | None:
    """Return a user's credentials for a mechanism, or None."""
    credentials = document.get("credentials")
    stored = credentials.get(mechanism) if type(credentials) is dict else None
    return Credentials.parsed(mechanism, stored) if type(stored) is dict else None


def mechanisms_of(document: dict[str, Any]) -> list[str]:
    """Return the mechanisms with which a user can log in."""
    credentials = document.get("credentials")
    names = credentials if type(credentials) is dict else {}
    return ["external"] if names.get("external") is True else [name for name in MECHANISMS if name in names]


def shown(document: dict[str, Any], *, credentials: bool = False) -> dict[str, Any]:
    """Return a user as usersInfo shows it. Credentials are included only for a client that may see and requests
    them."""
    user = {"_id": document["_id"]}
    if "userId" in document:
        user["userId"] = document["userId"]
    user |= {"user": document["user"], "db": document["db"]}
    if credentials:
        user["credentials"] = document.get("credentials", {})
    if "customData" in document:
        user["customData"] = document["customData"]
    user["roles"] = document.get("roles", [])
    user["mechanisms"] = mechanisms_of(document)
    return user
