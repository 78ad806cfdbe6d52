"""`$out` and `$merge`: the target and the rule of the writes. The command performs the writes.

A writing stage returns its documents unchanged. The command takes the documents and follows `stage.writes`:

    out     replace the collection by the documents
    merge   for each document, `writes.decide(existing, document)`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from headrace import limits
from headrace.errors import CommandError
from headrace.query.collation import Collation
from headrace.query.expressions.expression import check_variable_name, checked_path
from headrace.query.options import ANY, check_options, check_type, one_of
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.values.bson import type_name

_DATABASE_REFUSED: Final = frozenset('/\\. "$\0')
_RESTRICTED: Final = frozenset({"admin", "config", "local"})
_RESTRICTED_CODES: Final = {"$merge": 31320, "$out": 31321}
_SYSTEM: Final = {"$merge": 31319, "$out": 17385}
_MERGE_OPTIONS: Final = dict.fromkeys(("into", "let", "on", "whenMatched", "whenNotMatched"), ANY)
_MAY_BE_NULL: Final = frozenset({"let", "whenNotMatched"})
_UPDATE_STAGES: Final = frozenset({"$addFields", "$project", "$replaceRoot", "$replaceWith", "$set", "$unset"})
WHEN_MATCHED: Final = ("fail", "keepExisting", "merge", "replace")
WHEN_NOT_MATCHED: Final = ("discard", "fail", "insert")


@dataclass(frozen=True, slots=True)
class Writes:
    """The target and the mode. `on` are the paths that identify the matching document of a merge."""

    kind: Literal["out", "merge"]
    database: str
    collection: str
    on: tuple[str, ...] = ("_id",)
    is_on_given: bool = False
    """Whether the merge names `on`: then a unique index must have these fields."""
    when_matched: str | Callable[[Document, Document], Document] = "merge"
    when_not_matched: str = "insert"
    time_series: Document | None = None
    """The options of the time series that an `$out` creates."""
    collation: Collation | None = None
    """The pipeline's, by which a merge finds its matches."""

    def decide(self, existing: Document | None, document: Document) -> Document | None:
        """The document to store in place of `existing`, or as a new document; None to write nothing.

        Raises 11000 if a match must fail, 13113 if a missing match must fail. The writer checks whether `_id` changes.
        """
        if existing is None:
            if self.when_not_matched == "fail":
                raise CommandError(
                    13113, "{ whenMatched: ..., whenNotMatched: 'fail' } $merge could not find a matching document"
                )
            return document if self.when_not_matched == "insert" else None
        if callable(self.when_matched):
            return self.when_matched(existing, document)
        if self.when_matched == "fail":
            key = {path: existing.get(path) for path in self.on}
            raise CommandError(
                11000,
                "$merge found a document with the same key, and whenMatched is 'fail'",
                extra={"keyPattern": dict.fromkeys(key, 1), "keyValue": key},
            )
        if self.when_matched == "merge":
            return {**existing, **document}
        return _with_id(existing, document) if self.when_matched == "replace" else None


def _with_id(existing: Document, document: Document) -> Document:
    return document if "_id" in document else {"_id": existing["_id"], **document}


@dataclass(frozen=True, slots=True)
class WritingStage(Stage):
    """The last stage of a pipeline whose documents are written."""

    name: str
    spec: Any
    writes: Writes

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents to be written, unchanged."""
        return documents


def parse_out(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$out: collection}` or `{$out: {db, coll, timeseries}}`."""
    if type(spec) not in (str, dict):
        raise CommandError(16990, f"$out only supports a string or object argument, but found {type_name(spec)}")
    series = spec.get("timeseries") if type(spec) is dict else None
    check_type("$out.timeseries", series, "object?")
    target = {field: part for field, part in spec.items() if field != "timeseries"} if type(spec) is dict else spec
    database, collection = _target(name, target, context)
    if collection.startswith("$") or len(f"{database}.{collection}".encode()) > limits.NAMESPACE_BYTES_MAX:
        raise CommandError(20, f"Invalid $out target namespace: '{database}.{collection}'")
    return (WritingStage(name, spec, Writes("out", database, collection, time_series=series)),)


def _target(name: str, value: Any, context: PipelineContext) -> tuple[str, str]:
    """(database, collection) of a string or of `{db, coll}`."""
    target = value if type(value) is dict else {"coll": value}
    if name == "$merge" and type(value) is dict and target.get("coll") is None and set(target) <= {"db", "coll"}:
        raise CommandError(5786801, "$merge 'into' must name a collection in 'coll'")
    if name == "$merge" and target.get("db", "") in (None, ""):
        target = {field: part for field, part in target.items() if field != "db"}
    required = ["coll", "db"] if name == "$out" and type(value) is dict else ["coll"]
    check_options(name, target, {"coll": "string", "db": "string"}, required)
    database, collection = target.get("db", context.database), target["coll"]
    for what, part in (("database names", database), ("namespaces", collection)):
        if "\0" in part:
            raise CommandError(73, f"{what} cannot have embedded null characters")
    if collection.startswith("."):
        raise CommandError(73, f"Collection names cannot start with '.': {collection}")
    if name == "$merge" and not collection:
        raise CommandError(5786800, "$merge 'into' must name a collection")
    if not collection or not check_database_name(database):
        raise CommandError(73, f"Invalid {name} target namespace: '{database}.{collection}'")
    if collection.startswith("system."):
        raise CommandError(_SYSTEM[name], f"Cannot {name} to special collection: {collection}")
    if database in _RESTRICTED and database != context.database:
        raise CommandError(_RESTRICTED_CODES[name], f"Cannot {name} to internal database: {database}")
    return database, collection


