"""The replica set of one: its status, and its configuration, which cannot be changed.

The set is initiated at the first start. This server is its only member and the primary, in term 1, except after a
forced `replSetStepDown`. A write is on disk before it is acknowledged, so all optimes of the member are the same.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from bson import Int64, ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.commands.server_info.refused import refusal
from headrace.dispatch import transactions
from headrace.dispatch.arguments import boolean, number
from headrace.dispatch.command import administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.primacy import TOPOLOGY
from headrace.dispatch.request import Request
from headrace.dispatch.server_info import ELECTION_ID, first_history_id, host_of, op_time, topology_version
from headrace.errors import CommandError
from headrace.query.expressions.numbers import NUMBERS, to_long

_PRIMARY: Final = 1
_SECONDARY: Final = 2
COMMITMENT_STATUS: Final = boolean("commitmentStatus")
FORCE: Final = boolean("force")
CATCH_UP: Final = number("secondaryCatchUpPeriodSecs")
_STEP_DOWN_SECONDS: Final = 60
_INT_MAX: Final = 2**31 - 1
_CATCH_UP_SECONDS: Final = 10


def get_status(context: CommandContext, request: Request) -> dict[str, Any]:
    """replSetGetStatus: answer this server as the only member."""
    timestamp, wall_ms = context.engine.last_write()
    where, date = op_time(timestamp), DatetimeMS(wall_ms)
    return {
        "set": context.engine.options.replica_set,
        "date": DatetimeMS(context.clock.now_ms()),
        "myState": _PRIMARY if context.engine.primacy.is_primary else _SECONDARY,
        "term": Int64(1),
        "syncSourceHost": "",
        "syncSourceId": -1,
        "heartbeatIntervalMillis": Int64(2000),
        "majorityVoteCount": 1,
        "writeMajorityCount": 1,
        "votingMembersCount": 1,
        "writableVotingMembersCount": 1,
        "optimes": {
            "lastCommittedOpTime": where,
            "lastCommittedWallTime": date,
            "readConcernMajorityOpTime": where,
            "appliedOpTime": where,
            "durableOpTime": where,
            "writtenOpTime": where,
            "lastAppliedWallTime": date,
            "lastDurableWallTime": date,
            "lastWrittenWallTime": date,
        },
        "lastStableRecoveryTimestamp": timestamp,
        "electionCandidateMetrics": _election(context),
        "members": [_member(context, request)],
    }


def _election(context: CommandContext) -> dict[str, Any]:
    started = DatetimeMS(context.engine.started_ms)
    return {
        "lastElectionReason": "electionTimeout",
        "lastElectionDate": started,
        "electionTerm": Int64(1),
        "numVotesNeeded": 1,
        "priorityAtElection": 1.0,
        "electionTimeoutMillis": Int64(10000),
        "newTermStartDate": started,
        "wMajorityWriteAvailabilityDate": started,
    }


def _member(context: CommandContext, request: Request) -> dict[str, Any]:
    timestamp, wall_ms = context.engine.last_write()
    date = DatetimeMS(wall_ms)
    is_primary = context.engine.primacy.is_primary
    return {
        "_id": 0,
        "name": host_of(context.engine, request.client),
        "health": 1.0,
        "state": _PRIMARY if is_primary else _SECONDARY,
        "stateStr": "PRIMARY" if is_primary else "SECONDARY",
        "uptime": (context.clock.now_ms() - context.engine.started_ms) // 1000,
        "optime": op_time(timestamp),
        "optimeDate": DatetimeMS(timestamp.time * 1000),
        "optimeWritten": op_time(timestamp),
        "optimeWrittenDate": DatetimeMS(timestamp.time * 1000),
        "lastAppliedWallTime": date,
        "lastDurableWallTime": date,
        "lastWrittenWallTime": date,
        "syncSourceHost": "",
        "syncSourceId": -1,
        "infoMessage": "",
        "electionId": ELECTION_ID,
        "electionDate": DatetimeMS(context.engine.started_ms),
        "configVersion": 1,
        "configTerm": 1,
        "self": True,
        "lastHeartbeatMessage": "",
    }


def get_config(context: CommandContext, request: Request) -> dict[str, Any]:
    """replSetGetConfig: answer the configuration of a set of one, derived from the options."""
    config = {
        "_id": context.engine.options.replica_set,
        "version": 1,
        "term": 1,
        "members": [_configured_member(context, request)],
        "protocolVersion": Int64(1),
        "writeConcernMajorityJournalDefault": True,
        "settings": {
            "chainingAllowed": True,
            "heartbeatIntervalMillis": 2000,
            "heartbeatTimeoutSecs": 10,
            "electionTimeoutMillis": 10000,
            "catchUpTimeoutMillis": -1,
            "catchUpTakeoverDelayMillis": 30000,
            "getLastErrorModes": {},
            "getLastErrorDefaults": {"w": 1, "wtimeout": 0},
            "replicaSetId": ObjectId(context.store.history_id or first_history_id(context.engine.options)),
        },
    }
    if COMMITMENT_STATUS.of(request.body):
        return {"config": config, "commitmentStatus": True}
    return {"config": config}


def _configured_member(context: CommandContext, request: Request) -> dict[str, Any]:
    return {
        "_id": 0,
        "host": host_of(context.engine, request.client),
        "arbiterOnly": False,
        "buildIndexes": True,
        "hidden": False,
        "priority": 1.0,
        "tags": {},
        "secondaryDelaySecs": Int64(0),
        "votes": 1,
    }


def step_down(context: CommandContext, request: Request) -> dict[str, Any]:
    """replSetStepDown: with `force`, become a secondary for this number of seconds; without, raise 262.

    MongoDB raises 262 after `secondaryCatchUpPeriodSecs`. Here no other member can catch up, so the error comes at
    once. Raise 2 for invalid periods, 10107 on a secondary.
    """
    engine, force = context.engine, FORCE.of(request.body)
    asked = request.body["replSetStepDown"]
    seconds = min(to_long(asked), _INT_MAX) if type(asked) in NUMBERS else 0
    if seconds < 0:
        raise CommandError(2, "stepdown period must be a positive integer")
    seconds = seconds or _STEP_DOWN_SECONDS
    catch_up = CATCH_UP.of(request.body)
    if catch_up is None:
        catch_up = 0 if force else _CATCH_UP_SECONDS
    if catch_up < 0:
        raise CommandError(2, "secondaryCatchUpPeriodSecs period must be a positive or absent")
    if seconds <= catch_up:
        raise CommandError(2, "stepdown period must be longer than secondaryCatchUpPeriodSecs")
    if not engine.primacy.is_primary:
        raise CommandError(10107, "not primary so can't step down", extra={"topologyVersion": topology_version(engine)})
    if not force:
        now = datetime.fromtimestamp(context.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        raise CommandError(
            262,
            f"No electable secondaries caught up as of {now}. Please use the replSetStepDown command with the argument "
            "{force: true} to force node to step down.",
        )
    engine.primacy.step_down(seconds * 1000)
    transactions.abort_of_sessions(engine, None)
    engine.shell.wake(TOPOLOGY)
    return {}


def rollback_id(context: CommandContext, request: Request) -> dict[str, Any]:
    """replSetGetRBID: answer rollback id 1, because there are no rollbacks."""
    return {"rbid": 1}


COMMANDS: Final = (
    administrative(
        "replSetFreeze",
        refusal(95, "cannot freeze node when primary or running for election. state: Primary"),
        actions=("replSetStateChange",),
        needs_oplog=True,
    ),
    administrative("replSetGetConfig", get_config, COMMITMENT_STATUS, needs_oplog=True),
    administrative("replSetGetRBID", rollback_id, actions=("internal",), needs_oplog=True),
    administrative("replSetGetStatus", get_status, needs_oplog=True),
    administrative(
        "replSetInitiate", refusal(23, "already initialized"), actions=("replSetConfigure",), needs_oplog=True
    ),
    administrative(
        "replSetMaintenance",
        refusal(95, "primaries can't modify maintenance mode"),
        actions=("replSetStateChange",),
        needs_oplog=True,
    ),
    administrative(
        "replSetReconfig",
        refusal(103, "Headrace is a set of one member, whose configuration cannot be changed"),
        actions=("replSetConfigure",),
        needs_oplog=True,
    ),
    administrative("replSetStepDown", step_down, FORCE, CATCH_UP, actions=("replSetStateChange",), needs_oplog=True),
    administrative(
        "replSetSyncFrom", refusal(95, "primaries don't sync"), actions=("replSetStateChange",), needs_oplog=True
    ),
)
