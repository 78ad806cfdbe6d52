"""Rows of plain changes of documents, made from oplog entries, for clients that read events as columns.

A plain change is an insert, replace, update or delete outside a transaction, in a stream that does not change events
and needs no image outside the entry. All other entries go through the `EventBuilder`.

Rule: both ways make the same rows, and agree on whether an event is in the stream at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from headrace import limits
from headrace.changes.bson_elements import document_of
from headrace.changes.builder import EventBuilder
from headrace.changes.document_events import described, template_of, update_name
from headrace.changes.draft import token_document
from headrace.changes.entry import DecodedEntry
from headrace.changes.operation import Head, head_bytes, head_of, slices_of
from headrace.changes.stream import Shape
from headrace.values.arrow.event_columns import RowColumns, RowKind, slice_of
from headrace.values.keystring.encoding import encode_element
from headrace.values.token import TokenMaker

_LOOK: Final = 255

Entry = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Bounds of a read: the rows of one slice, at most `rows` and, beyond the first row, about `bytes`."""

    rows: int
    bytes: int
    slice: int = 0
    slices: int = 1
    counts: bool = False
    """Whether rows are only counted. `bytes` is then no bound."""


class _HeadPlan:
    """The plan for entries of one head. They are not plain if `maker` is None."""

    __slots__ = ("kind", "maker", "matches")

    def __init__(self, head: Head, shape: Shape, matches: bool | None) -> None:
        template = template_of(head, shape)
        other = document_of(template.uuid) if template.uuid else None
        size = template.fixed_bytes + (len(update_name(shape)) if head.kind == "update" else 0)
        self.kind = RowKind(head.kind, head.db, head.coll, other, size)
        self.matches = matches is not False
        self.maker: TokenMaker | None = None if matches is None else template.maker


