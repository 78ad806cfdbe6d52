"""Pre- and post-images as commands speak of them: the collection option, and the cluster parameter.

Source: MongoDB's `changeStreamPreAndPostImages` and `changeStreamOptions`.
"""

from __future__ import annotations

from typing import Any, Final

from bson import Int64

from headrace.dispatch.arguments import Field, Fields, FieldType, document
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request, require_loopback
from headrace.dispatch.requirement import on_cluster
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
    elif not double_of(value) >= 1:  # a NaN is none either
        raise CommandError(2, "Expected a positive integer for 'expireAfterSeconds' parameter")


def _as_stored(value: Any) -> Any:
    return value if type(value) is str else Int64(to_long(value))


EXPIRE_AFTER: Final = Field(
    "expireAfterSeconds", FieldType(("string", "long", "int", "decimal", "double"), _as_stored), None, check=_is_time
)
IMAGES: Final = document("preAndPostImages", Fields(EXPIRE_AFTER))
VALUE: Final = Fields(IMAGES)
"""The fields of the parameter's value."""


def set_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """setClusterParameter: only `changeStreamOptions`, from this machine. Raises 2, 13, 14, 20, 72, 40415."""
    if not context.engine.authorizes:
        require_loopback(request)
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
    VALUE.check(PARAMETER, value)
    expire = EXPIRE_AFTER.of(IMAGES.of(value))
    if expire is None:
        raise CommandError(2, f"Expected '{_FIELD}' to be set, and in it 'expireAfterSeconds'")
    position = context.store.log_noop(context.txn, "setClusterParameter")
    images = {"preAndPostImages": {"expireAfterSeconds": expire}}
    before, after = _shown(context), {"_id": PARAMETER, **images}
    context.txn.catalog_changes.append(("admin", {"setClusterParameter": before, "to": after}))
    context.store.set_cluster_parameter(
        context.txn, PARAMETER, {"clusterParameterTime": to_timestamp(position), **images}
    )
    return {}


def _shown(context: CommandContext) -> dict[str, Any]:
    stored = context.store.cluster_parameters.get(PARAMETER)
    return {"_id": PARAMETER, **(stored or {"preAndPostImages": {"expireAfterSeconds": "off"}})}


def get_cluster_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """getClusterParameter: one name, several, or `*`. Raises 2, 72."""
    wanted = request.body[request.name]
    names = [wanted] if type(wanted) is str else wanted
    if type(names) is not list or not names:
        raise CommandError(2, "Must supply at least one cluster server parameter name to getClusterParameter")
    if names == ["*"]:
        names = [PARAMETER]
    for name in names:
        if name != PARAMETER:
            raise CommandError(72, f"Unknown server parameter: {name}")
    asked = {"requestedClusterServerParameters": names}
    context.engine.access.note("getClusterParameter", request.client, asked)
    return {"clusterParameters": [_shown(context)]}


COMMANDS: Final = (
    Command(
        "getClusterParameter",
        get_cluster_parameter,
        Fields(strict=False),
        admin_only=True,
        requires=on_cluster("getClusterParameter"),
    ),
    Command(
        "setClusterParameter",
        set_cluster_parameter,
        Fields(strict=False),
        writes=True,
        admin_only=True,
        requires=on_cluster("setClusterParameter"),
    ),
)
