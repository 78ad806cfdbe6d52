"""The privileges that a command requires of its client, declared beside its fields.

    Command("find", run, FIELDS, requires=on_collection("find"))
    Command("ping", run, FIELDS, requires=ANYONE)

A requirement names privileges: actions on resources, see `auth/privileges.py`. If they depend on the request, a
function makes the requirement. Only `Access.require_login` and `Access.require_privileges` read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import CLUSTER, Privilege
from headrace.dispatch.request import Request
from headrace.errors import CommandError

if TYPE_CHECKING:
    from headrace.dispatch.access import Grants
    from headrace.dispatch.engine import Engine

Needs = Callable[["Engine", Request, "Grants"], Iterable[Privilege]]
"""A function that returns all privileges that a request needs. It may raise 13 itself."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirement of a command. `needs` None: only a login, or not even a login."""

    text: str
    """A description for readers: the actions and the resource."""
    needs: Needs | None = None
    login: bool = True


ANYONE: Final = Requirement("nothing", login=False)
"""For every client, also before a login."""
LOGGED_IN: Final = Requirement("a login")


def namespace_of(request: Request) -> str:
    """Return the namespace that the command's first field names; the database with a final dot if it names none."""
    name = request.body.get(request.name)
    return f"{request.db}.{name}" if type(name) is str else f"{request.db}."


def on_collection(*actions: str) -> Requirement:
    """Require actions on the collection that the command's first field names."""
    wanted = frozenset(actions)

    def needs(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
        return ((namespace_of(request), wanted),)

    return Requirement(f"{', '.join(sorted(actions))} on the collection", needs)


def on_database(*actions: str) -> Requirement:
    """Require actions on the command's database."""
    wanted = frozenset(actions)

    def needs(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
        return ((f"{request.db}.", wanted),)

    return Requirement(f"{', '.join(sorted(actions))} on the database", needs)


def on_cluster(*actions: str) -> Requirement:
    """Require actions on the cluster resource."""
    wanted = ((CLUSTER, frozenset(actions)),)

    def needs(engine: Engine, request: Request, grants: Grants) -> Iterable[Privilege]:
        return wanted

    return Requirement(f"{', '.join(sorted(actions))} on the cluster", needs)


def unauthorized(request: Request) -> CommandError:
    """Return the error for a request that its user may not make, with MongoDB's text."""
    from headrace.dispatch.request import shown_body
    from headrace.values.bson import to_string

    body: Any = shown_body(request)
    if len(request.raw) > _SHOWN_BYTES_MAX:
        body = {name: body[name] for name in (request.name, "$db") if name in body}
    return CommandError(13, f"not authorized on {request.db} to execute command {to_string(body)}")


_SHOWN_BYTES_MAX: Final = 16 * 1024  # an error quotes a request up to this size, and only names a longer one
