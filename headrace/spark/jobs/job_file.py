"""A job as a file: where events come from, how they are processed, where they go, and how often.

    checkpoint = "orders/checkpoint"     # Spark's checkpoint; relative paths are relative to the file
    [source]                             # the options of the source, by their names
    uri = "mongodb://localhost:27017"
    database = "shop"
    collection = "orders"
    startingPosition = "snapshot"
    [pipeline]                           # optional
    stages = '[{"$match": {"operationType": "insert"}}]'   # JSON text, or a TOML array
    window = "1 hour"                    # for $group, where its _id has no $dateTrunc; slide, date as in `Window`
    delay = "10 seconds"                 # how late documents may come, by a date that is not clusterTime
    tables.regions = {path = "regions"}  # for $lookup; format, document, options
    [trigger]                            # optional
    every = "1 second"                   # or: availableNow = true
    [mask]                               # optional: see `masks/mask.py`
    key = "env:MASK_KEY"
    hash = ["customer.email"]
    [metrics]                            # optional: figures for Prometheus
    port = 9464
    [on_lag]                             # optional: when the job is late, and which command runs then
    seconds = 60
    [spark]                              # optional: the session, if the job has to start one
    cores = 2
    [[sink]]                             # one or several; see `sinks/sink_options.py`
    kind = "mirror"
    path = "orders/mirror"               # of several collections: "lake/{database}/{collection}"; or a catalog's table

The whole file is validated when it is read, so mistakes are reported before Spark is started. `job_model.py` says what
each key allows. This module checks combinations of keys.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from headrace.spark.errors import OptionError
from headrace.spark.jobs.job_model import JobFile, OnLag, option_text
from headrace.spark.jobs.job_stages import checked_lookup_tables, refused_stages
from headrace.spark.masks.mask import MaskError
from headrace.spark.mongodb.connection_strings import reference_in
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.extjson import loads_strict
from headrace.spark.sinks.file_values import TOP, FileError, Place
from headrace.spark.sinks.sink_options import SinkError, SinkOptions, check_uri, imported_factory, parse_sink
from headrace.spark.sinks.table_paths import (
    PathError,
    check_placeholders,
    check_schema,
    has_placeholders,
    names_overlap,
    overlap,
)
from headrace.spark.source.option_table import SOURCE_OPTIONS
from headrace.spark.source.options import parse_options
from headrace.spark.tables.table_location import is_url, resolved_path

if TYPE_CHECKING:
    from headrace.spark import Window

# The options of the source that are paths.
_PATHS: Final = frozenset({"archive", "path"})
_SET_BY_JOBS: Final = ("stageInto", "stageSlots")
"""Options of the source that a job sets for its sink; for any other sink they would hide the rows."""
_OF_BATCHES: Final = ("asOf", "endingPosition")
_SOURCE_NAMES: Final = {name.lower(): name for name in SOURCE_OPTIONS}


class JobError(FileError):
    """The file does not describe a job; the message says where."""


@dataclass(frozen=True, slots=True)
class Job:
    """A parsed job. `source` has the options as Spark takes them: text, by their names in lower case."""

    name: str
    checkpoint: Path
    source: Mapping[str, str] = field(repr=False)
    sinks: tuple[SinkOptions, ...]
    stages: tuple[dict[str, Any], ...] = ()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    window: Window | None = None
    delay: str | None = None
    every: str | None = "0 seconds"
    """The trigger's interval; None: the job processes the present events and ends."""
    deadletter: str = ""
    """The table for rows that a sink refuses; empty: such a row stops the job."""
    deadletter_max: int = 1000
    report_seconds: float = 5.0
    metrics: tuple[str, int] | None = None
    spark: Mapping[str, Any] = field(default_factory=dict)
    on_lag: OnLag | None = None

    @property
    def options(self) -> SourceOptions:
        """The parsed options of the source. Raise OptionError."""
        return parse_options(self.source)

    @property
    def trigger(self) -> dict[str, Any]:
        """The arguments of Spark's `writeStream.trigger`."""
        return {"availableNow": True} if self.every is None else {"processingTime": self.every}

    @property
    def folds(self) -> bool:
        """Whether a sink folds events into documents, and so needs every event unchanged."""
        return any(sink.folds for sink in self.sinks)


def read_job(path: Path) -> Job:
    """Return the job in the file. Raise JobError; its message begins with the file, and with the line if known."""
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: this is not TOML: it is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = found[1] if found else text.count("\n") + 1
        raise JobError(f"{path}:{line}: this is not TOML: {error}") from error
    try:
        job = parse_job(given, path.stem, path.absolute().parent, path)
        _check_factories(job)
        _check_references(job)
    except ValueError as error:
        place = _as_written(given, _place_of(error))
        where = f"{path}:{line_of(text, place)}" if place else str(path)
        raise JobError(f"{where}: {error}") from error
    return job


