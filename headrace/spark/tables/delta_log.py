"""The Delta table behind a log of events: each batch is one commit, its progress in the commit's metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.tables.delta_files import add_files, files_between, fits
from headrace.spark.tables.mirror_table import STATE_KEY, NotAMirror
from headrace.spark.tables.open_table import KeptTable
from headrace.spark.tables.progress import IDENTITY, Identity, Progress
from headrace.spark.tables.staged_files import StagedFile
from headrace.spark.tables.table_location import place_of

# So many commits add about as many small files; then those files are made one.
COMPACT_COMMITS: Final = 100


def committed_text(table: DeltaTable) -> str | None:
    """What the last commit of ours kept; None if none did. Others (an OPTIMIZE, say) may have committed since."""
    for depth in (1, None):
        for commit in table.history(depth):
            if STATE_KEY in commit:
                return str(commit[STATE_KEY])
    return None


def properties(text: str, query: str, batch: int) -> CommitProperties:
    """A commit's metadata. The transaction says the same to other writers of Delta; we go by the text."""
    transactions = [Transaction(query, batch)] if query else None
    return CommitProperties(custom_metadata={STATE_KEY: text}, app_transactions=transactions)


def kept_progress(path: str | Path) -> Progress:
    """The progress kept in the newest commit of the Delta table at `path`; none where there is no table yet."""
    return progress_of(KeptTable(place_of(path)))


def progress_of(kept: KeptTable) -> Progress:
    """The same, of a table that is open."""
    table = kept.now()
    if table is None:
        return Progress()
    progress = committed_progress(table)
    if progress is None:
        raise NotAMirror(f"the Delta table {kept.place} has no commit of this program")
    return progress


def committed_progress(table: DeltaTable) -> Progress | None:
    """The progress in the table's newest commit of ours; None if there is none."""
    text = committed_text(table)
    return None if text is None else Progress.of(text)


class DeltaLog:
    """See `log.Log`."""

    def __init__(self, path: str | Path) -> None:
        self.place = place_of(path)
        self._kept = KeptTable(self.place)

    def progress(self) -> Progress:
        return progress_of(self._kept)

    def append(self, rows: pa.Table, progress: Progress) -> None:
        self.place.make()
        kept = properties(progress.text(), progress.query, progress.batch)
        # A later release, or another option of the source, may bring columns that the table has not yet.
        into = self._kept.now() or self.place.url
        write_deltalake(into, rows, mode="append", schema_mode="merge", commit_properties=kept)
        self._compact(kept)

    def note(self, progress: Progress) -> None:
        table = self._table()
        kept = properties(progress.text(), progress.query, progress.batch)
        nothing = pa.schema(table.schema().to_arrow()).empty_table()
        write_deltalake(table, nothing, mode="append", commit_properties=kept)

    def takes(self, schema: pa.Schema) -> bool:
        table = self._kept.now()
        return table is None or fits(table, schema)

    def append_files(self, files: Sequence[StagedFile], schema: pa.Schema, progress: Progress) -> None:
        kept = properties(progress.text(), progress.query, progress.batch)
        add_files(self._kept, files, schema, kept)
        self._compact(kept)

    def snapshot_rows(self, since: str) -> Collection[Identity]:
        table = self._kept.now()
        if table is None:
            return ()
        kinds = pa.array([SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END])
        wanted = (ds.field("token").cast(pa.large_string()) >= since) & ds.field("operationType").isin(kinds)
        schema = pa.schema([(name, pa.string()) for name in IDENTITY])
        found = self.place.dataset(table, table.file_uris(), schema).to_table(filter=wanted)
        return set(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def read(self) -> pa.Table:
        return self._table().to_pyarrow_table()

    def between(self, after: str, upto: str | None = None) -> pa.Table:
        """The rows with tokens after `after` up to and including `upto`, in the order of their tokens."""
        table = self._table()
        schema = pa.schema(table.schema().to_arrow())
        token = ds.field("token").cast(pa.large_string())
        wanted = (token > after) & (token <= upto) if upto else token > after
        files = files_between(table, after, upto)
        if not files:
            return schema.empty_table()
        return self.place.dataset(table, files, schema).to_table(filter=wanted).sort_by("token")

    def _table(self) -> DeltaTable:
        return self._kept.now() or DeltaTable(self.place.url)

    def _compact(self, kept: CommitProperties) -> None:
        table = self._table()
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            table.optimize.compact(commit_properties=kept)
