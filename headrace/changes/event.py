"""One event of a stream, ready to be sent. A named tuple is the fastest immutable object to make."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import CommandError


class Event(NamedTuple):
    """One event of a stream, after its pipeline. Any number of streams may share it."""

    token: str
    """The resume token as text. Tokens sort as text in the order of events."""
    token_document: bytes
    """The token as the client gets it: the BSON document `{_data[, _typeBits]}`. It is also the
    postBatchResumeToken."""
    cluster_time: int
    """The position of the event's oplog entry."""
    document: bytes | None
    """The event's BSON; None if the pipeline hid an event that still closes the stream."""
    closes: bool = False
    """Whether it is an invalidate: the stream ends here, and `token_document` is its last postBatchResumeToken."""


class IncompleteEvents(CommandError):
    """An event of an entry cannot be built. Holds the error and the events before it."""

    def __init__(self, error: CommandError, events: list[Event]) -> None:
        super().__init__(error.code, error.message, labels=error.labels, extra=error.extra)
        self.events = events
        """The events to return before the error."""
