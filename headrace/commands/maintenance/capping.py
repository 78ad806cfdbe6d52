"""convertToCapped, cloneCollectionAsCapped: cap a collection, or make a capped copy of its newest documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import Privilege
from headrace.commands.catalog.create import check_limits
from headrace.dispatch.access import Grants
from headrace.dispatch.arguments import Field, Fields, number, string, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_namespace, for_changing, for_creating, target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, on_collection
from headrace.errors import CommandError
from headrace.execution.writes import copies
from headrace.query.expressions.numbers import NUMBERS, to_long
from headrace.store.catalog import Collection

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

SIZE: Final = number("size", required=True)
SIZE_OF_CLONE: Final[Field[Any]] = Field("size", "any", None)
"""The size of a capped copy. A missing one and one of another type have the error of a size that is not positive."""
TO: Final = string("toCollection", required=True)


def convert(context: CommandContext, request: Request) -> dict[str, Any]:
    """convertToCapped: cap a collection. As in MongoDB, all indexes except `_id` are dropped. Raise 26, 72 or 166."""
    namespace = target(request)
    for_changing(namespace)
    size = _checked(SIZE.of(request.body) or 0)
    copies.convert(context, _source(context, namespace), size)
    return {}


def clone(context: CommandContext, request: Request) -> dict[str, Any]:
    """cloneCollectionAsCapped: copy a collection as a capped one. Raise 26, 48 if the new name is taken, 72 or 166."""
    namespace, goal = target(request), check_namespace(f"{request.db}.{TO.of(request.body)}")
    for_creating(goal)
    if "$" in namespace:
        raise CommandError(73, f"Invalid source collection name: {namespace}")
    given = SIZE_OF_CLONE.of(request.body)
    size = _checked(to_long(given) if type(given) in NUMBERS else 0)
    source = _source(context, namespace)
    if context.txn.collection(goal) is not None:
        raise CommandError(48, f"cloneCollectionAsCapped failed - destination collection {goal} already exists")
    copies.clone(context, source, goal, size)
    return {}


def _checked(size: int) -> int:
    if size <= 0:
        raise CommandError(72, "Capped collection size must be greater than zero")
    check_limits(size, None)
    return size


def _source(context: CommandContext, namespace: str) -> Collection:
    source = context.txn.collection(namespace)
    if source is None:
        raise CommandError(26, f"source collection {namespace} does not exist")
    if source.is_view:
        raise CommandError(166, f"cannot convert or clone a view: {namespace}")
    return source


def _clone_needs(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    yield f"{request.db}.{request.body.get(request.name)}", frozenset({"find"})
    goal = f"{request.db}.{request.body.get('toCollection')}"
    yield goal, frozenset({"convertToCapped", "createIndex", "insert"})


_CLONE: Final = Requirement("find on the collection; convertToCapped, createIndex and insert on the copy", _clone_needs)

COMMANDS: Final = (
    Command("cloneCollectionAsCapped", clone, Fields(SIZE_OF_CLONE, TO), pauses=True, writes=True, requires=_CLONE),
    Command(
        "convertToCapped",
        convert,
        Fields(SIZE, *without_effect("bool", "temp")),
        pauses=True,
        writes=True,
        requires=on_collection("convertToCapped"),
    ),
)
