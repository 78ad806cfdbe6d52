"""What a table must do to hold a mirror, and the two kinds of files it can be in.

The columns are `_id` (the key's canonical Extended JSON), `document` (the document's) and `token` (the resume token
at which the document is true). The mirror's state is written in the same commit as the rows it belongs to, so that
a crash leaves both or neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState

if TYPE_CHECKING:
    import pyarrow as pa

STATE_KEY: Final = "headrace"


class NotAMirror(RuntimeError):
    """There is a table at the path, but no mirror was ever written to it, or not by this program."""


class MirrorTable(Protocol):
    """A mirror's rows and its state. One writer at a time."""

    def state(self) -> MirrorState:
        """The state last committed; `State()` if there is no table yet. Raises NotAMirror."""

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        """The rows of those `keys` that the mirror has."""

    def commit(self, changes: MirrorChanges) -> None:
        """Makes the changes and stores their state: both, durably, or, if interrupted, neither."""

    def read(self) -> pa.Table:
        """All rows, in no order."""


def open_mirror_table(path: str | Path, kind: str = "delta", *, buckets: int = 0) -> MirrorTable:
    """The mirror's table at `path`, `delta` (in `buckets`, if any) or `parquet`; its first commit creates it."""
    if kind not in KINDS:
        raise ValueError(f"a mirror's table is one of {', '.join(sorted(KINDS))}, not {kind!r}")
    return KINDS[kind](path, buckets)


def _delta(path: str | Path, buckets: int) -> MirrorTable:
    from headrace.spark.tables.delta_mirror import DeltaMirror

    return DeltaMirror(path, buckets)


def _parquet(path: str | Path, buckets: int) -> MirrorTable:
    from headrace.spark.tables.parquet_mirror import ParquetMirror

    if buckets:
        raise ValueError("a mirror of kind parquet is one file: it has no buckets")
    return ParquetMirror(path)


KINDS: Final[dict[str, Callable[[str | Path, int], MirrorTable]]] = {"delta": _delta, "parquet": _parquet}


def schema() -> pa.Schema:
    """The columns of every mirror."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("_id", "document", "token")])


def upserted(changes: MirrorChanges) -> pa.Table:
    """The changes' new and changed rows as a table."""
    import pyarrow as pa

    stored = changes.upserts.values()
    columns = [list(changes.upserts), [row.document for row in stored], [row.token for row in stored]]
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=schema())


def merged_rows(changes: MirrorChanges) -> pa.Table:
    """The rows to merge, with a column `gone` for those to delete."""
    import pyarrow as pa

    new = upserted(changes)
    gone = sorted(changes.deletes)
    keys = pa.array(gone, pa.string())
    blank = pa.array([""] * len(gone), pa.string())
    old = pa.table([keys, blank, blank], schema=new.schema)
    flags = pa.array([False] * len(new) + [True] * len(gone), pa.bool_())
    return pa.concat_tables([new, old]).append_column("gone", flags)


def state_text(state: MirrorState) -> str:
    """The state as JSON, as it is stored."""
    return json.dumps(asdict(state))


def state_of(text: str) -> MirrorState:
    """The state that `state_text` made the text of."""
    given = json.loads(text)
    if unknown := given.keys() - MirrorState.__dataclass_fields__.keys():
        raise NotAMirror(
            f"the table is no mirror: its position has {', '.join(sorted(unknown))}, as another sink's has"
        )
    return MirrorState(**given)


def stored_rows(table: pa.Table) -> dict[str, MirrorRow]:
    """A mirror's rows, by key."""
    columns = [table.column(name).to_pylist() for name in ("_id", "document", "token")]
    return {key: MirrorRow(document, token) for key, document, token in zip(*columns, strict=True)}
