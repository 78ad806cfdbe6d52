"""A mirror as a Delta table, written by `deltalake`: each batch is one commit, with its state in the commit's metadata.

Documents are text, or typed columns with `_key` and `_token` beside them; with several servers also `_server`.

A large table (from about a million rows) is partitioned into buckets by a hash of the key. A batch then reads and
rewrites only files of the buckets that it touches. The column `bucket` has no other meaning.

Old files are the table's history; a job's upkeep removes them (`upkeep/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from headrace.spark.tables.delta_documents import DeltaDocuments
from headrace.spark.tables.delta_files import StoredFile, note, stored_files
from headrace.spark.tables.document_codec import DocumentCodec, TypedCodec
from headrace.spark.tables.document_files import BUCKET, DocumentFiles, Slots
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import keys_condition, schema, stored_rows_of, upserted
from headrace.spark.tables.position import NotAMirror
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import SchemaChange, TypedOptions

_BUCKETS_KEY: Final = "headrace.buckets"


class DeltaMirror(DeltaDocuments[MirrorState]):
    """See `mirror_table.MirrorTable`. `buckets` cannot change after the table is created; 0 for no buckets."""

    compact_commits = 50

    def __init__(self, path: str | Path, buckets: int = 0, typed: TypedOptions | None = None) -> None:
        location = location_of(path)
        codec = TypedCodec(typed, f"mirror {location}") if typed else DocumentCodec()
        super().__init__(MirrorState, location, codec, BUCKET if buckets else "")
        self._slots = Slots(1, buckets)

    def commit_of(self, table: DeltaTable) -> dict[str, Any]:
        commit = super().commit_of(table)
        if (buckets := int(commit.get(_BUCKETS_KEY, "0"))) != self._slots.buckets:
            raise NotAMirror(f"the Delta table {self} has {buckets} buckets, not {self._slots.buckets}")
        return commit

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        table = self._open_table.now() if wanted else None
        files = self._files(table, wanted) if table is not None else []
        if table is None or not files:
            return {}
        condition = keys_condition(self.codec.name("_id"), wanted)
        return stored_rows_of(self.read_rows(table, files, schema(servers=self.of_servers(table)), condition), wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._open_table.now()
        if table is not None:
            yield from self.keys_in(table, stored_files(table))

    def commit(self, changes: MirrorChanges) -> None:
        table = self._open_table.now()
        rows = self.codec.encoded(self._slots.bucketed(upserted(changes)), self.columns(table))
        properties = self.properties(changes.state, rows.metadata)
        if table is None or changes.clear:
            self.write(rows.table, properties)
        elif not changes.has_rows and rows.change is not SchemaChange.REWRITTEN:
            note(table, properties)
        else:
            stale = changes.stale_before or changes.stale_of_servers
            files = stored_files(table) if stale else self._files(table, [*changes.upserts, *changes.deletes])
            self.replace(table, rows, files, lambda old: changes.remaining(old, self.codec.prefix), properties)
        self.codec.committed(rows)

    def read(self) -> pa.Table:
        table = self._open_table.now()
        assert table is not None
        return self.read_rows(table, stored_files(table), schema(servers=self.of_servers(table)))

    def _files(self, table: DeltaTable, keys: list[str]) -> list[StoredFile]:
        """Return the files that may have rows of the keys."""
        touched = set(map(self._slots.bucket, keys))
        bucket = self.codec.name(BUCKET)
        return [file for file in stored_files(table) if not self._slots.buckets or file.values[bucket] in touched]

    def slots(self, count: int) -> Slots:
        buckets = self._slots.buckets
        return Slots(min(count, buckets), buckets) if buckets else super().slots(count)

    def files(self, slots: Slots) -> DocumentFiles | None:
        return self.files_for(slots, self._slots.bucketed(schema().empty_table()).schema)

    def properties(self, position: MirrorState, metadata: Mapping[str, str]) -> CommitProperties:
        buckets = {_BUCKETS_KEY: str(self._slots.buckets)} if self._slots.buckets else {}
        return super().properties(position, {**metadata, **buckets})
