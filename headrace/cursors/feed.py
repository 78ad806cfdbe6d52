"""A feed: the events of one shape, built once for all watchers that are caught up.

Rule: a feed holds every event of its stream from sequence number `start` on. A watcher that is older than
`start`, because it was too slow or the channel overflowed, goes back to the oplog.

An event that cannot be told (too large, its image missing) stands in the feed as the error it is, in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from headrace import limits
from headrace.changes.event import Event, PartlyTold
from headrace.changes.stream import mark_document
from headrace.cursors.channels import Channel, Channels
from headrace.errors import CommandError
from headrace.values.token import high_water_mark

if TYPE_CHECKING:
    from headrace.changes.builder import EventBuilder
    from headrace.store.store import Store

Item = Event | CommandError


class Feed:
    """Built events, numbered from the feed's birth, of one `EventBuilder`."""

    __slots__ = ("_channel", "_channels", "_items", "_read", "builder", "cached", "end", "start", "users")

    def __init__(self, builder: EventBuilder, channels: Channels, key: str) -> None:
        self.builder = builder
        self._channels = channels
        self._channel: Channel = channels.join(key)
        self._read = self._channel.end  # sequence number of the next entry to read from the channel
        self._items: deque[Item] = deque()
        self.start = 0
        self.end = 0
        self.users = 0
        self.cached: tuple[tuple[int, int], bytes] | None = None  # the last batch that was encoded, and of what

    def pull(self) -> None:
        """Build what the channel got since the last time."""
        channel = self._channel
        if self._read == channel.end:
            return
        if self._read < channel.start:
            self._forget()
            return
        build = self.builder.build
        for _, entry in channel.since(self._read):
            self._read += 1
            items: Sequence[Item]
            try:
                items = build(entry)
            except PartlyTold as error:
                items = [*error.events, error]
            except CommandError as error:
                items = [error]
            self._items.extend(items)
            self.end += len(items)
        while len(self._items) > limits.FEED_EVENT_COUNT_MAX:
            self._items.popleft()
            self.start += 1

    def _forget(self) -> None:
        """The channel was faster: what it dropped is missing here, so nobody may go on from here."""
        self._items.clear()
        self._read = self._channel.end
        self.end += 1
        self.start = self.end
        self.cached = None

    def since(self, sequence: int) -> list[Item]:
        """The items from `sequence` on, which is not before `start`."""
        skip = sequence - self.start
        return list(self._items) if skip == 0 else list(islice(self._items, skip, None))

    def close(self) -> None:
        self._channels.leave(self._channel)


class Feeds:
    """All feeds in use, by what makes streams alike."""

    def __init__(self, channels: Channels, store: Store) -> None:
        self._channels = channels
        self._store = store
        self._mark: tuple[int, bytes, str] = (-1, b"", "")
        self._feeds: dict[bytes, Feed] = {}

    def join(self, share_key: bytes, builder: EventBuilder, key: str) -> Feed:
        """The feed of these streams, up to date, made for its first user."""
        feed = self._feeds.get(share_key)
        if feed is None:
            feed = self._feeds[share_key] = Feed(builder, self._channels, key)
        feed.users += 1
        feed.pull()
        return feed

    def builder(self, share_key: bytes) -> EventBuilder | None:
        """The builder of a feed in use, for another stream of its kind."""
        feed = self._feeds.get(share_key)
        return None if feed is None else feed.builder

    def last_position(self) -> int:
        return self._store.last_position

    def mark(self, position: int) -> tuple[bytes, str]:
        """The high-water mark at `position`: token document and text, made once for all quiet streams."""
        if self._mark[0] != position:
            self._mark = (position, mark_document(position), high_water_mark(position))
        return self._mark[1], self._mark[2]

    def leave(self, share_key: bytes, feed: Feed) -> None:
        feed.users -= 1
        if not feed.users:
            feed.close()
            del self._feeds[share_key]
