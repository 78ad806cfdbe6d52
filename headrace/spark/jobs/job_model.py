"""Every key of a job file: its type, its default, its meaning and an example.

`job_file.py` reads files with these classes, and checks combinations of keys. `docs/reference.py` writes the reference
page and the JSON schema from them. The keys of `[source]` are the options of the source (`source/option_table.py`).
"""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, create_model, model_validator

from headrace import limits
from headrace.spark.errors import OptionError, shown
from headrace.spark.sinks.file_values import (
    FilePath,
    FileTable,
    Host,
    Interval,
    Line,
    Memory,
    Paths,
    Port,
    Schema,
    Text,
    entry,
)
from headrace.spark.sinks.sink_model import AnySink
from headrace.spark.source.option_table import SOURCE_OPTIONS, SourceOption
from headrace.spark.source.options import check_option

Positive = Annotated[float, Field(gt=0, le=1e9, title="a number above 0")]


def _checked(name: str, value: Any) -> Any:
    """Return the value of a source option, unchanged. Raise ValueError without the option's name."""
    if type(value) not in SOURCE_OPTIONS[name].types:
        raise ValueError(f"is {SOURCE_OPTIONS[name].allowed}, not {shown(value)}")
    try:
        check_option(name, option_text(value))
    except OptionError as error:
        raise ValueError(str(error).removeprefix(f"the option {name!r} ")) from None
    return value


