"""A large batch of a mirror, folded by Spark's tasks: the driver commits the files that they wrote, and sees no row.

The rows come in files, divided into slots by the document's key (`tables/slots.py`). The task of a slot reads its rows
and what the table has of their documents, folds them as the driver would (`tables/fold.py`), and writes each file of
the table anew that has one of them. Files of several slots are written anew by all of them, each its own rows.

Rule: what a task returns says nothing of another slot. So a batch with a row that is about more than one document (a
drop, the beginning or the end of a snapshot) is folded in the driver, and so is one of which a task cannot be sure: an
event that does not fit, or a document that comes to another slot by a key of another type.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.masks.mask import Mask
from headrace.spark.rows.events import Row
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.tables.delta_files import WrittenFile, read_files, write_file
from headrace.spark.tables.delta_mirror import MirrorFiles
from headrace.spark.tables.fold import (
    DOCUMENT_OPERATIONS,
    MirrorChanges,
    MirrorDiverged,
    MirrorState,
    document_keys,
    fold,
    key_of,
    keys_to_read,
)  # fmt: skip
from headrace.spark.tables.mirror_table import stored_rows, upserted
from headrace.spark.tables.staged_files import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class FoldedSlot:
    """The files that a slot's task has written, those of the table that they replace, and how far its events go."""

    token: str = ""
    event_count: int = 0
    added: tuple[WrittenFile, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldTask:
    """The input of a batch's tasks: the files of the rows, the table's, its state, and the fields that it omits."""

    table: MirrorFiles
    staged: Sequence[StagedFile]
    state: MirrorState
    omit: Mask | None

    def run(self, spark: SparkSession) -> list[FoldedSlot] | None:
        """Return the result of each slot's task; None if the driver is to fold the batch."""
        count = self.table.slots.count
        answers = spark.range(0, count, 1, count).mapInArrow(self._answers, "folded BINARY").collect()
        folded: list[FoldedSlot | None] = [pickle.loads(answer.folded) for answer in answers]
        done = [each for each in folded if each is not None]
        if len(done) == len(folded):
            return done
        for file in (file for each in done for file in each.added):
            self.table.location.remove_file(file.name)
        return None

    def _answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for slot in batch.column(0).to_pylist():
                yield pa.record_batch({"folded": pa.array([pickle.dumps(self.folded(slot))], pa.binary())})

    def folded(self, slot: int) -> FoldedSlot | None:
        """Folds the rows of the slot; None if the driver is to do that."""
        result = FoldedSlot()
        for bucket, rows in self._rows(slot).items():
            try:
                one = self._folded(slot, bucket, rows)
            except MirrorDiverged:
                return None
            if one is None:
                return None
            result = FoldedSlot(
                max(result.token, one.token), result.event_count + one.event_count, result.added + one.added,
                result.removed + one.removed,
            )  # fmt: skip
        return result

    def _rows(self, slot: int) -> dict[int, list[Row]]:
        """The rows of the slot by their bucket, in order. A slot with files to write anew has a bucket in any case."""
        pieces = []
        for file in self.staged:
            groups = [number for number, group in enumerate(file.slots) if group == slot]
            if groups:
                with pq.ParquetFile(file.name, filesystem=self.table.location.files) as opened:
                    pieces.append(opened.read_row_groups(groups))
        rows = MicroBatch("", 0, pa.concat_tables(pieces)).masked(self.omit).rows() if pieces else []
        buckets: dict[int, list[Row]] = {} if self.table.slots.buckets else {0: []}
        for row in rows:
            about_one = row.operationType in DOCUMENT_OPERATIONS
            buckets.setdefault(self.table.slots.bucket(key_of(row)) if about_one else 0, []).append(row)
        return buckets

    def _folded(self, slot: int, bucket: int, rows: list[Row]) -> FoldedSlot | None:
        table = self.table
        wanted = pa.array(document_keys(rows), pa.string())
        touched: dict[str, pa.Table] = {}
        for file in table.files_of(slot, bucket):
            keys = read_files(table.location, [file.name], table.keys)
            if file.shared or pc.any(pc.is_in(keys.column(0), wanted)).as_py():
                touched[file.name] = self._own(slot, read_files(table.location, [file.name], table.schema), file.shared)
        old = pa.concat_tables([table.schema.empty_table(), *touched.values()])
        existing = stored_rows(old.filter(pc.is_in(old.column("_id"), wanted)))
        read = keys_to_read(rows)
        changes = fold(rows, self.state, {key: row for key, row in existing.items() if key in read})
        if any(table.slots.bucket(key) != bucket for key in changes.upserts):
            return None
        return self._written(slot, bucket, changes, old, tuple(touched))

    def _own(self, slot: int, rows: pa.Table, shared: bool) -> pa.Table:
        if not shared:
            return rows
        slots = [self.table.slots.slot(key) for key in rows.column("_id").to_pylist()]
        return rows.filter(pc.equal(pa.array(slots, pa.int32()), slot))

    def _written(
        self, slot: int, bucket: int, changes: MirrorChanges, old: pa.Table, removed: tuple[str, ...]
    ) -> FoldedSlot:
        rows = pa.concat_tables([changes.remaining(old), upserted(changes)])
        values: dict[str, str | None] = {"bucket": str(bucket)} if self.table.slots.buckets else {}
        name = self.table.slots.file_name(slot, bucket)
        added = (write_file(self.table.location, name, rows, values),) if rows.num_rows else ()
        return FoldedSlot(changes.state.token, changes.event_count, added, removed)


def state_after(state: MirrorState, folded: Sequence[FoldedSlot]) -> MirrorState:
    """The state after the rows of all slots."""
    return replace(state, token=max([state.token, *(each.token for each in folded)]))


def is_cluster(spark: Any) -> bool:
    """Whether tasks run in other processes than Spark's driver. In one process the driver folds with half the work."""
    context = getattr(spark, "sparkContext", None)
    return context is None or not (context.master == "local" or context.master.startswith("local["))


def slot_count(spark: Any) -> int:
    """How many tasks fold a batch: as many as the cluster runs at once, within reason."""
    from headrace import limits

    context = getattr(spark, "sparkContext", None)
    return min(context.defaultParallelism, limits.FOLD_TASK_COUNT_MAX) if context else limits.FOLD_TASK_COUNT_MIN
