"""A log of events: a table that only grows. The commit of its rows also stores its progress."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from headrace.spark.tables.progress import Progress, RowIdentity
from headrace.spark.tables.staged_files import Encode
from headrace.spark.tables.written_file import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class EventLog:
    """An append-only table. The commit of its rows also stores the progress. It has one writer at a time."""

    location: Any = None
    """The `TableLocation` into which tasks can write files before the commit; it need not exist yet. None: only the
    driver writes."""

    def position(self) -> Progress:
        """Return the last committed position; `Progress()` if the table does not exist."""
        raise NotImplementedError

    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Append rows (perhaps none) and store the progress, durably: both or neither."""
        raise NotImplementedError

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        """Return the identities of snapshot rows with tokens from `since` on. Slow, and rarely needed."""
        raise NotImplementedError

    def read(self) -> pa.Table:
        """Return all rows, in any order."""
        raise NotImplementedError

    def note(self, progress: Progress) -> None:
        """Store the progress durably, if the log can do that without rows. It must have rows."""

    def takes(self, schema: pa.Schema) -> bool:
        """Whether files of rows with these columns can be committed."""
        return self.location is not None

    def encoder(self) -> Encode | None:
        """Return the function, for tasks, that returns the source's rows as stored; None if they are stored unchanged.

        Call it only when `takes` is true.
        """
        return None

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        """Add files (perhaps none) of the location and store the progress, durably: both or neither."""
        raise NotImplementedError
