"""`defaultMaxTimeMS`, a cluster parameter: the time limit of reads without `maxTimeMS`; 0: no limit.

Source: MongoDB's manual, `defaultMaxTimeMS`. Reads within a transaction, the commands of a user with
`bypassDefaultMaxTimeMS`, and cursors that wait for data have no default limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import CLUSTER

if TYPE_CHECKING:
    from headrace.dispatch.command import Command
    from headrace.dispatch.engine import Engine
    from headrace.dispatch.request import Request

PARAMETER: Final = "defaultMaxTimeMS"
_READS: Final = frozenset({"aggregate", "count", "dbHash", "distinct", "find", "listCollections", "listIndexes"})
_BYPASS: Final = frozenset({"bypassDefaultMaxTimeMS"})


def apply_default(engine: Engine, command: Command, request: Request) -> None:
    """Give a read the default time limit, if any, unless the request has its own."""
    limit_ms = engine.store.cluster_parameters.get(PARAMETER, {}).get("readOperations", 0)
    body = request.body
    if not limit_ms or command.name not in _READS or body.get("maxTimeMS") is not None or "autocommit" in body:
        return
    if command.name == "aggregate" and _is_exempt(body.get("pipeline")):
        return
    if engine.restricts(request.client):
        grants = engine.access.grants(request.client)
        if grants is not None and grants.permits(CLUSTER, _BYPASS):
            return
    request.deadline_ms = engine.clock.monotonic_ms() + limit_ms


def _is_exempt(pipeline: Any) -> bool:
    """Whether a pipeline writes or opens a change stream, which may wait for ever."""
    stages = [stage for stage in pipeline if type(stage) is dict] if type(pipeline) is list else []
    return any("$changeStream" in stage or "$merge" in stage or "$out" in stage for stage in stages)
