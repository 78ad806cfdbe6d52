"""Every key of a `[[sink]]` of a job file: its type, its default, its meaning and an example.

`sink_options.py` checks combinations of keys. `docs/reference.py` writes the reference page from these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from headrace import limits
from headrace.spark.sinks.file_values import (
    CollectionName,
    DatabaseName,
    Duration,
    FilePath,
    FileTable,
    Hours,
    Line,
    Paths,
    Size,
    Text,
    entry,
)

_OneOrMore = Annotated[Text | list[Text], Field(title="a text, or an array of texts")]
_DROP: Final = "on drop or rename: "


class Upkeep(FileTable):
    """`[sink.upkeep]`: of a Delta table; `keep` is of the sinks `changes` and `history`."""

    model_config = ConfigDict(validate_default=True)

    commits: Annotated[int, Field(ge=limits.UPKEEP_COMMIT_COUNT_MIN, le=10**9)] = entry(
        2000, "versions that the log describes at least, for readers and time travel", example=500
    )
    every: Duration = entry("10 minutes", "the least time between two times that it is done", example="1 hour")
    keep: Duration | None = entry(
        None, 'how long events, or versions that have ended, stay, such as `"30 days"`', example="30 days",
        shown="for ever",
    )  # fmt: skip
    retain: Hours = entry("1 day", "how long files of old versions stay, in whole hours", example="2 hours")
    target: Size = entry("128 MB", "size of the files that small ones are joined to", example="64 MB")


class _Folder(FileTable):
    path: FilePath = entry(..., "folder of the table, or an object store URL", example="lake/orders")


class _WithUpkeep(FileTable):
    upkeep: Annotated[Upkeep | bool | None, Field(title="a table, or false for none")] = entry(
        None, "upkeep of the Delta table: a table, see below, or `false` for none, as in a catalog", example=False,
        shown="defaults",
    )  # fmt: skip


class _WithWriters(FileTable):
    writers: Literal["tasks", "driver"] = entry(
        "tasks", "`tasks`: Spark's tasks write the files; `driver`: rows go through the driver", example="driver"
    )


class _Typed(_WithUpkeep):
    """A table in a folder or a catalog, which may have typed columns."""

    cluster: _OneOrMore = entry([], "columns by which compaction sorts the rows (Z-order)", example=["city"])
    evolve: Literal["none", "add", "widen", "text"] | None = entry(
        None,
        "`none`, `add` (new fields become columns), `widen` (and numbers widen), `text` (and numbers become text)",
        example="add", shown="widen, or none for a given schema",
    )  # fmt: skip
    flatten: Annotated[bool | Text | list[Text], Field(title="true, false, a path, or an array of paths")] = entry(
        False, "`true`, or paths of objects whose fields are columns: `address.city`, `address_city`",
        example=["address"],
    )  # fmt: skip
    omit: Paths = entry([], "paths of fields that the table does not have", example=["notes"])
    partition: _OneOrMore = entry(
        [], "partitions: `day(created)`, also `year`, `month`, `hour`, or a value: `country`", example=["day(created)"]
    )
    path: FilePath | None = entry(
        None,
        "folder of the table, or an object store URL",
        example="lake/orders",
        shown="required, unless in a catalog",
    )
    rename: Annotated[dict[str, Text], Field(title="a table: the names of columns by paths")] = entry(
        {}, 'names of columns by path: `{"address.city" = "city"}`', example={"address.city": "city"}
    )
    schema_text: Text | None = Field(
        None, alias="schema", examples=["infer"], json_schema_extra={"shown": "documents as text"},
        description="`infer`, or the typed columns as DDL: `_id STRING, address.city STRING`",
    )  # fmt: skip
    schema_file: FilePath | None = entry(
        None, "with `infer`: the file of the columns, to be edited", example="orders.columns",
        shown="`_NAME.columns` next to the table",
    )  # fmt: skip
    using: Text | None = entry(
        None, "`delta` or `iceberg`: the format in which a table in a catalog is made if it is not there",
        example="iceberg", shown="none",
    )  # fmt: skip


_Table = Annotated[
    str, Field(pattern=r"^(delta|.*\..*)$", title="'delta', or a name with a dot in one of Spark's catalogs")
]
_table: Final[Any] = entry("delta", "`delta`, or a table's name in a Spark catalog", example="lake.shop.orders")


class Changes(_Typed, _WithWriters):
    """A table of events."""

    kind: Literal["changes"]
    policy: Literal["follow", "fail", "keep"] = entry(
        "follow", f"{_DROP}`follow` writes the event as a row, `fail` stops before it", example="fail"
    )
    table: _Table = _table


class Documents(_Folder, _WithUpkeep):
    """A table of the documents that a pipeline makes."""

    kind: Literal["documents"]
    table: Literal["delta", "parquet"] = entry("delta", "`delta`, or `parquet` (in a folder only)", example="parquet")


class History(_Typed, _WithWriters):
    """A table of all versions of each document."""

    kind: Literal["history"]
    policy: Literal["follow", "keep", "fail"] = entry(
        "follow", f"{_DROP}`follow` ends all versions, `keep` does not, `fail` stops", example="keep"
    )
    table: _Table = _table


class Kafka(FileTable):
    """A topic."""

    kind: Literal["kafka"]
    format: Literal["canonical", "relaxed"] = entry(
        "canonical", "values as `canonical` or `relaxed` Extended JSON", example="relaxed"
    )
    kafka: dict[str, Any] = entry(
        {}, "options of Kafka's clients: a table; values may be `env:NAME` or `file:PATH`", example={"acks": "all"},
        shown="none",
    )  # fmt: skip
    policy: Literal["follow", "fail", "keep"] = entry(
        "follow", f"{_DROP}`follow` writes the event, `fail` stops before it", example="fail"
    )
    position: FilePath = entry(..., "file of the sink's position", example="orders.position")
    servers: _OneOrMore = entry(
        ..., "brokers to ask first, such as `localhost:9092`, with commas between them", example="localhost:9092"
    )
    tombstones: bool = entry(
        False, "`true`: a record without a value follows each delete, for topics that compact", example=True
    )
    topic: Text = entry(..., "the topic; may have `{database}` and `{collection}`", example="shop.{collection}")


class MirrorKeys(_Typed, _WithWriters):
    """A table of the collection's documents."""

    kind: Literal["mirror"]
    buckets: Annotated[int, Field(ge=0, le=limits.BUCKET_COUNT_MAX)] = entry(
        0, "partitions of a Delta table by a hash of the key; fixed when the table is created", example=4
    )
    policy: Literal["follow", "keep", "fail"] = entry(
        "follow", f"{_DROP}`follow` empties the table, `keep` does not, `fail` stops", example="keep"
    )
    table: Annotated[
        str, Field(pattern=r"^(delta|parquet|.*\..*)$", title="'delta', 'parquet', or a name with a dot in a catalog")
    ] = entry(
        "delta", "`delta`, `parquet` (one file, in a folder only), or a table's name in a Spark catalog",
        example="lake.shop.orders",
    )  # fmt: skip


