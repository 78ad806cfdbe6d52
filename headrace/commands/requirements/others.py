"""Requirements of commands about other commands: explain, cursors and operations, listings, the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.auth.privileges import CLUSTER, Privilege
from headrace.commands.requirements.pipelines import FIND
from headrace.dispatch.access import Grants
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, unauthorized
from headrace.errors import CommandError
from headrace.query.expressions.numbers import truthy
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

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


def _current_op(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    return () if truthy(request.body.get("$ownOps")) else ((CLUSTER, _IN_PROGRESS),)


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


def _list_databases(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    return ((CLUSTER, _LIST_DATABASES),) if request.body.get("authorizedDatabases") is False else ()


def _profile(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
    level = request.body.get("profile")
    if isinstance(level, int) and level < 0:
        return ((f"{request.db}.system.profile", FIND),)
    return ((f"{request.db}.", _PROFILE),)


CURRENT_OP: Final = Requirement("inprog on the cluster; nothing for one's own (`$ownOps`)", _current_op)
EXPLAIN: Final = Requirement("what the explained command requires", _explain)
GET_MORE: Final = Requirement("the user's own cursor, and what opening it required", _get_more)
KILL_CURSORS: Final = Requirement("the user's own cursors, otherwise killAnyCursor on the cluster", _kill_cursors)
KILL_OP: Final = Requirement("killop on the cluster; nothing for one's own", _kill_op)
LIST_COLLECTIONS: Final = Requirement("listCollections on the database; nothing for one's own", _list_collections)
LIST_DATABASES: Final = Requirement("a login; listDatabases on the cluster for all of them", _list_databases)
PROFILE: Final = Requirement("enableProfiler on the database", _profile)
