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

from headrace.dispatch.arguments import Field, Fields, FieldType, boolean, document, number
from headrace.dispatch.cluster_wide.default_time_limit import PARAMETER as DEFAULT_MAX_TIME
from headrace.dispatch.command import administrative
from headrace.dispatch.context import CommandContext
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


COMMANDS: Final = (
    administrative("getClusterParameter", get_cluster_parameter),
    administrative(
        "setClusterParameter", set_cluster_parameter, document("setClusterParameter", required=True), writes=True
    ),
)