def _place_of(error: ValueError) -> Place:
    """Return where in the file the error is; empty if that is not known."""
    if isinstance(error, FileError):
        return error.place
    if isinstance(error, OptionError):
        return ("source", error.option)
    return ("mask",) if isinstance(error, MaskError) else ()


def _as_written(given: Mapping[str, Any], place: Place) -> Place:
    """Return the place with the name of a source's option as the file has it, which may be in another case."""
    if place == ("mask",) and "mask" not in given:
        place = ("source", "mask")
    if len(place) < 2 or place[0] != "source" or not isinstance(given.get("source"), Mapping):
        return place
    names = [name for name in given["source"] if name.lower() == str(place[1]).lower()]
    return ("source", *names[:1], *place[2:])


def _check_factories(job: Job) -> None:
    """Raise FileError for a sink `own` whose factory cannot be imported."""
    for number, sink in enumerate(job.sinks):
        if sink.kind == "own":
            try:
                imported_factory(sink.options["factory"])
            except SinkError as error:
                raise FileError(f"the sink 'own': 'factory' {error}", ("sink", number, "factory")) from error


def _check_references(job: Job) -> None:
    """Raise FileError for a sink whose `uri` refers to a variable or a file that is not there, or is no URL."""
    for number, sink in enumerate(job.sinks):
        if "uri" in sink.options and sink.kind != "own":
            try:
                check_uri(sink.kind, str(sink.options["uri"]))
            except OptionError as error:
                raise FileError(f"the sink {sink.kind!r}: {error}", ("sink", number, "uri")) from None


def parse_job(given: Mapping[str, Any], name: str, folder: Path, path: Path | None = None) -> Job:
    """Return the job, whose file is at `path`, if there is one. Raise FileError for a wrong key or value.

    Raise JobError, OptionError, SinkError or MaskError for a wrong combination.
    """
    given = _with_known_names(given)
    file = JobFile.of(given, TOP)
    # As in Spark, the case of options' names does not matter.
    source = {key.lower(): option_text(value) for key, value in given["source"].items()}
    source |= {key: resolved_path(path, folder) for key, path in source.items() if key in _PATHS}
    if "uri" in source:
        source["uri"] = _servers(source["uri"], folder)
    for option in _SET_BY_JOBS:
        if option in given["source"]:
            raise FileError(f"[source]: {option!r} is set by the job itself: leave it out", ("source", option))
    for option in _OF_BATCHES:
        if option in given["source"]:
            problem = f"[source]: {option!r} is for batch reads, and a job reads a stream: leave it out"
            raise FileError(problem, ("source", option))
    if file.mask and "mask" in source:
        raise FileError("[source]: 'mask' goes with no table [mask]: leave one out", ("source", "mask"))
    if file.mask:
        source["mask"] = json.dumps(_mask(given["mask"], folder))
    trigger, pipeline = file.trigger, given.get("pipeline", {})
    if trigger.availableNow and "every" in trigger.model_fields_set:
        raise FileError("[trigger]: 'every' has no meaning with availableNow: leave one out", ("trigger", "every"))
    job = Job(
        name=file.name or name,
        checkpoint=_checkpoint(file.checkpoint, folder),
        source=source,
        sinks=tuple(_sink(sink, source, folder, number) for number, sink in enumerate(given["sink"])),
        stages=_stages(file.pipeline.stages),
        tables=checked_lookup_tables(pipeline.get("tables", {}), folder),
        window=_window(pipeline),
        delay=file.pipeline.delay,
        deadletter=_deadletter(file, folder),
        deadletter_max=file.deadletter_max,
        every=None if trigger.availableNow else trigger.every,
        report_seconds=float(file.report_seconds),
        metrics=(file.metrics.address, file.metrics.port) if file.metrics else None,
        spark=given.get("spark", {}),
        on_lag=file.on_lag,
    )
    # First, as the options of a source with a data directory start its server.
    check_paths(job, folder, path)
    _check(job)
    _check_targets(job)
    return job


def _servers(text: str, folder: Path) -> str:
    """Return the source's `uri`; relative paths of the files that it refers to are relative to the folder."""
    if not text.lstrip().startswith("["):
        return "\n".join(reference_in(line.strip(), folder) for line in text.split("\n"))
    try:
        return json.dumps([reference_in(each, folder) for each in json.loads(text)])
    except (AttributeError, ValueError):
        return text  # the options' check says what is wrong


