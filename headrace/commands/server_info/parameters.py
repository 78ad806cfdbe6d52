"""Server parameters: the table of all parameters, and getParameter and setParameter.

`context.engine.parameters` has the current values by name. Code reads a parameter there each time, so a change takes
effect at once. A MongoDB parameter that would have no effect here is not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import string, without_effect
from headrace.dispatch.command import administrative
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import GENERIC
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import Request, require_loopback
from headrace.dispatch.server_info import FEATURE_VERSION
from headrace.errors import CommandError


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool | int | float):
        raise CommandError(2, f"Invalid value for parameter {name}: expected a boolean")
    return bool(value)


def _bound(name: str, value: Any) -> float | int | None:
    """Return a positive number, or None for the default. Raise 2 for any other value."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CommandError(2, f"Invalid value for parameter {name}: expected a number above 0, or null")
    return value


def _hours(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise CommandError(2, f"Invalid value for parameter {name}: expected a number of hours, 0 for no bound")
    return float(value)


def _count(name: str, value: Any) -> int | None:
    bound = _bound(name, value)
    if bound is None:
        return None
    if bound != int(bound):
        raise CommandError(2, f"Invalid value for parameter {name}: expected a whole number, or null")
    return int(bound)


def _count_of(units: str) -> Callable[[str, Any], int]:
    """Return the check of a number of such units, which has no default."""

    def check(name: str, value: Any) -> int:
        count = _count(name, value)
        if count is None:
            raise CommandError(2, f"Invalid value for parameter {name}: expected a number of {units}")
        return count

    return check


def _stage_bytes(options: ServerOptions) -> int:
    return limits.STAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its initial value, and the check of a new value (None: it cannot be changed)."""

    name: str
    first: Callable[[ServerOptions], Any]
    check: Callable[[str, Any], Any] | None = None


def _size_mb(options: ServerOptions) -> float | None:
    return None if options.oplog_bytes_max is None else options.oplog_bytes_max / 1024**2


PARAMETERS: Final = {
    parameter.name: parameter
    for parameter in (
        Parameter("allowDiskUseByDefault", lambda options: True, _boolean),
        Parameter("authSchemaVersion", lambda options: 5),
        Parameter("authenticationMechanisms", lambda options: list(options.mechanisms)),
        Parameter("enableLocalhostAuthBypass", lambda options: options.localhost_exception),
        Parameter("enableTestCommands", lambda options: options.enable_test_commands),
        Parameter("featureCompatibilityVersion", lambda options: {"version": FEATURE_VERSION}),
        Parameter("indexMaxNumGeneratedKeysPerDocument", lambda options: limits.INDEX_KEY_COUNT_MAX, _count_of("keys")),
        Parameter("internalDocumentSourceBucketAutoMaxMemoryBytes", _stage_bytes, _count_of("bytes")),
        Parameter("internalDocumentSourceGroupMaxMemoryBytes", _stage_bytes, _count_of("bytes")),
        Parameter("internalDocumentSourceSetWindowFieldsMaxMemoryBytes", _stage_bytes, _count_of("bytes")),
        Parameter("internalQueryMaxBlockingSortMemoryUsageBytes", _stage_bytes, _count_of("bytes")),
        Parameter("oplogEntriesMax", lambda options: options.oplog_entries_max, _count),
        Parameter("oplogMinRetentionHours", lambda options: options.oplog_hours, _hours),
        Parameter("oplogSizeMB", _size_mb, _bound),
        Parameter("quiet", lambda options: options.quiet, _boolean),
        Parameter("requireApiVersion", lambda options: False),
        Parameter("transactionLifetimeLimitSeconds", lambda options: limits.TRANSACTION_SECONDS_MAX),
        Parameter("ttlMonitorSleepSecs", lambda options: options.ttl_seconds, _count_of("seconds")),
    )
}


AT_START: Final = frozenset({
    "authenticationMechanisms", "enableLocalhostAuthBypass", "enableTestCommands", "ttlMonitorSleepSecs",
})  # fmt: skip
"""The parameters that `--setParameter` sets."""


def first_parameters(options: ServerOptions) -> dict[str, Any]:
    """Return the initial values of `context.engine.parameters`."""
    return {name: parameter.first(options) for name, parameter in PARAMETERS.items()}


def get_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """getParameter: answer the named parameters, or all. Raise 72 if no name is a parameter."""
    body = request.body
    asked = body["getParameter"]
    details = isinstance(asked, dict) and bool(asked.get("showDetails"))
    everything = asked == "*" or (isinstance(asked, dict) and bool(asked.get("allParameters")))
    names = sorted(PARAMETERS) if everything else [name for name in body if name in PARAMETERS]
    if not names:
        raise CommandError(72, "no option found to get")
    if not details:
        return {name: _value(context, name) for name in names}
    return {
        name: {
            "value": _value(context, name),
            "settableAtRuntime": PARAMETERS[name].check is not None,
            "settableAtStartup": name in AT_START,
        }
        for name in names
    }


def _value(context: CommandContext, name: str) -> Any:
    """Return a parameter's value; for an unset `oplogSizeMB`, the size in force."""
    engine = context.engine
    if name == "oplogSizeMB" and engine.parameters[name] is None and engine.oplog_bytes_max is not None:
        return engine.oplog_bytes_max / 1024**2
    return engine.parameters[name]


def set_parameter(context: CommandContext, request: Request) -> dict[str, Any]:
    """setParameter: change all given parameters or none. Answer the old value of the first. Raise 2, 20 or 72."""
    if not context.engine.authorizes:
        require_loopback(request)
    wanted = [(name, value) for name, value in request.body.items() if name not in GENERIC.by_name][1:]
    if not wanted:
        raise CommandError(72, "no option found to set, use help:true to see options ")
    checked = {name: _checked(name, value) for name, value in wanted}
    was = context.engine.parameters[wanted[0][0]]
    parameters = context.engine.parameters
    parameters.update(checked)
    context.engine.store.index_key_count_max = parameters["indexMaxNumGeneratedKeysPerDocument"]
    return {"was": was}


def _checked(name: str, value: Any) -> Any:
    parameter = PARAMETERS.get(name)
    if parameter is None:
        raise CommandError(72, f"attempted to set unrecognized parameter [{name}], use help:true to see options ")
    if parameter.check is None:
        raise CommandError(20, f"not allowed to change [{name}] at runtime")
    return parameter.check(name, value)


def resize_oplog(context: CommandContext, request: Request) -> dict[str, Any]:
    """replSetResizeOplog: set the oplog parameters by MongoDB's command. `size` is in megabytes, null: the default."""
    if not context.engine.authorizes:
        require_loopback(request)
    changes: dict[str, Any] = {}
    if "size" in request.body:
        changes["oplogSizeMB"] = _bound("size", request.body["size"])
    if "minRetentionHours" in request.body:
        changes["oplogMinRetentionHours"] = _checked("oplogMinRetentionHours", request.body["minRetentionHours"])
    if not changes:
        raise CommandError(2, "replSetResizeOplog needs a size or minRetentionHours")
    context.engine.parameters.update(changes)
    return {}


def set_feature_version(context: CommandContext, request: Request) -> dict[str, Any]:
    """setFeatureCompatibilityVersion: accept the only version, without effect. Raise 2 for any other."""
    wanted = request.body["setFeatureCompatibilityVersion"]
    if wanted != FEATURE_VERSION:
        raise CommandError(
            2,
            f"Invalid feature compatibility version value '{wanted}'; expected '{FEATURE_VERSION}', the only one here",
        )
    return {}


COMMANDS: Final = (
    administrative("getParameter", get_parameter),
    administrative(
        "replSetResizeOplog",
        resize_oplog,
        *without_effect("number", "size", "minRetentionHours"),
        needs_oplog=True,
    ),
    administrative(
        "setFeatureCompatibilityVersion",
        set_feature_version,
        string("setFeatureCompatibilityVersion", required=True),
    ),
    administrative("setParameter", set_parameter),
)
