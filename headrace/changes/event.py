"""One event of a stream, ready to be sent. A named tuple: of all immutable objects the fastest to make."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import CommandError


class Event(NamedTuple):
    """One event of a stream, after its pipeline. Shared by any number of streams."""

    token: str
    """The resume token as text; tokens sort as text in the order of events."""
    token_document: bytes
    """The token as the client gets it: the BSON document `{_data[, _typeBits]}`, also the postBatchResumeToken."""
    cluster_time: int
    """The position of the event's oplog entry."""
    document: bytes | None
    """The event's BSON; None where the pipeline hid an event that closes the stream all the same."""
    closes: bool = False
    """An invalidate: the stream ends here, and `token_document` is its last postBatchResumeToken."""


class IncompleteEvents(CommandError):
    """One of the events of an entry cannot be built: the error, and the events before it."""

    def __init__(self, error: CommandError, events: list[Event]) -> None:
        super().__init__(error.code, error.message, labels=error.labels, extra=error.extra)
        self.events = events
        """The events to return before the error."""
