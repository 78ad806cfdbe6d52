"""setClusterParameter and getClusterParameter: settings of the deployment, stored beside the catalog.

    changeStreamOptions     how long pre- and post-images are kept
    defaultMaxTimeMS        the time limit of reads without `maxTimeMS`
    all others              only stored and shown; they concern sharding, Atlas or change collections

Source: MongoDB's manual, "Cluster Parameters".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bson import Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.dispatch.arguments import Field, Fields, FieldType, boolean, document, number
from headrace.dispatch.cluster_wide import DEFAULT_MAX_TIME
from headrace.dispatch.command import administrative
from headrace.dispatch.concerns.read_concern import check_level
from headrace.dispatch.concerns.write_concern import DEFAULTS, WRITE_CONCERN, W, shown, unsatisfied
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import READ_CONCERN
from headrace.dispatch.request import Request, require_loopback
from headrace.errors import CommandError
from headrace.query.expressions.numbers import double_of, to_long
from headrace.values.bson import type_name
from headrace.values.position import to_timestamp

PARAMETER: Final = "changeStreamOptions"
_FIELD: Final = f"{PARAMETER}.preAndPostImages"


def _is_time(path: str, value: Any) -> None:
    if type(value) is str:
        if value != "off":
            raise CommandError(2, "Expected the string 'off' or a number for 'expireAfterSeconds' parameter")
    elif not double_of(value) >= 1:  # refuses NaN, too
        raise CommandError(2, "Expected a positive integer for 'expireAfterSeconds' parameter")


def _as_stored(value: Any) -> Any:
    return value if type(value) is str else Int64(to_long(value))


EXPIRE_AFTER: Final = Field(
    "expireAfterSeconds", FieldType(("string", "long", "int", "decimal", "double"), _as_stored), None, check=_is_time
)
IMAGES: Final = document("preAndPostImages", Fields(EXPIRE_AFTER))
VALUE: Final = Fields(IMAGES)
"""The fields of the value of `changeStreamOptions`."""


@dataclass(frozen=True, slots=True)
class ClusterParameter:
    """A parameter: its fields, and its default value."""

    fields: Fields
    default: dict[str, Any]
    reads: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """A function that returns the stored form of a value; None: store each field, or its default."""

    def stored(self, name: str, value: dict[str, Any]) -> dict[str, Any]:
        """Return the stored form of a value. Raise the errors of the declared fields."""
        if self.reads is not None:
            return self.reads(value)
        self.fields.check(name, value)
        read = {field: self.fields.by_name[field].of(value) for field in self.default}
        kinds = {field: type(default) for field, default in self.default.items()}
        return {field: kinds[field](item) for field, item in read.items()}


def _change_stream_options(value: dict[str, Any]) -> dict[str, Any]:
    """Return the stored form of `changeStreamOptions`. As in MongoDB, every error is 2."""
    try:
        VALUE.check(PARAMETER, value)
    except CommandError as error:
        raise CommandError(2, error.message) from None
    expire = EXPIRE_AFTER.of(IMAGES.of(value))
    if expire is None:
        raise CommandError(2, f"Expected '{_FIELD}' to be set, and in it 'expireAfterSeconds'")
    return {"preAndPostImages": {"expireAfterSeconds": expire}}


def _switch(field: str) -> ClusterParameter:
    return ClusterParameter(Fields(boolean(field, strict=True)), {field: False})


def _limit(field: str, default: int, least: int) -> ClusterParameter:
    def check(path: str, value: Any) -> None:
        raise CommandError(2, f"Invalid value for parameter {path}: {to_long(value)} is not greater than {least - 1}")

    return ClusterParameter(Fields(number(field, default, least=least, check=check)), {field: Int64(default)})


PARAMETERS: Final = {
    "addOrRemoveShardInProgress": _switch("inProgress"),
    PARAMETER: ClusterParameter(VALUE, {"preAndPostImages": {"expireAfterSeconds": "off"}}, _change_stream_options),
    "changeStreams": _limit("expireAfterSeconds", 3600, 1),
    "configServerReadPreferenceForCatalogQueries": _switch("mustAlwaysUseNearest"),
    DEFAULT_MAX_TIME: _limit("readOperations", 0, 0),
    "pauseMigrationsDuringMultiUpdates": _switch("enabled"),
    "shardedClusterCardinalityForDirectConns": _switch("hasTwoOrMoreShards"),
}
"""The parameters that clients see, sorted."""


def set_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """setClusterParameter: set one parameter. Raise 2, 4, 13, 14, 20, 52, 72 or 40415."""
    if not context.engine.authorizes:
        require_loopback(request)
    if not context.store.oplog_enabled:
        raise CommandError(20, "setClusterParameter cannot be run on standalones")
    wanted = request.body[request.name]
    if len(wanted) > 1:
        raise CommandError(72, "setClusterParameter only supports setting exactly one parameter")
    name, value = next(iter(wanted.items()), ("", {}))
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise _unknown(name)
    if type(value) is not dict:
        raise CommandError(2, f"Cluster parameter value must be an object, not {type_name(value)}")
    for field in value:
        if field.startswith("$"):
            raise CommandError(52, f"Cluster parameter field name must not begin with '$': {field}")
    stored = parameter.stored(name, value)
    position = context.store.log_noop(context.txn, "setClusterParameter")
    before, after = _shown(context, name), {"clusterParameterTime": to_timestamp(position), **stored}
    context.txn.catalog_changes.append(("admin", {"setClusterParameter": before, "to": {"_id": name, **after}}))
    context.store.set_cluster_parameter(context.txn, name, after)
    return {}


def _unknown(name: str) -> CommandError:
    return CommandError(4, f"Unknown server parameter: {name}")


def _shown(context: CommandContext, name: str) -> dict[str, Any]:
    stored = context.store.cluster_parameters.get(name)
    return {"_id": name, **(stored or {"clusterParameterTime": Timestamp(0, 0), **PARAMETERS[name].default})}


def get_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """getClusterParameter: answer one parameter, several, or all (`*`). Raise 2, 4 or 14."""
    wanted = request.body[request.name]
    if type(wanted) not in (str, list):
        raise CommandError(
            14,
            f"BSON field 'getClusterParameter.getClusterParameter' is the wrong type '{type_name(wanted)}', expected "
            "types '[string, array]'",
        )
    names = list(PARAMETERS) if wanted == "*" else [wanted] if type(wanted) is str else wanted
    if not names:
        raise CommandError(2, "Must supply at least one cluster server parameter name to getClusterParameter")
    for index, name in enumerate(names):
        if type(name) is not str:
            raise CommandError(
                14,
                f"BSON field 'getClusterParameter.getClusterParameter.{index}' is the wrong type '{type_name(name)}', "
                "expected type 'string'",
            )
    for name in names:
        if name not in PARAMETERS:
            raise _unknown(name)
    asked = {"requestedClusterServerParameters": names}
    context.engine.access.note("getClusterParameter", request.client, asked)
    return {"clusterParameters": [_shown(context, name) for name in names]}


# The default read and write concern.


IN_MEMORY: Final = boolean("inMemory")
READ: Final = document("defaultReadConcern", READ_CONCERN.fields)
WRITE: Final = document("defaultWriteConcern", WRITE_CONCERN.fields, check=WRITE_CONCERN.check)
_IMPLICIT_READ: Final = {"level": "local"}
_IMPLICIT_WRITE: Final = {"w": "majority", "wtimeout": 0}
_SUITABLE: Final = ("available", "local", "majority")


def get_defaults(context: CommandContext, request: Request) -> dict[str, Any]:
    """getDefaultRWConcern: answer the defaults that were set, or MongoDB's implicit ones. Raise 51300 on a
    standalone."""
    _require_set(context, request)
    more = {"inMemory": True} if IN_MEMORY.of(request.body) else {}
    return {**_reply(context.store.cluster_parameters.get(DEFAULTS) or {}, context), **more}


def set_defaults(context: CommandContext, request: Request) -> dict[str, Any]:
    """setDefaultRWConcern: set the defaults. Raise 2 or 79 for concerns that cannot be defaults, 20 to unset the write
    concern, 51300 on a standalone."""
    _require_set(context, request)
    body = request.body
    if body.get("defaultReadConcern") is None and body.get("defaultWriteConcern") is None:
        raise CommandError(
            2, 'At least one of the "defaultReadConcern" or "defaultWriteConcern" fields must be present'
        )
    stored = dict(context.txn.cluster_parameters.get(DEFAULTS) or {})
    if body.get("defaultWriteConcern") is not None:
        _set_write(stored, WRITE.of(body))
    if body.get("defaultReadConcern") is not None:
        _set_read(stored, READ.of(body))
    position = context.store.log_noop(context.txn, "setDefaultRWConcern")
    stored["updateOpTime"] = to_timestamp(position)
    stored["updateWallClockTime"] = DatetimeMS(context.clock.now_ms())
    context.store.set_cluster_parameter(context.txn, DEFAULTS, stored)
    return _reply(stored, context)


def _require_set(context: CommandContext, request: Request) -> None:
    if not context.engine.options.oplog:
        raise CommandError(51300, f"'{request.name}' is not supported on standalone nodes.")


def _set_write(stored: dict[str, Any], concern: dict[str, Any]) -> None:
    if not concern:
        if "defaultWriteConcern" in stored:
            raise CommandError(20, "The global default write concern cannot be unset once it is set.")
        return
    members = W.of(concern)
    if members is None:
        raise CommandError(2, "Default write concern must have 'w' field.")
    if type(members) not in (str, dict) and to_long(members) == 0:
        raise CommandError(2, "Unacknowledged write concern is not suitable for the default write concern")
    if concern.get("provenance") is not None:
        raise CommandError(2, "'provenance' must be unset in default write concern")
    if type(members) is str and unsatisfied(concern):
        raise CommandError(79, f"No write concern mode named '{members}' found in replica set configuration")
    stored["defaultWriteConcern"] = shown(concern)


def _set_read(stored: dict[str, Any], concern: dict[str, Any]) -> None:
    level = concern.get("level")
    if not concern:
        stored.pop("defaultReadConcern", None)
        return
    if level is not None:
        check_level(level, "defaultReadConcern.level")
    if level not in _SUITABLE:
        raise CommandError(2, f"level: '{level or 'local'}' is not suitable for the default read concern")
    for name in ("afterClusterTime", "atClusterTime"):
        if concern.get(name) is not None:
            raise CommandError(2, f"'{name}' is not suitable for the default read concern")
    if concern.get("provenance") is not None:
        raise CommandError(2, "'provenance' must be unset in default read concern")
    stored["defaultReadConcern"] = {"level": level}


def _reply(stored: dict[str, Any], context: CommandContext) -> dict[str, Any]:
    times: dict[str, Any] = {
        name: stored[name] for name in ("updateOpTime", "updateWallClockTime") if name in stored
    }  # fmt: skip
    return {
        "defaultReadConcern": stored.get("defaultReadConcern", _IMPLICIT_READ),
        "defaultWriteConcern": stored.get("defaultWriteConcern", _IMPLICIT_WRITE), **times,
        "defaultWriteConcernSource": "global" if "defaultWriteConcern" in stored else "implicit",
        "defaultReadConcernSource": "global" if "defaultReadConcern" in stored else "implicit",
        "localUpdateWallClockTime": stored.get("updateWallClockTime", DatetimeMS(context.engine.started_ms)),
    }  # fmt: skip


COMMANDS: Final = (
    administrative("getClusterParameter", get_cluster_parameter),
    administrative("getDefaultRWConcern", get_defaults, IN_MEMORY, strict=True),
    administrative(
        "setClusterParameter", set_cluster_parameter, document("setClusterParameter", required=True), writes=True
    ),
    administrative("setDefaultRWConcern", set_defaults, READ, WRITE, strict=True, writes=True),
)
