"""A feed: the events of one share key, built once for all caught-up watchers.

A commit adds its runs of entries to the feeds of their scopes. An entry is wrapped in one `DecodedEntry`, which all
feeds share, when the first feed reads it. So it is parsed once.

Rule: a feed holds every event of its stream from sequence number `start` on, and all entries of its scope after them. A
watcher whose position is before `start`, because it was too slow or there were too many entries, goes back to the
oplog. So memory is held for seconds (`forget_aged`), however many streams are open and however long no client reads
them.

If an event cannot be built (too large, its image missing), the feed has the error at its sequence number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.changes.entry import DecodedEntry
from headrace.changes.event import Event, Item, renewed
from headrace.changes.stream import mark_document
from headrace.errors import CommandError
from headrace.memory_budget import Account
from headrace.values.position import from_key, to_key
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    from headrace.changes.builder import EventBuilder
    from headrace.store.store import Committed, Store


class EntryRun:
    """Successive entries of a commit that have the same topics. All feeds of their scopes share it."""

    __slots__ = ("_entries", "_items", "bytes", "count", "keys", "share")

    def __init__(self, keys: Sequence[bytes], entries: Sequence[bytes], feed_count: int) -> None:
        """`keys`: the position keys of the entries. `feed_count`: the number of feeds that share the run."""
        self.keys = keys
        self._entries = entries
        self._items: list[DecodedEntry] | None = None
        self.count = len(entries)
        self.bytes = sum(map(len, entries)) + limits.UNREAD_ENTRY_BYTES * len(entries)
        self.share = self.bytes // feed_count
        """The part of its bytes that each feed counts."""

    @property
    def items(self) -> list[DecodedEntry]:
        """The entries, wrapped when they are read first."""
        if self._items is None:
            self._items = list(map(DecodedEntry, self._entries))
        return self._items


def scope_keys(topics: Iterable[str], live: Mapping[Any, object]) -> list[Any]:
    """Return the keys of scopes in `live` that match entries of these topics: collection, database (`db.`) and
    deployment (``)."""
    keys: dict[str, None] = {"": None}
    for topic in topics:
        database = topic.partition(".")[0] + "."
        keys[topic] = None
        keys[database] = None
        if topic.endswith(".$cmd"):  # a command concerns every collection of its database
            keys.update(dict.fromkeys(key for key in live if key and key.startswith(database)))
    return [key for key in keys if key in live]


class Batch:
    """Raw event documents and the token after the last one. Only `shared_reply` changes."""

    __slots__ = ("closes", "count", "documents", "last", "read_from", "shared_reply", "token")

    def __init__(self, documents: Sequence[bytes], token: bytes) -> None:
        self.documents = documents
        self.token = token
        """The raw document of `postBatchResumeToken`."""
        self.closes = False
        """Whether its last event ends the stream."""
        self.count = 0
        """Only in a feed's batch: the count of its sequence numbers. A hidden event has a number but no document."""
        self.last: Any = None
        """Only in a feed's batch: its last event."""
        self.read_from = 0
        """Only in a feed's batch: the position from which the oplog has the following events."""
        self.shared_reply: Any = None
        """(position, bytes before the cursor's id, bytes after it) of the reply. The first reader makes it. Later
        readers use it while the last commit has that position."""


