"""The tables of a job: one of each sink, or, with several collections, one of each sink for each collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.spark.jobs.job_record import read_record
from headrace.spark.jobs.typed_sinks import set_validators
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, namespace_of, text_of
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.mongodb.stream_fingerprint import stream_fingerprint
from headrace.spark.sinks.catalog_names import TakenNames, tables_in_catalog
from headrace.spark.sinks.catalog_names import overlap as names_overlap
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.sink_options import SinkOptions
from headrace.spark.sinks.table_paths import overlap, tables_at

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job


@dataclass(frozen=True, slots=True)
class JobTable:
    """A table of a job: the sink with the table's own path, and the collection if the job has several, else empty."""

    sink: SinkOptions
    collection: str = ""

    @property
    def namespace(self) -> Namespace:
        """The collection's namespace."""
        return namespace_of(self.collection)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What a table has on disk: its files, their bytes, and its rows if its statistics say so."""

    file_count: int
    byte_count: int
    row_count: int | None


def table_name(sink: SinkOptions) -> str:
    """What a job's record calls the sink's table."""
    location = sink.location
    named = sink.kind == "sql" or sink.in_catalog
    target = [sink.options.get(name) for name in ("database", "collection", "table" if named else "", "topic")]
    return f"{sink.kind} {location or '.'.join(str(name) for name in target if name)}"


def tables_of(job: Job, *, with_spark: bool = True) -> Iterator[JobTable]:
    """The tables of the job's sinks; of a sink of several collections those that are there.

    Without Spark those of several collections in its catalogs are left out; else it runs, or is started.
    """
    selection = job.options.selection
    for sink in job.sinks:
        if not sink.per_collection:
            yield JobTable(sink)
        elif with_spark or not sink.in_catalog:
            for namespace in sorted(_there(job, sink)):
                if selection.matches(namespace):
                    yield JobTable(sink.of_collection(namespace), text_of(namespace))


def _there(job: Job, sink: SinkOptions) -> Iterator[Namespace]:
    """The collections that have a table of the sink."""
    options = job.options
    if not sink.in_catalog:
        return tables_at(sink.target, options.selection.database)
    record = read_record(job.checkpoint)
    names = [name for name, each in record.collections.items() if each["uuid"]] if record else []
    known = {namespace_of(name.partition(" ")[2] if options.others else name) for name in names}
    return tables_in_catalog(sink.target, {each for each in known if options.selection.matches(each)})


def missing_tables(job: Job, begun: Iterable[str], *, with_spark: bool) -> list[str]:
    """The names of tables that have begun, by the job's record, and of which not even the folder is there.

    With Spark also of those in its catalogs.
    """
    there = {table_name(table.sink) for table in tables_of(job, with_spark=with_spark)}
    return [name for name in begun if name not in there and any(_may_be(sink, name, with_spark) for sink in job.sinks)]


def _may_be(sink: SinkOptions, name: str, with_spark: bool) -> bool:
    """Whether the name is that of a table of the sink, one of several collections."""
    kind, _, target = name.partition(" ")
    if not sink.per_collection or kind != sink.kind:
        return False
    if sink.in_catalog:
        return with_spark and names_overlap(sink.target, target)
    return overlap(str(sink.location), target)


def open_sink(job: Job, sink: SinkOptions, options: SourceOptions) -> Sink:
    """The sink, opened; one of several collections opens each table when its collection has the first row."""
    if not sink.per_collection:
        return sink.open()

    taken = TakenNames()

    def open_table(namespace: Namespace) -> Sink:
        one = sink.of_collection(namespace)
        if one.in_catalog:
            taken.take(one.target, namespace)
        table = one.open()
        database, collection = namespace
        set_validators([table], replace(options, database=database, collection=collection))
        return table

    opened = CollectionsSink(open_table, selection_of(options))

    def fingerprint(namespace: Namespace) -> str:
        database, collection = namespace
        return stream_fingerprint(replace(options, database=database, collection=collection), job.stages)

    opened.fingerprint = fingerprint
    return opened


def selection_of(options: SourceOptions) -> CollectionSelection:
    """The collections that the source reads."""
    if options.collection is not None:
        return CollectionSelection(options.database, (options.collection,))
    return options.selection


def table_files(sink: SinkOptions) -> TableFiles | None:
    """The files of a Delta table, by its log; of other folders what they have. None without a folder."""
    location = sink.location
    if location is None:
        return None
    table = location.table()
    if table is not None:
        import pyarrow as pa

        actions = pa.table(table.get_add_actions(flatten=True))
        rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None]
        known = None if any(count is None for count in rows) else sum(rows)
        return TableFiles(actions.num_rows, sum(actions.column("size_bytes").to_pylist()), known)
    sizes = [location.size(name) or 0 for name in location.names() if name.endswith(".parquet")]
    return TableFiles(len(sizes), sum(sizes), None)