def option_text(value: Any) -> str:
    """Return a value of `[source]` as text, as Spark takes options."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _source_key(name: str, option: SourceOption) -> Any:
    schema: dict[str, Any] = {"title": option.allowed}
    if option.choices:
        schema |= {"enum": list(option.choices)}
    kind = Annotated[Any, AfterValidator(partial(_checked, name)), WithJsonSchema(schema)]
    example = option.choices[-1] if option.choices else option.example
    return kind, entry(None, option.text, example=example, shown=option.default)


Source: Final = create_model(
    "Source", __base__=FileTable, **{name: _source_key(name, option) for name, option in SOURCE_OPTIONS.items()}
)


class MaskTable(FileTable):
    """`[mask]`."""

    hash: Paths = entry([], "paths of values replaced by their HMAC-SHA-256", example=["customer.email"])
    key: Text | None = entry(None, "the key of `hash`: `env:NAME` or `file:PATH`", example="env:MASK_KEY", shown="none")
    null: Paths = entry([], "paths of values replaced by null", example=["customer.phone"])
    omit: Paths = entry([], "paths of fields that are left out", example=["notes"])
    redact: Paths = entry([], 'paths of values replaced by `"***"`', example=["customer.name"])
    truncate: Annotated[
        dict[str, Annotated[int, Field(ge=0)]], Field(title="a table of numbers of characters by path")
    ] = entry({}, 'by path, how many characters of a string remain: `{"address.zip" = 2}`', example={"address.zip": 2})


class Metrics(FileTable):
    """`[metrics]`."""

    address: Host = entry("127.0.0.1", "address to listen on", example="0.0.0.0")
    port: Port = entry(9464, "port of `GET /metrics`", example=9465)


def _words(run: str | list[str]) -> list[str]:
    """Return the words of a command, split as a shell does. Raise ValueError."""
    try:
        words = shlex.split(run) if isinstance(run, str) else run
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None
    if any("\0" in word for word in words):
        raise ValueError("has a NUL character, which no command can have")
    if words and not words[0].strip():
        raise ValueError("names no command")
    return words


class OnLag(FileTable):
    """`[on_lag]`: a job is late from `seconds` or `events` on (None: not by that); `run` is what is run then."""

    events: Annotated[int, Field(ge=1, le=limits.LAG_EVENT_COUNT_MAX)] | None = entry(
        None, "how many events must wait; no more than 10000 are counted", example=1000, shown="none"
    )
    run: Annotated[
        str | list[str], AfterValidator(_words), Field(title="a command, or an array of its words")
    ] = entry(
        [], "a command, or an array of its words; it has the figures in its environment",
        example=["notify-send", "orders"], shown="nothing is run",
    )  # fmt: skip
    seconds: Positive | None = entry(
        None,
        "how long the oldest event must have waited, in seconds; this or `events` is needed",
        example=60,
        shown="none",
    )

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.seconds is None and self.events is None:
            raise ValueError("needs 'seconds' or 'events'")
        return self

    def is_late(self, lag_seconds: float | None, lag_events: int | None) -> bool:
        """Whether this lag is an alert; an unknown lag is none."""
        late = [(self.seconds, lag_seconds), (self.events, lag_events)]
        return any(bound is not None and lag is not None and lag >= bound for bound, lag in late)


class LookupTable(FileTable):
    """`[pipeline.tables.NAME]`; `format` or `path` is needed."""

    document: Text = entry("document", "the column that holds the documents", example="value")
    format: Text = entry("parquet", "`delta`, or a format of Spark's", example="delta")
    options: Annotated[dict[str, str | int | float | bool], Field(title="a table of options, each one value")] = entry(
        {}, "options of Spark's reader", example={"header": "true"}
    )
    path: FilePath | None = entry(
        None, "folder, or for `delta` an object store URL", example="lake/regions", shown="none"
    )


class Pipeline(FileTable):
    """`[pipeline]`."""

    date: Text | dict[str, Any] | None = entry(
        None, "with `window`: the expression whose date decides the window", example="$wallTime", shown="$clusterTime"
    )
    delay: Interval | None = entry(
        None, "how late documents may come, where windows are not by `$clusterTime`", example="10 seconds", shown="none"
    )
    slide: Interval | None = entry(
        None, 'with `window`: how far apart windows start, such as `"10 minutes"`', example="10 minutes",
        shown="the window",
    )  # fmt: skip
    stages: Annotated[Any, Field(title="the stages, as JSON text or an array")] = entry(
        [], "the stages, as JSON text or a TOML array; values are Extended JSON",
        example=[{"$match": {"operationType": "insert"}}],
    )  # fmt: skip
    tables: dict[str, LookupTable] = entry(
        {}, "a table for each name that a `$lookup` has as `from`, see below", example={"regions": {"path": "regions"}},
        shown="none",
    )  # fmt: skip
    window: Interval | None = entry(
        None, 'the window of a `$group` without `$dateTrunc` in its `_id`, such as `"1 hour"`', example="1 hour",
        shown="none",
    )  # fmt: skip


class SparkTable(FileTable):
    """`[spark]`."""

    conf: Annotated[
        dict[str, str | int | float | bool], Field(title="a table of Spark's properties, each one value")
    ] = entry({}, "Spark configuration properties", example={"spark.sql.shuffle.partitions": 4})
    cores: Annotated[int, Field(ge=1, le=limits.SPARK_CORE_COUNT_MAX)] = entry(
        2, "threads of a local session", example=4
    )
    memory: Memory = entry("1g", "the driver's heap", example="512m")
    quick: bool = entry(False, "start sooner and run slower, for small jobs", example=True)


class Trigger(FileTable):
    """`[trigger]`."""

    availableNow: bool = entry(False, "`true`: process what is there, then end", example=True)
    every: Interval = entry(
        "0 seconds", 'the least time between the starts of two micro-batches, such as `"1 second"`', example="1 second"
    )


class JobFile(FileTable):
    """The top of a job's file."""

    checkpoint: FilePath = entry(
        ..., "folder of Spark's checkpoint; relative paths are relative to the file", example="orders/checkpoint"
    )
    deadletter: FilePath | None = entry(
        None, 'with `errors = "deadletter"`: path or URL of the table for refused rows', example="orders/refused",
        shown="none",
    )  # fmt: skip
    deadletter_max: Annotated[int, Field(ge=0, le=10**9)] = entry(
        1000, "how many rows may be refused until the job stops", example=10
    )
    errors: Literal["stop", "deadletter"] = entry(
        "stop", "what a row that a sink refuses does: `stop` the job, or go to the `deadletter` table",
        example="deadletter",
    )  # fmt: skip
    mask: MaskTable | None = entry(
        None, "a table: values that are masked before anything is written, see below", example={"omit": ["notes"]},
        shown="nothing",
    )  # fmt: skip
    metrics: Metrics | None = entry(
        None, "a table: metrics for Prometheus, see below", example={"port": 9464}, shown="no metrics"
    )
    name: Line | None = entry(
        None, "the job's name in its output and metrics", example="orders", shown="the file's name"
    )
    on_lag: OnLag | None = entry(
        None, "a table: when the job is late, and the command that is run then, see below", example={"seconds": 60},
        shown="no alert",
    )  # fmt: skip
    pipeline: Pipeline = entry(
        Pipeline(), "a table: the job's stages, see below", example={"stages": "[]"}, shown="events as they are"
    )
    report_seconds: Annotated[Positive, Field(title="a number of seconds above 0")] = entry(
        5.0, "how often the job prints a line of progress", example=60
    )
    sink: Annotated[list[AnySink], Field(min_length=1, title="an array of tables: [[sink]]")] = entry(
        ..., "an array of tables: one or more sinks, see below", example=[{"kind": "mirror", "path": "orders/mirror"}]
    )
    source: Source = entry(  # type: ignore[valid-type]
        ..., "a table: the options of the source", example={"uri": "mongodb://localhost:27017", "database": "shop"}
    )
    spark: SparkTable = entry(
        SparkTable(), "a table: the Spark session to start, where there is none, see below", example={"cores": 4},
        shown="defaults",
    )  # fmt: skip
    trigger: Trigger = entry(
        Trigger(), "a table: when a micro-batch starts, see below", example={"every": "1 second"},
        shown="as events arrive",
    )  # fmt: skip


TABLES: Final[dict[str, type[FileTable]]] = {
    "": JobFile, "mask": MaskTable, "metrics": Metrics, "on_lag": OnLag, "pipeline": Pipeline, "spark": SparkTable,
    "trigger": Trigger,
}  # fmt: skip
"""The classes by the names of their tables; `""` is the top."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a job's file, for editors."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A job of Headrace's pipeline"}
    return about | JobFile.model_json_schema(schema_generator=Schema)