class MongoDB(FileTable):
    """A copy of the collection on a server."""

    kind: Literal["mongodb"]
    collection: CollectionName | None = entry(
        None, "the target collection", example="orders", shown="the source's, or each row's"
    )
    database: DatabaseName | None = entry(
        None, "the target database", example="copy", shown="the source's, or each row's"
    )
    policy: Literal["follow", "keep", "fail"] = entry(
        "follow", f"{_DROP}`follow` does the same, `keep` does nothing, `fail` stops", example="keep"
    )
    uri: Text = entry(
        ..., "connection string of the target, or where it is (`env:NAME`, `file:PATH`)", example="env:TARGET"
    )


class Own(FileTable):
    """A sink of a program's own; it takes any other keys."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["own"]
    factory: Annotated[Line, Field(pattern=r"^[\w.]+:[\w.]+$", title="module:function")] = entry(
        ..., "`module:function`, called with all other keys of the sink", example="shop.sinks:orders"
    )


class Parquet(_Folder, _WithWriters):
    """Files of events."""

    kind: Literal["parquet"]
    policy: Literal["follow", "fail", "keep"] = entry(
        "follow", f"{_DROP}`follow` writes the event as a row, `fail` stops before it", example="fail"
    )


class Sql(FileTable):
    """A table of the collection's documents in a database."""

    kind: Literal["sql"]
    policy: Literal["follow", "keep", "fail"] = entry(
        "follow", f"{_DROP}`follow` empties the table, `keep` does not, `fail` stops", example="keep"
    )
    table: Line = entry(..., "the table's name, with its schema if it has one: `shop.orders`", example="shop.orders")
    uri: Text = entry(
        ...,
        "SQLAlchemy's URL of the database, or where it is (`env:NAME`, `file:PATH`); a path of SQLite is relative "
        "to the file",
        example="env:DATABASE",
    )


AnySink = Annotated[
    Changes | Documents | History | Kafka | MirrorKeys | MongoDB | Own | Parquet | Sql, Field(discriminator="kind")
]
