"""The contract of a sink: what a micro-batch is, and how a sink applies one. One test checks it for every sink.

After all batches were applied in order, the target is right, even if

- a batch was interrupted anywhere and applied again (with the same number and range, as Spark does);
- the query lost its checkpoint, and a new query, whose numbers begin at 0, repeats earlier events.

A sink recognizes the first case by query and number, the second by the token. It stores both in the commit of its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from headrace.clock import SystemClock
from headrace.spark.rows.events import SERVER, Row
from headrace.spark.tables.progress import TablePosition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark.masks.mask import Mask

_ROW_COLUMNS: Final = (
    "token", "operationType", "database", "collection", "documentKey", "fullDocument", "updateDescription", "other",
    "server",
)  # fmt: skip
"""The columns that say what a row does. The other columns say when, or are only recorded."""
FOLDED_COLUMNS: Final = (*_ROW_COLUMNS, "wallTime")
"""The columns that a sink reads if it folds events into documents."""


class SeveralServers(ValueError):
    """Rows of several servers came to a sink whose target has no column for them."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A committed batch: the count of its rows and of its new events, and the token that the sink has reached.

    `first_event_ms` is the time of the first event, `committed_ms` the time of the commit. `rest_count` counts values
    without a column in a typed table, `dead_letter_count` rows that the sink refused.
    """

    batch: int
    row_count: int
    event_count: int
    token: str
    first_event_ms: int | None
    committed_ms: int
    rest_count: int = 0
    dead_letter_count: int = 0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch. `number` counts within `query`, Spark's id of the checkpoint. `table` has the source's columns."""

    query: str
    number: int
    table: pa.Table

    def masked(self, mask: Mask | None) -> MicroBatch:
        """Return the batch with the mask applied; unchanged if the mask is None."""
        if mask is None:
            return self
        from headrace.spark.masks.mask import masked_texts

        return replace(self, table=masked_texts(self.table, mask))

    def rows(self) -> list[Row]:
        """Return the rows sorted by token, without the times; a column that the batch lacks is None."""
        names = {name for name in _ROW_COLUMNS if name in self.table.column_names}
        nothing = [None] * self.table.num_rows
        columns = [self.table.column(name).to_pylist() if name in names else nothing for name in Row._fields]
        return sorted(map(Row._make, zip(*columns, strict=True)), key=attrgetter("token"))

    def rows_of_one_server(self) -> list[Row]:
        """Return `rows()` of a source with one server; raise SeveralServers if the rows name their server.

        Documents of two servers can have the same `_id`, and tokens of two servers cannot be compared.
        """
        if SERVER in self.table.column_names:
            raise SeveralServers("such a sink follows a collection of one server: give each server a job of its own")
        return self.rows()

    def first_event_ms(self) -> int | None:
        """Return the time of the first event: milliseconds since the epoch on the server's clock; None if unknown."""
        if "wallTime" not in self.table.column_names:
            return None
        first = pc.min(self.table.column("wallTime")).as_py()
        return None if first is None else round(first.timestamp() * 1000)

    def report(self, event_count: int, token: str, rest_count: int = 0) -> BatchReport:
        """Return the report on this batch, which has just been committed."""
        return BatchReport(
            self.number, self.table.num_rows, event_count, token, self.first_event_ms(), SystemClock().now_ms(),
            rest_count,
        )  # fmt: skip


class Sink(Protocol):
    """The target of a stream of rows, written by one writer at a time."""

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        """Apply the batch durably. Return None if the batch is empty or was applied before.

        After an interrupted call the caller applies the same batch again.
        """

    def position(self) -> TablePosition:
        """Return the last committed position."""


@runtime_checkable
class FrameSink(Sink, Protocol):
    """A sink that can leave the rows in Spark instead of collecting them to the driver; it does if `takes_frames`."""

    takes_frames: bool

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        """Apply batch `number` of `query`, as `apply` does; `frame` has its rows."""


def take_rows(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Return the rows with these numbers; `numbers` may be empty."""
    return table.take(pa.array(numbers, pa.int64()))
