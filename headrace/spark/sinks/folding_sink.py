"""The sinks `mirror`, `history` and `sql`, which fold events into documents, and who folds a batch.

Spark's tasks fold a large batch of a Delta table, and the driver commits the files that they wrote. The rows come in
files, divided into slots by the document's key (`tables/staged_files.py`). The task of a slot reads the rows of its
slot and the stored rows of their documents. It folds them as the driver would, and rewrites each file of the table that
holds one of these documents. If a file belongs to several slots and any of them has a row for it, each of their tasks
writes a new file with its own rows. So the driver sees no row, and its work does not grow with their number.

The driver folds any other batch: a small one, one of several servers, and any batch with the policy `keep`. What a task
returns says nothing of another slot, so it also folds a batch with a row about more than one document: a drop, or the
beginning or end of a snapshot. And it folds a batch of which a task cannot be sure: an event does not fit, a key of
another type moves a document to another slot, or documents need other typed columns than the table has.

After a drop, a rename or an invalidate, the policy decides. `follow` empties a mirror, and new rows fill it with what
the collection of that name then holds; in a history it ends every version. `keep` keeps the rows, also when a new
snapshot begins, and replaces each when its key comes again. `fail` stops the job and writes nothing of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.connection_strings import referred
from headrace.spark.rows.events import DOCUMENT_OPERATIONS, INVALIDATING, SERVER, SNAPSHOT_BEGIN, Row
from headrace.spark.rows.key_identity import (
    has_numbers,
    is_plain_number,
    key_identity,
    number_texts,
    of_server,
    rows_by_server,
    server_key,
    split_server_key,
)
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.log_sink import checked_writers
from headrace.spark.sinks.table_sink import TableSink, run_tasks, slot_count
from headrace.spark.tables.delta_files import WrittenFile
from headrace.spark.tables.delta_table import DeltaDocumentTable, delta_history, delta_mirror
from headrace.spark.tables.fold import (
    MirrorDiverged,
    MirrorState,
    document_keys,
    fold,
    fold_servers,
    key_of,
    keys_to_read,
    server_keys_to_read,
)
from headrace.spark.tables.history_table import (
    HISTORY,
    DocumentVersion,
    HistoryChanges,
    OpenVersions,
    VersionChanges,
    VersionTable,
    table_of,
    version_texts,
    versions_by_key,
    without_versions,
)
from headrace.spark.tables.mirror_table import MIRROR, MirrorTable, open_mirror_table, stored_rows
from headrace.spark.tables.progress import Progress, TablePosition, check_not_gone, check_servers, checked_policy
from headrace.spark.tables.sql.sql_mirror import SqlMirror
from headrace.spark.tables.staged_files import (
    DocumentFile,
    DocumentFiles,
    Slots,
    StagedBatch,
    read_staged,
    remove_files,
    staged_prefix,
)
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions, rest_count_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


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
        """Return the rows of the slot by bucket, in order. Without buckets a slot without rows rewrites shared files,
        too."""
        pieces = []
        for file in self.staged:
            groups = [number for number, group in enumerate(file.slots) if group == slot]
            if groups:
                with pq.ParquetFile(file.name, filesystem=self.table.location.files) as opened:
                    pieces.append(opened.read_row_groups(groups))
        rows = self._masked(pieces)
        slots = self.table.slots
        buckets: dict[int, list[Row]] = {} if slots.buckets else {0: []}
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


def _active_session() -> Any:
    """Return the thread's Spark session; None without one, as in tests of a sink alone."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


