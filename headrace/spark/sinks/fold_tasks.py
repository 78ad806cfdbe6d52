"""A large batch of a mirror or a history, folded by Spark's tasks: the driver commits the files that they wrote.

The rows come in files, divided into slots by the document's key (`tables/slots.py`). The task of a slot reads its rows
and what the table has of their documents, folds them as the driver would, and writes each file of the table anew that
has one of them. A file of several slots is written anew by all of them, each its own rows, if it has a row of any.

Where documents need columns that a typed table has not yet, tasks say which, the driver adds all of them, and these
tasks run again. Where a column's type is to be another, all tasks run again and write all files anew. So the driver
sees no row, and its work does not grow with them.

Rule: what a task returns says nothing of another slot. So a batch with a row that is about more than one document (a
drop, the beginning or the end of a snapshot) is folded in the driver, and so is one of which a task cannot be sure: an
event that does not fit, or a document that comes to another slot by a key of another type.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import Row
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.document_files import DocumentFile, DocumentFiles
from headrace.spark.tables.fold import (
    DOCUMENT_OPERATIONS,
    MirrorDiverged,
    MirrorState,
    document_keys,
    fold,
    key_of,
    keys_to_read,
)  # fmt: skip
from headrace.spark.tables.history_table import table_of, version_texts, versions_by_key, without_versions
from headrace.spark.tables.mirror_table import stored_rows, upserted
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.staged_files import read_staged
from headrace.spark.tables.typed.table_schema import SchemaChange
from headrace.spark.tables.versions import VersionChanges
from headrace.spark.tables.written_file import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """The new and changed rows of a slot, and how far its events go."""

    token: str
    event_count: int
    rows: pa.Table
    remaining: Callable[[pa.Table], pa.Table]
    """Gives those of the stored rows that stay as they are."""


class Fold(Protocol):
    """The folding of rows of some documents into a table's rows."""

    def keys(self, rows: list[Row]) -> set[str]:
        """The keys whose rows it needs."""

    def folded(self, rows: list[Row], existing: pa.Table, prefix: str) -> FoldedRows:
        """The rows folded into those that exist. Raises MirrorDiverged. Stored columns' names begin with `prefix`."""


@dataclass(frozen=True, slots=True)
class MirrorFold:
    """See `Fold`; as `tables/fold.py` does it."""

    state: MirrorState

    def keys(self, rows: list[Row]) -> set[str]:
        return keys_to_read(rows)

    def folded(self, rows: list[Row], existing: pa.Table, prefix: str) -> FoldedRows:
        changes = fold(rows, self.state, stored_rows(existing))
        return FoldedRows(
            changes.state.token, changes.event_count, upserted(changes), lambda old: changes.remaining(old, prefix)
        )


@dataclass(frozen=True, slots=True)
class HistoryFold:
    """See `Fold`; as `tables/versions.py` does it."""

    progress: Progress
    policy: str

    def keys(self, rows: list[Row]) -> set[str]:
        return document_keys(rows)

    def folded(self, rows: list[Row], existing: pa.Table, prefix: str) -> FoldedRows:
        current = versions_by_key(existing.filter(pc.field("until").is_null()), None)
        changes = VersionChanges(self.progress, current, lambda _: {}, self.policy)
        for row in rows:
            changes.take(row)
        new = table_of(changes.changed.values())
        changing = version_texts(new, "")

        def remaining(old: pa.Table) -> pa.Table:
            return without_versions(old, changing, prefix)

        return FoldedRows(changes.progress.token, changes.event_count, new, remaining)


