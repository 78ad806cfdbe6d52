"""The options of the `headrace` source, parsed once at the door.

Spark hands every option over as text and does not keep the case of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bson import Timestamp

from headrace.spark.extjson import loads
from headrace.spark.tokens import Token

# Every option of $changeStream that does not say where to begin, by its name in lower case.
_STREAM_OPTIONS: Final = {
    name.lower(): name
    for name in (
        "allChangesForCluster", "fullDocument", "fullDocumentBeforeChange", "showExpandedEvents",
        "showMigrationEvents", "showRawUpdateDescription", "showSystemEvents",
    )
}  # fmt: skip
_BOOLEANS: Final = {"false": False, "true": True}
_OWN: Final = frozenset(
    {"awaitms", "batchrows", "collection", "database", "endingposition", "idleadvancems", "maxrowspertrigger",
     "path", "pipeline", "startingposition", "uri"}
)  # fmt: skip


class OptionError(ValueError):
    """An option of the source has a value that it does not take, or is missing."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: one of `kind` earliest, latest, snapshot, token, time, with its value."""

    kind: str
    token: Token | None = None
    time: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a job asked of the source. See `parse_options` for the meaning of each."""

    uri: str
    database: str | None = None
    collection: str | None = None
    pipeline: tuple[dict[str, Any], ...] = ()
    stream: Mapping[str, Any] = field(default_factory=dict)
    start: Position = Position("latest")
    end: Position = Position("latest")
    rows_max: int | None = None
    batch_rows: int = 1000
    await_ms: int = 250
    idle_advance_ms: int = 60_000


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options; raises OptionError naming the one that is wrong.

    uri                 a connection string (needed)
    database            the stream's database; none: the whole deployment
    collection          the stream's collection; none: the whole database
    pipeline            a JSON array of stages, run by the server behind $changeStream
    startingPosition    latest (default) | earliest | snapshot | a token, or its document as JSON | an ISO time
    endingPosition      batch reads only: latest (default), or as startingPosition
    maxRowsPerTrigger   at most so many rows a micro-batch, but a transaction is never cut
    batchRows           rows asked of the server, and put into an Arrow batch, at a time
    awaitMs             how long the source waits for an event before it answers Spark that there is none
    idleAdvanceMs       how often a quiet stream's offset moves on all the same (it costs an empty micro-batch)
    and every option of $changeStream by its own name.
    """
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _OWN - _STREAM_OPTIONS.keys())
    if unknown:
        raise OptionError(f"the headrace source has no option {unknown[0]!r}")
    if "uri" not in options:
        raise OptionError("the headrace source needs the option 'uri'")
    if "collection" in options and "database" not in options:
        raise OptionError("the option 'collection' needs the option 'database'")
    start = parse_position(options.get("startingposition", "latest"))
    if start.kind == "snapshot" and "collection" not in options:
        raise OptionError("startingPosition 'snapshot' needs a collection")
    rows_max = options.get("maxrowspertrigger")
    return SourceOptions(
        uri=options["uri"],
        database=options.get("database"),
        collection=options.get("collection"),
        pipeline=_pipeline(options.get("pipeline", "[]")),
        stream={
            _STREAM_OPTIONS[name]: _stream_value(value) for name, value in options.items() if name in _STREAM_OPTIONS
        },
        start=start,
        end=parse_position(options.get("endingposition", "latest")),
        rows_max=None if rows_max is None else _count("maxRowsPerTrigger", rows_max),
        batch_rows=_count("batchRows", options.get("batchrows", "1000")),
        await_ms=_count("awaitMs", options.get("awaitms", "250")),
        idle_advance_ms=_count("idleAdvanceMs", options.get("idleadvancems", "60000")),
    )


def parse_position(text: str) -> Position:
    """A position as the options write it; raises OptionError."""
    text = text.strip()
    if text in {"earliest", "latest", "snapshot"}:
        return Position(text)
    if text.startswith("{"):
        return Position("token", token=_token(text))
    if text[:2] == "82" and all(digit in "0123456789abcdefABCDEF" for digit in text):
        return Position("token", token=Token(text.upper()))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{text!r} is not latest, earliest, snapshot, a resume token or an ISO time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Position("time", time=Timestamp(int(moment.timestamp()), 0))


def _token(text: str) -> Token:
    try:
        return Token.of(loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"{text!r} is not a resume token: {error}") from None


def _pipeline(text: str) -> tuple[dict[str, Any], ...]:
    try:
        stages = loads(text)
    except ValueError as error:
        raise OptionError(f"the option 'pipeline' is not JSON: {error}") from None
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise OptionError("the option 'pipeline' is an array of stages")
    return tuple(stages)


def _stream_value(value: str) -> Any:
    return _BOOLEANS.get(value.lower(), value)


def _count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"the option {name!r} is a whole number above 0, not {text!r}")
    return int(text)
