"""killCursors: close cursors. The reply lists the cursors that do not exist."""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.requirements import pipelines
from headrace.dispatch.arguments import Fields, array
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import target
from headrace.dispatch.request import Request

CURSORS: Final = array("cursors", "long", required=True)


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """killCursors: close cursors of a namespace. The reply lists the cursors that were open."""
    name = request.body[request.name]
    if type(name) is not str or not name:
        target(request)
    ids = CURSORS.of(request.body)
    killed = [item for item in ids if context.cursors.kill(int(item))]
    of_killed = frozenset(killed)
    return {
        "cursorsKilled": killed,
        "cursorsNotFound": [item for item in ids if item not in of_killed],
        "cursorsAlive": [],
        "cursorsUnknown": [],
    }


COMMAND: Final = Command("killCursors", run, Fields(CURSORS), pauses=True, requires=pipelines.KILL_CURSORS)
