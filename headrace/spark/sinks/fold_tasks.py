"""Spark's tasks fold a large batch of a mirror or a history. The driver commits the files that they wrote.

The rows come in files, divided into slots by the document's key (`tables/document_files.py`). The task of a slot reads
the rows of its slot and the stored rows of their documents. It folds them as the driver would, and rewrites each file
of the table that holds one of these documents. If a file belongs to several slots and any of them has a row for it,
each of their tasks writes a new file with its own rows.

So the driver sees no row, and its work does not grow with their number.

Rule: what a task returns says nothing of another slot. So the driver folds a batch with a row about more than one
document: a drop, or the beginning or end of a snapshot. It also folds a batch of which a task cannot be sure: an event
does not fit, a key of another type moves a document to another slot, or documents need other typed columns than the
table has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, Row
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.table_sink import run_tasks
from headrace.spark.tables.delta_files import WrittenFile
from headrace.spark.tables.document_files import DocumentFile, DocumentFiles
from headrace.spark.tables.fold import MirrorDiverged, MirrorState, document_keys, fold, key_of, keys_to_read
from headrace.spark.tables.history_table import (
    VersionChanges,
    table_of,
    version_texts,
    versions_by_key,
    without_versions,
)
from headrace.spark.tables.mirror_table import stored_rows
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.staged_files import read_staged
from headrace.spark.tables.typed.table_schema import SchemaChange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """The new and changed rows of a slot, and the token that its events reach."""

    token: str
    event_count: int
    rows: pa.Table
    remaining: Callable[[pa.Table], pa.Table]
    """Returns the stored rows that stay unchanged."""


Stored = Callable[[Iterable[str]], pa.Table]
"""Returns the stored rows with these keys, with documents as text."""
Fold = Callable[[list[Row], Stored, str], FoldedRows]
"""Folds rows of some documents into stored rows. Names of stored columns begin with the text. Raises MirrorDiverged."""


def mirror_folded(state: MirrorState, rows: list[Row], stored: Stored, prefix: str) -> FoldedRows:
    """Fold rows into a mirror in this state, as `tables/fold.py` does; see `Fold`."""
    changes = fold(rows, state, stored_rows(stored(keys_to_read(rows))))
    remaining = partial(changes.remaining, prefix=prefix)
    return FoldedRows(changes.state.token, changes.event_count, changes.rows(), remaining)


def history_folded(progress: Progress, policy: str, rows: list[Row], stored: Stored, prefix: str) -> FoldedRows:
    """Fold rows into a history, as `tables/history_table.py` does; see `Fold`."""
    current = versions_by_key(stored(document_keys(rows)).filter(pc.field("until").is_null()), None)
    changes = VersionChanges(progress, current, lambda _: {}, policy)
    for row in rows:
        changes.take(row)
    new = table_of(changes.changed.values())
    remaining = partial(without_versions, changing=version_texts(new, ""), prefix=prefix)
    return FoldedRows(changes.progress.token, changes.event_count, new, remaining)


@dataclass(frozen=True, slots=True)
class FoldedSlot:
    """The result of a slot's task: the files written, the table's files that they replace, and the token reached."""

    slot: int
    token: str = ""
    event_count: int = 0
    rest_count: int = 0
    added: tuple[WrittenFile, ...] = ()
    removed: tuple[str, ...] = ()

    def with_bucket(self, other: FoldedSlot) -> FoldedSlot:
        """Return the slot with the result of another of its buckets added."""
        return FoldedSlot(
            self.slot, max(self.token, other.token), self.event_count + other.event_count,
            self.rest_count + other.rest_count, self.added + other.added, self.removed + other.removed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoldTask:
    """The input of a batch's tasks: the files of rows, the files of the table, how to fold, and the omitted fields."""

    table: DocumentFiles
    staged: Sequence[WrittenFile]
    fold: Fold
    omit: Mask | None

    def run(self, spark: SparkSession) -> list[FoldedSlot] | None:
        """Return the result of each slot's task; None if the driver must fold the batch, and then no files are left."""
        folded = run_tasks(spark, self.table.slots.count, self.folded)
        done = [each for each in folded if each is not None]
        if len(done) == len(folded):
            return done
        self._remove(done)
        return None

    def _remove(self, folded: Iterable[FoldedSlot]) -> None:
        for file in (file for each in folded for file in each.added):
            self.table.location.remove_file(file.name)

    def folded(self, slot: int) -> FoldedSlot | None:
        """Fold the rows of the slot; return None if the driver must fold them."""
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
        return result

    def _rows(self, slot: int) -> dict[int, list[Row]]:
        """Return the rows of the slot by bucket, in order."""
        pieces = []
        for file in self.staged:
            groups = [number for number, group in enumerate(file.slots) if group == slot]
            if groups:
                with pq.ParquetFile(file.name, filesystem=self.table.location.files) as opened:
                    pieces.append(opened.read_row_groups(groups))
        rows = self._masked(pieces)
        slots, buckets = self.table.slots, dict[int, list[Row]]()
        for row in rows:
            about_one = row.operationType in DOCUMENT_OPERATIONS
            buckets.setdefault(slots.bucket(key_of(row)) if about_one else 0, []).append(row)
        return buckets

    def _masked(self, pieces: Sequence[pa.Table]) -> list[Row]:
        """Return the rows in order, without the fields that the table omits."""
        return MicroBatch("", 0, pa.concat_tables(pieces)).masked(self.omit).rows() if pieces else []

    def _touched(self, slot: int, bucket: int, rows: list[Row]) -> list[DocumentFile]:
        """Return the files that the slot's task rewrites. For a shared file, all tasks decide the same."""
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
        result = self.fold(rows, partial(table.decoded, old), table.codec.prefix)
        if any(table.slots.bucket(key) != bucket for key in result.rows.column("_id").to_pylist()):
            return None
        encoded = table.codec.encoded(table.slots.bucketed(result.rows), table.columns)
        if encoded.change is not SchemaChange.NONE:
            return None
        new = encoded.table.select(old.column_names).cast(old.schema)
        written = table.write(slot, pa.concat_tables([result.remaining(old), new]))
        removed = tuple(file.name for file in touched)
        return FoldedSlot(slot, result.token, result.event_count, encoded.rest_count, written, removed)


def is_cluster(spark: Any) -> bool:
    """Whether tasks run outside the driver's process. In one process the driver folds with half the work."""
    context = getattr(spark, "sparkContext", None)
    return context is None or not (context.master == "local" or context.master.startswith("local["))
