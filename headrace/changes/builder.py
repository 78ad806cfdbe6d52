"""From oplog entries to the events that one kind of stream hears."""

from __future__ import annotations

from headrace.changes.entry import DecodedEntry, History
from headrace.changes.event import Event
from headrace.changes.images import Lookup
from headrace.changes.resume import ResumeGuard
from headrace.changes.stream import StreamSpec


class EventBuilder:
    """Builds the events of all streams with the same `share_key`. Keeps no state but what it has learnt."""

    def __init__(self, spec: StreamSpec, lookup: Lookup, history: History | None = None) -> None:
        self._spec = spec
        self._lookup = lookup
        self._history = history

    def build(self, entry: DecodedEntry, guard: ResumeGuard | None = None) -> list[Event]:
        """The events this entry means to the stream, in order; mostly none or one.

        `guard` is the guard of the one stream that asks, as long as it is not settled. Raises `CommandError` where
        an event cannot be told (280, 47, 10334, 286, and whatever the client's expressions raise); the entry's
        position is past then, so that a stream that is opened again behind it goes on.
        """
        raise NotImplementedError
