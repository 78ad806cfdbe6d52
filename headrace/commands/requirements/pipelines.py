"""Requirements of aggregations and of commands about others: explain, cursors, operations, listings, the profiler.

An aggregation requires privileges for its source, the collections that its stages read, and its target. For a view, the
requirement is for the view itself, not for the collections that it reads. An invalid pipeline requires the privileges
of its valid part, because the parser refuses it after the check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import ANY_NORMAL, CLUSTER, Privilege
from headrace.dispatch.access import Grants
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, namespace_of, unauthorized
from headrace.errors import CommandError
from headrace.query.expressions.numbers import truthy
from headrace.query.stages.other_collections import joined_collections
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

BYPASS: Final = frozenset({"bypassDocumentValidation"})
FIND: Final = frozenset({"find"})
WATCH: Final = frozenset({"changeStream", "find"})
_SOURCES: Final = {
    "$collStats": frozenset({"collStats"}),
    "$indexStats": frozenset({"indexStats"}),
    "$listSearchIndexes": frozenset({"listSearchIndexes"}),
    "$planCacheStats": frozenset({"planCacheRead"}),
}
"""The stages that describe a collection, and the actions that they require instead of `find`."""
_CLUSTER_WIDE: Final = {
    "$listClusterCatalog": frozenset({"listClusterCatalog"}),
    "$listSampledQueries": frozenset({"listSampledQueries"}),
    "$querySettings": frozenset({"querySettings"}),
    "$queryStats": frozenset({"queryStatsRead"}),
}
"""The stages that show data of the whole cluster."""
_OF_USERS: Final = {
    "$currentOp": frozenset({"inprog"}),
    "$listLocalSessions": frozenset({"listSessions"}),
    "$listSessions": frozenset({"listSessions"}),
}
"""The stages that show the user's own data, and with `allUsers` the data of all users."""