class FoldingSink(TableSink):
    """See `TableSink`. `several`: rows may be of several servers. `shared`: tasks can write its files."""

    def __init__(self, table: Any, policy: str, *, several: bool, shared: bool) -> None:
        super().__init__(table)
        self.folded_by_tasks = table if shared and policy != "keep" and isinstance(table, DeltaDocumentTable) else None
        """The table, if tasks may write its files."""
        self._leftover_keys = LeftoverKeys(table, policy)
        self._several = several
        self._policy = checked_policy(policy)
        self._slots: Slots | None = None

    def _fold(self, state: Any) -> Fold:
        """Return how tasks fold into a table in this state."""
        raise NotImplementedError

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: Any) -> tuple[Any, int]:
        """Commit the rows. Return the state after them, and the number of new events."""
        raise NotImplementedError

    @property
    def takes_frames(self) -> bool:
        """Whether `apply_frame` may be called. The driver must see the first rows of a new table."""
        if self.folded_by_tasks is None or not is_cluster(_active_session()):
            return False
        return self.staged_by_source or bool(self.position().token)

    def slots(self, spark: Any) -> Slots:
        """Return the slots that divide the rows; they are fixed from the first batch on."""
        assert self.folded_by_tasks is not None
        self._slots = self._slots or self.folded_by_tasks.slots(slot_count(spark))
        return self._slots

    def _collects(self, schema: pa.Schema) -> bool:
        return "documentKey" not in schema.names

    def _apply_staged(
        self, frame: DataFrame, staged: StagedBatch, before: Any, query: str, number: int
    ) -> BatchReport | None:
        table, stats, spark = self.folded_by_tasks, staged.stats, frame.sparkSession
        assert table is not None
        about_many = stats.begins or stats.ends or stats.invalidated or before.leftovers or before.servers
        few = stats.row_count < limits.FOLD_ROW_COUNT_MIN
        try:
            if not staged.files:
                return None
            files = None if about_many or few else table.files(self.slots(spark))
            task = FoldTask(files, staged.files, self._fold(before), self.omit) if files else None
            folded = task.run(spark) if task else None
            if files is None or folded is None:
                return self._apply(MicroBatch(query, number, read_staged(staged.files, table.location)), before)
            token = max([before.token, *(each.token for each in folded)])
            added, removed = ([file for each in folded for file in getattr(each, way)] for way in ("added", "removed"))
            count, rest_count = (sum(getattr(each, name) for each in folded) for name in ("event_count", "rest_count"))
            after = self._after(replace(before, token=token), query, number)
            table.commit_files(files, added, removed, after, rest_count)
            return self._report(number, staged, count, token, rest_count)
        finally:
            remove_files(table.location, staged_prefix(query, number))

    def _apply(self, batch: MicroBatch, before: Any) -> BatchReport | None:
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        masked = batch.masked(self.omit)
        rows = masked.rows() if self._several else masked.rows_of_one_server()
        check_servers(
            has_several=bool(before.servers), has_rows=bool(before.token),
            reads_several=SERVER in batch.table.column_names, table=self.table,
        )  # fmt: skip
        rest_before = rest_count_of(self.table)
        after, count = self._apply_rows(rows, batch.query, batch.number, before)
        return batch.report(count, after.token, rest_count_of(self.table) - rest_before)


_LEAVES_ROWS: Final = INVALIDATING | {SNAPSHOT_BEGIN}


class LeftoverKeys:
    """Keys of rows that a table kept after their collection was gone, and that come again as another type of number.

    With the policy `keep` the rows stay after a drop, a rename or a new snapshot. A document with `_id` 1.0 in the next
    collection then replaces the row 1, as in MongoDB. But the table stores keys as texts, and does not find 1 by the
    text of 1.0. As long as no rows were kept this cannot happen, and nothing is looked up.

    The texts of an int, a long and a double follow from the number. A Decimal128, or a number within a document, has
    many texts. So such keys of the table are read once in a process, and again when more rows are kept.
    """

    def __init__(self, table: Any, policy: str) -> None:
        self._table = table
        self._keeps = policy == "keep"
        self._many: dict[str, list[str]] | None = None
        """Keys that have many texts, by their identity."""

    def same_as(self, rows: Iterable[Row], state: TablePosition) -> set[str]:
        """Return other texts that the keys of these rows may have in the table; none if the table has kept no rows."""
        rows = list(rows)
        if self._keeps and any(row.operationType in _LEAVES_ROWS for row in rows):
            self._many = None
        elif not (state.leftovers or any(each.leftovers for each in state.servers.values())):
            return set()
        if self._many is None:
            self._many = self._read()
        same: set[str] = set()
        for row in rows:
            if row.operationType in DOCUMENT_OPERATIONS and has_numbers(key := key_of(row)):
                same |= {server_key(row.server, text) for text in number_texts(key)}
                same.update(self._many.get(server_key(row.server, key_identity(key)), ()))
        return same

    def _read(self) -> dict[str, list[str]]:
        by_identity: dict[str, list[str]] = {}
        for text in self._table.read_keys():
            server, key = split_server_key(text)
            if has_numbers(key) and not is_plain_number(key):
                by_identity.setdefault(server_key(server, key_identity(key)), []).append(text)
        return by_identity


_UNBOUNDED: Final = 1 << 62


def mirror_sink(
    path: str | Path, *, table: str = "delta", buckets: int = 0, policy: str = "follow",
    typed: TypedOptions | None = None, using: str = "", writers: str = "tasks",
) -> MirrorSink:  # fmt: skip
    """Return the sink whose table is at `path`; the first batch creates it. For `buckets` see
    `delta_table.delta_mirror`.

    A `table` with a dot is a table of one of Spark's catalogs, in the format `using` (`tables/catalog/`); `path` is
    then empty. A table with typed columns is a Delta table with a path. For `writers` see `log_sink.checked_writers`.
    """
    if "." not in table:
        shared = checked_writers(writers) == "tasks"
        opened = delta_mirror(path, buckets, typed) if typed else open_mirror_table(path, table, buckets=buckets)
        return MirrorSink(opened, policy, several=True, shared=shared)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_table import CatalogDocumentTable

    if buckets or path:
        raise ValueError(f"a table of Spark's catalogs, {table}, has neither a path nor buckets of ours")
    return MirrorSink(CatalogDocumentTable(MIRROR, table, get_session, using), policy, several=True)


