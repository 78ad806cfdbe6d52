"""`headraceChanges`: a range of a stream as Arrow, for those who read many events; Headrace's own command.

    {headraceChanges: <collection> | 1, after: <token>, until: <token> | null,
     stream: {<options of $changeStream>}, pipeline: [<stages behind it>],
     columns: [<names>], slice: 0, slices: 1, rowsMax: 10000, bytesMax: 16777216, waitMs: 0}
  →
    {arrow: <an Arrow IPC stream>, rows, token, done, idle, closed}

It answers the events after `after` up to and including `until`, at most so many at a time: the caller goes on with
`after` = the reply's `token` until `done`. With `until: null` the range ends where there is nothing more now.

- `columns` are those of `values/event_columns.py`; all by default, without any the rows are only counted.
  `bytes` is one more: the size of each event.
- `slices` parts the range by documents: each event is in exactly one slice, and those of a document in the same.
  Rows are counted before they are sliced.
- An event of over 16 MB is a row like any other, by itself in its reply. Only one that no message can hold is error
  10334, and is to be read with $changeStreamSplitLargeEvent.
- `idle`: the end of what there is was reached. `closed`: an invalidate is the last event; what comes behind it is read
  with `after` = its token. With `waitMs` it waits so long for a first event when there is none.

Rule: stateless. Nothing is kept between two calls, so any of them can be repeated, after a restart too. A stream is
opened `startAfter` the token and closed again; its errors are those of `$changeStream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.commands.command import Command
from headrace.commands.namespaces import object_field, whole_number
from headrace.commands.request import Request
from headrace.commands.wait import Wait
from headrace.commands.watch import Lookup, stream_spec
from headrace.cursors.changes import ChangeCursor
from headrace.errors import CommandError
from headrace.values.bson import decode, encode
from headrace.values.event_columns import COLUMNS, SIZE, in_slice, token_document, token_text

if TYPE_CHECKING:
    from headrace.commands.engine import Engine

NAME: Final = "headraceChanges"
_FIELDS: Final = frozenset({
    NAME, "after", "until", "stream", "pipeline", "columns", "slice", "slices", "rowsMax", "bytesMax", "waitMs",
    "comment", "let", "collation", "readConcern", "maxTimeMS", "lsid", "apiVersion", "apiStrict",
    "apiDeprecationErrors", "txnNumber", "autocommit",
})  # fmt: skip
_RESUME: Final = frozenset({"resumeAfter", "startAfter", "startAtOperationTime"})
_ROWS_DEFAULT: Final = 10_000
_ARROW_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX - 64 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request, parsed."""

    pipeline: list[dict[str, Any]]
    until: str | None
    columns: tuple[str, ...]
    slice: int
    slices: int
    rows_max: int
    bytes_max: int
    wait_ms: float


def run(engine: Engine, request: Request) -> dict[str, Any] | Wait:
    wanted = _wanted(request)
    cursor = _open(engine, request, wanted)
    try:
        batch = cursor.next_batch(engine, wanted.rows_max)
        closed, idle = cursor.closed, cursor.idle
    finally:
        cursor.close()
    events, token = _cut(batch.documents, batch.token, wanted)
    whole = len(events) == len(batch.documents)
    done = idle and whole if wanted.until is None else token_of(token) >= wanted.until
    reached = done and wanted.until is not None
    if idle and wanted.wait_ms and not (events or reached or closed or request.time_is_up):
        return Wait(engine.store.last_position, wanted.wait_ms, cursor.key)
    rows = in_slice(events, wanted.slice, wanted.slices)
    return {
        "arrow": _arrow(rows, wanted.columns), "rows": len(rows), "token": decode(token), "done": done,
        "idle": idle and whole, "closed": closed and whole,
    }  # fmt: skip


def _open(engine: Engine, request: Request, wanted: Wanted) -> ChangeCursor:
    """The stream, for this one call."""
    spec = replace(stream_spec(engine, request, wanted.pipeline), whole=True)
    spec = replace(spec, share_key=b"whole" + spec.share_key)
    builder = engine.feeds.builder(spec.share_key)
    if builder is None:
        lookup = Lookup(engine)
        builder = EventBuilder(spec, lookup, lookup)
    return ChangeCursor(spec, builder, engine.feeds, engine, engine.clock.monotonic_ms)