class Feed:
    """Built events of one `EventBuilder`, numbered from the feed's creation, and the entries that follow them."""

    __slots__ = (
        "_account", "_added", "_aged", "_aged_entries", "_at", "_batches", "_bytes", "_feeds", "_items", "_pieces",
        "_unread", "_unread_bytes", "_unread_share", "builder", "end", "key", "nothing", "start", "unread_count",
        "users",
    )  # fmt: skip

    def __init__(self, builder: EventBuilder, key: str, feeds: Feeds) -> None:
        """`key`: of the scope."""
        self.builder = builder
        self.key = key
        self._feeds = feeds
        self._unread: deque[EntryRun] = deque()
        self._at = 0  # the number of entries of the first unread run that are read
        self.unread_count = 0
        self._unread_bytes = 0
        self._unread_share = 0  # the part of these bytes that the feed counts
        self._added = 0  # the number of all entries that were added
        self._items: list[Item] = []
        self._bytes = 0
        self._pieces: Iterator[list[Item]] | None = None  # the rest of a long entry, the first unread one
        self._account: Account | None = None  # opened when there are items to count
        self._batches: dict[tuple[int, int, int], Batch] = {}  # recent batches, by (first, count, position)
        self._aged = 0  # the end at the last `forget_aged`
        self._aged_entries = 0  # `_added` then
        self.nothing = Batch([], b"")
        """The empty batch, with the token of the last reader that reached the end."""
        self.start = 0
        self.end = 0
        self.users = 0

    def append(self, run: EntryRun) -> None:
        """Add the entries of a commit. Above the limits, forget everything."""
        self._unread.append(run)
        self.unread_count += run.count
        self._unread_bytes += run.bytes
        self._unread_share += run.share
        self._added += run.count
        is_full = self.unread_count > limits.UNREAD_ENTRY_COUNT_MAX or self._unread_bytes > limits.UNREAD_BYTES_MAX
        if is_full and len(self._unread) > 1:
            self._forget()
        else:
            self._count_if_changed()

    def position_at(self, index: int) -> int | None:
        """Return the position of the event at `index`, or of the entry that may become it; None if there is none
        yet."""
        for item in islice(self._items, max(index - self.start, 0), None):
            if type(item) is Event:
                return item.cluster_time
        return from_key(self._unread[0].keys[self._at]) if self._unread else None

    def pull(self, clock_ms: Callable[[], float] | None = None) -> bool:
        """Build the events of the unread entries; with a clock, only for a limited time. Return whether all are
        built."""
        if not self._unread:
            return True
        if self._batches:
            self._batches.clear()
        run = self._unread[0]
        if self.unread_count == 1 and self._pieces is None and not run.items[self._at].may_be_long:
            self._add_events(self.builder.build(run.items[self._at]))
            self._next_entry()
        else:
            self._build(clock_ms)
        if len(self._items) > 2 * limits.FEED_EVENT_COUNT_MAX or self._bytes > limits.FEED_BYTES_MAX:
            self._shorten()
        self._count_if_changed()
        return not self._unread

    def _build(self, clock_ms: Callable[[], float] | None) -> None:
        until_ms = inf if clock_ms is None else clock_ms() + limits.FEED_MS_MAX
        is_over = False
        while self._unread and not is_over:
            self._add_events(self._built(self._unread[0].items[self._at]))
            is_over = clock_ms is not None and clock_ms() > until_ms
            if self._pieces is None:
                self._next_entry()

    def _next_entry(self) -> None:
        """Pass the first unread entry."""
        if not self._unread:
            return  # everything was dropped meanwhile, because memory was needed
        self._at += 1
        self.unread_count -= 1
        if self._at == self._unread[0].count:
            run, self._at = self._unread.popleft(), 0
            self._unread_bytes -= run.bytes
            self._unread_share -= run.share

    def _add_events(self, items: Sequence[Item]) -> None:
        self._items += items
        for item in items:
            self._bytes += _size(item)
        self.end += len(items)

    def forget_aged(self) -> None:
        """Drop the events that already existed at the last call. If there were entries then that are still unread,
        drop everything."""
        aged, self._aged = self._aged, self.end
        aged_entries, self._aged_entries = self._aged_entries, self._added
        if self._added - self.unread_count < aged_entries:
            self._forget()
        elif self.start < aged:
            self._drop(aged - self.start)
            self._batches.clear()
        self._count_if_changed()

    def _count_if_changed(self) -> None:
        counted = 0 if self._account is None else self._account.bytes
        if abs(self._bytes + self._unread_share - counted) > limits.COUNTED_STEP_BYTES:
            self._count()

    def _built(self, entry: DecodedEntry) -> Sequence[Item]:
        """Return the events of an entry. For a long entry return the next ones, and keep `_pieces` until there are no
        more."""
        if self._pieces is None:
            if not entry.may_be_long:
                return self.builder.build(entry)
            self._pieces = self.builder.build_in_pieces(entry)
        items = next(self._pieces, None)
        if items is None:
            self._pieces = None
        return items or ()

    def _count(self) -> None:
        if self._account is None:
            name = f"events of {self.key or 'the deployment'} for change streams"
            self._account = self._feeds.memory.account(name, self._forget, may_close=False)
        self._account.set(self._bytes + self._unread_share)

    def _shorten(self) -> None:
        """Drop the oldest events, down to half of the limits. It is called seldom, because it moves all remaining
        events."""
        items, drop, size = self._items, 0, self._bytes
        bytes_max = limits.FEED_BYTES_MAX // 2
        while len(items) - drop > limits.FEED_EVENT_COUNT_MAX or (size > bytes_max and drop < len(items) - 1):
            size -= _size(items[drop])
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        """Drop the `count` oldest events."""
        self._bytes -= sum(map(_size, self._items[:count]))
        del self._items[:count]
        self.start += count

    def _forget(self) -> None:
        """Drop everything, because there are too many unread entries or memory is needed. All watchers go back to the
        oplog."""
        self._items.clear()
        self._unread.clear()
        self._pieces = None
        self._at = self.unread_count = self._unread_bytes = self._unread_share = self._bytes = 0
        self._count()
        self.end += 1
        self.start = self.end
        self._batches.clear()

    def batch(self, first: int, count_max: int) -> Batch:
        """Return the events from `first` on, which must be held. Raises the error at `first`, if it is one.

        Until the next commit, watchers with the same request get the same `Batch`. For the last event this also holds
        for watchers of other feeds with different filters.
        """
        feeds = self._feeds
        position = feeds.store.last_position
        if first == self.end - 1 and not self._unread:
            scope, made = self.key, feeds.last_batch
            if made[2].last is not self._items[-1] or made[0] != position or made[1] != scope:
                made = feeds.last_batch = (position, scope, self._cut(first, count_max, position))
            return made[2]
        key = (first, count_max, position)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._cut(first, count_max, position)
            if (
                len(self._batches) >= limits.FEED_BATCH_COUNT_MAX
                or sum(map(len, batch.documents)) > limits.FEED_BATCH_BYTES_MAX
            ):
                self._batches.clear()
            self._batches[key] = batch
        return batch

    def _cut(self, first: int, count_max: int, position: int) -> Batch:
        items = self._items
        at = first - self.start
        failed = items[at]
        if isinstance(failed, CommandError):
            raise renewed(failed)
        documents: list[bytes] = []
        size, last = 0, failed
        for item in items[at:]:
            if isinstance(item, CommandError):
                break
            size += 0 if item.document is None else len(item.document)
            if documents and (size > limits.BATCH_BYTES_MAX or len(documents) == count_max):
                break
            if item.document is not None:
                documents.append(item.document)
            at, last = at + 1, item
            if item.closes:
                break
        batch = Batch(documents, last.token_document)
        batch.count, batch.last, batch.closes = self.start + at - first, last, last.closes
        following = items[at] if at < len(items) else None
        entry_is_over = (following is None and self._pieces is None) or (
            type(following) is Event and following.cluster_time > last.cluster_time
        )
        batch.read_from = last.cluster_time + entry_is_over
        if self.start + at == self.end and not self._unread and not last.closes and last.cluster_time < position:
            batch.token = self._feeds.mark(position)[0]
        return batch

    def close(self) -> None:
        """Give its memory back."""
        if self._account is not None:
            self._account.close()


