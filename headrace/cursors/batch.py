"""The result of one read of a change stream. Watchers at the same position of a feed get the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Batch:
    """Raw event documents and the token behind the last of them. Nothing in it changes but `envelope`."""

    __slots__ = ("closes", "documents", "end", "envelope", "last", "read_from", "token")

    def __init__(self, documents: Sequence[bytes], token: bytes) -> None:
        self.documents = documents
        self.token = token
        """The raw document of `postBatchResumeToken`."""
        self.closes = False
        """Its last event ends the stream."""
        self.end = 0
        """From a feed: the sequence number behind it."""
        self.last: Any = None
        """From a feed: its last event."""
        self.read_from = 0
        """From a feed: the position from which the oplog has what comes next."""
        self.envelope: Any = None
        """The batch as elements of a reply, encoded for its first reader and used by the next."""
