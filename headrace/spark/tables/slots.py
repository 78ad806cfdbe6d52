"""Slots divide a batch's rows and a mirror's files by the document's key, so that one task folds one slot.

All rows of a document are in one slot. In a table with buckets a slot has whole buckets; otherwise the slot is a hash
of the key. The name of a file that a task wrote contains its slot. Any other file of a table without buckets may have
rows of every slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4
from zlib import crc32

from headrace.spark.rows.events import SERVER
from headrace.spark.rows.key_identity import key_identity, server_key
from headrace.spark.tables.fold import key_text

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET: Final = "bucket"
_NAME: Final = re.compile(r"part-slot-(\d+)-of-(\d+)-[0-9a-f-]+\.parquet")


@dataclass(frozen=True, slots=True)
class Slots:
    """`count` slots of a table with `buckets` buckets (0: no buckets)."""

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
        import pyarrow as pa

        keys = rows.column("documentKey").to_pylist()
        slots = pa.array([0 if key is None else self.slot(key_text(key)) for key in keys], pa.int32())
        for slot in range(self.count):
            some = rows.filter(pa.compute.equal(slots, slot))
            if some.num_rows:
                yield slot, some

    def bucketed(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        """Return the rows with a column of their buckets, if the table has any. Column names begin with `prefix`."""
        import pyarrow as pa

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
