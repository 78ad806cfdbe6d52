"""A log of events as a Delta table: each batch is one commit, with its progress in the commit's metadata."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from headrace.spark.rows.events import SNAPSHOT_KINDS
from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.delta_files import files_between, fits, note
from headrace.spark.tables.document_codec import DocumentCodec
from headrace.spark.tables.event_log import EventLog
from headrace.spark.tables.progress import IDENTITY, Progress, RowIdentity
from headrace.spark.tables.staged_files import Encode
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions
from headrace.spark.tables.typed.typed_events import TypedEvents
from headrace.spark.tables.written_file import WrittenFile


class DeltaLog(DeltaDocuments[Progress], EventLog):
    """See `event_log.EventLog`. Rows come with documents as text; with `typed`, they are stored as typed columns."""

    def __init__(self, path: str | Path, typed: TypedOptions | None = None) -> None:
        location = location_of(path)
        super().__init__(Progress, location, TypedEvents(typed, f"log {location}") if typed else DocumentCodec())

    def append(self, rows: pa.Table, progress: Progress) -> None:
        table = self._open_table.now()
        encoded = self.codec.encoded(rows, self.columns(table))
        properties = self.properties(progress, encoded.metadata)
        if table is not None and encoded.change is SchemaChange.REWRITTEN:
            self.rewrite(table, encoded, lambda old: old, properties)
        else:
            self.location.create()
            # A later release, or another option of the source, may bring columns that the table lacks.
            write_deltalake(
                table or self.location.url, encoded.table, mode="append", schema_mode="merge",
                partition_by=self.partition_by or None, commit_properties=properties,
            )  # fmt: skip
        self.codec.committed(encoded)
        # After the write, `table`, if it existed, is at its new version.
        self.compact(table or self._table(), properties)

    def note(self, progress: Progress) -> None:
        table = self._table()
        note(table, self.properties(progress, self.metadata(table)))

    def takes(self, schema: pa.Schema) -> bool:
        table = self._open_table.now()
        columns = self.columns(table)
        if self.schema and not (table and self.schema.settled(columns.schema)):
            return False
        return table is None or fits(table, self.codec.encoded(schema.empty_table(), columns).table.schema)

    def encoder(self) -> Encode | None:
        return partial(self.codec.encoded, columns=self.columns(self._table())) if self.schema else None

    def append_files(self, files: Sequence[WrittenFile], schema: pa.Schema, progress: Progress) -> None:
        table = self._open_table.now()
        self._commit(table, files, (), self.properties(progress, self.metadata(table)), schema)

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        table = self._open_table.now()
        if table is None:
            return ()
        wanted = (pc.field("token").cast(pa.large_string()) >= since) & pc.field("operationType").isin(SNAPSHOT_KINDS)
        schema = pa.schema([(name, pa.string()) for name in IDENTITY])
        rows = self.location.dataset(files_between(table, since, None), schema).to_table(filter=wanted)
        return set(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def read(self) -> pa.Table:
        table = self._table()
        rows = table.to_pyarrow_table()
        return self.codec.decoded(rows, rows.schema, self.columns(table))

    def between(self, after: str, upto: str | None = None) -> pa.Table:
        """Return the rows with tokens after `after` up to and including `upto`, sorted by token."""
        table = self._table()
        schema = pa.schema(table.schema().to_arrow())
        token = pc.field("token").cast(pa.large_string())
        wanted = (token > after) & (token <= upto) if upto else token > after
        files = files_between(table, after, upto)
        if not files:
            return schema.empty_table()
        return self.location.dataset(files, schema).to_table(filter=wanted).sort_by("token")

    def _table(self) -> DeltaTable:
        return self._open_table.now() or DeltaTable(self.location.url)
