"""Whether a mirror's table and its collection are equal, row for row, and where they are not.

Both are read as they are now: while somebody writes, the answer says little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.spark.extjson import dumps
from headrace.spark.feed import client_of
from headrace.spark.mirror import Mirror
from headrace.values.bson import OPTIONS

NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of both sides and of what is not equal; the first few keys of each kind by name."""

    document_count: int
    row_count: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    duplicate_count: int = 0
    unequal_count: int = 0

    @property
    def equal(self) -> bool:
        return self.unequal_count == 0 and self.document_count == self.row_count

    def __str__(self) -> str:
        if self.equal:
            return f"{self.row_count} rows, {self.document_count} documents"
        kinds = (("missing", self.missing), ("extra", self.extra), ("different", self.different))
        told = "; ".join(f"{name} {', '.join(keys)}" for name, keys in kinds if keys)
        return f"{self.unequal_count} unequal of {self.row_count} rows and {self.document_count} documents: {told}"


def compare(mirror: Mirror) -> Comparison:
    """Reads the whole table and the whole collection; two documents are equal when their BSON is, type by type."""
    table = mirror.table().read()
    keys, texts = table.column("_id").to_pylist(), table.column("document").to_pylist()
    rows = dict(zip(keys, texts, strict=True))
    missing, different, count = [], [], 0
    database = client_of(mirror.uri).get_database(mirror.database, codec_options=OPTIONS)
    for document in database[mirror.collection].find():
        count += 1
        key = dumps(document["_id"])
        text = rows.pop(key, None)
        if text is None:
            missing.append(key)
        elif text != dumps(document):
            different.append(key)
    duplicates = len(keys) - len(set(keys))
    return Comparison(
        document_count=count,
        row_count=len(keys),
        missing=tuple(missing[:NAMED_MAX]),
        extra=tuple(sorted(rows)[:NAMED_MAX]),
        different=tuple(different[:NAMED_MAX]),
        duplicate_count=duplicates,
        unequal_count=len(missing) + len(different) + len(rows) + duplicates,
    )