def check_database_name(database: str) -> bool:
    """Whether a name is valid for a database."""
    return bool(database) and _DATABASE_REFUSED.isdisjoint(database)


def parse_merge(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$merge: collection}` or `{$merge: {into, on, let, whenMatched, whenNotMatched}}`."""
    if type(spec) not in (str, dict):
        raise CommandError(14, f"$merge requires a string or object argument, but found {type_name(spec)}")
    if spec == "":
        raise CommandError(73, f"Invalid $merge target namespace: '{context.database}.'")
    options = spec if type(spec) is dict else {"into": spec}
    check_options("$merge", options, _MERGE_OPTIONS, ["into"])
    options = {option: value for option, value in options.items() if value is not None or option not in _MAY_BE_NULL}
    if type(options["into"]) not in (str, dict):
        raise CommandError(
            51178, f"$merge 'into' field  must be either a string or an object, but found {type_name(options['into'])}"
        )
    database, collection = _target(name, options["into"], context)
    when_not_matched = options.get("whenNotMatched", "insert")
    check_type("$merge.whenNotMatched", when_not_matched, "string")
    writes = Writes(
        "merge",
        database,
        collection,
        on=_on(options.get("on", "_id")),
        is_on_given="on" in options,
        collation=context.collation,
        when_matched=_when_matched(options, context),
        when_not_matched=one_of("$merge.whenNotMatched", when_not_matched, WHEN_NOT_MATCHED),
    )
    if writes.when_matched in ("fail", "keepExisting") and writes.when_not_matched != "insert":
        raise CommandError(
            51181,
            f"Combination of {{ whenMatched: {writes.when_matched} }} and {{ whenNotMatched: "
            f"{writes.when_not_matched} }} modes is not supported.",
        )
    return (WritingStage(name, spec, writes),)


def _on(value: Any) -> tuple[str, ...]:
    fields = value if type(value) is list else [value]
    if any(type(field) is not str for field in fields):
        if type(value) is list:
            raise CommandError(51134, "$merge 'on' array elements must be strings")
        raise CommandError(
            51186, f"$merge 'on' field  must be either a string or an array of strings, but found {type_name(value)}"
        )
    if not fields:
        raise CommandError(51187, "If explicitly specifying $merge 'on', must include at least one field")
    for field in fields:
        checked_path(field)
    if len(set(fields)) != len(fields):
        raise CommandError(31465, "Found a duplicate field in $merge 'on'")
    return tuple(fields)


def _when_matched(options: Document, context: PipelineContext) -> str | Callable[[Document, Document], Document]:
    value = options.get("whenMatched", "merge")
    if type(value) is list:
        return _pipeline_of(value, options.get("let", {"new": "$$ROOT"}), context)
    if type(value) is not str:
        raise CommandError(
            51191, f"$merge 'whenMatched' field  must be either a string or an array, but found {type_name(value)}"
        )
    if "let" in options:
        raise CommandError(51199, "Cannot use 'let' variables with 'whenMatched' mode that is not a pipeline")
    return one_of("$merge.whenMatched", value, WHEN_MATCHED)


def _pipeline_of(pipeline: list[Any], let: Any, context: PipelineContext) -> Callable[[Document, Document], Document]:
    """Return a function from the existing and the new document to the document to store."""
    from headrace.query.pipeline import parse_pipeline, run_pipeline

    check_type("$merge.let", let, "object")
    for variable in let:
        check_variable_name(variable, for_writing=True)
    if let.get("new", "$$ROOT") != "$$ROOT":
        raise CommandError(51273, "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'")
    bindings = [(variable, context.expression(value)) for variable, value in {"new": "$$ROOT", **let}.items()]
    live: dict[str, Any] = {variable: None for variable, _ in bindings}
    stages = parse_pipeline(pipeline, context=replace(context, bound=live, inside="", carried=None))
    for stage in stages:
        if stage.name not in _UPDATE_STAGES:
            raise CommandError(72, f"{stage.name} is not allowed to be used within an update")

    def merged(existing: Document, document: Document) -> Document:
        live.update([(variable, evaluate(document)) for variable, evaluate in bindings])
        return next(run_pipeline(stages, [existing]))

    return merged
