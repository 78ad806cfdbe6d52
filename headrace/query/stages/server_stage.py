"""First stages whose documents come from the server or from the pipeline itself, not from a collection.

Rule: a command that has the documents of such a stage removes the stage and runs the later stages over the documents.
At the start of the pipeline of a `$lookup` or `$unionWith` the stage makes its documents itself. Elsewhere it refuses
to run, so that it never receives a collection's documents from a caller that does not know it.

`changes/` implements `$changeStream` and `$changeStreamSplitLargeEvent`: the parser of streams removes `$changeStream`
before the stages are parsed here, and splits events after the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bson import Binary

from headrace.errors import CommandError
from headrace.query.expressions import CompiledExpression, Env, parse_expression
from headrace.query.options import check_options, one_of
from headrace.query.stages.stage import JOINING, Document, DocumentStage, PipelineContext, Stage
from headrace.values.bson import type_name

_SENSITIVE: Final = 8
"""The subtype of binary data that is not to be logged."""


@dataclass(frozen=True, slots=True)
class ServerStage(Stage):
    """Stands for documents that the server makes."""

    name: str
    spec: Any
    made: Callable[[], Iterable[Document]] | None = None
    """The function that makes the documents if the stage is inside another stage."""

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Yield the documents that the server makes, and ignore the input. Raises 238 if `made` is None."""
        if self.made is None:
            raise CommandError(238, f"{self.name} is not available on this server")
        yield from self.made()


def parse_server_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """A stage that describes one collection: `{$collStats: {...}}`, `{$indexStats: {}}`."""
    if type(spec) is not dict:
        code = {"$collStats": 5447000, "$indexStats": 28803}.get(name, 9)
        raise CommandError(code, f"{name} must take a nested object but found: {type_name(spec)}")
    if name == "$indexStats" and spec:
        raise CommandError(28803, "The $indexStats stage specification must be an empty object")
    if context.describe is None or context.inside not in JOINING or context.collection is None:
        return (ServerStage(name, spec),)
    return (ServerStage(name, spec, partial(context.describe, context.collection, name, spec)),)


_SWITCHES: Final = {"balancingConfiguration": "bool?", "shards": "bool?"}
_IN_ADMIN: Final[dict[str, tuple[int, dict[str, str] | None]]] = {
    "$currentOp": (9, None),
    "$listSampledQueries": (6876000, {"namespace": "string"}),
    "$queryStats": (9, {"transformIdentifiers": "object"}),
}
"""The stages that are allowed for the deployment only: the error of no object, and the types of options (None: any)."""


def parse_admin_stage(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """A stage that is allowed for the deployment only: `$currentOp`, `$listSampledQueries` and `$queryStats`."""
    code, types = _IN_ADMIN[name]
    if type(spec) is not dict:
        raise CommandError(code, f"{name} must take a nested object but found: {type_name(spec)}")
    if context.database != "admin" or context.collection is not None:
        raise CommandError(73, f"{name} must be run against the 'admin' database with {{aggregate: 1}}")
    if types is not None:
        check_options(name, spec, types)
    if "transformIdentifiers" in spec and name == "$queryStats":
        _check_transform(f"{name}.transformIdentifiers", spec["transformIdentifiers"])
    namespace = spec.get("namespace")
    if name == "$listSampledQueries" and namespace is not None and not all(namespace.partition(".")):
        raise CommandError(73, f"Invalid namespace specified '{namespace}'")
    return (ServerStage(name, spec),)


def _check_transform(path: str, spec: dict[str, Any]) -> None:
    """Raise the errors of an invalid `transformIdentifiers`."""
    check_options(path, spec, {"algorithm": "string", "hmacKey": "binData"}, ["algorithm"])
    one_of(f"{path}.algorithm", spec["algorithm"], ("hmac-sha-256",))
    key = spec.get("hmacKey")
    if type(key) is not Binary or key.subtype != _SENSITIVE:
        raise CommandError(9, "the 'hmacKey' parameter of the $queryStats stage must be specified when applying "
                              "the hmac-sha-256 algorithm")  # fmt: skip


def parse_list_cluster_catalog(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$listClusterCatalog: {...}}`: for one database, or in `admin` for all databases."""
    if type(spec) is dict and context.collection is not None:
        raise CommandError(9621301, f"{name} must be run against a database with {{aggregate: 1}}, not a collection")
    check_options(name, spec, _SWITCHES, not_object=9621302)
    return (ServerStage(name, spec),)


def parse_query_settings(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$querySettings: {...}}`. It is allowed for the deployment only."""
    if type(spec) is dict and context.collection is not None and context.inside != "$facet":  # which allows it nowhere
        raise CommandError(73, f"{name} must be run against a database with {{aggregate: 1}}, not a collection")
    check_options(name, spec, {"showDebugQueryShape": "bool"}, not_object=7746800)
    return (ServerStage(name, spec),)


def parse_list_sessions(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$listSessions: {...}}`. It is allowed for the collection of sessions only."""
    if (context.database, context.collection) != ("config", "system.sessions"):
        raise CommandError(73, "$listSessions may only be run against config.system.sessions")
    return (ServerStage(name, spec),)


def parse_list_local_sessions(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$listLocalSessions: {...}}`. It is allowed for a database only."""
    if context.collection is not None:
        raise CommandError(
            73, "$listLocalSessions must be run against the database with {aggregate: 1}, not a collection"
        )
    return (ServerStage(name, spec),)


# $documents.


@dataclass(frozen=True, slots=True)
class DocumentsStage(Stage):
    """Yields the documents that its expression computes and ignores its input."""

    name: str
    spec: Any
    expression: CompiledExpression
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """The documents of the expression's array."""
        values = self.expression(Env({}, self.context.bound))
        if type(values) is not list:
            raise CommandError(5858203, f"an array is expected, but found {type_name(values)}")
        for document in values:
            if type(document) is not dict:
                raise CommandError(
                    40228, f"$documents' elements must be objects, but one was of type {type_name(document)}"
                )
            yield document


def parse_documents(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$documents: expression}`. It is allowed only if no collection is read."""
    if spec == {}:
        raise CommandError(51270, "Invalid empty sub-projection: _tempDocumentsField")
    if context.collection is not None:
        raise CommandError(73, "$documents can only be run with {aggregate: 1}")
    return (DocumentsStage(name, spec, parse_expression(spec, context.parse_context()), context),)


# $changeStream.


@dataclass(frozen=True, slots=True)
class ChangeStream(Stage):
    """A `$changeStream` in a plain pipeline. It must be first; the command recognises it."""

    name: str
    spec: Any

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Never run: a stream has no documents."""
        raise CommandError(40573, "The $changeStream stage must be run by a change stream cursor")


def parse_change_stream(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$changeStream: {...}}`. The parser of streams checks its options."""
    if type(spec) is not dict:
        raise CommandError(50808, f"$changeStream stage expects a document as argument, found {type_name(spec)}")
    return (ChangeStream(name, spec),)


def parse_split(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$changeStreamSplitLargeEvent: {}}`."""
    if spec != {}:
        raise CommandError(7182800, f"{name} spec should be an empty object")
    return (DocumentStage(name, spec, lambda event: event),)
