"""The history of a server, and whether it is still the history that a query has read.

A position is valid in one history only. Two signs identify a history:

    the replica set's id   from `replSetGetConfig`, or `local.system.replset`; of a sharded cluster its `clusterId`.
                           Another data directory has another id. A user without the privileges cannot read it.
    an event               a client requests its last event again, by its token. A server that was restored from an
                           older copy has its old id, but not that event.

The id is read whenever another process answers (`hello` identifies the process): at each start, and after each
reconnection. So if a server is replaced while a query runs, the query stops before it commits anything from the new
server.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Final

from bson import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from headrace import limits
from headrace.errors import CommandError
from headrace.spark.mongodb.mongodb_stream import MongoDBStream, PositionLost, client_of
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.rows.tokens import Token
from headrace.values.position import from_timestamp, to_timestamp
from headrace.values.token import decode_token

_POLL_S: Final = 0.2
_ROUTER: Final = "isdbgrid"

Client = MongoClient[dict[str, Any]]


class HistoryChanged(RuntimeError):
    """A server has another history than the one that was read: another data directory, or another server."""


def server_history(client: Client) -> str:
    """Return the id of the history of the server that the client reaches; empty if it cannot be read.

    Raise pymongo's errors if the server does not answer.
    """
    is_router = client.admin.command("hello").get("msg") == _ROUTER
    return _cluster_id(client) if is_router else _replica_set_id(client)


def _replica_set_id(client: Client) -> str:
    try:
        config = client.admin.command("replSetGetConfig")["config"]
    except OperationFailure:
        try:
            config = client.local["system.replset"].find_one() or {}
        except OperationFailure:
            return ""
    return str(config.get("settings", {}).get("replicaSetId", ""))


def _cluster_id(client: Client) -> str:
    try:
        version = client.config["version"].find_one() or {}
    except OperationFailure:
        return ""
    return str(version.get("clusterId", ""))


_CHECKED: Final[dict[tuple[str, int], tuple[str, str]]] = {}
"""The id of the process that answered, and its history, by connection string and own process id."""


def check_history(options: SourceOptions) -> None:
    """Raise HistoryChanged if a server's id is not the one in the options; a server whose id is unreadable passes."""
    for one in options.servers:
        if one.history:
            _check(one)


def _check(options: SourceOptions) -> None:
    client = client_of(options.uri)
    process = str(client.admin.command("hello").get("topologyVersion", {}).get("processId", ""))
    name = (options.uri, os.getpid())
    known, history = _CHECKED.get(name, ("", ""))
    if not process or known != process:
        history = server_history(client)
        _CHECKED[name] = (process, history)
    if history and history != options.history:
        raise HistoryChanged(changed_message(server_name(options.uri), options.history, history))


def changed_message(server: str, before: str, now: str) -> str:
    """Return the message of HistoryChanged."""
    return (
        f"the server {server} has another history (replica set id {now}) than the one that was read ({before}): it is "
        "another server, or has another data directory. Reconnect the one that was read; or begin again from a "
        "snapshot, with onPositionLost = 'resnapshot' or after `headrace pipeline reset`"
    )


def serving_processes(client: Client) -> tuple[str, ...]:
    """Return the ids of the servers' processes, as pymongo's monitor last saw them; send nothing."""
    servers = client.topology_description.server_descriptions().values()
    known = [server.topology_version or {} for server in servers if server.server_type_name != "Unknown"]
    return tuple(sorted(str(version.get("processId", "")) for version in known))


def check_position(mongodb: MongoDBStream, token: Token) -> None:
    """Raise PositionLost if the server's history ends before the token: it was restored from an older copy."""
    now = mongodb.now()
    # The position of a newly opened stream is one tick after the last entry.
    if token.time > to_timestamp(from_timestamp(now) + 1):
        raise PositionLost(
            f"the server {server_name(mongodb.options.uri)} is at {_moment(now)}, before the position "
            f"{token.text} ({_moment(token.time)}): it was restored from an older copy, or is another server. "
            "Begin again from a snapshot (onPositionLost = 'resnapshot', or `headrace pipeline reset`)."
        )


def _moment(moment: Timestamp) -> str:
    return f"{moment.as_datetime():%Y-%m-%dT%H:%M:%SZ}"


def wait_until_after(mongodb: MongoDBStream, token: Token) -> None:
    """Wait until the server's time is after the token's. Raise PositionLost if that takes too long.

    A quiet server's time advances with its periodic no-ops.
    """
    until = time.monotonic() + limits.HISTORY_WAIT_SECONDS_MAX
    while mongodb.now() <= token.time:
        if time.monotonic() > until:
            raise PositionLost(
                f"the server {server_name(mongodb.options.uri)} is at {_moment(mongodb.now())}, before "
                f"{token.text}, which was reached already: what it has could not be told from older events. Wait until "
                "its clock is past that time, or give the job a checkpoint and tables of its own"
            )
        time.sleep(_POLL_S)


def check_event(options: SourceOptions, token: Token) -> None:
    """Raise PositionLost if the server's history lacks the event with this token, which was read from this server.

    Nothing is checked for a position between events, or for one that has left the oplog.
    """
    if not _is_event(token):
        return
    shown = {name: value for name, value in options.stream.items() if not name.startswith("fullDocument")}
    mongodb = MongoDBStream(replace(options, pipeline=(), reader=(), stream=shown))
    check_position(mongodb, token)
    try:
        with mongodb.open(StreamPosition("time", time=token.time), batch_rows=1) as cursor:
            while not cursor.covers(token.time):
                for event in cursor.next_batch(wait_ms=20):
                    reached = Token.of(event["_id"]).text
                    if reached >= token.text:
                        if token.text in {reached, options.mask.token(reached) if options.mask else reached}:
                            return
                        raise PositionLost(_not_there(options, token))
                if cursor.closed:
                    break
    except PositionLost as error:
        if error.pruned:
            return
        raise
    raise PositionLost(_not_there(options, token))


def _is_event(token: Token) -> bool:
    try:
        decoded = decode_token(token.document())
    except CommandError:
        return False
    return not (decoded.is_high_water_mark or decoded.from_invalidate or decoded.fragment is not None)


def _not_there(options: SourceOptions, token: Token) -> str:
    return (
        f"the server {server_name(options.uri)} has no event {token.text}, which was read from it: it was restored "
        "from an older copy, or is another server. Begin again from a snapshot (onPositionLost = 'resnapshot', or "
        "`headrace pipeline reset`)."
    )
