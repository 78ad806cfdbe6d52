"""One event of a stream, ready to be sent, or the error of an event that cannot be built."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import CommandError


class Event(NamedTuple):
    """One event of a stream, after its pipeline. Any number of streams may share it. A named tuple is the fastest
    immutable object to make."""

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


Item = Event | CommandError


def renewed(error: CommandError) -> CommandError:
    """Return a copy of an error without its traceback, whose frames refer to the feed. The cycle would wait for the
    garbage collector."""
    return CommandError(error.code, error.message, labels=error.labels, extra=error.extra)
