"""killCursors: close cursors; those that are not there are told, never an error."""

from __future__ import annotations

from typing import Any, Final

from bson import Int64

from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import target
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    name = request.body[request.name]
    if type(name) is not str:
        target(request)
    ids = request.body.get("cursors")
    if type(ids) is not list:
        if ids is None:
            raise CommandError(40414, "BSON field 'killCursors.cursors' is missing but a required field")
        raise CommandError(
            14, f"BSON field 'killCursors.cursors' is the wrong type '{type_name(ids)}', expected type 'array'"
        )
    for item in ids:
        if type(item) is not Int64:
            raise CommandError(
                14, f"BSON field 'killCursors.cursors.0' is the wrong type '{type_name(item)}', expected type 'long'"
            )
    killed = [item for item in ids if context.cursors.kill(int(item))]
    return {
        "cursorsKilled": killed,
        "cursorsNotFound": [item for item in ids if item not in killed],
        "cursorsAlive": [],
        "cursorsUnknown": [],
    }


COMMAND: Final = Command("killCursors", run)
