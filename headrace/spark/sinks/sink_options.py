"""A sink made from its kind and options, as a job file has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from headrace.spark.columns.column_types import SchemaError, parse_path, parse_schema
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.errors import OptionError, redacted
from headrace.spark.masks.mask import omitting
from headrace.spark.mongodb.collection_selection import Namespace
from headrace.spark.mongodb.connection_strings import reference_in, referred, resolved
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.file_values import FileError, FileTable, Place, check_kind
from headrace.spark.sinks.sink_model import (
    Changes,
    Documents,
    History,
    Kafka,
    MirrorKeys,
    MongoDB,
    Own,
    Parquet,
    Sql,
    Upkeep,
)
from headrace.spark.sinks.table_paths import has_placeholders, path_of, table_in
from headrace.spark.tables.checked_paths import LocationError
from headrace.spark.tables.table_location import TableLocation, is_url, local_folder, location_of, resolved_path
from headrace.spark.tables.typed.table_schema import INFER, TypedOptions, parse_partition
from headrace.spark.upkeep.delta_upkeep import UpkeepOptions

_SQL_SCHEME: Final = re.compile(r"[a-z]\w*(\+\w+)?")


TYPED_OPTIONS: Final = frozenset({"cluster", "evolve", "flatten", "partition", "rename", "schema", "schema_file"})


def typed_options(options: Mapping[str, Any], path: str) -> TypedOptions | None:
    """Return the options of a table at `path`; None if it has no typed columns. Raise SchemaError."""
    given = {name: value for name, value in options.items() if name in TYPED_OPTIONS}
    if not given:
        return None
    if "schema" not in given:
        keys = sorted(given)
        raise SchemaError(f"{', '.join(keys)}: a table with typed columns needs schema = 'infer', or a schema", keys[0])
    schema = given["schema"].strip()
    file = str(given.get("schema_file", "" if is_url(path) or schema != INFER else _next_to(path)))
    evolve = given.get("evolve", "widen" if schema == INFER else "none")
    with _of_key("rename"):
        rename = {parse_path(path): name for path, name in given.get("rename", {}).items()}
    with _of_key("flatten"):
        rules = ColumnRules(evolve, _flattened(given.get("flatten", False)), rename)
    with _of_key("partition"):
        partitions = tuple(map(parse_partition, _texts(given.get("partition", []))))
    parsed = TypedOptions(schema, file, rules, partitions, _texts(given.get("cluster", [])))
    if schema != INFER:
        with _of_key("schema"):
            parse_schema(schema, parsed.rules.reserved)
    return parsed


@contextmanager
def _of_key(key: str) -> Iterator[None]:
    """Raise a SchemaError of the block with the key of the option that it is about."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"{key}: {error}", key) from None


def schema_file(options: Mapping[str, Any], path: str, folder: Path) -> str:
    """Return the path of the schema file; relative paths are in `folder`. The file of a table in an object store is
    local."""
    if "schema_file" in options:
        return str(folder / str(options["schema_file"]))
    return str(folder / f"_{path.partition('://')[2].replace('/', '-')}.columns") if is_url(path) else _next_to(path)


def _next_to(path: str) -> str:
    """Return the file next to a table's folder. No table of another collection has a name that begins with `_`."""
    return str(Path(path).with_name(f"_{Path(path).name}.columns"))


def _flattened(given: bool | str | list[str]) -> frozenset[tuple[str, ...]] | None:
    if isinstance(given, bool):
        return None if given else frozenset()
    paths = list(map(parse_path, _texts(given)))
    # Flattening an object also flattens the objects around it.
    return frozenset(path[: depth + 1] for path in paths for depth in range(len(path)))


