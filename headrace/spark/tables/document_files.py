"""The files of a mirror or a history, as needed by the tasks that rewrite some of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.key_identity import key_identity, server_key
from headrace.spark.tables.delta_files import FileWriter, StoredFile, WrittenFile, read_file
from headrace.spark.tables.document_codec import DocumentCodec
from headrace.spark.tables.fold import key_text
from headrace.spark.tables.table_location import TableLocation


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
