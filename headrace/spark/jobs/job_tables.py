"""The tables of a job: one for each sink, or, with several collections, one for each sink and collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pymongo.errors import PyMongoError

from headrace.spark.jobs.checkpoint import read_record
from headrace.spark.mongodb.collection_selection import CollectionSelection, Namespace, namespace_of, text_of
from headrace.spark.mongodb.listed_collections import listed
from headrace.spark.mongodb.source_options import SourceOptions, stream_fingerprint
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.sink_options import SinkOptions, typed_options
from headrace.spark.sinks.table_paths import (
    TakenNames,
    has_files,
    is_shortened,
    names_overlap,
    overlap,
    tables_at,
    tables_in_catalog,
)
from headrace.spark.tables.delta_files import newest_commit
from headrace.spark.tables.progress import NotOurTable
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import COLUMNS_KEY, TableSchema

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from headrace.spark.jobs.job_file import Job


@dataclass(frozen=True, slots=True)
class JobTable:
    """A table of a job: the sink with the table's own path, and the collection (empty if the job has only one)."""

    sink: SinkOptions
    collection: str = ""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The size of a table on disk: its files, their bytes, and its rows (None if the statistics do not have them)."""

    file_count: int
    byte_count: int
    row_count: int | None


def table_name(sink: SinkOptions) -> str:
    """Return the name of the sink's table in a job's record."""
    location = sink.location
    named = sink.kind == "sql" or sink.in_catalog
    target = [sink.options.get(name) for name in ("database", "collection", "table" if named else "", "topic")]
    return f"{sink.kind} {location or '.'.join(str(name) for name in target if name)}"


def tables_of(job: Job, *, with_spark: bool = True) -> Iterator[JobTable]:
    """Yield the tables of the job's sinks; for a sink of several collections, the existing tables.

    Without Spark, tables of several collections in its catalogs are omitted; with Spark, it is started if needed.
    """
    selection = job.options.selection
    for sink in job.sinks:
        if not sink.per_collection:
            yield JobTable(sink)
        elif with_spark or not sink.in_catalog:
            for namespace in sorted({*_there(job, sink)}):
                if selection.matches(namespace):
                    yield JobTable(sink.of_collection(namespace), text_of(namespace))


def _there(job: Job, sink: SinkOptions) -> Iterator[Namespace]:
    """Return the collections that have a table of the sink."""
    options, record = job.options, read_record(job.checkpoint)
    names = {
        namespace_of(name.partition(" ")[2] if options.others else name)
        for name, each in (record.collections.items() if record else ())
        if each["uuid"] or not sink.in_catalog
    }
    known = sorted(name for name in names if options.selection.matches(name))
    if sink.in_catalog:
        return tables_in_catalog(sink.target, known)
    # Other folders may stand next to the tables.
    others = {str(job.checkpoint.absolute()), str(location_of(job.deadletter or job.checkpoint))}
    listed = tables_at(sink.target, options.database, known)
    return (name for name in listed if str(sink.of_collection(name).location) not in others)


def missing_tables(job: Job, begun: Iterable[str], *, with_spark: bool) -> list[str]:
    """Return the names of tables that have begun, by the job's record, and whose folder is missing.

    With Spark also those in its catalogs.
    """
    there = {table_name(table.sink) for table in tables_of(job, with_spark=with_spark)}
    return [
        name for name in begun
        if name not in there and any(_may_be(sink, name, with_spark) for sink in job.sinks) and not _is_short(name)
    ]  # fmt: skip


def _is_short(name: str) -> bool:
    """Whether the name is that of an existing table whose folder does not show its collection."""
    path = name.partition(" ")[2]
    return is_shortened(path) and has_files(path)


def _may_be(sink: SinkOptions, name: str, with_spark: bool) -> bool:
    """Whether the name may be that of a table of the sink, for one of several collections."""
    kind, _, target = name.partition(" ")
    if not sink.per_collection or kind != sink.kind:
        return False
    if sink.in_catalog:
        return with_spark and names_overlap(sink.target, target)
    return overlap(str(sink.location), target)


def may_be_table_of(sink: SinkOptions, name: str) -> bool:
    """Whether `name`, made by `table_name`, may be the name of a table of the sink."""
    return name == table_name(sink) or _may_be(sink, name, with_spark=True)


def open_sink(job: Job, sink: SinkOptions, options: SourceOptions) -> Sink:
    """Open the sink. With several collections, each table is opened when its collection's first row comes."""
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
    """Return the selection of collections that the source reads."""
    if options.collection is not None:
        return CollectionSelection(options.database, (options.collection,))
    return options.selection


