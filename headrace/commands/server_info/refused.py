"""MongoDB commands that Headrace knows but refuses, with the error and the reason.

As in MongoDB, a name that is in no table is error 59. This includes commands of mongos (`isdbgrid`), of Atlas
(`atlasVersion`), and those that release 8.2 has removed.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_cluster, on_collection
from headrace.errors import CommandError

_ONE_MEMBER: Final = "Headrace is a set of one member"
_NO_SEARCH: Final = (31082, "Search indexes need Atlas Search, which Headrace does not have")

REFUSED: Final[dict[str, tuple[int, str]]] = {
    "createSearchIndexes": _NO_SEARCH,
    "dropSearchIndex": _NO_SEARCH,
    "mapReduce": (115, "mapReduce is not supported: Headrace runs no JavaScript; use an aggregation"),
    "replSetHeartbeat": (115, _ONE_MEMBER),
    "replSetRequestVotes": (115, _ONE_MEMBER),
    "replSetStepUp": (125, "Election failed."),
    "replSetUpdatePosition": (115, _ONE_MEMBER),
    "updateSearchIndex": _NO_SEARCH,
}


def refusal(code: int, message: str) -> Any:
    """Return a command that only raises an error."""

    def run(context: CommandContext, request: Request) -> dict[str, Any]:
        if request.name == "mapReduce":
            _check_no_view(context, request)
        raise CommandError(code, message)

    run.__doc__ = f"Refused: {message}"
    return run


def _check_no_view(context: CommandContext, request: Request) -> None:
    """Raise 166 if the first field of a mapReduce names a view."""
    if type(request.body[request.name]) is not str:
        return
    namespace = target(request)
    collection = context.view.collection(namespace)
    if collection is not None and collection.is_view:
        raise CommandError(166, f"Namespace {namespace} is a view, not a collection")


_REQUIRES: Final = {
    "createSearchIndexes": on_collection("createSearchIndexes"),
    "dropSearchIndex": on_collection("dropSearchIndex"),
    "mapReduce": on_collection("find"),
    "replSetHeartbeat": on_cluster("internal"),
    "replSetRequestVotes": on_cluster("internal"),
    "replSetStepUp": on_cluster("replSetStateChange"),
    "replSetUpdatePosition": on_cluster("internal"),
    "updateSearchIndex": on_collection("updateSearchIndex"),
}

COMMANDS: Final = tuple(
    Command(name, refusal(code, message), Fields(strict=False), requires=_REQUIRES[name])
    for name, (code, message) in REFUSED.items()
)
