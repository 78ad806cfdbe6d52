"""A log of events: a table that only grows, with its progress stored in the commits of its rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.spark.tables.progress import Progress, RowIdentity
from headrace.spark.tables.staged_files import Convert
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.written_file import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa


class EventLog(Protocol):
    """An append-only table, with the progress in the commit of its rows. One writer at a time."""

    def progress(self) -> Progress:
        """As last committed; `Progress()` if there is no table yet."""

    def append(self, rows: pa.Table, progress: Progress) -> None:
        """Adds rows (there may be none) and stores the progress: both, durably, or neither."""

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        """Identities of the snapshots' rows with tokens from `since` on; slow, and rarely needed."""

    def read(self) -> pa.Table:
        """All rows, in no order."""


@runtime_checkable
class NotingLog(EventLog, Protocol):
    """A log that can store a progress without rows."""

    def note(self, progress: Progress) -> None:
        """Stores it, durably; called only once the log has rows."""


@runtime_checkable
class SharedLog(EventLog, Protocol):
    """A log whose files can be written by tasks, into its folder, before they are committed."""

    converts: bool
    """Whether files have the rows as `converter` gives them, instead of as the source does."""

    @property
    def location(self) -> TableLocation:
        """Where the files belong; it need not exist yet."""

    def takes(self, schema: pa.Schema) -> bool:
        """Whether files of rows with these columns can be committed."""

    def converter(self) -> Convert | None:
        """Return the function that makes stored rows of the source's; None: these are stored as they are. Call it once
        `takes` is true."""

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        """Adds files of the location (there may be none) and stores the progress: both, durably, or neither."""
