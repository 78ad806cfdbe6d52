"""`headrace user add`: create a user, such as the first one, in a data directory that no server has open."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.auth.names import EXTERNAL
from headrace.cli.arguments import add_command, data_directory
from headrace.errors import CommandError, reason_of

PASSWORD_VARIABLE: Final = "HEADRACE_PASSWORD"


def add_user_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `headrace user`."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=type(parser))
    add = add_command(
        actions, "add", add_user, "create a user, or change one, in a data directory that no server has open",
        "Create a user in a data directory that no server has open; an existing user gets the password and the roles. "
        f"The password comes from the environment variable {PASSWORD_VARIABLE}, the terminal, or the standard "
        f"input. A user of the database {EXTERNAL} has none: its name is the subject of its certificate.",
        ("headrace user add admin --dbpath data --role root", "headrace user add web --role readWrite@shop"),
    )  # fmt: skip
    add.add_argument("name", metavar="NAME", help="the user's name")
    add.add_argument(
        "--db", default="admin", help="the user's database, which clients give as authSource (default: admin)"
    )
    add.add_argument(
        "--dbpath", metavar="PATH", type=Path, help="the data directory (default: that of `headrace serve`)"
    )
    add.add_argument(
        "--role",
        metavar="ROLE[@DB]",
        action="append",
        default=[],
        help="a role, of the user's database unless another is named; may be given again",
    )


def add_user(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Create the user; return 0, or print the reason on stderr and return 1."""
    from headrace.clock import SystemClock
    from headrace.commands.server_info.parameters import first_parameters
    from headrace.commands.table import commands_for
    from headrace.commands.users.changing_users import create_user
    from headrace.dispatch.engine import Engine
    from headrace.dispatch.options import ServerOptions
    from headrace.store.data_file import UnusableDirectory
    from headrace.store.lmdb import DirectoryInUse
    from headrace.store.store import Store

    path = (arguments.dbpath or data_directory()).absolute()
    try:
        password = None if arguments.db == EXTERNAL else _password(arguments.name)
        store = Store(path, clock=SystemClock())
    except (DirectoryInUse, OSError, UnusableDirectory) as error:
        return _fail(reason_of(error))
    try:
        options = ServerOptions(dbpath=path)
        engine = Engine(store, options, commands_for(options), first_parameters(options))
        roles = [_role(text, arguments.db) for text in arguments.role]
        secret = {} if password is None else {"pwd": password}
        create_user(engine, arguments.name, arguments.db, {**secret, "roles": roles})
    except CommandError as error:
        return _fail(error.message)
    finally:
        store.close()
    print(f"the user {arguments.name}@{arguments.db} is in {path}")
    return 0


def _role(text: str, db: str) -> dict[str, str]:
    role, _, of = text.partition("@")
    return {"role": role, "db": of or db}


def _password(name: str) -> str:
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is not None:
        return given
    if sys.stdin.isatty():
        return getpass.getpass(f"Password of {name}: ")
    return sys.stdin.readline().rstrip("\n")


def _fail(reason: str) -> int:
    print(f"headrace: {reason}", file=sys.stderr, flush=True)
    return 1
