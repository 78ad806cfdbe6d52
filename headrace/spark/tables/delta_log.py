"""A log of events as a Delta table: each batch is one commit, with its progress in the commit's metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END
from headrace.spark.tables.delta_commits import commit_properties, compact_small_files, progress_of
from headrace.spark.tables.delta_files import add_files, files_between, fits
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.progress import IDENTITY, Progress, RowIdentity
from headrace.spark.tables.staged_files import Convert, StagedFile
from headrace.spark.tables.table_location import location_of


class DeltaLog:
    """See `event_log.SharedLog`."""

    converts = False

    def __init__(self, path: str | Path) -> None:
        self.location = location_of(path)
        self._open_table = OpenDeltaTable(self.location)

    def __str__(self) -> str:
        return str(self.location)

    def progress(self) -> Progress:
        return progress_of(self._open_table)

    def append(self, rows: pa.Table, progress: Progress) -> None:
        self.location.create()
        properties = commit_properties(progress.text(), progress.query, progress.batch)
        # A later release, or another option of the source, may bring columns that the table has not yet.
        table = self._open_table.now()
        write_deltalake(
            table or self.location.url, rows, mode="append", schema_mode="merge", commit_properties=properties
        )
        # A table that is given is at its new version then.
        compact_small_files(table or self._table(), properties)

    def note(self, progress: Progress) -> None:
        table = self._table()
        properties = commit_properties(progress.text(), progress.query, progress.batch)
        nothing = pa.schema(table.schema().to_arrow()).empty_table()
        write_deltalake(table, nothing, mode="append", commit_properties=properties)

    def takes(self, schema: pa.Schema) -> bool:
        table = self._open_table.now()
        return table is None or fits(table, schema)

    def converter(self) -> Convert | None:
        return None

    def append_files(self, files: Sequence[StagedFile], schema: pa.Schema, progress: Progress) -> None:
        properties = commit_properties(progress.text(), progress.query, progress.batch)
        add_files(self._open_table, files, schema, properties)
        compact_small_files(self._table(), properties)

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        table = self._open_table.now()
        if table is None:
            return ()
        kinds = pa.array([SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END])
        wanted = (pc.field("token").cast(pa.large_string()) >= since) & pc.field("operationType").isin(kinds)
        schema = pa.schema([(name, pa.string()) for name in IDENTITY])
        rows = self.location.dataset(table, table.file_uris(), schema).to_table(filter=wanted)
        return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def read(self) -> pa.Table:
        return self._table().to_pyarrow_table()

    def between(self, after: str, upto: str | None = None) -> pa.Table:
        """The rows with tokens after `after` up to and including `upto`, in the order of their tokens."""
        table = self._table()
        schema = pa.schema(table.schema().to_arrow())
        token = pc.field("token").cast(pa.large_string())
        wanted = (token > after) & (token <= upto) if upto else token > after
        files = files_between(table, after, upto)
        if not files:
            return schema.empty_table()
        return self.location.dataset(table, files, schema).to_table(filter=wanted).sort_by("token")

    def _table(self) -> DeltaTable:
        return self._open_table.now() or DeltaTable(self.location.url)
