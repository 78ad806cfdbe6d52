"""How a worker reads a partition (`partitions.py`), as batches of BSON columns.

A range of events gives the same rows each time it is read. A chunk of a snapshot may give newer documents, each with
the token at which it is valid (`timetravel/snapshot.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from headrace.spark.mongodb.event_ranges import read_range, rows_batches
from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.partitions import (
    ArchivedPartition,
    EventRange,
    PastPartition,
    ReplacementSnapshot,
    SnapshotPartition,
)
from headrace.spark.timetravel import past_from_archive, past_from_images
from headrace.spark.timetravel.archive import read_events
from headrace.spark.timetravel.collection_at_time import DocumentRange, documents_in
from headrace.spark.timetravel.past_from_images import PastUnknown
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow import EventRow

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)


def read_partition(options: SourceOptions, part: InputPartition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, as batches of these columns of BSON.

    Raise PositionLost, PastUnknown, ArchiveUnfit or SnapshotUnsettled.
    """
    if isinstance(part, EventRange) and options.archive:
        return read_events(options, part.start, part.end, columns, slice_=part.slice, slices=part.slices)
    if isinstance(part, EventRange):
        return read_range(MongoDBStream(options), part.start, part.end, columns, slice_=part.slice, slices=part.slices)
    return rows_batches(_rows(options, part), columns)


def past_partitions(options: SourceOptions, token: Token) -> list[InputPartition]:
    """Return the partitions of the collection at `token`: from the archive if possible, otherwise from the server."""
    if options.archive:
        try:
            base = past_from_archive.base_at(options, token)
        except PastUnknown as unknown:
            _LOG.warning("%s. The server is asked instead.", unknown)
        else:
            return [ArchivedPartition(token, base, number, options.partitions) for number in range(options.partitions)]
    return [PastPartition(token)]


def _rows(options: SourceOptions, part: InputPartition) -> Iterable[EventRow]:
    if isinstance(part, DocumentRange):
        yield from documents_in(options, part)
        return
    snapshot = Snapshot(options)
    if isinstance(part, PastPartition):
        yield from past_from_images.documents_at(snapshot, part.token)
        return
    if isinstance(part, ArchivedPartition):
        if part.first:
            yield snapshot.begin_row(part.token)
        yield from past_from_archive.documents_at(options, part.token, part.base, part.slice, part.slices)
        if part.last:
            yield snapshot.end_row_at(part.token)
        return
    if isinstance(part, ReplacementSnapshot):
        yield snapshot.begin_row(part.token)
        yield from snapshot.read_all()
        yield snapshot.end_row(part.token)
        return
    assert isinstance(part, SnapshotPartition)
    if part.first:
        yield snapshot.begin_row(part.token)
    if part.chunk:
        yield from snapshot.read(part.chunk)
    if part.last:
        yield snapshot.end_row(part.token)