def _size(item: Item) -> int:
    return _ITEM_BYTES if isinstance(item, CommandError) or item.document is None else len(item.document) + _ITEM_BYTES


_ITEM_BYTES: Final = 512  # about the size of an event besides its document


class Feeds:
    """All feeds in use, by the streams' `share_key`. They receive each commit's entries."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.memory = store.memory
        self.last_batch = (0, "", Batch([], b""))
        """(position, the scope's key, batch) of the last event that was returned alone."""
        self._mark: tuple[int, bytes, str] = (-1, b"", "")
        self._feeds: dict[bytes, Feed] = {}
        self._by_scope: dict[str, list[Feed]] = {}

    def publish(self, committed: Committed) -> None:
        """Add a commit's entries to the feeds of their scopes. A listener of the store."""
        live = self._by_scope
        if not live:
            return
        keys, entries, at = committed.keys, committed.entries, 0
        for topics, _, last in committed.runs:
            end = bisect_right(keys, to_key(last), at)
            feeds = [feed for key in scope_keys(topics, live) for feed in live[key]]
            if feeds:
                run = EntryRun(keys[at:end], entries[at:end], len(feeds))
                for feed in feeds:
                    if feed.users:  # it may have been closed, because memory was needed for another one
                        feed.append(run)
            at = end

    def join(self, share_key: bytes, builder: EventBuilder, key: str, clock_ms: Callable[[], float]) -> Feed | None:
        """Return the feed of these streams, created for its first user; None if it is not up to date and there is no
        time to build the missing events."""
        feed = self._feeds.get(share_key)
        if feed is None:
            feed = self._feeds[share_key] = Feed(builder, key, self)
            self._by_scope.setdefault(key, []).append(feed)
        elif not feed.pull(clock_ms):
            return None
        feed.users += 1
        return feed

    def builder(self, share_key: bytes) -> EventBuilder | None:
        """Return the builder of a feed in use, for another stream with the same share key."""
        feed = self._feeds.get(share_key)
        return None if feed is None else feed.builder

    def mark(self, position: int) -> tuple[bytes, str]:
        """Return the high-water mark at `position`, (token document, text), made once for all idle streams."""
        if self._mark[0] != position:
            self._mark = (position, mark_document(position), high_water_mark(position))
        return self._mark[1], self._mark[2]

    def forget_aged(self) -> Iterator[None]:
        """Drop the entries and events that already existed at the last call, in one feed per `next`."""
        self.last_batch = (0, "", Batch([], b""))
        for feed in list(self._feeds.values()):
            feed.forget_aged()
            yield

    def leave(self, share_key: bytes, feed: Feed) -> None:
        """Remove a watcher; the last one closes the feed."""
        feed.users -= 1
        if not feed.users:
            feed.close()
            del self._feeds[share_key]
            self._by_scope[feed.key].remove(feed)
            if not self._by_scope[feed.key]:
                del self._by_scope[feed.key]
