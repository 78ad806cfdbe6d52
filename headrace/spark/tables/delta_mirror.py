"""A mirror as a Delta table, written by `deltalake`: each batch is one commit, its state in the commit's metadata.

A large table (from some million rows on) is partitioned into buckets by a hash of the key: a batch then reads and
rewrites only files of the buckets that it touches. The column `bucket` has no other meaning.

Old files are the table's history; a job's upkeep removes them (`upkeep/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import RemoveAction, create_table_with_add_actions

from headrace import limits
from headrace.clock import SystemClock
from headrace.spark.rows.events import SERVER
from headrace.spark.rows.server_keys import server_key
from headrace.spark.tables.delta_commits import commit_properties, newest_commit
from headrace.spark.tables.delta_files import WrittenFile, is_plain, note, read_files, replace_rows, small_files
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import (
    STATE_KEY,
    NotAMirror,
    id_texts,
    key_texts,
    merged_rows,
    names_of,
    same_key,
    schema,
    stale_condition,
    state_of,
    state_text,
    stored_rows_of,
    upserted,
)
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.slots import Slots
from headrace.spark.tables.table_location import TableLocation, location_of

# So many commits add about as many small files, which are then compacted.
COMPACT_COMMITS: Final = 50
_BUCKETS_KEY: Final = "headrace.buckets"


@dataclass(frozen=True, slots=True)
class MirrorFile:
    """A file of the table; `shared`: rows of several slots may be in it."""

    name: str
    owner: int
    """The bucket, or in a table without buckets the slot."""
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MirrorFiles:
    """The files of a mirror as tasks need them that change it."""

    location: TableLocation
    slots: Slots
    files: tuple[MirrorFile, ...]
    schema: pa.Schema

    @property
    def keys(self) -> pa.Schema:
        """The schema of the keys alone."""
        return pa.schema([self.schema.field("_id")])

    def files_of(self, slot: int, bucket: int) -> list[MirrorFile]:
        """The files in which rows of the slot, and of this bucket if there are any, may be."""
        owner = bucket if self.slots.buckets else slot
        return [file for file in self.files if file.shared or file.owner == owner]


class DeltaMirror:
    """See `mirror_table.MirrorTable`. `buckets` cannot change once the table exists; 0 for none."""

    def __init__(self, path: str | Path, buckets: int = 0) -> None:
        self._location = location_of(path)
        self._open_table = OpenDeltaTable(self._location)
        self._buckets = buckets

    def __str__(self) -> str:
        return str(self._location)

    def state(self) -> MirrorState:
        table = self._open_table.now()
        if table is None:
            return MirrorState()
        commit = newest_commit(table)
        if commit is None:
            raise NotAMirror(f"the Delta table {self._location} has no commit of a mirror")
        self._check_buckets(int(commit.get(_BUCKETS_KEY, "0")))
        return state_of(commit[STATE_KEY])

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = list(keys)
        table = self._open_table.now() if wanted else None
        files = self._files(table, wanted) if table is not None else []
        if table is None or not files:
            return {}
        dataset = self._location.dataset(table, files, schema(servers=_of_servers(table)))
        ids = pa.array(id_texts(wanted), pa.large_string())
        return stored_rows_of(dataset.to_table(filter=pc.field("_id").cast(pa.large_string()).isin(ids)), wanted)

    def read_keys(self) -> Iterator[str]:
        table = self._open_table.now()
        if table is not None and (files := table.file_uris()):
            names = [SERVER, "_id"] if _of_servers(table) else ["_id"]
            dataset = self._location.dataset(table, files, schema(servers=len(names) > 1))
            for batch in dataset.to_batches(columns=names):
                yield from key_texts(batch)

    def commit(self, changes: MirrorChanges) -> None:
        properties = self._properties(changes.state)
        table = self._open_table.now()
        if table is None or changes.clear:
            self._location.create()
            rows = self._bucketed(upserted(changes))
            partitions = ["bucket"] if self._buckets else None
            into = table or self._location.url
            write_deltalake(into, rows, mode="overwrite", partition_by=partitions, commit_properties=properties)
        elif not (self._rewrite(table, changes, properties) or self._merge(table, changes, properties)):
            note(table, properties)

    @property
    def location(self) -> TableLocation:
        """Where the table is; it need not exist yet."""
        return self._location

    def slots(self, count: int) -> Slots:
        """Up to `count` slots for the table's rows."""
        return Slots(min(count, self._buckets or count), self._buckets)

    def files(self, slots: Slots) -> MirrorFiles | None:
        """The table's files, for tasks that write them anew; None if they are too large for that."""
        table = self._open_table.now()
        if table is None:
            return MirrorFiles(self._location, slots, (), schema())
        if not is_plain(table) or _of_servers(table):
            return None
        actions = pa.table(table.get_add_actions(flatten=True))
        names = actions.column("path").to_pylist()
        if self._buckets:
            buckets = actions.column("partition.bucket").to_pylist()
            files = [MirrorFile(name, int(bucket)) for name, bucket in zip(names, buckets, strict=True)]
        elif sum(actions.column("size_bytes").to_pylist()) > limits.FOLD_BYTES_MAX:
            return None
        else:
            owners = [(name, slots.slot_of_file(name)) for name in names]
            files = [MirrorFile(name, owner or 0, owner is None) for name, owner in owners]
        return MirrorFiles(self._location, slots, tuple(files), schema())

    def commit_files(self, added: Sequence[WrittenFile], removed: Iterable[str], state: MirrorState) -> None:
        """Puts files in place of others and stores the state: both, durably, or neither."""
        properties, now = self._properties(state), SystemClock().now_ms()
        new, table = [file.added(now) for file in added], self._open_table.now()
        partitions = ["bucket"] if self._buckets else []
        if table is None:
            self._location.create()
            columns = Schema.from_arrow(self._bucketed(schema().empty_table()).schema)
            create_table_with_add_actions(
                self._location.url, columns, new, partition_by=partitions, commit_properties=properties
            )
            return
        old = [RemoveAction(name, True, now) for name in dict.fromkeys(removed)]
        table.create_write_transaction([*new, *old], "append", table.schema(), partitions, commit_properties=properties)
        table.update_incremental()
        self._compact(table, properties)

    def read(self) -> pa.Table:
        rows = DeltaTable(self._location.url).to_pyarrow_table()
        return rows.select(names_of(rows.column_names))

    def _files(self, table: DeltaTable, keys: list[str]) -> list[str]:
        """The files in which rows of the keys may be."""
        if not self._buckets:
            return list(table.file_uris())
        touched = [str(number) for number in sorted(set(self._bucket_of(keys)))]
        return list(table.file_uris(file_pruning_predicate=[("bucket", "in", touched)]))

    def _rewrite(self, table: DeltaTable, changes: MirrorChanges, properties: CommitProperties) -> bool:
        """Commits the changes of a small table; False if it is none, or there are no changes."""
        files = small_files(table) if changes.has_rows and not self._buckets else None
        if files is None:
            return False
        old = read_files(self._location, files, schema(servers=bool(changes.state.servers)))
        rows = pa.concat_tables([changes.remaining(old), upserted(changes)])
        replace_rows(self._location, table, [(None, rows)], properties)
        return True

    def _merge(self, table: DeltaTable, changes: MirrorChanges, properties: CommitProperties) -> bool:
        """Whether there was a commit: a merge that finds nothing to do makes none."""
        stale = stale_condition(changes)
        if not changes.has_rows:
            return False
        before = table.version()
        rows = self._bucketed(merged_rows(changes))
        same = same_key(changes)
        if self._buckets and not stale:
            touched = sorted(set(rows.column("bucket").to_pylist()))
            same += f" and target.bucket = new.bucket and target.bucket in ({', '.join(map(str, touched))})"
        merging = table.merge(rows, same, "new", "target", commit_properties=properties)
        merging = merging.when_matched_delete("new.gone").when_matched_update_all("not new.gone", except_cols=["gone"])
        merging = merging.when_not_matched_insert_all("not new.gone", except_cols=["gone"])
        if stale:
            merging = merging.when_not_matched_by_source_delete(stale)
        merging.execute()
        self._compact(table, properties)
        return bool(table.version() > before)

    def _compact(self, table: DeltaTable, properties: CommitProperties) -> None:
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            table.optimize.compact(commit_properties=properties)

    def _bucketed(self, rows: pa.Table) -> pa.Table:
        """The rows with the column of their buckets, if the table has any."""
        if not self._buckets:
            return rows
        keys = rows.column("_id").to_pylist()
        if SERVER in rows.column_names:
            keys = list(map(server_key, rows.column(SERVER).to_pylist(), keys))
        numbers = self._bucket_of(keys)
        return rows.append_column(pa.field("bucket", pa.int32(), nullable=False), pa.array(numbers, pa.int32()))

    def _bucket_of(self, keys: list[str]) -> list[int]:
        return [crc32(key.encode()) % self._buckets for key in keys]

    def _check_buckets(self, buckets: int) -> None:
        if buckets != self._buckets:
            raise NotAMirror(f"the Delta table {self._location} has {buckets} buckets, not {self._buckets}")

    def _properties(self, state: MirrorState) -> CommitProperties:
        buckets = {_BUCKETS_KEY: str(self._buckets)} if self._buckets else {}
        return commit_properties(state_text(state), state.query, state.batch, buckets)


def _of_servers(table: DeltaTable) -> bool:
    return any(field.name == SERVER for field in table.schema().fields)
