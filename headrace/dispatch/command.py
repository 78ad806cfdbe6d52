"""A row of the table of commands: the command's function, and what the shell must know before it runs.

A command is a plain function `run(context, request)`. It returns the reply as a dict or BSON bytes (the shell adds
`ok`, `$clusterTime` and `operationTime`), or a `Wait` (call me again later), or raises `CommandError`. It never
awaits, and keeps no reference to the request after its return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.dispatch.arguments import Arguments, Field, Fields
from headrace.dispatch.concerns.write_concern import write_concern_of
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import GENERIC
from headrace.dispatch.profiling.usage import KINDS
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, on_cluster
from headrace.dispatch.wait import Wait

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.write_transaction import WriteTransaction

Reply = dict[str, Any] | bytes | Wait
Run = Callable[[CommandContext, Request], Reply]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `name` is MongoDB's spelling (names are case-sensitive), `aliases` are its other spellings."""

    name: str
    run: Run
    fields: Fields
    """The command's own fields; the generic ones are added."""
    requires: Requirement = field(kw_only=True)
    """The privileges that the command requires of its user."""
    writes: bool | Callable[[Request], bool] = False
    """Whether the command changes data. The shell then runs it in the group commit and replies when the commit is on
    disk. A function decides by the request."""
    pauses: bool | Callable[[Engine, Request], bool] = False
    """Whether the command may take long. The shell then runs it in turns with others, which costs a few microseconds.
    A function decides by the request."""
    admin_only: bool = False
    """Whether the command is error 13 on a database other than admin."""
    aliases: tuple[str, ...] = ()
    needs_oplog: bool = False
    """Whether the command is error 76 (NoReplicationEnabled) on a server without an oplog."""
    again: Callable[[Engine, Request, WriteTransaction | None], bytes | None] | None = None
    """A shortcut for a request whose body is known (`RepeatedCommand`), without a context. It makes the same changes
    as `run` and returns the bytes of the same reply. If it returns None, it has changed nothing and `run` is needed."""
    arguments: Arguments = field(init=False)
    """The parser of the command's fields."""
    total: str = field(init=False)
    """The metric that counts the command's replies."""
    failed: str = field(init=False)
    """The metric that counts the command's error replies."""
    usage: int = field(init=False)
    """The kind under which `top` counts the command; 0: not counted, because it is not about one collection."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", _arguments(self.name, self.aliases, self.fields))
        object.__setattr__(self, "total", f"commands.{self.name}.total")
        object.__setattr__(self, "failed", f"commands.{self.name}.failed")
        object.__setattr__(self, "usage", KINDS.get(self.name, 0))


def administrative(
    name: str, run: Run, *fields: Field[Any], strict: bool = False, actions: tuple[str, ...] = (), **more: Any
) -> Command:
    """Return a command of the database admin, which requires actions on the cluster: without `actions`, the one of its
    own name. `strict`: refuse unknown fields. `more`: other fields of `Command`."""
    requires = on_cluster(*(actions or (name,)))
    return Command(name, run, Fields(*fields, strict=strict), admin_only=True, requires=requires, **more)


@cache
def _arguments(name: str, aliases: tuple[str, ...], fields: Fields) -> Arguments:
    generic = GENERIC.by_name | {"writeConcern": write_concern_of(name)}
    return Arguments(name, aliases, fields, Fields(*generic.values()))
