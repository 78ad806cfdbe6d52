"""configureFailPoint and testVersion2, for drivers' tests; only with `--enable-test-commands`."""

from __future__ import annotations

from typing import Any, Final

from bson import Int64

from headrace.dispatch.arguments import Field, Fields, FieldType, document, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.fail_points import NAMES, FailPoint
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE, LOGGED_IN
from headrace.errors import CommandError
from headrace.values.bson import type_name

DATA: Final = document("data")
MODE: Final = Field("mode", FieldType(("string", "object")), None)


def configure(context: CommandContext, request: Request) -> dict[str, Any]:
    """configureFailPoint: set a fail point, or remove it with `mode: "off"`. Raise 266 for an unknown name, 20 without
    a mode, 2, 9 or 14 for an invalid one."""
    body = request.body
    name = body["configureFailPoint"]
    if name not in NAMES:
        raise CommandError(266, f"{name} not found")
    if body.get("mode") is None:
        raise CommandError(20, "When setting a failpoint, you must supply a 'mode'")
    count = context.engine.fail_points.set(name, _parse_mode(body["mode"], DATA.of(body)))
    return {"count": Int64(count)}


def _parse_mode(mode: Any, data: dict[str, Any]) -> FailPoint | None:
    if mode == "off":
        return None
    if mode == "alwaysOn":
        return FailPoint(data)
    if type(mode) is str:
        raise CommandError(2, f"unknown mode: {mode}")
    if "times" in mode:
        return FailPoint(data, times=_count("times", mode["times"]))
    if "skip" in mode:
        return FailPoint(data, skip=_count("skip", mode["skip"]))
    if "activationProbability" in mode:
        return FailPoint(data, probability=_probability(mode["activationProbability"]))
    raise CommandError(2, "'mode' must be one of 'off', 'alwaysOn', 'times', 'skip', and 'activationProbability'")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(14, f"'{name}' option to 'mode' must be a number, not {type_name(value)}")
    if not 0 <= value <= 0x7FFFFFFF:
        raise CommandError(2, f"'{name}' option to 'mode' must be positive")
    return int(value)


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(14, "the value supplied for 'activationProbability' must be a number")
    if not 0 <= value <= 1:
        raise CommandError(2, f"activationProbability must be between 0.0 and 1.0; found {value}")
    return float(value)


_API: Final = ("apiVersion", "apiStrict", "apiDeprecationErrors")


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """testVersion2: answer the request's stable API fields. Outside version 1: with `apiStrict` it is error 323."""
    return {name: request.body[name] for name in _API if name in request.body}


COMMANDS: Final = (
    Command(
        "configureFailPoint",
        configure,
        Fields(string("configureFailPoint", required=True), DATA, MODE, strict=False),
        admin_only=True,
        requires=LOGGED_IN,
    ),
    Command("testVersion2", run, Fields(), requires=ANYONE),
)