def aggregation(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    """Yield the privileges that an aggregate requires."""
    body = request.body
    pipeline = body.get("pipeline")
    stages = pipeline if type(pipeline) is list else []
    yield from _pipeline(namespace_of(request), request.db, stages, grants)
    if body.get("bypassDocumentValidation"):
        for name, spec in _outputs(stages):
            yield _target(name, spec, request.db), BYPASS


def reading(namespace: str, db: str, pipeline: Any, grants: Grants) -> Iterator[Privilege]:
    """Yield the privileges that a pipeline over a collection requires, such as a view's."""
    yield from _pipeline(namespace, db, pipeline if type(pipeline) is list else [], grants)


def _pipeline(namespace: str, db: str, stages: list[Any], grants: Grants) -> Iterator[Privilege]:
    yield from _source(namespace, db, _first(stages), grants)
    for other, inner in joined_collections(stages, db):
        yield other, _SOURCES.get(_first(inner)[0], FIND)
    for name, spec in _outputs(stages):
        yield _target(name, spec, db), frozenset({"insert", "remove"}) if name == "$out" else _merging(spec)


def _first(stages: Any) -> tuple[str, Any]:
    """Return the name and the argument of the first stage; ("", None) without one."""
    first = stages[0] if type(stages) is list and stages else None
    return next(iter(first.items()), ("", None)) if type(first) is dict else ("", None)


def _source(namespace: str, db: str, first: tuple[str, Any], grants: Grants) -> Iterator[Privilege]:
    name, spec = first
    if name == "$changeStream":
        options = spec if type(spec) is dict else {}
        scope = ANY_NORMAL if options.get("allChangesForCluster") else namespace
        yield scope, WATCH
        if options.get("showSystemEvents") and scope.endswith("."):  # privileges on databases do not cover it
            yield f"{scope}system.js", WATCH
    elif name in _OF_USERS:
        if type(spec) is dict and (spec.get("allUsers") or not _only_self(spec, grants)):
            yield CLUSTER, _OF_USERS[name]
    elif name in _SOURCES:
        yield namespace, _SOURCES[name]
    elif name in _CLUSTER_WIDE:
        yield CLUSTER, _CLUSTER_WIDE[name]
    elif name != "$documents":
        yield namespace, FIND


def _only_self(spec: dict[str, Any], grants: Grants) -> bool:
    """Whether a list of sessions is limited to the client's own user."""
    users = spec.get("users")
    return users is None or (
        type(users) is list and all(item == {"user": grants.name.user, "db": grants.name.db} for item in users)
    )


def _merging(spec: Any) -> frozenset[str]:
    options = spec if type(spec) is dict else {}
    actions = set()
    if options.get("whenMatched", "merge") not in ("fail", "keepExisting"):
        actions.add("update")
    if options.get("whenNotMatched", "insert") == "insert":
        actions.add("insert")
    return frozenset(actions or {"insert"})


def _target(name: str, spec: Any, db: str) -> str:
    """Return the namespace that `$out` or `$merge` writes to."""
    into = spec.get("into") if name == "$merge" and type(spec) is dict else spec
    if type(into) is dict:
        return f"{into.get('db', db)}.{into.get('coll', '')}"
    return f"{db}.{into}"


def _outputs(stages: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and argument of each `$out` and `$merge`. The parser refuses them inside other stages."""
    for stage in stages:
        for name in ("$merge", "$out"):
            if type(stage) is dict and name in stage:
                yield name, stage[name]


AGGREGATE: Final = Requirement("find on what it reads, insert, update or remove on what it writes", aggregation)


_IN_PROGRESS: Final = frozenset({"inprog"})
_KILL_ANY_CURSOR: Final = frozenset({"killAnyCursor"})
_KILL_OP: Final = frozenset({"killop"})
_LIST_COLLECTIONS: Final = frozenset({"listCollections"})
_LIST_DATABASES: Final = frozenset({"listDatabases"})
_PROFILE: Final = frozenset({"enableProfiler"})


def _explain(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    inner = request.body["explain"]
    name = next(iter(inner), "")
    command = engine.commands.get(name)
    if command is None or command.requires.needs is None or name == "explain":
        return ()
    return command.requires.needs(engine, Request(name, request.db, encode(inner), {}, request.client, inner), grants)


def _get_more(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    cursor_id = request.body.get("getMore")
    owner = None if cursor_id is None else engine.cursors.owners.get(cursor_id)
    if owner is None or cursor_id is None:
        return ()
    if owner.name != grants.name:
        raise CommandError(13, f"cursor id {cursor_id} was not created by the authenticated user")
    if not all(grants.permits(*wanted) for wanted in owner.required):
        engine.cursors.remove(cursor_id)
        raise unauthorized(request)
    return ()


def _kill_cursors(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    for cursor_id in request.body.get("cursors") or ():
        owner = engine.cursors.owners.get(cursor_id)
        if owner is not None and owner.name != grants.name:
            yield CLUSTER, _KILL_ANY_CURSOR


def _kill_op(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    number = request.body.get("op")
    for waiting in engine.shell.waiting_requests():
        client = waiting.client
        if client.connection_id == number and client.grants is not None and client.grants.name == grants.name:
            return
    yield CLUSTER, _KILL_OP


def _list_collections(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    body = request.body
    if truthy(body.get("authorizedCollections")) and truthy(body.get("nameOnly")):
        return ()
    return ((f"{request.db}.", _LIST_COLLECTIONS),)


def _profile(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    level = request.body.get("profile")
    if isinstance(level, int) and level < 0:
        return ((f"{request.db}.system.profile", FIND),)
    return ((f"{request.db}.", _PROFILE),)


CURRENT_OP: Final = Requirement(
    "inprog on the cluster; nothing for one's own (`$ownOps`)",
    lambda engine, request, grants: () if truthy(request.body.get("$ownOps")) else ((CLUSTER, _IN_PROGRESS),),
)
EXPLAIN: Final = Requirement("what the explained command requires", _explain)
GET_MORE: Final = Requirement("the user's own cursor, and what opening it required", _get_more)
KILL_CURSORS: Final = Requirement("the user's own cursors, otherwise killAnyCursor on the cluster", _kill_cursors)
KILL_OP: Final = Requirement("killop on the cluster; nothing for one's own", _kill_op)
LIST_COLLECTIONS: Final = Requirement("listCollections on the database; nothing for one's own", _list_collections)
LIST_DATABASES: Final = Requirement(
    "a login; listDatabases on the cluster for all of them",
    lambda engine, request, grants: (
        ((CLUSTER, _LIST_DATABASES),) if request.body.get("authorizedDatabases") is False else ()
    ),
)
PROFILE: Final = Requirement("enableProfiler on the database", _profile)
