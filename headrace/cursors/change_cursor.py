"""A change stream's cursor. A lagging cursor reads the oplog's index; a caught-up cursor reads a shared feed.

    BEHIND ── the oplog is read to its end ──▶ LIVE ── the feed dropped the next events ──▶ BEHIND
       └──────────────── an invalidate was returned ──────────────────▶ CLOSED ◀────────────┘

Rule: a stream never skips. Its position is a token, the last one returned. The tokens of events that are read again are
compared with it as text, so that each event is returned exactly once. A position that the oplog no longer holds is
error 286, at open and at every later read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, Protocol

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.entry import DecodedEntry
from headrace.changes.event import Event, Item
from headrace.changes.plain_events import PlainEvents
from headrace.changes.resume import ResumeGuard, not_found
from headrace.changes.stream import Scope, ScopeKind, StreamSpec
from headrace.cursors.feed import Batch, Feed, Feeds
from headrace.errors import CommandError
from headrace.memory_budget import Account
from headrace.store.checksums.transaction import DamagedValue
from headrace.store.standby import Gaps
from headrace.store.store import INITIATING, Store
from headrace.store.view import View
from headrace.values.bson import decode
from headrace.values.position import LAST, from_key
from headrace.values.token import ResumeToken, decode_token

HISTORY_LOST = "Resume of change stream was not possible, as the resume point may no longer be in the oplog."

_LOOK: Final = 63
"""The time is checked every 64 entries, and after an event larger than `_LARGE_BYTES`."""
_CHUNK_COUNT: Final = 256
"""The number of plain entries that are read at once."""
_LARGE_BYTES: Final = 64 * 1024
"""The time is checked after an event larger than this."""


class ViewSource(Protocol):
    """The source of a stream: the running command, which has a view of the store."""

    @property
    def newest_view(self) -> View: ...

    @property
    def store(self) -> Store: ...


def scope_key(scope: Scope) -> str:
    """Return the key of a scope, by which commits are routed: `db.coll`, `db.`, or "" for the deployment."""
    if scope.kind is ScopeKind.COLLECTION:
        return f"{scope.db}.{scope.coll}"
    return f"{scope.db}." if scope.kind is ScopeKind.DATABASE else ""


class ChangeCursor:
    """One client's stream."""

    __slots__ = (
        "_after",
        "_batch_bytes",
        "_builder",
        "_clock_ms",
        "_feed",
        "_feeds",
        "_guard",
        "_index",
        "_plain",
        "_read_from",
        "_rest",
        "_seen_count",
        "_spec",
        "account",
        "closed",
        "has_stages",
        "id",
        "idle",
        "is_read_elsewhere",
        "is_slow",
        "key",
        "lags",
        "namespace",
        "namespace_bytes",
        "no_timeout",
        "position",
        "read_ahead_bytes",
        "record",
        "repeated_getmore",
        "session",
        "token",
        "used_ms",
    )  # fmt: skip

    is_change_stream = True

    def __init__(
        self, spec: StreamSpec, builder: EventBuilder, feeds: Feeds, source: ViewSource, clock_ms: Callable[[], float]
    ) -> None:
        """Open a stream. Raises 286 if the oplog no longer has its start."""
        self._spec = spec
        self._builder = builder
        self._plain = PlainEvents(builder, spec.shape) if builder.plain and not spec.unbounded else None
        self._feeds = feeds
        self._clock_ms = clock_ms
        self._feed: Feed | None = None
        self._index = 0
        self.key = scope_key(spec.scope)
        self.namespace = spec.scope.cursor_namespace
        self.namespace_bytes = self.namespace.encode()
        self.id = 0
        self.idle = False  # the last read reached the end of the stream
        self.has_stages = bool(spec.stages)
        self.is_slow = self.has_stages
        """Whether its last batch took long, or none was read yet. Other streams are then read first."""
        self.lags = False
        """Whether the last batch took long and did not reach the end. A reader process may then read the next one."""
        self.is_read_elsewhere = False
        """Whether a reader process reads the stream."""
        self.session: bytes | None = None
        self.used_ms = 0.0
        self.no_timeout = False
        self.read_ahead_bytes = 0
        self.account: Account | None = None
        self.record: Any = None  # see `registry.CursorRecord`
        self.repeated_getmore: Any = None  # see dispatch/repeated_getmore.py
        self.closed = False
        """Whether the stream has ended, or was closed."""
        self._guard = ResumeGuard(spec) if spec.resume is not None else None
        last = source.store.last_position
        self._rest: tuple[int, Iterator[Item | None]] | None = None  # the rest of the entry at this position
        self.token = spec.first_token(last + 1)
        """The raw document of the resume token."""
        self.position = int(decode(self.token)["_data"][2:18], 16)
        """The cluster time of the resume token, as a position."""
        self._after = ""  # events up to this token are not returned
        self._read_from = last + 1 if spec.start is None else spec.start
        if spec.start is not None:
            _check_history(source.newest_view, spec.start)
            if source.store.gaps and spec.resume is not None:
                _check_gaps(source.store.gaps, spec.resume)
        else:
            self._catch_up()

    # Used by commands.

    def next_batch(self, source: ViewSource, count_max: int) -> Batch:
        """Return the next events, at most `count_max`, or none if there are none yet. Raises the errors that end a
        stream."""
        if count_max == 0 or self.closed:
            return Batch([], self.token)
        batch = self.next_from_feed(count_max)
        return self._from_oplog(source.newest_view, count_max) if batch is None else batch

    def unread_since(self, last_position: int) -> int | None:
        """Return the position of the oldest entry that may hold an unread event; None if everything is read."""
        if self._feed is not None and self._index >= self._feed.start:
            return self._feed.position_at(self._index)
        return self._read_from if self._read_from <= last_position else None

    def move(self, token: bytes, *, closes: bool) -> None:
        """Continue after `token`: another process has read the events up to it. `closes`: the last event ends the
        stream."""
        read = decode_token(decode(token))
        self.token, self._after, self.position = token, read.given, read.cluster_time
        self._read_from = read.cluster_time + read.is_high_water_mark
        self.lags = not read.txn_op_index  # within a transaction the reader would begin it again
        if closes:
            self.close()

    @property
    def is_behind(self) -> bool:
        """Whether it reads the oplog."""
        return self._feed is None

    def close(self) -> None:
        """End the stream and leave the feed."""
        self._leave_feed()
        self.closed = True

    # Caught up.

    def _catch_up(self) -> None:
        """Join the feed after everything committed was read. If the feed itself lags, keep reading the oplog."""
        self._rest = None
        self._feed = self._feeds.join(self._spec.share_key, self._builder, self.key, self._clock_ms)
        if self._feed is not None:
            self._index = self._feed.end

    def next_from_feed(self, count_max: int) -> Batch | None:
        """Return the next batch from the feed; None if the oplog must be read or `count_max` is 0."""
        feed = self._feed
        if feed is None or not count_max:
            return None
        is_current = feed.pull(self._clock_ms)
        if self._index < feed.start:
            self._leave_feed()
            return None
        if self._index == feed.end:
            self.idle = is_current
            if is_current and self.position < self._feeds.store.last_position:
                self._advance_mark(self._feeds.store.last_position)
            nothing = feed.nothing
            if nothing.token is not self.token:
                nothing = feed.nothing = Batch([], self.token)
            return nothing
        batch = feed.batch(self._index, count_max)
        last = batch.last
        self._index += batch.count
        self.token, self._after = last.token_document, last.token
        self.position, self._read_from = last.cluster_time, batch.read_from
        if batch.closes:
            self.close()
        elif is_current and self._index == feed.end and self.position < self._feeds.store.last_position:
            self._advance_mark(self._feeds.store.last_position)
        return batch

    def _leave_feed(self) -> None:
        if self._feed is not None:
            self._feeds.leave(self._spec.share_key, self._feed)
            self._feed = None

    # State BEHIND.

    def _from_oplog(self, view: View, count_max: int) -> Batch:
        """Return a batch from the oplog, bounded in events, bytes, entries read and time.

        If a damaged entry follows some events, the error belongs to the next batch.
        """
        check_read(view, self._read_from)
        self.idle = False
        documents: list[bytes] = []
        began_ms = self._clock_ms()
        try:
            return self._read_entries(view, count_max, documents)
        except DamagedValue:
            if documents:
                return Batch(documents, self.token)
            raise
        finally:
            is_settled = not self.idle and self._rest is None and self._guard is None
            self.lags = is_settled and self._clock_ms() - began_ms > limits.LAG_MS

    def _read_entries(self, view: View, count_max: int, documents: list[bytes]) -> Batch:
        """Fill `documents` and return its batch."""
        until_ms = self._clock_ms() + limits.SCAN_MS_MAX
        self._batch_bytes = self._seen_count = 0
        while not (
            self._read_plain(view, count_max, documents, until_ms)
            or self._read_others(view, count_max, documents, until_ms)
        ):
            pass
        return Batch(documents, self.token)

    def _read_plain(self, view: View, count_max: int, documents: list[bytes], until_ms: float) -> bool:
        """Read plain entries, up to another or a damaged entry. Return whether the batch is complete."""
        plain = self._plain
        if plain is None or self._guard is not None or self._rest is not None:
            return False
        if self._after and self._read_from <= self.position:  # these events are compared with the token
            return False
        try:
            for first, last in self._ranges(view):
                for chunk in view.entry_chunks(first, last, min(_CHUNK_COUNT, limits.SCAN_ENTRY_COUNT_MAX)):
                    taken, self._batch_bytes = plain.add(chunk, documents, self._batch_bytes, count_max)
                    if plain.last is not None:
                        self.token, self._after = plain.last.token_document, plain.last.token
                        self.position = plain.last.cluster_time
                    if taken:
                        self._read_from = from_key(chunk[taken - 1][0]) + 1
                        self._seen_count += taken
                    if plain.full or len(documents) == count_max:
                        return True
                    if taken and self._is_over(until_ms):
                        self._advance_mark(self._read_from - 1)
                        return True
                    if taken < len(chunk):
                        return False
        except DamagedValue:
            return False
        self._reached_end(view)
        return True

    def _is_over(self, until_ms: float) -> bool:
        return self._seen_count >= limits.SCAN_ENTRY_COUNT_MAX or self._clock_ms() > until_ms

    def _read_others(self, view: View, count_max: int, documents: list[bytes], until_ms: float) -> bool:
        """Read at least one entry of any kind, up to a plain one. Return whether the batch is complete."""
        has_read = False
        for position, raw in self._entries(view):
            if has_read and self._guard is None and self._plain is not None and self._plain.is_plain(raw):
                return False
            items = self._items_of(position, raw)
            for item in items:
                if item is None:  # the end of a piece of a long entry
                    if self._clock_ms() > until_ms:
                        self._retain(position, items)
                        return True
                    continue
                if isinstance(item, CommandError):
                    self._read_from = position
                    if documents:
                        return True
                    raise item
                if item.token <= self._after:
                    continue
                size = self._batch_bytes + (len(item.document) if item.document is not None else 0)
                if documents and (size > limits.BATCH_BYTES_MAX or len(documents) == count_max):
                    self._retain(position, chain((item,), items))
                    return True
                self._batch_bytes = size
                self._hand_out(item, documents)
                if item.closes:
                    return True
            self._read_from = position + 1
            if self._guard is not None and self._guard.settled:
                self._guard = None
            has_read = True
            self._seen_count = seen = self._seen_count + 1
            if len(documents) == count_max:
                return True
            looks = seen & _LOOK == 0 or (documents and len(raw) > _LARGE_BYTES)
            if seen >= limits.SCAN_ENTRY_COUNT_MAX or (looks and self._is_over(until_ms)):
                self._advance_mark(position)
                return True
        self._reached_end(view)
        return True

    def _items_of(self, position: int, raw: bytes) -> Iterator[Item | None]:
        """Return the events of an entry, followed by an error if not all can be built. A long entry is built in pieces,
        with None after each, and continues where the last batch ended."""
        rest, self._rest = self._rest, None
        if rest is not None and rest[0] == position:
            return rest[1]
        entry = DecodedEntry(raw)
        return self._built_in_pieces(entry) if entry.may_be_long else iter(self._builder.build(entry, self._guard))

    def _built_in_pieces(self, entry: DecodedEntry) -> Iterator[Item | None]:
        for items in self._builder.build_in_pieces(entry, self._guard):
            yield from items
            yield None

    def _retain(self, position: int, items: Iterator[Item | None]) -> None:
        """Let the next batch begin in the middle of this entry."""
        self._read_from = position
        self._rest = position, items

    def _entries(self, view: View) -> Iterator[tuple[int, bytes]]:
        """Yield the entries from the stream's position on that belong to namespaces in its scope."""
        for first, last in self._ranges(view):
            yield from view.entries(first, last)

    def _ranges(self, view: View) -> Iterable[tuple[int, int]]:
        """Return the position ranges of these entries: (first, last), both inclusive."""
        scope = self._spec.scope
        if scope.kind is ScopeKind.DEPLOYMENT:
            return [(self._read_from, LAST)]
        topics = view.catalog.topics
        if scope.kind is ScopeKind.COLLECTION:
            names = [f"{scope.db}.{scope.coll}", f"{scope.db}.$cmd"]
        else:
            names = [name for name in topics if name.startswith(f"{scope.db}.")]
        return view.ranges_of([topics[name] for name in names if name in topics], self._read_from)

    def _reached_end(self, view: View) -> None:
        """Advance the token at the end of the oplog, and join the feed unless the start is in the future."""
        last = view.state.last_position
        self.idle = True
        self._advance_mark(last)
        if self._read_from <= last + 1:
            self._read_from = last + 1
            if self._guard is None or self._guard.settled:
                self._guard = None
                self._catch_up()

    # The token.

    def _hand_out(self, event: Event, documents: list[bytes]) -> None:
        self.token, self._after = event.token_document, event.token
        self.position = self._read_from = event.cluster_time
        if event.document is not None:
            documents.append(event.document)
        if event.closes:
            self.close()

    def _advance_mark(self, position: int) -> None:
        """Replace the token by a high-water mark at `position`, unless the token is later."""
        if self.position < position and not self.closed:
            self.token, self._after = self._feeds.mark(position)
            self.position = position
            self._read_from = max(self._read_from, position + 1)


def _check_history(view: View, start: int) -> None:
    """Raise 286 at open if the oplog begins after `start`, unless it still has its very first entry."""
    oldest = view.oldest_position()
    if oldest is None or start >= oldest:
        return
    raw = view.entry(oldest)
    assert raw is not None
    entry: dict[str, Any] = decode(raw)
    if entry["o"].get("msg") != INITIATING:
        raise CommandError(286, "PlanExecutor error during aggregation :: caused by :: " + HISTORY_LOST)


def _check_gaps(gaps: Gaps, token: ResumeToken) -> None:
    """Raise 280 at open for a token that the server which this standby followed made after its last event here."""
    if any(after < token.cluster_time < until for after, until in gaps):
        raise not_found(token)


def check_read(view: View, read_from: int) -> None:
    """Raise 286 at a later read if an entry at or after `read_from` was pruned."""
    if 0 < view.state.pruned_through >= read_from:
        raise CommandError(286, "Executor error during getMore :: caused by :: " + HISTORY_LOST)
