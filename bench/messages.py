"""Commands as bytes, encoded before anything is measured, and the little that must be read of a reply."""

from __future__ import annotations

import struct
from typing import Any

import bson

_MSG = struct.Struct("<iiiiIB")
OK = b"\x01ok\x00" + struct.pack("<d", 1.0)
"""What a reply to a command that worked contains."""
ERRORS = b"\x04writeErrors\x00"
DATABASE = "headrace_bench"
"""The only database that the load touches; dropped before and after each scenario."""


def command(body: dict[str, Any], database: str = DATABASE, **sequences: list[dict[str, Any]]) -> bytes:
    """One OP_MSG; each keyword is a kind-1 section of documents."""
    document = bson.encode({**body, "$db": database})
    sections = b"".join(_section(name, documents) for name, documents in sequences.items())
    return _MSG.pack(21 + len(document) + len(sections), 1, 0, 2013, 0, 0) + document + sections


def _section(name: str, documents: list[dict[str, Any]]) -> bytes:
    content = name.encode() + b"\0" + b"".join(map(bson.encode, documents))
    return b"\x01" + struct.pack("<i", len(content) + 4) + content


def reply_document(message: bytes) -> dict[str, Any]:
    """The document of an OP_MSG reply."""
    return bson.decode(message[21:])


def document(identity: Any, size: int = 300) -> dict[str, Any]:
    """A document of `size` bytes of BSON with this `_id`, of the fields that an order may have."""
    fields = {"_id": identity, "n": 0, "status": "new", "total": 12.5, "tags": ["a", "b"], "note": ""}
    return {**fields, "note": "x" * (size - len(bson.encode(fields)))}
