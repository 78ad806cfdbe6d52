"""What operators look at and turn: currentOp, killOp, profile, top, fsync.

A command of Headrace runs to its end before the next one starts, so no operation is ever seen in progress.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.command import Command
from headrace.commands.facts import ServerFacts
from headrace.commands.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name


def current_op(engine: ServerFacts, request: Request) -> dict[str, Any]:
    return {"inprog": []}


def kill_op(engine: ServerFacts, request: Request) -> dict[str, Any]:
    """Nothing can be running under the number, so nothing is killed; as MongoDB, it says so only of the attempt."""
    number = request.body.get("op")
    if number is None:
        raise CommandError(4, 'Missing expected field "op"')
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise CommandError(14, f'Expected field "op" to have numeric type, but found {type_name(number)}')
    return {"info": "attempting to kill op"}


def profile(engine: ServerFacts, request: Request) -> dict[str, Any]:
    """The profiler is off and stays off; raises 2 for a level that is none and 115 for turning it on."""
    level = request.body["profile"]
    if isinstance(level, bool) or not isinstance(level, int | float):
        raise CommandError(
            14, f"BSON field 'profile.profile' is the wrong type '{type_name(level)}', expected type 'int'"
        )
    if level in (1, 2) or "filter" in request.body:
        raise CommandError(115, "Headrace has no profiler: level 0 is the only one")
    return {"was": 0, "slowms": 100, "sampleRate": 1.0}


def top(engine: ServerFacts, request: Request) -> dict[str, Any]:
    """Times are not kept by collection, so there is no collection in it."""
    return {"totals": {"note": "all times in microseconds"}}


def fsync(engine: ServerFacts, request: Request) -> dict[str, Any]:
    """What was acknowledged is on disk already; raises 115 for a lock."""
    if request.body.get("lock"):
        raise CommandError(115, "fsync with lock is not supported: copy the data with the server stopped")
    return {"numFiles": 1}


COMMANDS: Final = (
    Command("currentOp", current_op, admin_only=True),
    Command("fsync", fsync, admin_only=True),
    Command("killOp", kill_op, admin_only=True),
    Command("profile", profile),
    Command("top", top, admin_only=True),
)
