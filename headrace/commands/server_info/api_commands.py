"""testVersion2: a command outside version 1 of the stable API, for drivers' tests, with `--enable-test-commands`."""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.arguments import Fields
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import ANYONE

_API: Final = ("apiVersion", "apiStrict", "apiDeprecationErrors")


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """testVersion2: answer the request's stable API fields. With `apiStrict` the command is error 323."""
    return {name: request.body[name] for name in _API if name in request.body}


COMMANDS: Final = (Command("testVersion2", run, Fields(), requires=ANYONE),)