def _texts(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class SinkError(FileError):
    """The sink does not exist, or not with these options."""


@dataclass(frozen=True, slots=True)
class SinkKind:
    """How to make a kind of sink. `maker` names a function of a module here; a sink `own` names its function in its
    options.

    `folds`: the sink folds events into documents, and needs each event unchanged, as text.

    `takes`: the rows that the sink takes: "events", "documents" that a pipeline made, or "both".
    """

    maker: str
    model: type[FileTable]
    needs: str
    folds: bool = True
    takes: str = "events"

    @property
    def options(self) -> frozenset[str]:
        """The keys of the kind in a job file, besides `kind`; empty if it takes any key."""
        return frozenset(self.model.keys()) - {"kind"} if self.model is not Own else frozenset()


def imported_factory(factory: str) -> Callable[..., Any]:
    """Return the object that the text `module:function` names. Raise SinkError if it cannot be imported or called."""
    module, _, name = factory.partition(":")
    try:
        found = attrgetter(name)(import_module(module))
    except Exception as error:  # a module may raise anything as it is imported
        raise SinkError(f"{factory!r} is not module:function of something that can be imported: {error}") from error
    if not callable(found):
        raise SinkError(f"{factory!r} is not module:function: it is no function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


_IN_CATALOGS: Final = frozenset({"changes", "history", "mirror"})
"""The kinds whose table can be in one of Spark's catalogs."""
_KEEPING: Final = ("changes", "history")
"""The kinds whose old rows can be removed."""
_USING: Final = ("delta", "iceberg")
"""The formats in which a table of a catalog is created."""
KINDS: Final[dict[str, SinkKind]] = {
    "changes": SinkKind("log_sink:changes_sink", Changes, "path", folds=False),
    "documents": SinkKind("log_sink:documents_sink", Documents, "path", folds=False, takes="documents"),
    "history": SinkKind("folding_sink:HistorySink", History, "path"),
    "kafka": SinkKind("kafka_sink:kafka_sink", Kafka, "topic", folds=False),
    "mirror": SinkKind("folding_sink:mirror_sink", MirrorKeys, "path"),
    "mongodb": SinkKind("mongodb_sink:mongodb_sink", MongoDB, "uri"),
    "own": SinkKind("", Own, "factory", folds=False, takes="both"),
    "parquet": SinkKind("log_sink:parquet_sink", Parquet, "path", folds=False),
    "sql": SinkKind("folding_sink:sql_sink", Sql, "uri"),
}
_NOT_PASSED: Final = TYPED_OPTIONS | {"omit"}
"""Options that are not passed to the maker."""
_PER_COLLECTION: Final = frozenset({"changes", "history", "mirror", "parquet"})
"""The kinds whose path, or table name in a catalog, may have `{database}` and `{collection}`."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A sink of a job. `options` are the options of its kind."""

    kind: str
    options: Mapping[str, Any] = field(repr=False)
    upkeep: UpkeepOptions | None = None
    """The upkeep of the sink's Delta table; None for none."""

    @property
    def folds(self) -> bool:
        """See `SinkKind`."""
        return KINDS[self.kind].folds

    @property
    def takes(self) -> str:
        """See `SinkKind`."""
        return KINDS[self.kind].takes

    @property
    def has_policy(self) -> bool:
        """Whether the sink has the option `policy`: what to do when the collection is dropped."""
        return "policy" in KINDS[self.kind].options

    @property
    def in_catalog(self) -> bool:
        """Whether the sink's table is in one of Spark's catalogs, which only Spark can read."""
        return self.kind in _IN_CATALOGS and "." in str(self.options.get("table", ""))

    @property
    def per_collection(self) -> bool:
        """Whether each collection has its own table: its path or table name has `{collection}`."""
        return self.kind in _PER_COLLECTION and has_placeholders(self.target)

    @property
    def target(self) -> str:
        """The path of the table, or its name in a catalog."""
        return str(self.options.get("table" if self.in_catalog else "path", ""))

    @property
    def schema_files(self) -> tuple[str, ...]:
        """The file of the table's columns, if the job file names one."""
        return (str(self.options["schema_file"]),) if "schema_file" in self.options else ()

    def of_collection(self, namespace: Namespace) -> SinkOptions:
        """Return the sink of the collection's own table."""
        if self.in_catalog:
            return replace(self, options={**self.options, "table": table_in(self.target, namespace)})
        paths = {
            name: path_of(self.options[name], namespace) for name in ("path", "schema_file") if name in self.options
        }
        return replace(self, options={**self.options, **paths})

    @property
    def is_table(self) -> bool:
        """Whether the sink writes a table of events or documents, which can have rows of several servers and
        collections."""
        return self.kind in _PER_COLLECTION

    @property
    def location(self) -> TableLocation | None:
        """The location of the table; None if it has no path."""
        return location_of(self.options["path"]) if "path" in KINDS[self.kind].options & self.options.keys() else None

    def open(self) -> Sink:
        """Return the sink; its table need not exist yet. Raise SinkError if a custom sink cannot be imported."""
        given = {name: value for name, value in self.options.items() if self.kind == "own" or name not in _NOT_PASSED}
        if self.kind == "own":
            own: Sink = imported_factory(given.pop("factory"))(**given)
            return own
        if self.in_catalog:
            given["path"] = ""
        if typed := typed_options(self.options, str(given.get("path", ""))):
            given["typed"] = typed
        module, _, name = KINDS[self.kind].maker.partition(":")
        sink = getattr(import_module(f"{__package__}.{module}"), name)(**given)
        if omit := self.options.get("omit"):
            sink.omit = omitting(list(omit))
        return sink  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return redacted(f"{self.kind} {self.options.get(KINDS[self.kind].needs) or self.options['table']}")


def parse_sink(given: Mapping[str, Any], folder: Path, number: int = 0) -> SinkOptions:
    """Return the sink that a table of a job file describes. Relative paths are in `folder`. Raise FileError, SinkError.

    `number` is the sink's number in the file, from 0.
    """
    check_kind([kind.model for kind in KINDS.values()], given, ("sink", number))
    options = dict(given)
    name = options.pop("kind")
    kind, place = KINDS[name], ("sink", number)
    upkeep = options.pop("upkeep", None) if "upkeep" in kind.options else None
    in_catalog = SinkOptions(name, options).in_catalog
    if in_catalog and (refused := sorted(options.keys() & {"buckets", "path", "writers"})):
        raise SinkError(
            f"the {name} {options['table']!r} is a table of Spark's catalogs: it has no {' and no '.join(refused)}",
            (*place, refused[0]),
        )
    if "using" in options and (not in_catalog or options["using"] not in _USING):
        raise SinkError(
            f"the sink {name!r}: using, one of {', '.join(_USING)}, is the format of tables that are made in Spark's "
            f"catalogs, not {options['using']!r}",
            (*place, "using"),
        )
    if kind.needs not in options and not in_catalog:
        raise FileError(f"the sink {name!r} needs {kind.needs!r}", place)
    if "omit" in kind.options:
        try:
            omitting(options.get("omit", []))
        except ValueError as error:
            raise FileError(
                f"the sink {name!r}: 'omit': {str(error).removeprefix('mask: ')}", (*place, "omit")
            ) from None
    if name == "kafka":
        _check_kafka(options, folder, place)
    if name in {"mongodb", "sql"}:
        options["uri"] = reference_in(options["uri"], folder)
    if name == "sql":
        options["uri"] = _in_folder(options["uri"], folder)
    if "path" in options and "path" in kind.options:
        options["path"] = _checked_path(options, name, folder, place)
    if options.keys() & TYPED_OPTIONS & kind.options:
        _check_typed(name, options, folder, place)
    return SinkOptions(name, options, _upkeep(SinkOptions(name, options), upkeep, (*place, "upkeep")))


def _upkeep(sink: SinkOptions, given: Any, place: Place) -> UpkeepOptions | None:
    """Return the upkeep of the sink's table. By default a Delta table with a path has upkeep, and one in a catalog has
    none."""
    name, options, in_catalog = sink.kind, sink.options, sink.in_catalog
    if "upkeep" not in KINDS[name].options or options.get("table") == "parquet":
        if given:
            raise SinkError(
                f"the sink {name!r}: upkeep is for Delta tables in a path, and for those of Spark's catalogs", place
            )
        return None
    if in_catalog and given is None:
        return None
    if in_catalog and isinstance(given, Mapping) and (others := sorted(given.keys() & {"commits", "keep", "retain"})):
        raise SinkError(
            f"the sink {name!r}: upkeep of a table of Spark's catalogs joins its files, and has no {others[0]!r}: what "
            "removes rows and old versions is yours to run",
            (*place, others[0]),
        )
    if given is False:
        return None
    file = Upkeep.model_validate(given if isinstance(given, Mapping) else {})
    if file.keep is not None and name not in _KEEPING:
        problem = f"the sink {name!r}: keep is for {' and '.join(_KEEPING)}: it has no rows of a time"
        raise SinkError(problem, (*place, "keep"))
    return UpkeepOptions(file.every, file.target, file.retain, file.commits, file.keep)


def _check_kafka(options: dict[str, Any], folder: Path, place: Place) -> None:
    """Check options of Kafka; write the brokers as text and the resolved path of the position into them. Raise
    SinkError."""
    from headrace.spark.sinks.kafka_sink import kafka_options

    try:
        options["servers"] = kafka_options(options).servers
    except OptionError as error:
        raise SinkError(f"the sink 'kafka': {error}", (*place, error.option)) from None
    if is_url(str(options["position"])):
        raise SinkError("the sink 'kafka': 'position' is a file of this machine, not a URL", (*place, "position"))
    options["position"] = resolved_path(str(options["position"]), folder)
    options |= {"kafka": _client_options(options["kafka"], folder)} if "kafka" in options else {}


def _client_options(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of Kafka's clients; relative paths of references are relative to the folder."""
    return {
        name: _client_options(value, folder) if isinstance(value, Mapping)
        else reference_in(value, folder) if isinstance(value, str) else value
        for name, value in given.items()
    }  # fmt: skip


def check_uri(kind: str, uri: str) -> None:
    """Raise OptionError if the `uri` of a sink refers to nothing, or is no address of such a database."""
    if kind == "mongodb":
        try:
            resolved(uri)
        except OptionError as error:
            raise OptionError(str(error).replace("the option 'uri'", "'uri'")) from None
        return
    try:
        scheme, sign, rest = referred(uri).partition("://")
    except OptionError as error:
        raise OptionError(f"'uri': {error}") from None
    if not sign or not _SQL_SCHEME.fullmatch(scheme):
        raise OptionError("'uri' is a URL such as postgresql+psycopg://h/db")
    if scheme.startswith("sqlite") and rest in {"", "/", "/:memory:"}:
        raise OptionError("'uri' names no file: a database in memory ends with the job")


def _in_folder(uri: str, folder: Path) -> str:
    """Return a database's URL; a relative path of SQLite is relative to the folder, also one that `uri` refers to."""
    try:
        scheme, sign, path = referred(uri).partition(":///")
    except OptionError:
        return uri  # `check_uri` says what is wrong
    if not sign or scheme.partition("+")[0] != "sqlite" or not path or path.startswith((":memory:", "file:")):
        return uri
    return f"{scheme}:///{folder / path}"


def _check_typed(name: str, options: dict[str, Any], folder: Path, place: Place) -> None:
    """Check options of typed columns; write the path of the schema file and `cluster` into them. Raise SinkError."""
    if options.get("table", "delta") != "delta":
        raise SinkError(f"the sink {name!r} has typed columns in a Delta table with a path only", (*place, "table"))
    if "schema_file" in options or (options.get("schema") == INFER and is_url(options["path"])):
        options["schema_file"] = schema_file(options, options["path"], folder)
    try:
        typed = typed_options(options, options["path"])
        options["cluster"] = list(typed.cluster) if typed else []
    except SchemaError as error:
        raise SinkError(f"the sink {name!r}: {error}", (*place, error.key)) from None


def _checked_path(options: Mapping[str, Any], name: str, folder: Path, place: Place) -> str:
    path = str(options["path"])
    try:
        location_of(path)
        if name == "parquet" or options.get("table") == "parquet":
            local_folder(path)
    except LocationError as error:
        raise SinkError(f"the sink {name!r}: 'path': {error}", (*place, "path")) from None
    return resolved_path(path, folder)
