"""profile: set the profiler level of a database, and the threshold of slow commands for all databases and the log.

Source: MongoDB's manual. The settings end with the process. `--profile` and `--slowms` set the initial ones.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.commands.requirements import pipelines
from headrace.dispatch.arguments import Field, Fields, FieldType, number
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import check_database
from headrace.dispatch.profiling.profiler import COLLECTION, Profile
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.user_filter import UserFilter

FILTER: Final[Field[Any]] = Field("filter", FieldType(("object", "string")), None)
LEVEL: Final = number("profile", required=True)
SAMPLE_RATE: Final[Field[Any]] = Field("sampleRate", FieldType(("double", "long", "int", "decimal")), None)
SLOW_MS: Final = number("slowms")
_NOTE: Final = (
    "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines."
)


def profile(context: CommandContext, request: Request) -> dict[str, Any]:
    """profile: set the level 0, 1 or 2; any other level changes nothing. Raise 2 for a `sampleRate` outside 0 to 1, or
    for an invalid filter."""
    database = check_database(request.db)
    profiler, body = context.engine.profiler, request.body
    was = profiler.of(database)
    answer: dict[str, Any] = {"was": was.level, "slowms": profiler.slow_ms, "sampleRate": profiler.sample_rate}
    if was.filter is not None:
        answer |= {"filter": was.filter, "note": _NOTE}
    level, slow_ms = LEVEL.of(body), SLOW_MS.of(body)
    rate = _rate(SAMPLE_RATE.of(body), profiler.sample_rate)
    if level not in (0, 1, 2):
        return answer
    profiler.set(database, Profile(level, *_filter(FILTER.of(body), was)))
    if slow_ms is not None or rate != profiler.sample_rate:
        profiler.set_slow(profiler.slow_ms if slow_ms is None else slow_ms, rate)
    if level:
        context.engine.shell.profiled(f"{database}.{COLLECTION}", None)
    return answer


def _rate(given: Any, now: float) -> float:
    if given is None:
        return now
    rate = float(str(given))
    if not 0.0 <= rate <= 1.0:
        raise CommandError(2, "'sampleRate' must be between 0.0 and 1.0 inclusive")
    return rate


def _filter(given: Any, was: Profile) -> tuple[Any, Any]:
    """Return the filter and its predicate: the previous ones if none is given, none for `unset`."""
    if given is None:
        return was.filter, was.matches
    if given == "unset":
        return None, None
    if isinstance(given, str):
        raise CommandError(2, "Expected an object, or the string 'unset'")
    result = "the command is not profiled"
    return given, UserFilter(parse_filter(given).test, "the profile filter", otherwise=False, result=result)


COMMANDS: Final = (
    Command("profile", profile, Fields(FILTER, LEVEL, SAMPLE_RATE, SLOW_MS), requires=pipelines.PROFILE),
)
