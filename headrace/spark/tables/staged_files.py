"""Parquet files that tasks write into a table's folder; no reader sees them until the driver commits them.

Tasks write rows to be appended or folded, and rewrite the files of a mirror or a history (`DocumentFiles`).

Each task returns statistics of its file. A file that is never committed is garbage. It is named after its batch, so the
repeated batch can remove it, and no two attempts write the same file.

A worker may write its rows while it reads them from the source. Spark then gets one row for each file (`STAGED`), which
has the source's columns and an operation type that no event has. So the rows pass neither through Spark's JVM nor
through a second worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.rows.events import INVALIDATING, SERVER, SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_KINDS, Row
from headrace.spark.rows.key_identity import key_identity, server_key
from headrace.spark.tables.delta_files import FileWriter, OpenFile, StoredFile, WrittenFile, read_file
from headrace.spark.tables.document_codec import DocumentCodec, EncodedRows
from headrace.spark.tables.fold import key_text
from headrace.spark.tables.progress import Progress, Sieve
from headrace.spark.tables.table_location import TableLocation, location_of
from headrace.spark.tables.typed.table_schema import SchemaChange


@dataclass(frozen=True, slots=True)
class DocumentFile(StoredFile):
    """A file of the table. `shared`: it may have rows of several slots."""

    owner: int
    """The bucket, or the slot in a table without buckets."""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class DocumentFiles:
    """Files of a table, with what a task needs to read and to write them.

    `rows` is the schema of the rows with documents as text; `commit` is the metadata that defines the documents'
    columns.
    """

    location: TableLocation
    slots: Slots
    files: tuple[DocumentFile, ...]
    codec: DocumentCodec
    rows: pa.Schema
    partitions: Sequence[pa.Field]
    commit: Mapping[str, str]

    @property
    def columns(self) -> Any:
        """The columns of the documents, see `DocumentCodec`."""
        return self.codec.columns(self.commit)

    @property
    def stored(self) -> pa.Schema:
        """The schema of the rows as they are stored, with the partition columns."""
        names = {field.name for field in self.partitions}
        in_files = self.codec.in_files(self.rows, self.columns)
        return pa.schema([*(field for field in in_files if field.name not in names), *self.partitions])

    def files_of(self, slot: int, bucket: int) -> list[DocumentFile]:
        """Return the files that may have rows of the slot, or of the bucket in a table with buckets."""
        owner = bucket if self.slots.buckets else slot
        return [file for file in self.files if file.shared or file.owner == owner]

    def is_touched(self, file: DocumentFile, keys: pa.Array) -> bool:
        """Whether the file must be rewritten: it has a row with one of the keys.

        `keys` are the slot's keys. For a shared file, which all slots then rewrite, they are the keys of the batch.
        """
        schema = pa.schema([pa.field(self.codec.name("_id"), pa.string())])
        some = read_file(self.location, file, schema)
        return any(pc.any(pc.is_in(rows.column(0), keys)).as_py() for rows in some)

    def read(self, file: DocumentFile, slot: int) -> pa.Table:
        """Return the slot's rows in the file, as they are stored."""
        rows = pa.concat_tables([self.stored.empty_table(), *read_file(self.location, file, self.stored)])
        if not file.shared:
            return rows
        slots = [self.slots.slot(key) for key in rows.column(self.codec.name("_id")).to_pylist()]
        return rows.filter(pc.equal(pa.array(slots, pa.int32()), slot))

    def decoded(self, stored: pa.Table, keys: Iterable[str]) -> pa.Table:
        """Return the rows with these keys, with documents as text."""
        wanted = pc.is_in(stored.column(self.codec.name("_id")), pa.array(keys, pa.string()))
        return self.codec.decoded(stored.filter(wanted), self.rows, self.columns)

    def write(self, slot: int, stored: pa.Table) -> tuple[WrittenFile, ...]:
        """Write the rows of a slot to new files, one for each partition."""
        names = [field.name for field in self.partitions]
        writer = FileWriter(self.location, names, lambda: self.slots.file_name(slot))
        writer.write(stored)
        return writer.finish()


BUCKET: Final = "bucket"
_NAME: Final = re.compile(r"part-slot-(\d+)-of-(\d+)-[0-9a-f-]+\.parquet")


