"""The result of one read of a change stream. Watchers at the same position of a feed get the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Batch:
    """Raw event documents and the token after the last of them. Nothing in it changes but `shared_reply`."""

    __slots__ = ("closes", "count", "documents", "last", "read_from", "shared_reply", "token")

    def __init__(self, documents: Sequence[bytes], token: bytes) -> None:
        self.documents = documents
        self.token = token
        """The raw document of `postBatchResumeToken`."""
        self.closes = False
        """Its last event ends the stream."""
        self.count = 0
        """From a feed: how many of its numbers are in it, more than documents where one hides an event."""
        self.last: Any = None
        """From a feed: its last event."""
        self.read_from = 0
        """From a feed: the position from which the oplog has what comes next."""
        self.shared_reply: Any = None
        """(position, bytes before the cursor's id, bytes after it) of the reply. Its first reader makes it; the next
        ones use it while the last commit has that position."""
