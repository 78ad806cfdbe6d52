"""Parquet files that tasks write into a log's folder, and that nobody reads until the driver commits them.

Each task returns statistics of its file. A file that is never committed is garbage: it is named after its batch, so
that the repeated batch can remove it, and no two attempts write the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.spark.tables.batch_stats import (
    BatchStats,
    InvalidatingEvent,
    batch_stats,
    merged_stats,
    without_seen_events,
)
from headrace.spark.tables.slots import Slots
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.written_file import OpenFile, WrittenFile

# The columns by which readers of a log pass over whole files.
_BOUNDED: Final = ("token", "clusterTime")


Convert = Callable[[pa.Table], tuple[pa.Table, int]]
"""Gives rows as the table stores them, and how many values are in the rest. Raises `ColumnsNeeded`."""


class ColumnsNeeded(Exception):
    """A document needs columns that the table has not yet."""


class FilesNotShared(RuntimeError):
    """The error when the driver cannot see what a worker wrote: the path is not one that both share."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The files that tasks wrote of a batch: of `seen_count` rows those that `stats` describe are in them."""

    seen_count: int
    stats: BatchStats
    files: tuple[WrittenFile, ...] = ()
    rest_count: int = 0
    """Values that are in the rest of typed documents."""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> StagedBatch:
        """Parse the text of a batch (`text`)."""
        given = json.loads(text)
        stats = given["stats"]
        event = stats["invalidated"] and InvalidatingEvent(**stats["invalidated"])
        around = {name: tuple(stats[name]) for name in ("begins", "ends")}
        files = tuple(WrittenFile(**file | {"slots": tuple(file["slots"])}) for file in given["files"])
        return cls(given["seen_count"], BatchStats(**stats | around | {"invalidated": event}), files)


def staged_prefix(query: str, number: int) -> str:
    """The beginning of the names of all files of a batch."""
    return f"part-{query or 'none'}-{number}-"


class StagingWriter:
    """Writes the rows that are not events up to `token`, as they come; makes no file when there are none.

    With `slots` the rows of each batch are divided into row groups.
    """

    def __init__(
        self, location: TableLocation, name: str, schema: pa.Schema, token: str, slots: Slots | None = None,
        convert: Convert | None = None,
    ) -> None:  # fmt: skip
        self._slots, self._convert, self._schema, self._token = slots, convert, schema, token
        self._rest_count = 0
        self._groups: list[int] = []
        self._seen_count = 0
        self._stats = BatchStats()
        packing = {"compression": "lz4", "use_dictionary": False} if slots else {}
        self._file = OpenFile(location, name, _BOUNDED, **packing)

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds the new rows of the batch. Raises what `convert` raises."""
        self._seen_count += batch.num_rows
        rows = without_seen_events(pa.Table.from_batches([batch]).cast(self._schema), self._token)
        if not rows.num_rows:
            return
        stored = rows
        if self._convert is not None:
            stored, rest_count = self._convert(rows)
            self._rest_count += rest_count
        if self._slots:
            for slot, some in self._slots.divided(rows):
                self._file.write(some)
                self._groups.append(slot)
        else:
            self._file.write(stored)
        self._stats = merged_stats((self._stats, batch_stats(rows)))

    def close(self) -> StagedBatch:
        """Completes the file, which is durable when this returns."""
        file = self._file.close(slots=tuple(self._groups))
        return StagedBatch(self._seen_count, self._stats, (file,) if file else (), self._rest_count)

    def abandon(self) -> None:
        """Removes what a failed task has written."""
        self._file.abandon()


def write_staged(
    batches: Iterable[pa.RecordBatch], location: TableLocation, prefix: str, schema: pa.Schema, token: str = "",
    slots: Slots | None = None, convert: Convert | None = None,
) -> StagedBatch:  # fmt: skip
    """Writes the rows, without events up to `token`, to a file whose name begins with `prefix`, divided into `slots`,
    or as `convert` gives them.

    Raises FilesNotShared if the driver, which made the folder, has another one, and what `convert` raises.
    """
    if not location.exists():
        raise FilesNotShared(not_shared_message(location))
    writer = StagingWriter(location, f"{prefix}{uuid4()}.parquet", schema, token, slots, convert)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def without_seen_files(
    staged: StagedBatch, location: TableLocation, prefix: str, schema: pa.Schema, token: str
) -> StagedBatch:
    """The batch in files without events up to `token`, written anew, a row group at a time, if it has any such events.

    For files whose writer did not know the token.
    """
    if not staged.stats.event_count or staged.stats.first > token:
        return staged
    batches = []
    for file in staged.files:
        with pq.ParquetFile(file.name, filesystem=location.files) as opened:
            batches.append(write_staged(opened.iter_batches(), location, prefix, schema, token))
        location.remove_file(file.name)
    return replace(merged_batches(batches, location), seen_count=staged.seen_count)


def merged_batches(batches: Sequence[StagedBatch], location: TableLocation, *, exact: bool = True) -> StagedBatch:
    """Return the files of all tasks as one batch. Raises FilesNotShared.

    `exact`: where ranges overlap, read the tokens to find out whether events are distinct. Otherwise they count as not.
    """
    files = tuple(file for batch in batches for file in batch.files)
    for file in files:
        if location.size(file.name) != file.size:
            raise FilesNotShared(not_shared_message(location))
    stats = merged_stats(batch.stats for batch in batches)
    if exact and not stats.distinct:
        # The ranges overlap, as slices of one range do: whether events are distinct, only their tokens show.
        result = batch_stats(read_staged(files, location, names=("token", "operationType")))
        stats = replace(stats, distinct=result.distinct)
    rest_count = sum(batch.rest_count for batch in batches)
    return StagedBatch(sum(batch.seen_count for batch in batches), stats, files, rest_count)


def not_shared_message(location: TableLocation) -> str:
    """The message for a path that workers can write to, and the driver does not see."""
    return (
        f"driver and workers do not both see {location}: the path of this sink must be on storage that all machines "
        "share, or in an object store, or the sink must have the option writers = 'driver'"
    )


def read_staged(files: Sequence[WrittenFile], location: TableLocation, names: Sequence[str] | None = None) -> pa.Table:
    """The rows of the files, in the files' order; of the columns in `names` those that exist."""
    tables = []
    for file in files:
        with pq.ParquetFile(file.name, filesystem=location.files) as opened:
            has = opened.schema_arrow.names
            tables.append(opened.read(columns=None if names is None else [name for name in names if name in has]))
    return pa.concat_tables(tables)


def remove_files(location: TableLocation, prefix: str, *, but: Sequence[WrittenFile] = ()) -> None:
    """Removes the batch's files, including those of earlier attempts, except `but`, which are committed."""
    committed = {file.name for file in but}
    for name in location.names():
        if name.startswith(prefix) and name.endswith(".parquet") and name not in committed:
            location.remove_file(name)
