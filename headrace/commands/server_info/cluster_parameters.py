"""Pre- and post-images as commands speak of them: the collection option, and the cluster parameter.

Source: MongoDB's `changeStreamPreAndPostImages` and `changeStreamOptions`.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Decimal128, Int64

from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name
from headrace.values.position import to_timestamp

PARAMETER: Final = "changeStreamOptions"
_FIELD: Final = f"{PARAMETER}.preAndPostImages"
_SECONDS_MAX: Final = 2**63 - 1


def _expire(value: Any) -> Any:
    """`expireAfterSeconds`: "off", or a number above 0 of which the whole part counts; raises 2, 14."""
    if type(value) is str:
        if value != "off":
            raise CommandError(2, "Expected the string 'off' or a number for 'expireAfterSeconds' parameter")
        return value
    if isinstance(value, Decimal128):
        value = float(value.to_decimal())
    elif isinstance(value, bool) or not isinstance(value, int | float):
        kind = type_name(value)
        raise CommandError(
            14,
            f"BSON field '{_FIELD}.expireAfterSeconds' is the wrong type '{kind}', expected types "
            "'[string, long, int, decimal, double]'",
        )
    if not value >= 1:  # a NaN is none either
        raise CommandError(2, "Expected a positive integer for 'expireAfterSeconds' parameter")
    return Int64(min(value, _SECONDS_MAX))


def set_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    if not context.store.oplog_enabled:
        raise CommandError(20, "setClusterParameter cannot be run on standalones")
    wanted = request.body[request.name]
    if type(wanted) is not dict or len(wanted) != 1:
        raise CommandError(72, "setClusterParameter only supports setting exactly one parameter")
    ((name, value),) = wanted.items()
    if name != PARAMETER:
        raise CommandError(72, f"Unknown server parameter: {name}")
    if type(value) is not dict:
        raise CommandError(2, f"Cluster parameter value must be an object, not {type_name(value)}")
    expire = _expire(_seconds(value))
    position = context.store.log_noop(context.txn, "setClusterParameter")
    context.store.set_cluster_parameter(
        context.txn,
        PARAMETER,
        {
            "clusterParameterTime": to_timestamp(position),
            "preAndPostImages": {"expireAfterSeconds": expire},
        },
    )
    return {}


def _seconds(value: dict[str, Any]) -> Any:
    """`preAndPostImages.expireAfterSeconds` of the parameter's value; error 2 where there is none, 14, 40415."""
    for field in value:
        if field != "preAndPostImages":
            raise CommandError(40415, f"BSON field '{PARAMETER}.{field}' is an unknown field.")
    images = value.get("preAndPostImages")
    if images is None:
        raise CommandError(2, f"Expected '{_FIELD}' to be set")
    if type(images) is not dict:
        kind = type_name(images)
        raise CommandError(14, f"BSON field '{_FIELD}' is the wrong type '{kind}', expected type 'object'")
    for field in images:
        if field != "expireAfterSeconds":
            raise CommandError(40415, f"BSON field '{_FIELD}.{field}' is an unknown field.")
    if images.get("expireAfterSeconds") is None:
        raise CommandError(2, f"Expected '{_FIELD}.expireAfterSeconds' to be set")
    return images["expireAfterSeconds"]


def get_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    wanted = request.body[request.name]
    names = [wanted] if type(wanted) is str else wanted
    if type(names) is not list or not names:
        raise CommandError(2, "Must supply at least one cluster server parameter name to getClusterParameter")
    if names == ["*"]:
        names = [PARAMETER]
    for name in names:
        if name != PARAMETER:
            raise CommandError(72, f"Unknown server parameter: {name}")
    stored = context.store.cluster_parameters.get(PARAMETER)
    shown = {"_id": PARAMETER, **(stored or {"preAndPostImages": {"expireAfterSeconds": "off"}})}
    return {"clusterParameters": [shown]}


COMMANDS: Final = (
    Command("getClusterParameter", get_cluster_parameter, admin_only=True),
    Command("setClusterParameter", set_cluster_parameter, writes=True, admin_only=True),
)
