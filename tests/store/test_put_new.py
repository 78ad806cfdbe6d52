"""`put_new` of every KV transaction puts what is not there, and leaves what is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bson import ObjectId

from headrace.store import entries
from headrace.store.kv import Transaction
from headrace.store.overlay import Overlay, OverlayTransaction
from headrace.store.store import Store
from headrace.values.bson import encode


@contextmanager
def transaction(store: Store, kind: str) -> Iterator[Transaction]:
    kv = store.environment.begin_write()
    try:
        kv.put(b"there", b"before", db=store.tables["ids"])
        if kind == "recording":
            kv.written = set()  # type: ignore[attr-defined]
            yield kv
        elif kind == "overlay":
            yield OverlayTransaction(kv, Overlay(store.tables), lambda key: None)
        else:
            yield kv
    finally:
        kv.abort()


@pytest.mark.parametrize("kind", ["checked", "recording", "overlay"])
def test_a_key_that_is_there_stays_as_it_is(kind: str) -> None:
    store = Store(None)
    ids = store.tables["ids"]
    with transaction(store, kind) as kv:
        assert not kv.put_new(b"there", b"after", db=ids)
        assert kv.get(b"there", db=ids) == b"before"
        assert kv.put_new(b"new", b"value", db=ids) and kv.get(b"new", db=ids) == b"value"
        assert kv.delete(b"there", db=ids) and kv.put_new(b"there", b"after", db=ids)
        assert kv.get(b"there", db=ids) == b"after"
    store.close()


@pytest.mark.parametrize("o2", [None, encode({"_id": 1})])
def test_a_plain_entry_is_the_same_as_any_other(o2: bytes | None) -> None:
    head = entries.crud_head("i", "d.c", b"u" * 16)
    document = encode({"_id": ObjectId(), "a": 1})
    position, wall_ms = 7 << 32 | 5, 1_700_000_000_123
    plain = entries.plain_entry(head, document, o2, position, entries.end(wall_ms))
    assert plain == entries.entry(head, document, o2, entries.tail(position, wall_ms))
