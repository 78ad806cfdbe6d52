"""Pre- and post-images as commands speak of them: the collection option, and the cluster parameter.

Source: MongoDB's `changeStreamPreAndPostImages` and `changeStreamOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Int64, Timestamp

from headrace.commands.command import Command
from headrace.commands.request import Request
from headrace.errors import CommandError
from headrace.values.bson import type_name

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

OPTION: Final = "changeStreamPreAndPostImages"
PARAMETER: Final = "changeStreamOptions"


def check_images(command: str, value: Any) -> dict[str, Any]:
    """The option as it is kept, `{enabled: bool}`; raises 14, 40414, 40415."""
    field = f"{command}.{OPTION}"
    if type(value) is not dict:
        raise CommandError(14, f"BSON field '{field}' is the wrong type '{type_name(value)}', expected type 'object'")
    for name in value:
        if name != "enabled":
            raise CommandError(40415, f"BSON field '{field}.{name}' is an unknown field.")
    enabled = value.get("enabled")
    if enabled is None:
        raise CommandError(40414, f"BSON field '{field}.enabled' is missing but a required field")
    if type(enabled) is not bool:
        kind = type_name(enabled)
        raise CommandError(14, f"BSON field '{field}.enabled' is the wrong type '{kind}', expected type 'bool'")
    return {"enabled": enabled}


def _expire(value: Any) -> Any:
    """`expireAfterSeconds`: "off", or a whole number above 0."""
    if value == "off" and type(value) is str:
        return value
    if isinstance(value, bool | str) or not isinstance(value, int | float):
        raise CommandError(
            2 if type(value) is str else 14,
            "BSON field 'changeStreamOptions.preAndPostImages.expireAfterSeconds' must be 'off' or a number",
        )
    if value <= 0:
        raise CommandError(2, "Expected a positive integer for 'expireAfterSeconds' parameter")
    return Int64(int(value))


def set_cluster_parameter(engine: Engine, request: Request) -> dict[str, Any]:
    wanted = request.body[request.name]
    if type(wanted) is not dict or len(wanted) != 1:
        raise CommandError(72, "setClusterParameter only supports setting exactly one parameter")
    ((name, value),) = wanted.items()
    if name != PARAMETER:
        raise CommandError(72, f"Unknown server parameter: {name}")
    if type(value) is not dict:
        raise CommandError(2, f"Cluster parameter value must be an object, not {type_name(value)}")
    for field in value:
        if field != "preAndPostImages":
            raise CommandError(40415, f"BSON field 'changeStreamOptions.{field}' is an unknown field.")
    images = value.get("preAndPostImages", {})
    if type(images) is not dict:
        raise CommandError(
            14, "BSON field 'changeStreamOptions.preAndPostImages' is the wrong type, expected type 'object'"
        )
    for field in images:
        if field != "expireAfterSeconds":
            raise CommandError(40415, f"BSON field 'changeStreamOptions.preAndPostImages.{field}' is an unknown field.")
    expire = _expire(images.get("expireAfterSeconds", "off"))
    position = engine.txn.reserve(1)
    engine.store.set_cluster_parameter(
        engine.txn,
        PARAMETER,
        {
            "clusterParameterTime": Timestamp(position >> 32, position & 0xFFFFFFFF),
            "preAndPostImages": {"expireAfterSeconds": expire},
        },
    )
    return {}


def get_cluster_parameter(engine: Engine, request: Request) -> dict[str, Any]:
    wanted = request.body[request.name]
    names = [wanted] if type(wanted) is str else wanted
    if type(names) is not list or not names:
        raise CommandError(2, "Must supply at least one cluster server parameter name to getClusterParameter")
    if names == ["*"]:
        names = [PARAMETER]
    for name in names:
        if name != PARAMETER:
            raise CommandError(72, f"Unknown server parameter: {name}")
    kept = engine.store.cluster_parameters.get(PARAMETER)
    shown = {"_id": PARAMETER, **(kept or {"preAndPostImages": {"expireAfterSeconds": "off"}})}
    return {"clusterParameters": [shown]}


COMMANDS: Final = (
    Command("getClusterParameter", get_cluster_parameter, admin_only=True),
    Command("setClusterParameter", set_cluster_parameter, writes=True, admin_only=True),
)