@dataclass(frozen=True, slots=True)
class Slots:
    """`count` slots of a table with `buckets` buckets (0: no buckets).

    Slots divide a batch's rows and a mirror's files by the document's key, so that one task folds one slot. In a table
    with buckets a slot has whole buckets; otherwise the slot is a hash of the key. The name of a file that a task wrote
    contains its slot. Any other file of a table without buckets may have rows of every slot.
    """

    count: int
    buckets: int = 0

    @classmethod
    def of(cls, text: str) -> Slots | None:
        """Return the slots from the text that `text` returned; None for an empty text."""
        return cls(*map(int, text.split("/"))) if text else None

    def text(self) -> str:
        """Return the slots as an option of the source."""
        return f"{self.count}/{self.buckets}"

    def bucket(self, key: str) -> int:
        """Return the bucket of a document by the text of its `_id`; 0 in a table without buckets."""
        return crc32(key.encode()) % self.buckets if self.buckets else 0

    def slot(self, key: str) -> int:
        """Return the slot of a document by the text of its `_id`."""
        number = self.bucket(key) if self.buckets else crc32(key_identity(key).encode())
        return number % self.count

    def divided(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the slots that have rows, with their rows. Rows about no document are in slot 0."""
        keys = rows.column("documentKey").to_pylist()
        slots = pa.array([0 if key is None else self.slot(key_text(key)) for key in keys], pa.int32())
        for slot in range(self.count):
            some = rows.filter(pa.compute.equal(slots, slot))
            if some.num_rows:
                yield slot, some

    def bucketed(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        """Return the rows with a column of their buckets, if the table has any. Column names begin with `prefix`."""
        if not self.buckets:
            return rows
        keys, server = rows.column("_key" if prefix else "_id").to_pylist(), f"{prefix}{SERVER}"
        if server in rows.column_names:
            keys = list(map(server_key, rows.column(server).to_pylist(), keys))
        numbers = pa.array([self.bucket(key) for key in keys], pa.int32())
        return rows.append_column(pa.field(f"{prefix}{BUCKET}", pa.int32(), nullable=False), numbers)

    def file_name(self, slot: int) -> str:
        """Return a new name for a file of the slot."""
        return f"part-slot-{slot}-of-{self.count}-{uuid4()}.parquet"

    def slot_of_file(self, name: str) -> int | None:
        """Return the only slot that has rows in a file of a table without buckets; None if several may have."""
        named = _NAME.fullmatch(name)
        return int(named[1]) if named and int(named[2]) == self.count else None


# The columns whose statistics let readers of a log skip whole files.
_BOUNDED: Final = ("token", "clusterTime")
Encode = Callable[[pa.Table], EncodedRows]
"""Returns rows as the table stores them."""


class FilesNotShared(RuntimeError):
    """The driver does not see the files that a worker wrote: driver and workers do not share the path."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The files that tasks wrote of a batch. `seen_count` counts the rows that the tasks read; `stats` describes the
    rows in the files."""

    seen_count: int
    stats: BatchStats
    files: tuple[WrittenFile, ...] = ()
    rest_count: int = 0
    """The number of values in the rest of typed documents."""

    def text(self) -> str:
        """Return the batch as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> StagedBatch:
        """Return the batch from the text that `text` returned."""
        given = json.loads(text)
        stats = given["stats"]
        event = stats["invalidated"] and InvalidatingEvent(**stats["invalidated"])
        around = {name: tuple(stats[name]) for name in ("begins", "ends")}
        files = tuple(WrittenFile(**file | {"slots": tuple(file["slots"])}) for file in given["files"])
        return cls(given["seen_count"], BatchStats(**stats | around | {"invalidated": event}), files)


def staged_prefix(query: str, number: int) -> str:
    """Return the prefix of the names of all files of a batch."""
    return f"part-{query or 'none'}-{number}-"


class StagingWriter:
    """Writes rows as they come, without the events up to `token`. Makes no file if there are no rows.

    With `slots` the rows of each batch are divided into row groups.
    """

    def __init__(
        self, location: TableLocation, name: str, schema: pa.Schema, token: str, slots: Slots | None = None
    ) -> None:
        self._slots, self._schema, self._token = slots, schema, token
        self._groups: list[int] = []
        self._seen_count = 0
        self._stats = BatchStats()
        packing = {"compression": "lz4", "use_dictionary": False} if slots else {}
        self._file = OpenFile(location, name, _BOUNDED, **packing)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the new rows of the batch."""
        self._seen_count += batch.num_rows
        rows = without_seen_events(pa.Table.from_batches([batch]).cast(self._schema), self._token)
        if not rows.num_rows:
            return
        if self._slots:
            for slot, some in self._slots.divided(rows):
                self._file.write(some)
                self._groups.append(slot)
        else:
            self._file.write(rows)
        self._stats = merged_stats((self._stats, batch_stats(rows)))

    def close(self) -> StagedBatch:
        """Complete the file and make it durable."""
        file = self._file.close(slots=tuple(self._groups))
        return StagedBatch(self._seen_count, self._stats, (file,) if file else ())

    def abandon(self) -> None:
        """Remove the file of a failed task."""
        self._file.abandon()


def write_staged(
    batches: Iterable[pa.RecordBatch], location: TableLocation, prefix: str, schema: pa.Schema, token: str = "",
    slots: Slots | None = None,
) -> StagedBatch:  # fmt: skip
    """Write the rows, without events up to `token`, to a file whose name begins with `prefix`, divided into `slots`.

    Raise FilesNotShared if the folder that the driver made is missing here.
    """
    if not location.exists():
        raise FilesNotShared(not_shared_message(location))
    writer = StagingWriter(location, f"{prefix}{uuid4()}.parquet", schema, token, slots)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def row_groups(files: Sequence[WrittenFile], location: TableLocation) -> list[tuple[str, int]]:
    """Return the row groups of the files: the file's name, and the group's number in it."""
    groups = []
    for file in files:
        with pq.ParquetFile(file.name, filesystem=location.files) as opened:
            groups += [(file.name, number) for number in range(opened.num_row_groups)]
    return groups


def write_encoded(
    groups: Iterable[tuple[str, int]], location: TableLocation, prefix: str, encode: Encode
) -> StagedBatch | None:
    """Write the rows of these row groups, as `encode` returns them, to a file whose name begins with `prefix`.

    The result counts no rows and has no statistics of them. Return None if a document needs columns that the table
    lacks.
    """
    made, rest_count = OpenFile(location, f"{prefix}{uuid4()}.parquet", _BOUNDED), 0
    try:
        for name, number in groups:
            with pq.ParquetFile(name, filesystem=location.files) as opened:
                rows = encode(opened.read_row_group(number))
            if rows.change is not SchemaChange.NONE:
                made.abandon()
                return None
            made.write(rows.table)
            rest_count += rows.rest_count
        file = made.close()
        return StagedBatch(0, BatchStats(), (file,) if file else (), rest_count)
    except BaseException:
        made.abandon()
        raise


def without_seen_files(
    staged: StagedBatch, location: TableLocation, prefix: str, schema: pa.Schema, token: str
) -> StagedBatch:
    """Return the batch without events up to `token`; if it has any, rewrite its files, a row group at a time.

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
    """Return the files of all tasks as one batch. Raise FilesNotShared.

    `exact`: where ranges of tokens overlap, read the tokens to find out whether events are distinct; otherwise assume
    that they are not.
    """
    files = tuple(file for batch in batches for file in batch.files)
    for file in files:
        if location.size(file.name) != file.size:
            raise FilesNotShared(not_shared_message(location))
    stats = merged_stats(batch.stats for batch in batches)
    if exact and not stats.distinct:
        # The ranges overlap, as slices of one range do. Only the tokens show whether the events are distinct.
        result = batch_stats(read_staged(files, location, names=("token", "operationType")))
        stats = replace(stats, distinct=result.distinct)
    rest_count = sum(batch.rest_count for batch in batches)
    return StagedBatch(sum(batch.seen_count for batch in batches), stats, files, rest_count)


def not_shared_message(location: TableLocation) -> str:
    """Return the message for a path that workers can write to but the driver does not see."""
    return (
        f"driver and workers do not both see {location}: the path of this sink must be on storage that all machines "
        "share, or in an object store, or the sink must have the option writers = 'driver'"
    )


def read_staged(files: Sequence[WrittenFile], location: TableLocation, names: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of the files, in the files' order; of the columns in `names` only existing ones."""
    tables = []
    for file in files:
        with pq.ParquetFile(file.name, filesystem=location.files) as opened:
            has = opened.schema_arrow.names
            tables.append(opened.read(columns=None if names is None else [name for name in names if name in has]))
    return pa.concat_tables(tables)


def remove_files(location: TableLocation, prefix: str, *, but: Sequence[WrittenFile] = ()) -> None:
    """Remove the batch's files, including those of earlier attempts, except the committed files `but`."""
    committed = {file.name for file in but}
    for name in location.names():
        if name.startswith(prefix) and name.endswith(".parquet") and name not in committed:
            location.remove_file(name)


STAGED: Final = "headraceStaged"
_NEEDED: Final = frozenset({"token", "operationType", "other"})


def batch_prefix(columns: Iterable[str]) -> str:
    """Return the prefix of the files of this task's micro-batch; empty if rows cannot be staged.

    Rows cannot be staged outside a task of a query (where a small batch is planned), or without the needed columns.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    batch = task.getLocalProperty("streaming.sql.batchId") if task else None
    if not query or not batch or not set(columns) >= _NEEDED:
        return ""
    return staged_prefix(query, int(batch))


def staged_row(
    batches: Iterable[pa.RecordBatch], folder: str, prefix: str, schema: pa.Schema, slots: str = ""
) -> pa.RecordBatch:
    """Write the rows to a file in the folder. Return a batch with the one row that names the file. Raise
    FilesNotShared."""
    staged = write_staged(batches, location_of(folder), prefix, schema, slots=Slots.of(slots))
    row: dict[str, Any] = {"token": staged.stats.last, "operationType": STAGED, "other": staged.text()}
    return pa.RecordBatch.from_pylist([row], schema=schema)


def staged_batches(table: pa.Table, prefix: str) -> list[StagedBatch] | None:
    """Return the files that the rows of a micro-batch name; None if the rows were not staged."""
    if not table.num_rows or not set(table.column_names) >= _NEEDED:
        return None
    if set(table.column("operationType").to_pylist()) != {STAGED}:
        return None
    batches = [StagedBatch.of(text) for text in table.column("other").to_pylist()]
    foreign = [file.name for batch in batches for file in batch.files if not file.name.startswith(prefix)]
    if foreign:
        raise ValueError(f"{foreign[0]} is no file of this micro-batch")
    return batches


@dataclass(frozen=True, slots=True)
class InvalidatingEvent:
    """An event after which the collection is gone or replaced."""

    token: str
    description: str


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Statistics of a batch that show, without checking each row, that all its rows are new to a log.

    Most batches are new: events after the last one, or a snapshot that is read for the first time. The progress then
    follows from the statistics, which tasks compute and the driver merges. For any other batch `progress_after` returns
    None, and `progress.Sieve`, which has the whole rule, checks each row.

    `first` and `last` bound the tokens of the events. `distinct`: no two events are known to have the same token.

    `begins` and `ends` are the tokens of the few rows around snapshots.
    """

    row_count: int = 0
    event_count: int = 0
    first: str = ""
    last: str = ""
    distinct: bool = True
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    invalidated: InvalidatingEvent | None = None
    first_event_ms: int | None = None


def without_seen_events(rows: pa.Table, token: str) -> pa.Table:
    """Return the rows without the events up to `token`: a log at that token has them."""
    old = pc.less_equal(rows["token"].cast(pa.string()), token)
    if not pc.any(old).as_py():
        return rows
    return rows.filter(pc.or_(pc.invert(old), _is_snapshot(rows)))


def batch_stats(rows: pa.Table) -> BatchStats:
    """Return the statistics of the rows, which may be in any order."""
    if not rows.num_rows:
        return BatchStats()
    snapshots = _is_snapshot(rows)
    around = rows.filter(snapshots) if pc.any(snapshots).as_py() else rows.slice(0, 0)
    tokens = rows["token"] if not around.num_rows else rows.filter(pc.invert(snapshots))["token"]
    bounds = pc.min_max(tokens).as_py()
    return BatchStats(
        row_count=rows.num_rows,
        event_count=len(tokens),
        first=bounds["min"] or "",
        last=bounds["max"] or "",
        distinct=_distinct(tokens),
        begins=_tokens_of(around, SNAPSHOT_BEGIN),
        ends=_tokens_of(around, SNAPSHOT_END),
        invalidated=_first_invalidating(rows),
        first_event_ms=_first_ms(rows),
    )


def merged_stats(all_stats: Iterable[BatchStats]) -> BatchStats:
    """Return the statistics of all rows together. Where ranges of events overlap, `distinct` is False."""
    each = [stats for stats in all_stats if stats.row_count]
    events = sorted((stats for stats in each if stats.event_count), key=lambda stats: stats.first)
    apart = all(before.last < progress_after.first for before, progress_after in pairwise(events))
    return BatchStats(
        row_count=sum(stats.row_count for stats in each),
        event_count=sum(stats.event_count for stats in each),
        first=min((stats.first for stats in events), default=""),
        last=max((stats.last for stats in events), default=""),
        distinct=apart and all(stats.distinct for stats in events),
        begins=tuple(token for stats in each for token in stats.begins),
        ends=tuple(token for stats in each for token in stats.ends),
        invalidated=min(
            (stats.invalidated for stats in each if stats.invalidated),
            key=lambda invalidated: invalidated.token,
            default=None,
        ),
        first_event_ms=min((ms for stats in each if (ms := stats.first_event_ms) is not None), default=None),
    )


def progress_after(progress: Progress, stats: BatchStats) -> Progress | None:
    """Return the progress after the rows if all of them are new; None if the statistics do not show that.

    The result is the sieve's: no snapshot repeats, and each begins later than the last. Return None if an event shares
    its token with the begin or end of a snapshot, because then their order matters.
    """
    if not stats.row_count:
        return progress
    begins, ends = set(stats.begins), set(stats.ends)
    clear = not progress.again and len(begins) == len(stats.begins) and not begins & ends
    if not clear or any(token <= progress.begun for token in begins):
        return None
    if stats.event_count and (not stats.distinct or stats.first <= progress.token):
        return None
    # Whether an event with the token of a beginning is new depends on their order.
    if stats.event_count and any(stats.first <= token <= stats.last for token in begins):
        return None
    sieve = Sieve(progress)
    for token, kind in sorted(
        [(token, SNAPSHOT_BEGIN) for token in begins] + [(token, SNAPSHOT_END) for token in ends]
    ):
        sieve.is_new(Row(token, operationType=kind))
    return replace(sieve.progress, token=max(sieve.progress.token, stats.last))


def _is_snapshot(rows: pa.Table) -> pa.ChunkedArray:
    if "operationType" not in rows.column_names:
        return pa.chunked_array([pa.array([False] * rows.num_rows, pa.bool_())])
    return pc.is_in(rows["operationType"], pa.array(SNAPSHOT_KINDS, rows["operationType"].type))


def _distinct(tokens: pa.ChunkedArray) -> bool:
    before, behind = tokens.slice(0, max(len(tokens) - 1, 0)), tokens.slice(1)
    rising = pc.all(pc.less(before, behind), min_count=0).as_py()
    return bool(rising) or bool(pc.count_distinct(tokens).as_py() == len(tokens))


def _tokens_of(rows: pa.Table, kind: str) -> tuple[str, ...]:
    return tuple(rows.filter(pc.equal(rows["operationType"], kind))["token"].to_pylist()) if rows.num_rows else ()


def _first_invalidating(rows: pa.Table) -> InvalidatingEvent | None:
    if "operationType" not in rows.column_names:
        return None
    kinds = rows["operationType"]
    invalidating = pc.is_in(kinds, pa.array(sorted(INVALIDATING), kinds.type))
    if not pc.any(invalidating).as_py():
        return None
    first = rows.filter(invalidating).sort_by("token").slice(0, 1).to_pylist()[0]
    name = f"{first.get('database')}.{first.get('collection')}"
    return InvalidatingEvent(first["token"], f"{first['operationType']} of {name} at {first['token']}")


def _first_ms(rows: pa.Table) -> int | None:
    if "wallTime" not in rows.column_names:
        return None
    moment = pc.min(rows["wallTime"]).as_py()
    return None if moment is None else round(moment.timestamp() * 1000)
