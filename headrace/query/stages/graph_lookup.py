"""`$graphLookup`: all documents that can be reached from each document, step by step.

Rule: a document is reached once, at its least depth. Documents are in the order of the steps. Within a step they are in
the collection's order (MongoDB guarantees none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bson import Int64

from headrace.errors import CommandError
from headrace.query.expressions.field_paths import checked_path
from headrace.query.expressions.numbers import NUMBERS, int64_of, to_long
from headrace.query.operation_memory import size_of
from headrace.query.options import check_object
from headrace.query.stages.joins import EqualityJoin, check_joined, local_values
from headrace.query.stages.stage import Document, PipelineContext, Stage
from headrace.query.stages.unwind import with_nested
from headrace.values.bson import MISSING, type_name
from headrace.values.bson.to_string import to_string
from headrace.values.order import hash_key

if TYPE_CHECKING:
    from headrace.query.match import Predicate

_TEXTS = ("from", "as", "connectFromField", "connectToField", "depthField")
_REQUIRED = ("from", "as", "startWith", "connectFromField", "connectToField")


@dataclass(frozen=True, slots=True)
class GraphLookup(Stage):
    """Adds to each document, at `into`, the array of the documents reachable from it."""

    name: str
    spec: Any
    source: str
    into: tuple[str, ...]
    start: Callable[[Document], Any]
    connect_from: tuple[str, ...]
    connect_to: tuple[str, ...]
    depth_path: tuple[str, ...] | None
    depth_max: int | None
    restriction: Predicate | None
    context: PipelineContext

    def apply(self, documents: Iterator[Document]) -> Iterator[Document]:
        """Each document with its array. The other collection is read through an index, or once."""
        with self.context.memory.stage(self.name) as memory:
            join = EqualityJoin(
                self.context, self.name, (None, self.source), self.connect_to, memory, self.restriction
            )  # fmt: skip
            for document in documents:
                yield with_nested(document, self.into, list(self._reached(document, join, memory.bytes_max)))

    def _reached(self, document: Document, join: EqualityJoin, bytes_max: int) -> Iterator[Document]:
        """Return the reachable documents. Raises 40099 if they are more than the stage may hold."""
        size = 0
        start = self.start(document)
        frontier = start if type(start) is list else [] if start is MISSING else [start]
        visited: set[Any] = set()
        depth = 0
        while frontier and (self.depth_max is None or depth <= self.depth_max):
            following: list[Any] = []
            for reached in self.context.paced(join.matching(frontier)):
                identity = hash_key(reached.get("_id", MISSING), self.context.collation)
                if identity in visited:
                    continue
                visited.add(identity)
                size += size_of(reached)
                if size > bytes_max:
                    raise CommandError(40099, "$graphLookup reached maximum memory consumption")
                following.extend(local_values(reached, self.connect_from))
                yield reached if self.depth_path is None else with_nested(reached, self.depth_path, Int64(depth))
            frontier, depth = following, depth + 1


def parse_graph_lookup(name: str, spec: Any, context: PipelineContext) -> tuple[Stage, ...]:
    """The stage of `{$graphLookup: {from, startWith, connectFromField, connectToField, as, ...}}`."""
    check_object(spec, 9, "the $graphLookup stage specification must be an object, but found")
    if type(spec.get("from")) is not str:
        raise CommandError(9, f"missing 'from' option to $graphLookup stage specification: {to_string(spec)}")
    for option, value in spec.items():
        _check_option(option, value)
    if any(option not in spec for option in _REQUIRED):
        raise CommandError(
            40105,
            "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField'.",
        )
    check_joined(name, context.database, spec["from"])
    context.joining()
    restriction = spec.get("restrictSearchWithMatch")
    stage = GraphLookup(
        name,
        spec,
        source=spec["from"],
        into=checked_path(spec["as"]),
        start=context.expression(spec["startWith"]),
        connect_from=checked_path(spec["connectFromField"]),
        connect_to=checked_path(spec["connectToField"]),
        depth_path=checked_path(spec["depthField"]) if "depthField" in spec else None,
        depth_max=_depth_max(spec["maxDepth"]) if "maxDepth" in spec else None,
        restriction=None if restriction is None else context.predicate(restriction),
        context=context,
    )
    return (stage,)


def _check_option(option: str, value: Any) -> None:
    if option in _TEXTS:
        if type(value) is not str:
            raise CommandError(40103, f"expected string as argument for {option}, found: {type_name(value)}")
    elif option == "maxDepth":
        _depth_max(value)
    elif option == "restrictSearchWithMatch":
        if type(value) is not dict:
            raise CommandError(40185, f"restrictSearchWithMatch must be an object, found {type_name(value)}")
    elif option != "startWith":
        raise CommandError(40104, f"unknown argument to $graphLookup: {option}")


def _depth_max(value: Any) -> int:
    if type(value) not in NUMBERS:
        raise CommandError(40100, f"maxDepth requires numeric argument, found {type_name(value)}")
    if to_long(value) < 0:
        raise CommandError(40101, f"maxDepth requires a nonnegative argument, found: {value}")
    number = int64_of(value)
    if number is None:
        raise CommandError(40102, f"maxDepth could not be represented as a long long: {value}")
    return number
