"""Every key of a job's file, with its default and its meaning: what `job_file.py` accepts.

`docs/reference.py` writes the reference page from these tables. The keys of `[source]` are the source's options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FileKey:
    """One key. `default` is as a user would write it, empty where there is none; `text` is Markdown."""

    default: str
    text: str


JOB_KEYS: Final = {
    "": {
        "checkpoint": FileKey("required", "folder of Spark's checkpoint; relative paths are relative to the file"),
        "deadletter": FileKey("none", 'with `errors = "deadletter"`: path or URL of the table for refused rows'),
        "deadletter_max": FileKey("1000", "how many rows may be refused until the job stops"),
        "errors": FileKey(
            "stop", "what a row that a sink refuses does: `stop` the job, or go to the `deadletter` table"
        ),
        "mask": FileKey("nothing", "a table: values that are masked before anything is written, see below"),
        "metrics": FileKey("no metrics", "a table: metrics for Prometheus, see below"),
        "name": FileKey("the file's name", "the job's name in its output and metrics"),
        "on_lag": FileKey("no alert", "a table: when the job is late, and the command that is run then, see below"),
        "pipeline": FileKey("events as they are", "a table: the job's stages, see below"),
        "report_seconds": FileKey("5.0", "how often the job prints a line of progress"),
        "sink": FileKey("required", "an array of tables: one or more sinks, see below"),
        "source": FileKey("required", "a table: the options of the source"),
        "spark": FileKey("defaults", "a table: the Spark session to start, where there is none, see below"),
        "trigger": FileKey("as events arrive", "a table: when a micro-batch starts, see below"),
    },
    "mask": {
        "hash": FileKey("[]", "paths of values replaced by their HMAC-SHA-256"),
        "key": FileKey("none", "the key of `hash`: `env:NAME` or `file:PATH`"),
        "null": FileKey("[]", "paths of values replaced by null"),
        "omit": FileKey("[]", "paths of fields that are left out"),
        "redact": FileKey("[]", 'paths of values replaced by `"***"`'),
        "truncate": FileKey("{}", 'by path, how many characters of a string remain: `{"address.zip" = 2}`'),
    },
    "metrics": {
        "address": FileKey("127.0.0.1", "address to listen on"),
        "port": FileKey("9464", "port of `GET /metrics`"),
    },
    "on_lag": {
        "events": FileKey("none", "so many events wait: at most 10000, as many as are counted"),
        "run": FileKey("nothing is run", "a command, or an array of its words; it has the figures in its environment"),
        "seconds": FileKey("none", "the first event that waits is so old; this or `events` is needed"),
    },
    "pipeline": {
        "date": FileKey("$clusterTime", "with `window`: the expression whose date decides the window"),
        "delay": FileKey("none", "how late documents may come, where windows are not by `$clusterTime`"),
        "slide": FileKey("the window", 'with `window`: how far apart windows start, such as `"10 minutes"`'),
        "stages": FileKey("[]", "the stages, as JSON text or a TOML array; values are Extended JSON"),
        "tables": FileKey("none", "a table for each name that a `$lookup` has as `from`, see below"),
        "window": FileKey("none", 'the window of a `$group` without `$dateTrunc` in its `_id`, such as `"1 hour"`'),
    },
    "spark": {
        "conf": FileKey("{}", "Spark configuration properties"),
        "cores": FileKey("2", "threads of a local session"),
        "memory": FileKey("1g", "the driver's heap"),
        "quick": FileKey("false", "start sooner and run slower, for small jobs"),
    },
    "trigger": {
        "availableNow": FileKey("false", "`true`: process what is there, then end"),
        "every": FileKey("0 seconds", 'the least time between the starts of two micro-batches, such as `"1 second"`'),
    },
}
"""By table of the file; `""` is the top."""

LOOKUP_TABLE_KEYS: Final = {
    "document": FileKey("document", "the column that holds the documents"),
    "format": FileKey("parquet", "`delta`, or a format of Spark's"),
    "options": FileKey("{}", "options of Spark's reader"),
    "path": FileKey("none", "folder, or for `delta` an object store URL"),
}
"""Of each table under `[pipeline.tables]`; `format` or `path` is needed."""

_IN_CATALOG: Final = FileKey("required, unless in a catalog", "folder of the table, or an object store URL")
_PATH: Final = FileKey("required", "folder of the table, or an object store URL")
_TABLE: Final = FileKey("delta", "`delta`, or a table's name in a Spark catalog")
_USING: Final = FileKey(
    "none", "`delta` or `iceberg`: the format in which a table in a catalog is made if it is not there"
)
_UPKEEP: Final = FileKey(
    "defaults", "upkeep of the Delta table: a table, see below, or `false` for none, as in a catalog"
)
_WRITERS: Final = FileKey("tasks", "`tasks`: Spark's tasks write the files; `driver`: rows go through the driver")

_TYPED: Final = {
    "cluster": FileKey("[]", "columns by which compaction sorts the rows (Z-order)"),
    "evolve": FileKey(
        "widen, or none for a given schema",
        "`none`, `add` (new fields become columns), `widen` (and numbers widen), `text` (and numbers become text)",
    ),
    "flatten": FileKey("false", "`true`, or paths of objects whose fields are columns: `address.city`, `address_city`"),
    "omit": FileKey("[]", "paths of fields that the table does not have"),
    "partition": FileKey("[]", "partitions: `day(created)`, also `year`, `month`, `hour`, or a value: `country`"),
    "rename": FileKey("{}", 'names of columns by path: `{"address.city" = "city"}`'),
    "schema": FileKey("documents as text", "`infer`, or the typed columns as DDL: `_id STRING, address.city STRING`"),
    "schema_file": FileKey("`_NAME.columns` next to the table", "with `infer`: the file of the columns, to be edited"),
}

SINK_KEYS: Final = {
    "changes": _TYPED
    | {
        "path": _IN_CATALOG,
        "policy": FileKey("follow", "on drop or rename: `follow` writes the event as a row, `fail` stops before it"),
        "table": _TABLE,
        "upkeep": _UPKEEP,
        "using": _USING,
        "writers": _WRITERS,
    },
    "documents": {
        "path": _PATH,
        "table": FileKey("delta", "`delta`, or `parquet` (in a folder only)"),
        "upkeep": _UPKEEP,
    },
    "history": _TYPED
    | {
        "path": _IN_CATALOG,
        "policy": FileKey("follow", "on drop or rename: `follow` ends all versions, `keep` does not, `fail` stops"),
        "table": _TABLE,
        "upkeep": _UPKEEP,
        "using": _USING,
    },
    "kafka": {
        "format": FileKey("canonical", "values as `canonical` or `relaxed` Extended JSON"),
        "kafka": FileKey("none", "options of Kafka's clients: a table; values may be `env:NAME` or `file:PATH`"),
        "policy": FileKey("follow", "on drop or rename: `follow` writes the event, `fail` stops before it"),
        "position": FileKey("required", "file of the sink's position"),
        "servers": FileKey("required", "brokers to ask first, such as `localhost:9092`, with commas between them"),
        "tombstones": FileKey("false", "`true`: a record without a value follows each delete, for topics that compact"),
        "topic": FileKey("required", "the topic; may have `{database}` and `{collection}`"),
    },
    "mirror": _TYPED
    | {
        "buckets": FileKey("0", "partitions of a Delta table by a hash of the key; fixed when the table is created"),
        "path": _IN_CATALOG,
        "policy": FileKey("follow", "on drop or rename: `follow` empties the table, `keep` does not, `fail` stops"),
        "table": FileKey(
            "delta", "`delta`, `parquet` (one file, in a folder only), or a table's name in a Spark catalog"
        ),
        "upkeep": _UPKEEP,
        "using": _USING,
    },
    "mongodb": {
        "collection": FileKey("the source's, or each row's", "the target collection"),
        "database": FileKey("the source's, or each row's", "the target database"),
        "policy": FileKey("follow", "on drop or rename: `follow` does the same, `keep` does nothing, `fail` stops"),
        "uri": FileKey("required", "connection string of the target, or where it is (`env:NAME`, `file:PATH`)"),
    },
    "own": {"factory": FileKey("required", "`module:function`, called with all other keys of the sink")},
    "parquet": {
        "path": FileKey("required", "folder of the files"),
        "policy": FileKey("follow", "on drop or rename: `follow` writes the event as a row, `fail` stops before it"),
        "writers": _WRITERS,
    },
    "sql": {
        "policy": FileKey("follow", "on drop or rename: `follow` empties the table, `keep` does not, `fail` stops"),
        "table": FileKey("required", "the table's name, with its schema if it has one: `shop.orders`"),
        "uri": FileKey("required", "SQLAlchemy's URL of the database, or where it is (`env:NAME`, `file:PATH`)"),
    },
}
"""By kind of sink, besides `kind`."""

UPKEEP_KEYS: Final = {
    "commits": FileKey("2000", "versions that the log describes at least, for readers and time travel"),
    "every": FileKey("10 minutes", "the least time between two times that it is done"),
    "keep": FileKey("for ever", 'how long events, or versions that have ended, stay, such as `"30 days"`'),
    "retain": FileKey("1 day", "how long files of old versions stay, in whole hours"),
    "target": FileKey("128 MB", "size of the files that small ones are joined to"),
}
"""Of each `[sink.upkeep]`; `keep` is of the sinks `changes` and `history`."""