class RowCollector:
    """Collects rows from plain entries, within its bounds. Rows of other entries are added as events."""

    def __init__(self, builder: EventBuilder, shape: Shape, bounds: ReadBounds) -> None:
        self._builder = builder
        self._shape = shape
        self._bounds = bounds
        self._plans: dict[Head, _HeadPlan] = {}
        self._bytes = 0
        self._passed: tuple[TokenMaker, int, bytes] | None = None
        self._counts: dict[bytes, bool] = {}
        """Whether the entries of a head (by its bytes) are rows of some slice, one row each."""
        self._counted: Entry | None = None
        """The last counted entry."""
        self.rows = RowColumns()
        self.full = False
        """Whether the next row was left out for lack of room."""

    def run(self, entries: Iterator[Entry], end: int, late: Callable[[int], bool]) -> Entry | None:
        """Collect the rows of plain entries before the position `end`; return the first entry that is not plain.

        Return None if there are no more entries, if the collector is full, or if `late`, called every 256 entries,
        returns True.
        """
        if self._bounds.counts:
            return self._count(entries, end, late)
        rows, plans, shape = self.rows, self._plans, self._shape
        slice_, slices = self._bounds.slice, self._bounds.slices
        rows_max, bytes_max = self._bounds.rows, self._bounds.bytes
        tokens, others = rows.tokens, len(rows.events)
        add_kind, add_token, add_position = rows.kinds.append, tokens.append, rows.positions.append
        add_wall, add_key, add_detail = rows.walls.append, rows.keys.append, rows.details.append
        size = self._bytes
        passed = self._passed
        for seen, entry in enumerate(entries, 1):
            position, data = entry
            fields = slices_of(data)
            if fields is None or position >= end:
                return self._stop(entry, size, passed)
            head, o, key, _, wall = fields
            plan = plans.get(head) or self._learn(head)
            if plan.matches:
                maker, id_type, id_value = plan.maker, key[4], key[9:-1]
                if maker is None or wall[6] or wall[7]:
                    return self._stop(entry, size, passed)
                if slices == 1 or crc32(encode_element(id_type, id_value)) % slices == slice_:
                    kind = plan.kind
                    detail = o if kind.shows_document else described(o, shape) if kind.shows_update else None
                    token, bits = maker.crud(position, id_type, id_value)
                    size += len(data)
                    if len(tokens) + others >= rows_max or (size > bytes_max and (tokens or others)):
                        self.full = True
                        return self._stop(None, size, passed)
                    if bits is not None:
                        rows.bits[len(tokens)] = len(bits)
                    add_kind(kind)
                    add_token(token)
                    add_position(position)
                    add_wall(wall)
                    add_key(key)
                    add_detail(detail)
                passed = (maker, position, key)
            if not seen & _LOOK and late(position):
                break
        return self._stop(None, size, passed)

    def _count(self, entries: Iterator[Entry], end: int, late: Callable[[int], bool]) -> Entry | None:
        """Count rows as `run` collects them, by the entries' heads alone."""
        counts, all_slices = self._counts, self._bounds.slices == 1
        room = self._bounds.rows - len(self.rows)
        count, last = 0, self._counted
        entry: Entry | None = None
        for seen, each in enumerate(entries, 1):
            position, data = each
            if position >= end:
                entry = each
                break
            head = head_bytes(data)
            matches = counts.get(head)
            if matches is None:
                matches = self._learn_count(head, data)
                if matches is None:
                    entry = each
                    break
            if matches:
                if all_slices or self._in_slice(data):
                    if count >= room:
                        self.full = True
                        break
                    count += 1
                last = each
            if not seen & _LOOK and late(position):
                break
        self.rows.counted += count
        self._counted = last
        return entry

    def _learn_count(self, head: bytes, data: bytes) -> bool | None:
        """Return whether an entry is a row of any slice; None if it is not plain. If its head determines that, note
        it."""
        fields = slices_of(data)
        if fields is None:
            return None
        known = head_of(head)
        if known is not None:
            plans = [self._plan(each) for each in (known, known.replacement)]
            if all(plan.matches == plans[0].matches and (plan.maker or not plan.matches) for plan in plans):
                if len(self._counts) >= limits.HEAD_COUNT_MAX:
                    self._counts.clear()
                self._counts[head] = plans[0].matches
        plan = self._plan(fields[0])
        return None if plan.matches and plan.maker is None else plan.matches

    def _in_slice(self, data: bytes) -> bool:
        (operation,) = DecodedEntry(data).operations()
        key = operation.o2
        return crc32(encode_element(key[4], key[9:-1])) % self._bounds.slices == self._bounds.slice

    def add(self, event: bytes) -> bool:
        """Add an event's row if it is in the slice; return whether there was room for it."""
        bounds, count = self._bounds, len(self.rows)
        if bounds.slices > 1 and slice_of(event, bounds.slices) != bounds.slice:
            return True
        if bounds.counts:
            self.full = count >= bounds.rows
            self.rows.counted += not self.full
            return not self.full
        self._bytes += len(event)
        self.full = count >= bounds.rows or (self._bytes > bounds.bytes and count > 0)
        if not self.full:
            self.rows.add(event)
        return not self.full

    def passed(self) -> tuple[int, bytes] | None:
        """Return position and token document of the last event of any slice that `run` has passed; then forget it."""
        if self._counted is not None:
            (operation,) = DecodedEntry(self._counted[1]).operations()
            assert operation.head is not None
            maker = self._plan(operation.head).maker
            assert maker is not None
            self._passed, self._counted = (maker, self._counted[0], operation.o2), None
        if self._passed is None:
            return None
        (maker, position, key), self._passed = self._passed, None
        return position, token_document(*maker.crud(position, key[4], key[9:-1]))

    def _stop(self, entry: Entry | None, size: int, passed: tuple[TokenMaker, int, bytes] | None) -> Entry | None:
        self._bytes, self._passed = size, passed
        return entry

    def _plan(self, head: Head) -> _HeadPlan:
        return self._plans.get(head) or self._learn(head)

    def _learn(self, head: Head) -> _HeadPlan:
        """Return the plan of a new head."""
        plan = _HeadPlan(head, self._shape, self._builder.matches_head(head))
        if len(self._plans) >= limits.HEAD_COUNT_MAX:
            self._plans.clear()
        self._plans[head] = plan
        return plan