def _with_known_names(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the file with the documented names of the source's options; the file may write them in any case."""
    source = given.get("source")
    if not isinstance(source, Mapping):
        return given
    return {**given, "source": {_SOURCE_NAMES.get(name.lower(), name): value for name, value in source.items()}}


def _check_paths(job: Job) -> None:
    """Raise JobError if several collections would share a table."""
    options = job.options
    for number, sink in enumerate(job.sinks):
        if sink.per_collection:
            try:
                for path in (sink.target, *sink.schema_files):
                    check_placeholders(path, options.database)
                if sink.in_catalog:
                    check_schema(sink.target)
            except PathError as error:
                raise JobError(str(error), ("sink", number, "path")) from None
        elif sink.is_table and options.several:
            raise JobError(
                f"the sink {sink}: with several collections its path, or its table's name in a catalog, needs "
                "{collection}, or {database} and {collection}: each collection has another table",
                ("sink", number, "path"),
            )


def _check(job: Job) -> None:
    """Raise JobError for the first wrong combination, and what `_check_paths` raises."""
    _check_paths(job)
    for problem, place in _problems(job):
        raise JobError(problem, place)


def _problems(job: Job) -> Iterator[tuple[str, Place]]:
    """Yield each wrong combination, and where it is in the file."""
    options, folding = job.options, [sink for sink in job.sinks if sink.folds]
    if options.others and options.on_server_down == "skip" and job.stages:
        problem = "stages would miss what comes late from a server that was skipped: set onServerDown to 'stall'"
        yield problem, ("source", "onServerDown")
    if job.deadletter and not options.collection and not all(sink.per_collection for sink in job.sinks):
        problem = (
            "errors = 'deadletter' is for a job of one collection, or one whose sinks have a table for each: documents "
            "that wait are known by their keys"
        )
        yield problem, ("errors",)
    if refusal := refused_stages(job):
        yield refusal
    columns = "columns" if options.columns else "documents"
    if any(sink.kind == "kafka" for sink in job.sinks):
        if options.documents == "columns" or options.columns:
            yield "kafka: such a sink needs all columns, and documents as extjson or bson", ("source", columns)
        if options.others:
            problem = "kafka: documents of two servers may have one key: give each server a job and a topic"
            yield problem, ("source", "uri")
    if not folding:
        return
    kinds = ", ".join(sink.kind for sink in folding)
    if job.stages or options.pipeline or options.reader:
        place: Place = ("pipeline", "stages") if job.stages else ("source", "pipeline")
        yield f"{kinds}: such a sink needs every event as it is, and takes no pipeline", place
    if options.documents != "extjson" or options.columns:
        yield f"{kinds}: such a sink needs all columns, and documents as extjson", ("source", columns)
    yield from _folding_problems(job, kinds)


def _folding_problems(job: Job, kinds: str) -> Iterator[tuple[str, Place]]:
    """Yield why the sinks `kinds` cannot fold the source's events into documents, and where that is in the file."""
    options = job.options
    if options.others and (refused := [each.kind for each in job.sinks if each.folds and not each.is_table]):
        problem = (
            f"{', '.join(refused)}: such a sink follows a collection of one server; take mirror or history, whose rows "
            "name their server"
        )
        yield problem, ("source", "uri")
    if options.others and job.deadletter:
        problem = "errors = 'deadletter' is for rows of one server: documents that wait are known by their keys"
        yield problem, ("errors",)
    start: Place = ("source", "startingPosition")
    if not options.collection and not options.several:
        yield f"{kinds}: tables of several collections need startingPosition 'snapshot'", start
    if any(sink.kind == "sql" for sink in job.sinks) and not options.collection:
        problem = f"{kinds}: a table of the sink 'sql' is of one collection: give each a job of its own"
        yield problem, ("source", "collections")
    if options.start.kind == "latest":
        problem = (
            f"{kinds}: with startingPosition 'latest', the default, what is there already would be missing: set it to "
            "'snapshot'"
        )
        yield problem, start
    if options.archive and options.start.kind != "snapshot":
        problem = (
            f"{kinds}: with an archive such a sink begins with the snapshot that is in it: set startingPosition to "
            "'snapshot'"
        )
        yield problem, start
    if options.stream.get("fullDocument") == "updateLookup":
        problem = (
            f"{kinds}: fullDocument 'updateLookup' gives the document as it is later, not as the update left it: leave "
            "it out, such a sink needs no documents with updates"
        )
        yield problem, ("source", "fullDocument")


def _check_targets(job: Job) -> None:
    """Raise SinkError if two sinks have the same table."""
    targets = set()
    for number, sink in enumerate(job.sinks):
        if not sink.location and sink.kind != "own":
            names = ("uri", "database", "collection", "table", "servers", "topic")
            target = tuple(sink.options.get(name) for name in names)
            if target in targets:
                raise SinkError("two sinks write one table: give each its own", ("sink", number))
            targets.add(target)
        for other in job.sinks[:number]:
            if sink.in_catalog and other.in_catalog and names_overlap(sink.target, other.target):
                problem = f"the sinks {other} and {sink} may have one table: give each its own"
                raise SinkError(problem, ("sink", number))


def _sink(given: Mapping[str, Any], source: Mapping[str, str], folder: Path, number: int) -> SinkOptions:
    """Return the sink. A sink `mongodb` writes to the collection of the source's name, or to the one that it names."""
    if given.get("kind") == "mongodb" and "collection" in source and "collection" not in given:
        given = {"database": source.get("database"), "collection": source["collection"]} | dict(given)
    elif given.get("kind") == "mongodb" and "collection" in given and "database" in source:
        given = {"database": source["database"]} | dict(given)
    try:
        sink = parse_sink(given, folder, number)
    except SinkError as error:
        raise SinkError(str(error), error.place or ("sink", number)) from None
    if sink.per_collection and "collection" in source:
        sink = sink.of_collection((source.get("database", ""), source["collection"]))
    if sink.kind == "mongodb" and all(
        sink.options.get(name) == source.get(name) for name in ("uri", "database", "collection")
    ):
        raise SinkError("the sink 'mongodb' would write into the source itself", ("sink", number))
    return sink


def _stages(given: Any) -> tuple[dict[str, Any], ...]:
    try:
        # Extended JSON values are converted, in a TOML array as well.
        stages = loads_strict(given if isinstance(given, str) else json.dumps(given))
    except (TypeError, ValueError) as error:
        raise JobError(f"the pipeline's stages are not JSON: {error}", ("pipeline", "stages")) from None
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise JobError("the pipeline's stages are an array of documents", ("pipeline", "stages"))
    return tuple(stages)


def _window(pipeline: Mapping[str, Any]) -> Window | None:
    """Return the window that the file describes; its delay is the pipeline's."""
    if "window" not in pipeline:
        for name in ("slide", "date"):
            if name in pipeline:
                raise FileError(f"[pipeline]: {name!r} has no meaning without 'window'", ("pipeline", name))
        return None
    from headrace.spark import Window

    date = {"date": pipeline["date"]} if "date" in pipeline else {}
    return Window(pipeline["window"], pipeline.get("slide"), delay=pipeline.get("delay"), **date)


def _checkpoint(path: str, folder: Path) -> Path:
    """Return the checkpoint's folder. Raise JobError for a URL: a checkpoint needs locks, renames and syncs."""
    if is_url(path):
        raise JobError(f"checkpoint is a folder on a mounted file system, not the URL {path!r}", ("checkpoint",))
    return folder / path


def _deadletter(file: JobFile, folder: Path) -> str:
    """Return the path of the table of dead letters; empty if a refused row stops the job."""
    if (file.errors == "stop") != (file.deadletter is None):
        place = "deadletter" if file.errors == "stop" else "errors"
        raise JobError("errors = 'deadletter' and deadletter, the path of a table, go together", (place,))
    return resolved_path(file.deadletter, folder) if file.deadletter is not None else ""


def _mask(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the source's option `mask`. A relative path of the key's file is relative to `folder`."""
    return {**given, "key": reference_in(given["key"], folder)} if "key" in given else dict(given)


_TABLE: Final = re.compile(r"\s*\[(\[)?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_NAME: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, place: tuple[str | int, ...]) -> int:
    """Return the first line of the longest prefix of `place` that the file has; 1 if it has none.

    `tomllib` does not report lines. The file is read line by line, so a key inside an inline table gets the line on
    which that table begins.
    """
    lines = _lines(text)
    for length in range(len(place), 0, -1):
        if found := [number for written, number in lines.items() if written[:length] == place[:length]]:
            return min(found)
    return 1


def _lines(text: str) -> dict[tuple[Any, ...], int]:
    lines: dict[tuple[Any, ...], int] = {}
    counts: dict[tuple[Any, ...], int] = {}
    table: tuple[Any, ...] = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        begins_inside = inside
        for mark in re.findall("'''|\"\"\"", line):
            inside = "" if inside == mark else inside or mark
        if begins_inside:
            continue
        if header := _TABLE.match(line):
            table = _numbered(_names(header[2]), counts)
            if header[1]:
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_names(key[1])), number)
    return lines


def _names(text: str) -> list[str]:
    return [name.strip("\"'") for name in _NAME.findall(text)]


def _numbered(names: list[str], counts: dict[tuple[Any, ...], int]) -> tuple[Any, ...]:
    """Return the place of the table. The name of an array of tables stands for its last table."""
    place: tuple[Any, ...] = ()
    for name in names[:-1]:
        place = (*place, name)
        place = (*place, counts[place]) if place in counts else place
    return (*place, names[-1])


_SAME_SCHEMES: Final = {"abfs": "az", "abfss": "az", "azure": "az", "s3a": "s3"}
"""URL schemes by which a store's client finds the same folders, by one name for all of them."""
_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///([^?]+)")


class JobPath(NamedTuple):
    """A path or URL of a job file, and its key. `only_read`: the job does not write it, or a server does."""

    key: str
    place: Place
    path: str
    only_read: bool = False


def check_paths(job: Job, folder: Path, file: Path | None = None) -> None:
    """Raise SinkError if two paths of the job are not apart, or if one contains the `folder` of its file.

    No two are equal, and none is inside another that `reset` removes or a sink writes. Paths are compared as the file
    system does: links and `..` are resolved, and case is ignored if the file system ignores it. `file` is the job's
    file: no other path may be that.
    """
    named_paths = [*_paths(job), *([JobPath("the job's file", (), str(file), only_read=True)] if file else [])]
    paths = [named._replace(path=_compared(named.path)) for named in named_paths]
    home = _compared(str(folder))
    for named in paths:
        if not named.only_read and f"{home}/".startswith(f"{named.path}/"):
            problem = f"{named.key} is the folder of the job's file, or has it inside: give it one of its own"
            raise SinkError(problem, named.place)
    for one, other in combinations(paths, 2):
        if not (one.only_read and other.only_read) and overlap(one.path, other.path):
            problem = f"{one.key} and {other.key} {_how(one.path, other.path)}: give each its own"
            raise SinkError(problem, other.place or one.place)


def _how(one: str, other: str) -> str:
    if one == other:
        return "have one path"
    if has_placeholders(one) or has_placeholders(other):
        return "may have one path, as a collection may have that name (none is written with a '_' in front)"
    return "have paths of which one is inside the other"


def _paths(job: Job) -> Iterator[JobPath]:
    databases = set[str]()
    yield JobPath("checkpoint", ("checkpoint",), str(job.checkpoint))
    if "path" in job.source:
        path = job.source["path"]
        yield JobPath("the data directory, the path of [source],", ("source", "path"), path, only_read=True)
    if job.deadletter:
        yield JobPath("deadletter", ("deadletter",), job.deadletter)
    if "archive" in job.source:
        yield JobPath("archive", ("source", "archive"), job.source["archive"], only_read=True)
    for name, table in job.tables.items():
        if "path" in table:
            key = f"the table {name} of [pipeline]"
            yield JobPath(key, ("pipeline", "tables", name), table["path"], only_read=True)
    for number, sink in enumerate(job.sinks):
        of = f"of the sink {sink.kind}" if len(job.sinks) == 1 else f"of the sink {number + 1}, {sink.kind},"
        place = ("sink", number)
        if sink.location:
            yield JobPath(f"the path {of}", (*place, "path"), sink.location.url)
        for file in sink.schema_files:
            yield JobPath(f"the schema_file {of}", (*place, "schema_file"), file)
        if "position" in sink.options:
            yield JobPath(f"the position {of}", (*place, "position"), str(sink.options["position"]))
        match = _SQLITE.match(str(sink.options.get("uri"))) if sink.kind == "sql" else None
        if match and match[1] not in databases:
            databases.add(match[1])
            yield JobPath("the database of a sink sql", (*place, "uri"), match[1])


def _compared(path: str) -> str:
    """Return the path in a form that is equal for equal places."""
    if is_url(path):
        scheme, _, rest = path.partition("://")
        return f"{_SAME_SCHEMES.get(scheme, scheme)}://{unquote(rest).rstrip('/')}"
    real = os.path.realpath(path)
    return real.casefold() if ignores_case(Path(real)) else real


def ignores_case(path: Path) -> bool:
    """Whether the file system of the path treats names that differ only in case as one name."""
    there = next(each for each in (path, *path.parents) if each.exists())
    for each in (there, *there.parents):
        if each.name.swapcase() != each.name:
            other = each.with_name(each.name.swapcase())
            return other.exists() and other.samefile(each)
    return False
