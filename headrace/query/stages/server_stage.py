"""First stages whose documents come from the server, not from a collection.

Rule: a command that has the documents of such a stage removes the stage and runs the later stages over the documents.
At the start of the pipeline of a `$lookup` or `$unionWith` the stage makes its documents itself. Elsewhere it refuses
to run, so that it never receives a collection's documents from a caller that does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bson import Binary

from headrace.errors import CommandError
from headrace.query.stages.stage import JOINING, Document, PipelineContext, Stage
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


def parse_current_op(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$currentOp: {...}}`. It is allowed for the deployment only."""
    if type(spec) is not dict:
        raise CommandError(9, f"$currentOp options must be specified in an object, but found: {type_name(spec)}")
    if context.database != "admin" or context.collection is not None:
        raise CommandError(73, "$currentOp must be run against the 'admin' database with {aggregate: 1}")
    return (ServerStage(name, spec),)


def _check_switches(name: str, spec: dict[str, Any], *switches: str, null: bool) -> None:
    """Raise 40415 for an unknown option, 14 for an option that is not a boolean. `null`: null is allowed."""
    for field, value in spec.items():
        if field not in switches:
            raise CommandError(40415, f"BSON field '{name}.{field}' is an unknown field.")
        if type(value) is not bool and not (null and value is None):
            raise CommandError(
                14, f"BSON field '{name}.{field}' is the wrong type '{type_name(value)}', expected type 'bool'"
            )


def parse_list_cluster_catalog(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$listClusterCatalog: {...}}`: for one database, or in `admin` for all databases."""
    if type(spec) is not dict:
        raise CommandError(9621302, f"{name} must take a nested object but found: {type_name(spec)}")
    if context.collection is not None:
        raise CommandError(9621301, f"{name} must be run against a database with {{aggregate: 1}}, not a collection")
    _check_switches(name, spec, "balancingConfiguration", "shards", null=True)
    return (ServerStage(name, spec),)


def parse_query_settings(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$querySettings: {...}}`. It is allowed for the deployment only."""
    if type(spec) is not dict:
        raise CommandError(7746800, f"{name} must take a nested object but found: {type_name(spec)}")
    if context.collection is not None and context.inside != "$facet":  # which allows it nowhere
        raise CommandError(73, f"{name} must be run against a database with {{aggregate: 1}}, not a collection")
    _check_switches(name, spec, "showDebugQueryShape", null=False)
    return (ServerStage(name, spec),)


def _check_fields(path: str, spec: dict[str, Any], types: dict[str, str]) -> None:
    """Raise 40415 for an unknown field, 14 for a value of another type than that of its field."""
    for field, value in spec.items():
        if field not in types:
            raise CommandError(40415, f"BSON field '{path}.{field}' is an unknown field.")
        if type_name(value) != types[field]:
            raise CommandError(
                14,
                f"BSON field '{path}.{field}' is the wrong type '{type_name(value)}', expected type '{types[field]}'",
            )


def parse_query_stats(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$queryStats: {...}}`. It is allowed for the deployment only."""
    if type(spec) is not dict:
        raise CommandError(9, f"$queryStats value must be an object. Found: {type_name(spec)}")
    if context.database != "admin" or context.collection is not None:
        raise CommandError(73, "$queryStats must be run against the 'admin' database with {aggregate: 1}")
    _check_fields(name, spec, {"transformIdentifiers": "object"})
    if "transformIdentifiers" in spec:
        path, transform = f"{name}.transformIdentifiers", spec["transformIdentifiers"]
        _check_fields(path, transform, {"algorithm": "string", "hmacKey": "binData"})
        if "algorithm" not in transform:
            raise CommandError(40414, f"BSON field '{path}.algorithm' is missing but a required field")
        if transform["algorithm"] != "hmac-sha-256":
            raise CommandError(2, f"Enumeration value '{transform['algorithm']}' for field '{path}.algorithm' is not "
                                  "a valid value.")  # fmt: skip
        key = transform.get("hmacKey")
        if type(key) is not Binary or key.subtype != _SENSITIVE:
            raise CommandError(9, "the 'hmacKey' parameter of the $queryStats stage must be specified when applying "
                                  "the hmac-sha-256 algorithm")  # fmt: skip
    return (ServerStage(name, spec),)


def parse_list_sampled_queries(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$listSampledQueries: {namespace: ...}}`. It is allowed for the deployment only."""
    if type(spec) is not dict:
        raise CommandError(6876000, f"{name} must take a nested object but found: {type_name(spec)}")
    if context.database != "admin" or context.collection is not None:
        raise CommandError(73, f"{name} must be run against the 'admin' database with {{aggregate: 1}}")
    _check_fields(name, spec, {"namespace": "string"})
    namespace = spec.get("namespace")
    if namespace is not None and not all(namespace.partition(".")):
        raise CommandError(73, f"Invalid namespace specified '{namespace}'")
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
