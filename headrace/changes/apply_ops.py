"""Entries that are not a plain change of a document: commands, and transactions unwound into their operations.

    one entry     {lsid, txnNumber, op: "c", o: {applyOps: [...]}, ..., prevOpTime: {ts: 0}}
    a chain       applyOps + partialTxn: true ... ← prevOpTime ← applyOps + count: n       events at the last one
    prepared      applyOps + prepare: true ← prevOpTime ← {commitTransaction: 1}           events at the commit
    many inserts  applyOps, multiOpType: 1: one write's documents, no transaction; the events carry no lsid

Rule: all events of a transaction have the time of its last entry, and are numbered from 0 over all its operations, in
scope or not. An `applyOps` command that a client sends, without a session, makes no events.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

from headrace.changes.bson_elements import document_of
from headrace.changes.operation import Session, UnwoundOperation
from headrace.changes.slicing import UPDATE, crud_head
from headrace.errors import CommandError
from headrace.values.bson import find_element, iter_elements
from headrace.values.position import Position, from_bson_value

Fields: TypeAlias = dict[bytes, bytes]
"""Value bytes by field name."""

_NO_TIME: Final = b"\0" * 8
_TRUE: Final = b"\x01"


class EntryLookup(Protocol):
    """Earlier oplog entries, which a transaction's last entry may need."""

    def entry(self, position: Position) -> bytes | None:
        """The entry at exactly this position, or None when the oplog no longer has it."""


def fields_of(data: bytes) -> Fields:
    """The value bytes of a document's fields; of an embedded document that is the raw document."""
    return {name: data[start:end] for _, name, start, end in iter_elements(data)}


def text_of(value: bytes) -> str:
    """The string in the value bytes of a BSON string."""
    return value[4:-1].decode()


def unwound(data: bytes, history: EntryLookup | None) -> tuple[UnwoundOperation, ...]:
    """The operations of an entry that slicing does not understand, in order."""
    entry = fields_of(data)
    if text_of(entry[b"op"]) == "n":
        return ()
    if text_of(entry[b"op"]) != "c":
        return (_operation(entry, entry),)
    command = next((name for _, name, _, _ in iter_elements(entry[b"o"])), b"")
    if command not in (b"applyOps", b"commitTransaction"):
        return (_operation(entry, entry),)
    return tuple(_transaction(entry, command, history))


def _transaction(entry: Fields, command: bytes, history: EntryLookup | None) -> list[UnwoundOperation]:
    """The operations of a transaction, if this is the entry that completes it."""
    o = fields_of(entry[b"o"])
    several_inserts = entry.get(b"multiOpType") == b"\x01\0\0\0"
    if o.get(b"partialTxn") == _TRUE or o.get(b"prepare") == _TRUE:
        return []
    if not several_inserts and (b"lsid" not in entry or b"txnNumber" not in entry):
        return []
    session = None if several_inserts else Session(entry[b"lsid"], entry[b"txnNumber"])
    chain = [entry] if command == b"applyOps" else []
    if not several_inserts:
        chain = [*_earlier(entry, history), *chain]
    operations: list[UnwoundOperation] = []
    for link in chain:
        array = fields_of(link[b"o"])[b"applyOps"]
        for index, item in enumerate(array[start:end] for _, _, start, end in iter_elements(array)):
            operation = _operation(fields_of(item), entry)
            operation.index = len(operations)
            operation.session = session
            operation.image_position = from_bson_value(link[b"ts"])
            operation.image_index = index
            operations.append(operation)
    return [operation for operation in operations if operation.head is not None or operation.command_namespace]


def _earlier(entry: Fields, history: EntryLookup | None) -> list[Fields]:
    """The transaction's entries before this one, oldest first."""
    earlier: list[Fields] = []
    while True:
        before = fields_of(entry[b"prevOpTime"])[b"ts"] if b"prevOpTime" in entry else _NO_TIME
        if before == _NO_TIME:
            return earlier[::-1]
        data = history.entry(from_bson_value(before)) if history is not None else None
        if data is None:
            raise CommandError(
                286,
                "Oplog no longer has history necessary for $changeStream to observe operations from a committed "
                "transaction.",
                labels=("NonResumableChangeStreamError",),
            )
        entry = fields_of(data)
        earlier.append(entry)


def _operation(item: Fields, entry: Fields) -> UnwoundOperation:
    """The operation in `item`, with the times of `entry`."""
    op, namespace = text_of(item[b"op"]), text_of(item[b"ns"])
    o, o2 = item[b"o"], item.get(b"o2", b"")
    uuid = item[b"ui"][5:] if b"ui" in item else None
    head = crud_head(op, namespace, uuid) if op in "idu" else None
    if op == "u" and head is not None and not o.startswith(UPDATE, 4):
        head = head.replacement
    if op == "d":
        o2 = o
    elif op != "c" and not o2:
        o2 = _key_of(o)
    ts = entry[b"ts"]
    wall = entry.get(b"wall") or (int.from_bytes(ts[4:], "little") * 1000).to_bytes(8, "little")
    operation = UnwoundOperation(head, o, o2, ts, wall, uuid)
    operation.migrated = item.get(b"fromMigrate") == _TRUE
    if op == "c":
        operation.command_namespace = namespace
    return operation


def _key_of(document: bytes) -> bytes:
    """`{_id}` of a document; empty where it has none."""
    element = find_element(document, b"_id")
    if element is None:
        return document_of(b"")
    kind, start, end = element
    return document_of(bytes((kind,)) + b"_id\0" + document[start:end])