def token_of(document: bytes) -> str:
    """The text of a token."""
    text: str = decode(document)["_data"]
    return text.upper()


def _cut(events: Sequence[bytes], token: bytes, wanted: Wanted) -> tuple[Sequence[bytes], bytes]:
    """As many of the events as are wanted, and the token behind them."""
    count = bisect_right(list(accumulate(map(len, events))), wanted.bytes_max)
    if count < len(events):
        events = events[: max(count, 1)]
        token = token_document(events[-1])
    if wanted.until is not None and events and token_text(events[-1]) > wanted.until:
        events = events[: bisect_right(events, wanted.until, key=token_text)]
        return events, _mark(wanted.until)
    return events, token


def _mark(text: str) -> bytes:
    return encode({"_data": text})


def _arrow(events: list[bytes], columns: tuple[str, ...]) -> bytes:
    """The events as an Arrow IPC stream; nothing where nothing of them is wanted."""
    if not columns:
        return b""
    try:
        from headrace.values.arrow import events_batch, ipc_bytes
    except ImportError:
        raise CommandError(
            115, f"{NAME} needs pyarrow on the server: pip install 'headrace[arrow]'; or read with $changeStream"
        ) from None
    made = ipc_bytes(events_batch(events, columns))
    if len(made) > _ARROW_BYTES_MAX:
        raise CommandError(10334, f"the next event has {len(made)} bytes as Arrow, more than a message can hold")
    return made


def _wanted(request: Request) -> Wanted:
    """The request parsed; raises 14, 9, 2, 40415 for what is wrong with it, and `$changeStream`'s errors."""
    body = request.body
    for name in body:
        if name not in _FIELDS and not name.startswith("$"):
            raise CommandError(40415, f"BSON field '{NAME}.{name}' is an unknown field.")
    after = object_field(body, "after", NAME)
    if not after:
        raise CommandError(40414, f"BSON field '{NAME}.after' is missing but a required field")
    stream = object_field(body, "stream", NAME)
    if resume := sorted(_RESUME & stream.keys()):
        raise CommandError(72, f"{NAME} takes its position as 'after', not as '{resume[0]}'")
    until = object_field(body, "until", NAME)
    if until and type(until.get("_data")) is not str:
        raise CommandError(14, f"BSON field '{NAME}.until' must be a resume token")
    slices = _number(body, "slices", 1, 1, 1 << 16)
    return Wanted(
        pipeline=[{"$changeStream": stream | {"startAfter": after}}, *_stages(body.get("pipeline"))],
        until=until["_data"].upper() if until else None,
        columns=_columns(body.get("columns")),
        slice=_number(body, "slice", 0, 0, slices - 1),
        slices=slices,
        rows_max=_number(body, "rowsMax", _ROWS_DEFAULT, 1, 1 << 30),
        bytes_max=_number(body, "bytesMax", limits.BATCH_BYTES_MAX, 1, limits.BATCH_BYTES_MAX),
        wait_ms=float(_number(body, "waitMs", 0, 0, limits.AWAIT_MS_MAX)),
    )


def _stages(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if type(value) is not list or not all(type(stage) is dict for stage in value):
        raise CommandError(14, f"BSON field '{NAME}.pipeline' must be an array of documents")
    return value


def _columns(value: Any) -> tuple[str, ...]:
    if value is None:
        return COLUMNS
    if type(value) is not list:
        raise CommandError(14, f"BSON field '{NAME}.columns' must be an array")
    for name in value:
        if name not in COLUMNS and name != SIZE:
            raise CommandError(2, f"{NAME} has no column {name!r}; it has {', '.join((*COLUMNS, SIZE))}")
    if len(set(value)) < len(value):
        raise CommandError(2, f"{NAME} gives each column once")
    return tuple(value)


def _number(body: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = whole_number(body, name, NAME)
    if value is None:
        return default
    if value < least:
        raise CommandError(51024, f"BSON field '{name}' value must be >= {least}, actual value '{value}'")
    if name == "slice" and value > most:
        raise CommandError(51024, f"BSON field 'slice' value must be < slices, actual value '{value}'")
    return min(value, most)


COMMAND: Final = Command(NAME, run, needs_oplog=True)