@dataclass(frozen=True, slots=True)
class FoldedSlot:
    """The files that a slot's task has written, those of the table that they replace, and how far its events go."""

    slot: int
    token: str = ""
    event_count: int = 0
    rest_count: int = 0
    added: tuple[WrittenFile, ...] = ()
    removed: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    """Schemas that typed documents need; then there are no files."""

    def with_bucket(self, other: FoldedSlot) -> FoldedSlot:
        """The slot with another of its buckets."""
        return FoldedSlot(
            self.slot, max(self.token, other.token), self.event_count + other.event_count,
            self.rest_count + other.rest_count, self.added + other.added, self.removed + other.removed,
            self.wanted + other.wanted,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoldTask:
    """The input of a batch's tasks: the files of the rows, the table's, how to fold, and the fields that it omits."""

    table: DocumentFiles
    staged: Sequence[WrittenFile]
    fold: Fold
    omit: Mask | None

    def run(self, spark: SparkSession, table: DeltaDocuments) -> tuple[DocumentFiles, list[FoldedSlot]] | None:
        """Return the table's files, and the result of each slot's task; None if the driver is to fold the batch.

        The table may have new columns in either case.
        """
        files: DocumentFiles | None = self.table
        folded = self._run(spark, range(self.table.slots.count))
        if folded and (wanted := [text for each in folded for text in each.wanted]):
            files = table.grown(self.table, wanted)
            done = [each for each in folded if not each.wanted and not (files and files.before is not None)]
            self._remove(each for each in folded if each not in done)
            slots = [each.slot for each in folded if each not in done]
            again = replace(self, table=files)._run(spark, slots) if files else None
            folded = done + again if again and not any(each.wanted for each in again) else None
            if folded is None:
                self._remove(done + (again or []))
        return (files, folded) if files and folded else None

    def _run(self, spark: SparkSession, slots: Sequence[int]) -> list[FoldedSlot] | None:
        """Return the result of each of these slots; None, without any files, if the driver is to fold them."""
        numbers = list(slots)

        def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    answer = pickle.dumps(self.folded(numbers[number]))
                    yield pa.record_batch({"folded": pa.array([answer], pa.binary())})

        tasks = spark.range(0, len(numbers), 1, len(numbers)).mapInArrow(answers, "folded BINARY")
        folded: list[FoldedSlot | None] = [pickle.loads(answer.folded) for answer in tasks.collect()]
        done = [each for each in folded if each is not None]
        if len(done) == len(folded):
            return done
        self._remove(done)
        return None

    def _remove(self, folded: Iterable[FoldedSlot]) -> None:
        for file in (file for each in folded for file in each.added):
            self.table.location.remove_file(file.name)

    def folded(self, slot: int) -> FoldedSlot | None:
        """Folds the rows of the slot; None if the driver is to do that."""
        result = FoldedSlot(slot)
        for bucket, rows in self._rows(slot).items():
            try:
                one = self._folded(slot, bucket, rows)
            except MirrorDiverged:
                one = None
            if one is None:
                self._remove([result])
                return None
            result = result.with_bucket(one)
        if result.wanted:
            self._remove([result])
            return FoldedSlot(slot, wanted=result.wanted)
        return result

    def _rows(self, slot: int) -> dict[int, list[Row]]:
        """The rows of the slot by their bucket, in order. A slot with files to write anew has a bucket in any case."""
        pieces = []
        for file in self.staged:
            groups = [number for number, group in enumerate(file.slots) if group == slot]
            if groups:
                with pq.ParquetFile(file.name, filesystem=self.table.location.files) as opened:
                    pieces.append(opened.read_row_groups(groups))
        rows = self._masked(pieces)
        slots = self.table.slots
        every = range(slot, slots.buckets, slots.count) if self.table.before is not None else ()
        buckets: dict[int, list[Row]] = {bucket: [] for bucket in (every if slots.buckets else (0,))}
        for row in rows:
            about_one = row.operationType in DOCUMENT_OPERATIONS
            buckets.setdefault(slots.bucket(key_of(row)) if about_one else 0, []).append(row)
        return buckets

    def _masked(self, pieces: Sequence[pa.Table]) -> list[Row]:
        """The rows, in order, without the fields that the table omits."""
        return MicroBatch("", 0, pa.concat_tables(pieces)).masked(self.omit).rows() if pieces else []

    def _touched(self, slot: int, bucket: int, rows: list[Row]) -> list[DocumentFile]:
        """The files that the slot's task writes anew; of shared ones each task finds the same."""
        table, keys = self.table, pa.array(document_keys(rows), pa.string())
        files = table.files_of(slot, bucket)
        every = pa.array([], pa.string())
        if any(file.shared for file in files):
            staged = [read_staged([file], table.location) for file in self.staged]
            every = pa.array(document_keys(self._masked(staged)), pa.string())
        return [file for file in files if table.is_touched(file, every if file.shared else keys)]

    def _folded(self, slot: int, bucket: int, rows: list[Row]) -> FoldedSlot | None:
        table = self.table
        touched = self._touched(slot, bucket, rows)
        old = pa.concat_tables([table.stored.empty_table(), *(table.read(file, slot) for file in touched)])
        result = self.fold.folded(rows, table.decoded(old, self.fold.keys(rows)), table.codec.prefix)
        if any(table.slots.bucket(key) != bucket for key in result.rows.column("_id").to_pylist()):
            return None
        encoded = table.codec.encoded(table.slots.bucketed(result.rows), table.columns)
        if encoded.change is not SchemaChange.NONE:
            return FoldedSlot(slot, wanted=tuple(encoded.metadata.values()))
        new = encoded.table.select(old.column_names).cast(old.schema)
        written = table.write(slot, pa.concat_tables([result.remaining(old), new]))
        rest = encoded.typed.rest_count if encoded.typed else 0
        return FoldedSlot(slot, result.token, result.event_count, rest, written, tuple(file.name for file in touched))


def is_cluster(spark: Any) -> bool:
    """Whether tasks run in other processes than Spark's driver. In one process the driver folds with half the work."""
    context = getattr(spark, "sparkContext", None)
    return context is None or not (context.master == "local" or context.master.startswith("local["))


def slot_count(spark: Any) -> int:
    """How many tasks fold a batch: as many as the cluster runs at once, within reason."""
    from headrace import limits

    context = getattr(spark, "sparkContext", None)
    return min(context.defaultParallelism, limits.FOLD_TASK_COUNT_MAX) if context else limits.FOLD_TASK_COUNT_MIN
