"""A user for the load, and its logins by SCRAM-SHA-256 over a bare socket."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from typing import Any

from messages import command

Call = Callable[[socket.socket, bytes], dict[str, Any]]

USER, PASSWORD = "bench", "bench password"
CREATE_USER = command({"createUser": USER, "pwd": PASSWORD, "roles": ["root"]}, "admin")
_LOGOUT = command({"logout": 1}, "admin")


def log_in(connection: socket.socket, call: Call) -> None:
    """Log in on a connection whose hello is done, in two messages."""
    first = f"n={USER},r={secrets.token_urlsafe(24)}"
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,{first}".encode()}
    answer = call(connection, command({**start, "options": {"skipEmptyExchange": True}}, "admin"))
    server_first = answer["payload"].decode()
    fields = dict(field.split("=", 1) for field in server_first.split(","))
    client_key, stored_key = _keys(fields["s"], int(fields["i"]))
    last = f"c=biws,r={fields['r']}"
    signature = hmac.digest(stored_key, f"{first},{server_first},{last}".encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    payload = f"{last},p={b64encode(proof).decode()}".encode()
    call(connection, command({"saslContinue": 1, "conversationId": 1, "payload": payload}, "admin"))


@cache
def _keys(salt: str, iterations: int) -> tuple[bytes, bytes]:
    """The client's key and what the server has stored of it: derived once, not for each connection."""
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b64decode(salt), iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return client_key, hashlib.sha256(client_key).digest()


def logins(connection: socket.socket, call: Call, seconds: float) -> tuple[int, float]:
    """Log out and in again for so long; how often, and in how many seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call(connection, _LOGOUT)
        log_in(connection, call)
        count += 1
    return count, time.perf_counter() - start
