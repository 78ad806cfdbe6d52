"""What a watcher hears: one event, ready to be sent. A tuple, since nothing immutable is made faster."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import CommandError


class Event(NamedTuple):
    """One event of a stream, after its pipeline. May be handed to any number of streams: nothing in it changes."""

    token: str
    """The resume token as text; tokens sort as text in the order of events."""
    token_document: bytes
    """The token as the client gets it: the BSON document `{_data[, _typeBits]}`, also the postBatchResumeToken."""
    cluster_time: int
    """The position of the entry that the event tells of."""
    document: bytes | None
    """The event's BSON; None where the pipeline hid an event that closes the stream all the same."""
    closes: bool = False
    """An invalidate: the stream ends here, and `token_document` is its last postBatchResumeToken."""


class PartlyTold(CommandError):
    """An entry of several events in which one cannot be told: the error, and the events before it."""

    def __init__(self, error: CommandError, events: list[Event]) -> None:
        super().__init__(error.code, error.message, labels=error.labels, extra=error.extra)
        self.events = events
        """To be handed out first; the error stands behind them."""
