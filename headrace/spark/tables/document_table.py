"""The interface of every table that a sink writes, and the kinds of tables whose rows are documents.

A backend stores tables: Delta, files, a catalog of Spark's, a database, a MongoDB. A codec stores their documents as
text or as typed columns (`document_codec.py`). A kind says what the rows are: the collection's documents (`MIRROR` of
`mirror_table.py`), or every version of them (`HISTORY` of `history_table.py`). A log of events (`event_log.py`) only
grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.spark.tables.progress import TablePosition

Changes_contra = TypeVar("Changes_contra", contravariant=True)
Position = TypeVar("Position", bound=TablePosition)


class TableChanges:
    """The changes of one commit: the position after it, `state`, and its rows."""

    state: Any
    clear: bool = False
    """Whether the table is emptied first."""

    @property
    def keys(self) -> Iterable[str] | None:
        """The keys whose rows change; None: any row may change."""
        return None

    @property
    def stale(self) -> Mapping[str, str]:
        """By server (empty for the only one), the token before which rows are removed; empty if none are."""
        return {}

    @property
    def has_rows(self) -> bool:
        """Whether rows are added, changed or removed."""
        return bool(self.rows().num_rows)

    def rows(self) -> pa.Table:
        """Return the new and changed rows."""
        raise NotImplementedError

    def deleted(self) -> pa.Table:
        """Return the rows to delete, with their keys only."""
        return self.rows().slice(0, 0)

    def remaining(self, rows: pa.Table, prefix: str = "") -> pa.Table:
        """Return the rows of the table that stay unchanged. The names of its columns begin with `prefix`."""
        raise NotImplementedError


class TableContent(Protocol):
    """The content of a table."""

    def position(self) -> Any:
        """Return the last committed position; the first one if there is no table. Raise NotAMirror, TableGone."""

    def read(self) -> pa.Table:
        """Return all rows, in any order."""


class DocumentTable(TableContent, Protocol[Changes_contra]):
    """The rows of documents, and the position in the same commit. One writer at a time.

    With several servers the keys are the keys of `rows/key_identity.py`.
    """

    def rows(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the valid rows with these keys; `keys` may have others."""

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of all valid rows; none if the table itself compares keys as MongoDB does."""

    def commit(self, changes: Changes_contra) -> None:
        """Make the changes and store the position, durably; if interrupted, both or neither."""


@dataclass(frozen=True, slots=True)
class TableKind(Generic[Position]):
    """A kind of table whose rows are documents."""

    name: str
    position: type[Position]
    schema: Callable[..., pa.Schema]
    """Returns the columns; with `servers`, also the column of the server."""
    valid: tuple[str, ...]
    """The columns of a valid row, beside the server."""
    identity: tuple[str, ...]
    """The columns that identify a row, beside the server."""
    parsed: Callable[[pa.Table, set[str] | None], dict[str, Any]]
    """Returns valid rows by key, or only those of some keys."""
    current: str = ""
    """The column that is true for valid rows, and partitions the table; empty if all rows are valid."""
