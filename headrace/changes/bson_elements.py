"""Builders of raw BSON pieces for events: elements (type, name, value) and documents.

Names are given without the zero that ends them.
"""

from __future__ import annotations

from struct import Struct

from headrace.store.entries import string_element

__all__ = ["document_element", "document_of", "namespace_element", "string_element"]

_PACK = Struct("<i").pack


def namespace_element(name: bytes, db: str, coll: str | None) -> bytes:
    """Return the element `name: {db[, coll]}`."""
    body = string_element(b"db", db) + (string_element(b"coll", coll) if coll is not None else b"")
    return document_element(name, document_of(body))


def document_element(name: bytes, document: bytes) -> bytes:
    """Return the element `name: document` for a raw document."""
    return b"".join((b"\x03", name, b"\0", document))


def document_of(body: bytes) -> bytes:
    """Return a raw document made of elements."""
    return b"".join((_PACK(len(body) + 5), body, b"\0"))