class MirrorSink(FoldingSink):
    """A table equal to the collection. `rows_max` bounds one commit, but a transaction is never split."""

    table: MirrorTable

    def __init__(
        self, table: MirrorTable, policy: str = "follow", rows_max: int = _UNBOUNDED, *, several: bool = False,
        shared: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(table, policy, several=several, shared=shared)
        self._rows_max = rows_max

    def _fold(self, state: MirrorState) -> Fold:
        return partial(mirror_folded, state)

    def apply_rows(self, rows: list[Row], query: str, batch: int) -> int:
        """Commit rows, in order, as (the last of) batch `batch` of `query`. Return the number of new events."""
        return self._apply_rows(rows, query, batch, self.position())[1]

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: MirrorState) -> tuple[MirrorState, int]:
        if self._policy == "fail":
            check_not_gone(rows, state)
        state = self._after(state, state.query, state.batch)
        count = 0
        pieces = list(_pieces(rows, self._rows_max))
        for piece in pieces:
            keys = server_keys_to_read(piece) | self._leftover_keys.same_as(piece, state)
            changes = fold_servers(piece, state, self.table.rows(keys), clearing=self._policy != "keep")
            if piece is pieces[-1]:
                changes.state = replace(changes.state, query=query, batch=batch)
            self.table.commit(changes)
            state = changes.state
            count += changes.event_count
        return state, count


def _pieces(rows: list[Row], rows_max: int) -> Iterator[list[Row]]:
    """Yield the rows in pieces of `rows_max` or slightly more: rows of one cluster time stay together."""
    start = 0
    while start < len(rows):
        end = min(start + rows_max, len(rows))
        while end < len(rows) and rows[end].token[:TIME_END] == rows[end - 1].token[:TIME_END]:
            end += 1
        yield rows[start:end]
        start = end


def sql_sink(uri: str, table: str, *, policy: str = "follow") -> MirrorSink:
    """Return the sink `sql`, whose table is in the database at `uri`, an SQLAlchemy URL; the first batch creates it.

    Why SQLAlchemy: rows and position must be one transaction, with upserts and deletes by key. Spark's JDBC writer only
    appends, in a transaction per task.
    """
    try:
        return MirrorSink(SqlMirror(referred(uri), table), policy)
    except ImportError as error:
        raise OptionError(f"the sink 'sql' needs SQLAlchemy: pip install 'headrace[sql]' ({error})") from None


class HistorySink(FoldingSink):
    """Every version of every document (`tables/history_table.py`).

    With several servers, the versions of each server are computed from its own rows, because tokens of two servers
    cannot be compared. For a `table` of one of Spark's catalogs, in the format `using`, the path is empty.
    """

    table: VersionTable

    def __init__(
        self, path: str | Path, *, policy: str = "follow", typed: TypedOptions | None = None, table: str = "",
        using: str = "", writers: str = "tasks",
    ) -> None:  # fmt: skip
        opened = _opened(path, typed, table, using)
        super().__init__(opened, policy, several=True, shared=checked_writers(writers) == "tasks")

    def _fold(self, state: Progress) -> Fold:
        return partial(history_folded, state, self._policy)

    def _apply_rows(self, rows: list[Row], query: str, batch: int, state: Progress) -> tuple[Progress, int]:
        after, changed, count = self._changes(rows, state)
        after = self._after(after, query, batch)
        self.table.commit(HistoryChanges(after, changed))
        return after, count

    def _changes(self, rows: list[Row], before: Progress) -> tuple[Progress, list[DocumentVersion], int]:
        """Return the progress after the rows, the versions that they change, and the number of new events."""
        each = rows_by_server(rows)
        keys = {server_key(server, key) for server, some in each.items() for key in document_keys(some)}
        opened = self.table.rows(keys | self._leftover_keys.same_as(rows, before))
        after, changed, count = before, list[DocumentVersion](), 0
        for server, some in each.items():
            current = of_server(server, opened) if server else opened
            versions = VersionChanges(before.of_server(server), _renamed(current), self._all_of(server), self._policy)
            for row in some:
                versions.take(row._replace(server=None))
            after = after.with_server(server, versions.progress)
            changed += [replace(each, key=server_key(server, each.key)) for each in versions.changed.values()]
            count += versions.event_count
        return after, changed, count

    def _all_of(self, server: str) -> Callable[[str], OpenVersions]:
        """Return a function that reads the valid versions of the server's documents, by `_id` alone; see
        `VersionChanges`."""
        if not server:
            return partial(self.table.rows, None)
        return lambda before: _renamed(of_server(server, self.table.rows(None, before)))


def _opened(path: str | Path, typed: TypedOptions | None, table: str, using: str) -> VersionTable:
    if "." not in table:
        return delta_history(path, typed)
    from headrace.spark.session import get_session
    from headrace.spark.tables.catalog.catalog_table import CatalogDocumentTable

    return CatalogDocumentTable(HISTORY, table, get_session, using)


def _renamed(versions: OpenVersions) -> OpenVersions:
    """Return the versions, each with the key that it has in this dict."""
    return {key: version if version.key == key else replace(version, key=key) for key, version in versions.items()}
