"""What a watcher hears: one event, ready to be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
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
