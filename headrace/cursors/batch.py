"""The result of one read of a change stream. Watchers at the same position of a feed get the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Batch:
    """Raw event documents and the token after the last one. Only `shared_reply` changes."""

    __slots__ = ("closes", "count", "documents", "last", "read_from", "shared_reply", "token")

    def __init__(self, documents: Sequence[bytes], token: bytes) -> None:
        self.documents = documents
        self.token = token
        """The raw document of `postBatchResumeToken`."""
        self.closes = False
        """Whether its last event ends the stream."""
        self.count = 0
        """Only in a feed's batch: the count of its sequence numbers. A hidden event has a number but no document."""
        self.last: Any = None
        """Only in a feed's batch: its last event."""
        self.read_from = 0
        """Only in a feed's batch: the position from which the oplog has the following events."""
        self.shared_reply: Any = None
        """(position, bytes before the cursor's id, bytes after it) of the reply. The first reader makes it. Later
        readers use it while the last commit has that position."""
