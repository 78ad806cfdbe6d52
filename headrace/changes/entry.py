"""Oplog entries, parsed once for all streams: changes of documents, commands, and unwound transactions.

    one entry     {lsid, txnNumber, op: "c", o: {applyOps: [...]}, ..., prevOpTime: {ts: 0}}
    a chain       applyOps + partialTxn: true ... ← prevOpTime ← applyOps + count: n       events at the last one
    prepared      applyOps + prepare: true ← prevOpTime ← {commitTransaction: 1}           events at the commit
    many inserts  applyOps, multiOpType: 1: one write's documents, no transaction; the events carry no lsid

Rule: all events of a transaction have the time of its last entry. They are numbered from 0 over all its operations, in
scope or not. An `applyOps` command that a client sends without a session makes no events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias

from headrace.changes.bson_elements import document_of
from headrace.changes.operation import UPDATE, Operation, Session, UnwoundOperation, crud_head, sliced
from headrace.errors import CommandError
from headrace.values.bson import find_element, iter_elements
from headrace.values.position import Position, from_bson_value

Fields: TypeAlias = dict[bytes, bytes]
"""Value bytes by field name."""

PIECE_COUNT: Final = 64
"""The number of operations that are unwound at once, in about a millisecond."""
_NO_TIME: Final = b"\0" * 8
_TRUE: Final = b"\x01"


class EntryLookup(Protocol):
    """Finds earlier oplog entries, which a transaction's last entry may need."""

    def entry(self, position: Position) -> bytes | None:
        """Return the entry at exactly this position, or None if the oplog no longer has it."""


def fields_of(data: bytes) -> Fields:
    """Return the value bytes of a document's fields. For an embedded document they are the raw document."""
    return {name: data[start:end] for _, name, start, end in iter_elements(data)}


def text_of(value: bytes) -> str:
    """Return the string in the value bytes of a BSON string."""
    return value[4:-1].decode()


def unwound(data: bytes, history: EntryLookup | None) -> tuple[UnwoundOperation, ...]:
    """Return the operations, in order, of an entry that slicing does not understand."""
    return tuple(chain.from_iterable(unwound_in_pieces(data, history)))


def unwound_in_pieces(data: bytes, history: EntryLookup | None) -> Iterator[list[UnwoundOperation]]:
    """Yield the operations of `unwound`, some at a time, so that a large transaction is neither read nor held at
    once."""
    entry = fields_of(data)
    if text_of(entry[b"op"]) == "n":
        return
    command = b""
    if text_of(entry[b"op"]) == "c":
        command = next((name for _, name, _, _ in iter_elements(entry[b"o"])), b"")
    if command in (b"applyOps", b"commitTransaction"):
        yield from _transaction(entry, command, history)
    else:
        yield [_operation(entry, entry)]


def _transaction(entry: Fields, command: bytes, history: EntryLookup | None) -> Iterator[list[UnwoundOperation]]:
    """Yield the operations of a transaction, if this entry completes it."""
    o = fields_of(entry[b"o"])
    several_inserts = entry.get(b"multiOpType") == b"\x01\0\0\0"
    if o.get(b"partialTxn") == _TRUE or o.get(b"prepare") == _TRUE:
        return
    if not several_inserts and (b"lsid" not in entry or b"txnNumber" not in entry):
        return
    session = None if several_inserts else Session(entry[b"lsid"], entry[b"txnNumber"])
    earlier: list[Position] = []
    if not several_inserts:
        for _ in _find_earlier(entry, history, earlier):
            yield []
    count = 0
    for position in reversed(earlier):
        link = fields_of(_read(position, history))
        yield from _link(link, entry, session, count)
        count += _count(link)
    if command == b"applyOps":
        yield from _link(entry, entry, session, count)


def _link(link: Fields, entry: Fields, session: Session | None, first: int) -> Iterator[list[UnwoundOperation]]:
    """Yield the operations in one entry of a transaction. `first`: the number of operations before it; `entry`
    completes the transaction."""
    array = fields_of(link[b"o"])[b"applyOps"]
    position = from_bson_value(link[b"ts"])
    piece: list[UnwoundOperation] = []
    for index, (_, _, start, end) in enumerate(iter_elements(array)):
        operation = _operation(fields_of(array[start:end]), entry)
        operation.index = first + index
        operation.session = session
        operation.image_position = position
        operation.image_index = index
        if operation.head is not None or operation.command_namespace:
            piece.append(operation)
        if len(piece) == PIECE_COUNT:
            yield piece
            piece = []
    yield piece


def _count(link: Fields) -> int:
    return sum(1 for _ in iter_elements(fields_of(link[b"o"])[b"applyOps"]))


def _find_earlier(entry: Fields, history: EntryLookup | None, earlier: list[Position]) -> Iterator[None]:
    """Append the positions of the transaction's earlier entries to `earlier`, the newest first. Yields now and then."""
    before = fields_of(entry[b"prevOpTime"])[b"ts"] if b"prevOpTime" in entry else _NO_TIME
    while before != _NO_TIME:
        position = from_bson_value(before)
        earlier.append(position)
        data = _read(position, history)
        element = find_element(data, b"prevOpTime")
        before = _NO_TIME if element is None else fields_of(data[element[1] : element[2]])[b"ts"]
        if len(earlier) % 16 == 0:
            yield


def _read(position: Position, history: EntryLookup | None) -> bytes:
    """Return an earlier entry of a transaction. Raises 286 if the oplog no longer has it."""
    data = None if history is None else history.entry(position)
    if data is None:
        raise CommandError(
            286,
            "Oplog no longer has history necessary for $changeStream to observe operations from a committed "
            "transaction.",
            labels=("NonResumableChangeStreamError",),
        )
    return data


def _operation(item: Fields, entry: Fields) -> UnwoundOperation:
    """Return the operation in `item`, with the times of `entry`."""
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
    """Return `{_id}` of a document, empty if it has none."""
    element = find_element(document, b"_id")
    if element is None:
        return document_of(b"")
    kind, start, end = element
    return document_of(bytes((kind,)) + b"_id\0" + document[start:end])


_COMMAND: Final = b"\x02op\0\x02\0\0\0c\0"
_HEAD_BYTES: Final = 512
"""The number of first bytes of an entry in which to look for its `op`, which follows the fields of the session."""


class DecodedEntry:
    """One entry of the oplog, parsed lazily. Parsed data is kept."""

    __slots__ = ("_operations", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._operations: tuple[Operation, ...] | None = None

    def operations(self, history: EntryLookup | None = None) -> tuple[Operation, ...]:
        """Return the changes in this entry, in order; none for no-ops and for transactions not yet committed.

        `history` finds a transaction's earlier entries. Raises error 286 if they no longer exist.
        """
        if self._operations is None:
            operation = sliced(self.data)
            if operation is not None:
                self._operations = (operation,)
            else:
                self._operations = unwound(self.data, history)
        return self._operations

    @property
    def may_be_long(self) -> bool:
        """Whether it may have very many operations that are not unwound yet. Only a transaction's last entry may."""
        return self._operations is None and self.data.find(_COMMAND, 0, _HEAD_BYTES) > 0

    def pieces(self, history: EntryLookup | None = None) -> Iterator[Sequence[Operation]]:
        """Yield the changes of `operations`, some at a time. They are not stored."""
        return iter((self._operations,)) if self._operations is not None else unwound_in_pieces(self.data, history)