def table_files(sink: SinkOptions) -> TableFiles | None:
    """Return the size of a Delta table, by its log, or of another folder, by its files. None without a folder."""
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


_FORMATS: Final = {"_delta_log": "delta", "_spark_metadata": "events as Parquet files", "mirror.parquet": "parquet"}
"""The kind of table in a folder, by a file name that only such a table has."""


def has_table(folder: Path) -> bool:
    """Whether a local folder has a table of any format."""
    return any((folder / name).exists() for name in _FORMATS)


def check_format(sink: SinkOptions) -> None:
    """Raise NotOurTable if the folder has a table of another format than the sink's."""
    location = sink.location
    if location is None or not location.exists():
        return
    names = set(location.names())
    wanted = "_delta_log"
    if sink.kind == "parquet" or (sink.kind == "documents" and sink.options.get("table") == "parquet"):
        wanted = "_spark_metadata"
    elif sink.options.get("table") == "parquet":
        wanted = "mirror.parquet"
    others = [name for name in _FORMATS if name in names and name != wanted]
    if others:
        raise NotOurTable(
            f"{location} has a table of another kind ({_FORMATS[others[0]]}): give {sink.kind} another path"
        )
    table = location.table() if wanted == "_delta_log" and wanted in names else None
    columns = {field.name for field in table.schema().fields} if table else set()
    if columns and not _FITS[sink.kind](columns):
        raise NotOurTable(
            f"{location} has a table of another kind, with {', '.join(sorted(columns))}: give {sink.kind} another path"
        )
    if table is not None:
        _check_columns(sink, table)


def _check_columns(sink: SinkOptions, table: DeltaTable) -> None:
    """Raise NotOurTable if the table has typed columns and the sink none, or the reverse, or other partitions."""
    again = "give the sink a table of its own, or begin again with `headrace pipeline reset --data`"
    commit = newest_commit(table)
    if commit is None:
        return
    typed = typed_options(sink.options, str(sink.location))
    if (COLUMNS_KEY in commit) != (typed is not None):
        has, wanted = ("typed columns", "none") if typed is None else ("documents as text", "a schema")
        raise NotOurTable(f"{sink.location} has {has}, and the sink {sink.kind} {wanted}: {again}")
    there = [name for name in table.metadata().partition_columns if name not in _FIXED_PARTITIONS]
    if typed and there != (now := [each.name for each in typed.partitions]):
        raise NotOurTable(
            f"{sink.location} is partitioned by {', '.join(there) or 'nothing'}, not by {', '.join(now) or 'nothing'}, "
            f"which is fixed when a table is made: {again}"
        )


_FIXED_PARTITIONS: Final = frozenset({"_bucket", "_current", "current"})


_FITS: Final[dict[str, Callable[[set[str]], bool]]] = {
    "changes": lambda columns: "token" in columns and not columns & {"_key", "document", "until"},
    "documents": lambda columns: "document" in columns and not columns & {"_id", "until"},
    "history": lambda columns: {"_id", "document", "until"} <= columns or {"_key", "_until"} <= columns,
    "mirror": lambda columns: (
        ({"_id", "document"} <= columns and "until" not in columns) or ("_key" in columns and "_until" not in columns)
    ),
}
"""Whether a Delta table with these columns can belong to a sink of this kind."""


def set_validators(sinks: list[Sink], options: SourceOptions) -> None:
    """Give the collection's validator to each sink that infers a schema, if the source has one collection."""
    schemas = [schema for sink in sinks if (schema := schema_of_sink(sink)) is not None]
    if schemas and options.database and options.collection:
        validator = _validator(options)
        for schema in schemas:
            schema.validator = validator


def schema_of_sink(sink: Sink) -> TableSchema | None:
    """Return the schema of the sink's table; None if it has no typed columns."""
    schema = getattr(getattr(sink, "table", None), "schema", None)
    return schema if isinstance(schema, TableSchema) else None


def _validator(options: SourceOptions) -> Mapping[str, Any]:
    """Return the collection's `$jsonSchema`; empty if it has none, or if the user may not read it."""
    try:
        validators = [one.get("options", {}).get("validator", {}) for _, one in listed(options)]
    except PyMongoError:
        return {}
    schema = validators[0].get("$jsonSchema", {}) if validators else {}
    return schema if isinstance(schema, Mapping) else {}
