"""Events of plain changes of documents, made in bulk from oplog entries, for a lagging stream.

A plain change is an insert, replace, update or delete outside a transaction, in a stream that does not change events
and needs no image outside the entry. All other entries go through the `EventBuilder`. Most changes are inserts of
documents whose `_id` is an ObjectId. Their events are joined from slices, without a Python call for each.

Rule: both ways make the same events, and agree on whether an event is in the stream at all.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from struct import Struct
from typing import Final

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.document_events import EventTemplate, event_of, template_of
from headrace.changes.draft import token_document
from headrace.changes.event import Event
from headrace.changes.operation import head_bytes, head_of, slices_of
from headrace.changes.stream import Shape
from headrace.values.position import from_key
from headrace.values.token import TokenMaker

LONG_BYTES: Final = 64 * 1024
"""Longer entries are not plain, because each may take long."""
_INT32 = Struct("<i").unpack_from
_PACK = Struct("<i").pack
_SESSION: Final = 0x03
_STATEMENT: Final = 0x10
_KEY: Final = b"\x03o2\0\x16\0\0\0\x07_id\0"
_TS: Final = b"\x11ts\0"
_BEFORE_KEY: Final = b"\x16\0\0\0\x07_id\0"
_FULL: Final = b"\x03fullDocument\0"
_OBJECT_ID: Final = 0x07
_SAMPLE: Final = bytes(range(0xA1, 0xAD))


class _InsertPlan:
    """The bytes that events of inserts into one collection share, if the `_id` is an ObjectId."""

    __slots__ = ("after_id", "after_time", "after_ts", "before_time", "fixed_bytes", "head", "maker", "ns")

    def __init__(self, head: bytes, template: EventTemplate, maker: TokenMaker) -> None:
        self.head = head
        self.maker = maker
        text, _ = maker.crud(0, _OBJECT_ID, _SAMPLE)
        token = token_document(text, None)
        first, second = token.index(b"0" * 16), token.rindex(_SAMPLE.hex().upper().encode())
        self.before_time = b"\x03_id\0" + token[:first]
        self.after_time = token[first + 16 : second]
        self.after_id = token[second + 24 :] + template.before_time
        self.after_ts = template.before_wall
        self.ns = template.ns + _BEFORE_KEY
        self.fixed_bytes = template.fixed_bytes + len(token) + len(_BEFORE_KEY) + 13


class PlainEvents:
    """Makes the events of a stream's plain changes."""

    __slots__ = ("_builder", "_plan", "_plans", "_shape", "full", "last")

    def __init__(self, builder: EventBuilder, shape: Shape) -> None:
        """`builder`: its stream must be `plain`."""
        self._builder = builder
        self._shape = shape
        self._plans: dict[bytes, _InsertPlan | None] = {}
        self._plan: _InsertPlan | None = None
        self.full = False
        """Whether `add` has left out an event for lack of room."""
        self.last: Event | None = None
        """The last event that the last `add` made, maybe without its document; None if it made none."""

    def is_plain(self, entry: bytes) -> bool:
        """Return whether `add` takes an entry."""
        fields = slices_of(entry)
        return fields is not None and len(entry) <= LONG_BYTES and self._builder.matches_head(fields[0]) is not None

    def add(
        self, entries: Sequence[tuple[bytes, bytes]], documents: list[bytes], size: int, count_max: int
    ) -> tuple[int, int]:  # fmt: skip
        """Append the events of the first entries, (position key, entry), to `documents`, which have `size` bytes.

        Return the number of entries taken, and the new size. Stop before an entry that is not plain. Stop with `full`
        before an event that exceeds a reply or `count_max`.
        """
        plan, size_max, taken = self._plan, limits.BATCH_BYTES_MAX, 0
        last: tuple[bytes, _InsertPlan, bytes] | Event | None = None
        self.full = False
        for key, data in entries:
            at = 4 if data[4] != _SESSION else 29 + _INT32(data, 10)[0]
            if plan is None or not data.startswith(plan.head, at):
                plan = self._plan_of(data)
            made: Event | None = None
            if plan is not None and len(data) <= LONG_BYTES:
                start = at + len(plan.head)
                end = start + _INT32(data, start)[0]
                ts = end + 26 if data[end + 26] != _STATEMENT else end + 38
                is_insert = data.startswith(_KEY, end) and data.startswith(_TS, ts)
            else:
                is_insert = False
            if is_insert:
                event_bytes = plan.fixed_bytes + end - start  # type: ignore[union-attr]
            else:
                fields = slices_of(data) if len(data) <= LONG_BYTES else None
                matches = None if fields is None else self._builder.matches_head(fields[0])
                if fields is None or matches is None:
                    break
                if not matches:
                    taken += 1
                    continue
                made = event_of(*fields, from_key(key), self._shape)
                event_bytes = len(made.document or b"")
            if documents and (size + event_bytes > size_max or len(documents) == count_max):
                self.full = True
                break
            size += event_bytes
            taken += 1
            if made is not None:
                documents.append(made.document or b"")
                last = made
                continue
            assert plan is not None
            identity = data[end + 13 : end + 25]
            pieces = (
                _PACK(event_bytes), plan.before_time, hexlify(key).upper(), plan.after_time, hexlify(identity).upper(),
                plan.after_id, data[ts + 4 : ts + 12], plan.after_ts, data[ts + 40 : ts + 48], _FULL, data[start:end],
                plan.ns, identity, b"\0\0",
            )  # fmt: skip
            documents.append(b"".join(pieces))
            last = key, plan, identity
        self._plan = plan
        self.last = _without_document(last)
        return taken, size

    def _plan_of(self, entry: bytes) -> _InsertPlan | None:
        """Return the plan for inserts with this entry's head; None if it is not a head of inserts in the stream."""
        key = head_bytes(entry)
        if key in self._plans:
            return self._plans[key]
        head = head_of(key)
        if head is None:
            return None
        template, plan = template_of(head, self._shape), None
        if head.kind == "insert" and self._builder.matches_head(head) and template.maker is not None:
            plan = _InsertPlan(key, template, template.maker)
        if len(self._plans) >= limits.HEAD_COUNT_MAX:
            self._plans.clear()
        self._plans[key] = plan
        return plan


def _without_document(last: tuple[bytes, _InsertPlan, bytes] | Event | None) -> Event | None:
    """Return the last event with its token and position."""
    if last is None or isinstance(last, Event):
        return last
    key, plan, identity = last
    position = from_key(key)
    text, bits = plan.maker.crud(position, _OBJECT_ID, identity)
    return Event(text, token_document(text, bits), position, None)
