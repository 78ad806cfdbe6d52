"""Descriptions of damaged values in errors and reports: the document, entry or row stored under a key."""

from __future__ import annotations

from headrace.store.catalog import Catalog
from headrace.values.position import from_key, shell_text


def describe(catalog: Catalog, table: str, key: bytes) -> str:
    """Return a description of a key's value for people: "the document with record 7 of shop.orders"."""
    if table == "documents" and len(key) == 12:
        return f"the document with record {from_key(key[4:])} of {_collection(catalog, key)}"
    if table == "ids":
        return f"the row {key[4:].hex()} in the _id index of {_collection(catalog, key)}"
    if table == "indexes":
        return f"the row {key[4:].hex()} in {_index(catalog, key)}"
    if table == "oplog" and len(key) == 8:
        return f"the oplog entry at {shell_text(from_key(key))}"
    if table == "images" and len(key) == 28:
        return f"the pre-image of the change at {shell_text(from_key(key[16:24]))}"
    if table == "runs" and len(key) == 12:
        topic = int.from_bytes(key[:4], "big")
        names = [name for name, number in catalog.topics.items() if number == topic]
        return f"the oplog's index of {names[0] if names else f'topic {topic}'} at {shell_text(from_key(key[4:]))}"
    if table in ("catalog", "topics", "meta"):
        return f"{key.decode(errors='replace')} in the table {table}"
    return f"{key.hex()} in the table {table}"


def _collection(catalog: Catalog, key: bytes) -> str:
    number = key[:4]
    names = [item.namespace for item in catalog.collections.values() if item.number_key == number]
    return names[0] if names else f"the dropped collection {int.from_bytes(number, 'big')}"


def _index(catalog: Catalog, key: bytes) -> str:
    number = int.from_bytes(key[:4], "big")
    for item in catalog.collections.values():
        for index in item.indexes:
            if index.number == number:
                return f"the index {index.name} of {item.namespace}"
    return f"the dropped index {number}"
