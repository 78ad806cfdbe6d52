"""Channels: the newest oplog entries by scope, in memory, for caught-up watchers.

A channel exists as long as a feed listens to it. A commit adds each entry to the channels of its scopes, wrapped in one
shared `DecodedEntry`, so that it is parsed once.

Rule: a channel holds every entry of its scope from `start` on. A full channel drops its oldest entries and advances
`start`; entries also expire after some seconds. A feed that has not read dropped entries goes back to the oplog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.changes.entry import DecodedEntry
from headrace.memory_budget import Account, Memory

if TYPE_CHECKING:
    from headrace.store.store import Committed


class Channel:
    """The entries of one scope. Sequence numbers count them from the channel's creation."""

    __slots__ = ("_account", "_aged", "_bytes", "_entries", "_memory", "end", "key", "listeners", "start")

    def __init__(self, key: str, memory: Memory) -> None:
        self.key = key
        self._memory = memory
        self._account: Account | None = None  # opened when there are entries to count
        self.listeners = 0
        self.start = 0  # sequence number of the oldest entry held
        self.end = 0  # sequence number of the next entry
        self._entries: deque[tuple[int, DecodedEntry]] = deque()
        self._bytes = 0
        self._aged = 0  # sequence number of the end at the last `forget_aged`

    def append(self, position: int, entry: DecodedEntry) -> None:
        """Add an entry, and drop the oldest entries above the limits."""
        self._entries.append((position, entry))
        self._bytes += len(entry.data) + limits.CHANNEL_ENTRY_BYTES
        self.end += 1
        while len(self._entries) > limits.CHANNEL_ENTRY_COUNT_MAX or self._bytes > limits.CHANNEL_BYTES_MAX:
            if len(self._entries) == 1:
                return
            self._drop_oldest()
        self._count_if_changed()

    def forget_aged(self) -> None:
        """Drop the entries that already existed at the last call."""
        aged, self._aged = self._aged, self.end
        while self.start < aged and self._entries:
            self._drop_oldest()
        self._count_if_changed()

    def _drop_oldest(self) -> None:
        self._bytes -= len(self._entries.popleft()[1].data) + limits.CHANNEL_ENTRY_BYTES
        self.start += 1

    def _count_if_changed(self) -> None:
        counted = 0 if self._account is None else self._account.bytes
        if abs(self._bytes - counted) > limits.COUNTED_STEP_BYTES:
            self._count()

    def _count(self) -> None:
        if self._account is None:
            name = f"entries of {self.key or 'the deployment'} for change streams"
            self._account = self._memory.account(name, self._drop, may_close=False)
        self._account.set(self._bytes)

    def _drop(self) -> None:
        """Drop the entries, because the memory budget needs their memory. Watchers that have not read them go back to
        the oplog."""
        self._entries.clear()
        self.start, self._bytes = self.end, 0
        self._count()

    def close(self) -> None:
        """Close the channel, which has no listeners any more."""
        self._entries.clear()
        self.start, self._bytes = self.end, 0
        if self._account is not None:
            self._account.close()

    def position_since(self, sequence: int) -> int | None:
        """Return the position of the oldest held entry from `sequence` on; None if there is none."""
        index = max(sequence - self.start, 0)
        return self._entries[index][0] if index < len(self._entries) else None

    def since(self, sequence: int) -> list[tuple[int, DecodedEntry]]:
        """Return (position, entry) from `sequence` on, which must not be before `start`."""
        entries, skip = self._entries, sequence - self.start
        if skip == 0:
            return list(entries)
        return [entries[index] for index in range(skip, len(entries))]


def channel_keys(topics: Iterable[str], live: Mapping[Any, object]) -> list[Any]:
    """Return the keys in `live` that match entries of these topics: collection, database (`db.`) and deployment
    (``)."""
    keys: dict[str, None] = {"": None}
    for topic in topics:
        database = topic.partition(".")[0] + "."
        keys[topic] = None
        keys[database] = None
        if topic.endswith(".$cmd"):  # a command concerns every collection of its database
            keys.update(dict.fromkeys(key for key in live if key and key.startswith(database)))
    return [key for key in keys if key in live]


class Channels:
    """All channels with listeners. They receive each commit's entries."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._live: dict[str, Channel] = {}

    def join(self, key: str) -> Channel:
        """Return the channel of a scope's key. The first listener creates it."""
        channel = self._live.get(key)
        if channel is None:
            channel = self._live[key] = Channel(key, self._memory)
        channel.listeners += 1
        return channel

    def leave(self, channel: Channel) -> None:
        """Remove a listener; the last one closes the channel."""
        channel.listeners -= 1
        if not channel.listeners:
            channel.close()
            del self._live[channel.key]

    def forget_aged(self) -> Iterator[None]:
        """Drop the entries that already existed at the last call, in one channel per `next`."""
        for channel in list(self._live.values()):
            channel.forget_aged()
            yield

    def publish(self, committed: Committed) -> None:
        """Add a commit's entries to their channels. A listener of the store."""
        live = self._live
        if not live:
            return
        keys, entries, at = committed.keys, committed.entries, 0
        for topics, _, last in committed.runs:
            channels = [live[key] for key in channel_keys(topics, live)]
            while at < len(entries) and (position := int.from_bytes(keys[at], "big")) <= last:
                if channels:
                    entry = DecodedEntry(entries[at])
                    for channel in channels:
                        channel.append(position, entry)
                at += 1
