"""A log of events: a table that only grows. The commit of its rows also stores its progress."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.spark.tables.progress import Progress, RowIdentity
from headrace.spark.tables.staged_files import Encode
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.written_file import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class EventLog(Protocol):
    """An append-only table. The commit of its rows also stores the progress. It has one writer at a time."""

    def position(self) -> Progress:
        """Return the last committed position; `Progress()` if the table does not exist."""

    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Append rows (perhaps none) and store the progress, durably: both or neither."""

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        """Return the identities of snapshot rows with tokens from `since` on. Slow, and rarely needed."""

    def read(self) -> pa.Table:
        """Return all rows, in any order."""


@runtime_checkable
class NotingLog(EventLog, Protocol):
    """A log that can store a progress without rows."""

    def note(self, progress: Progress) -> None:
        """Store the progress durably. The log must have rows."""


@runtime_checkable
class SharedLog(EventLog, Protocol):
    """A log whose files tasks can write into its folder before the commit."""

    @property
    def location(self) -> TableLocation:
        """The folder of the files; it need not exist yet."""

    def takes(self, schema: pa.Schema) -> bool:
        """Whether files of rows with these columns can be committed."""

    def encoder(self) -> Encode | None:
        """Return the function, for tasks, that returns the source's rows as stored; None if they are stored unchanged.

        Call it only when `takes` is true.
        """

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        """Add files (perhaps none) of the location and store the progress, durably: both or neither."""
