"""Channels: the newest oplog entries by scope, in memory, for caught-up watchers.

A channel exists as long as a feed listens to it. A commit adds its runs of entries to the channels of their scopes. An
entry is wrapped in one shared `DecodedEntry` when the first channel reads it, so that it is parsed once.

Rule: a channel holds every entry of its scope from `start` on. A full channel drops its oldest runs and advances
`start`; entries also expire after some seconds. A feed that has not read dropped entries goes back to the oplog.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.changes.entry import DecodedEntry
from headrace.memory_budget import Account, Memory
from headrace.values.position import from_key, to_key

if TYPE_CHECKING:
    from headrace.store.store import Committed


class EntryRun:
    """Successive entries of a commit that have the same topics. All their channels share it."""

    __slots__ = ("_entries", "_items", "bytes", "count", "keys")

    def __init__(self, keys: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """`keys`: the position keys of the entries."""
        self.keys = keys
        self._entries = entries
        self._items: list[tuple[int, DecodedEntry]] | None = None
        self.count = len(entries)
        self.bytes = sum(map(len, entries)) + limits.CHANNEL_ENTRY_BYTES * len(entries)

    @property
    def items(self) -> list[tuple[int, DecodedEntry]]:
        """(position, entry) of each entry, made when they are read first."""
        if self._items is None:
            self._items = [(from_key(key), DecodedEntry(entry)) for key, entry in zip(self.keys, self._entries)]
        return self._items


class Channel:
    """The entries of one scope. Sequence numbers count them from the channel's creation."""

    __slots__ = ("_account", "_aged", "_bytes", "_memory", "_runs", "end", "key", "listeners", "start")

    def __init__(self, key: str, memory: Memory) -> None:
        self.key = key
        self._memory = memory
        self._account: Account | None = None  # opened when there are entries to count
        self.listeners = 0
        self.start = 0  # sequence number of the oldest entry held
        self.end = 0  # sequence number of the next entry
        self._runs: deque[EntryRun] = deque()
        self._bytes = 0
        self._aged = 0  # sequence number of the end at the last `forget_aged`

    def append(self, run: EntryRun) -> None:
        """Add the entries of a run, and drop the oldest runs above the limits."""
        self._runs.append(run)
        self._bytes += run.bytes
        self.end += run.count
        while (
            self.end - self.start > limits.CHANNEL_ENTRY_COUNT_MAX or self._bytes > limits.CHANNEL_BYTES_MAX
        ) and len(self._runs) > 1:
            self._drop_oldest()
        self._count_if_changed()

    def forget_aged(self) -> None:
        """Drop the entries that already existed at the last call."""
        aged, self._aged = self._aged, self.end
        while self.start < aged and self._runs:
            self._drop_oldest()
        self._count_if_changed()

    def _drop_oldest(self) -> None:
        run = self._runs.popleft()
        self._bytes -= run.bytes
        self.start += run.count

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
        self._runs.clear()
        self.start, self._bytes = self.end, 0
        self._count()

    def close(self) -> None:
        """Close the channel, which has no listeners any more."""
        self._runs.clear()
        self.start, self._bytes = self.end, 0
        if self._account is not None:
            self._account.close()

    def position_since(self, sequence: int) -> int | None:
        """Return the position of the oldest held entry from `sequence` on; None if there is none."""
        left = self.end - max(sequence, self.start)
        for run in reversed(self._runs) if left else ():
            if left <= run.count:
                return from_key(run.keys[run.count - left])
            left -= run.count
        return None

    def since(self, sequence: int) -> list[tuple[int, DecodedEntry]]:
        """Return (position, entry) from `sequence` on, which must not be before `start`."""
        left, runs = self.end - sequence, []
        for run in reversed(self._runs):
            if left <= 0:
                break
            runs.append(run)
            left -= run.count
        items = [item for run in reversed(runs) for item in run.items]
        return items[-left:] if left < 0 else items


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
            end = bisect_right(keys, to_key(last), at)
            channels = [live[key] for key in channel_keys(topics, live)]
            if channels:
                run = EntryRun(keys[at:end], entries[at:end])
                for channel in channels:
                    channel.append(run)
            at = end
