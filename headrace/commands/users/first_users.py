"""Users created before any client can connect, by `headrace.Server(users=...)` and `headrace user add`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.dispatch.engine import Engine
from headrace.dispatch.request import ClientInfo, Request
from headrace.errors import CommandError
from headrace.values.bson import decode, encode


def create_user(engine: Engine, name: str, db: str, fields: Mapping[str, Any]) -> None:
    """Create a user with the `fields` of createUser, or update an existing one. No server may be running yet.

    Raise the errors of createUser and updateUser.
    """
    try:
        _run(engine, db, {"createUser": name, **fields})
    except CommandError as error:
        if error.code != 51003:
            raise
        _run(engine, db, {"updateUser": name, **fields})


def _run(engine: Engine, db: str, body: dict[str, Any]) -> None:
    client = ClientInfo(0, "127.0.0.1:0", "")
    client.is_program = True  # no limits of the localhost exception
    request = Request(next(iter(body)), db, encode({**body, "$db": db}), {}, client)
    command = engine.commands[request.name]
    command.arguments.check(command.name, request.body)
    work = None if command.prepare is None else command.prepare(request)
    request.prepared = None if work is None else work()
    txn = engine.store.begin()
    answer = engine.run_write(command, request, txn)
    engine.store.commit(txn)
    assert isinstance(answer, bytes)
    reply = decode(answer)
    if reply["ok"] != 1.0:
        raise CommandError(reply["code"], reply["errmsg"])
