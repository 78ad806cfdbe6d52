"""`headraceChanges`, Headrace's own command: a range of a stream as Arrow, for clients that read many events.

    {headraceChanges: <collection> | 1, after: <token>, until: <token> | null,
     stream: {<options of $changeStream>}, pipeline: [<stages after it>],
     columns: [<names>], slice: 0, slices: 1, rowsMax: 10000, bytesMax: 16777216, waitMs: 0}
  →
    {arrow: <an Arrow IPC stream>, rows, token, done, idle, closed}

It answers the events after `after` up to and including `until`, at most `rowsMax` at a time. The caller repeats it with
`after` = the reply's `token` until `done`. With `until: null` the range ends at the newest event.

- `columns` are those of `values/arrow/event_columns.py`, and `bytes`, the size of each event. The default is all of
  them. If the list is empty, rows are only counted.
- `slices` divides the range by documents. Each event is in exactly one slice, and all events of a document are in the
  same slice. Only rows of the slice count.
- An event of over 16 MB is a row like any other, but alone in its reply. If an event does not fit in a message, the
  command fails with error 10334, and the event must be read with $changeStreamSplitLargeEvent.
- `idle`: the range has reached the newest event. `closed`: an invalidate is the last event; events after it are read
  with `after` = its token. `waitMs`: how long to wait for a first event.

Rule: the command keeps no state between two calls, so each call can be repeated, also after a restart. It opens a
stream `startAfter` the token and closes it again. Its errors are those of `$changeStream`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.changes.builder import EventBuilder
from headrace.changes.row_collector import ReadBounds
from headrace.cursors.row_cursor import RowCursor
from headrace.dispatch.arguments import Fields, array, document, missing, number, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import COLLATION, LET
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import on_collection
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.execution.change_streams import ImageReader, stream_spec
from headrace.values.arrow.event_columns import COLUMNS, SIZE
from headrace.values.bson import decode, encode

if TYPE_CHECKING:
    from headrace.values.arrow.event_columns import RowColumns

NAME: Final = "headraceChanges"
_RESUME: Final = frozenset({"resumeAfter", "startAfter", "startAtOperationTime"})
_ROWS_DEFAULT: Final = 10_000


def _columns_exist(path: str, names: Any) -> None:
    for name in names:
        if name not in COLUMNS and name != SIZE:
            raise CommandError(2, f"{NAME} has no column {name!r}; it has {', '.join((*COLUMNS, SIZE))}")
    if len(set(names)) < len(names):
        raise CommandError(2, f"{NAME} gives each column once")


AFTER: Final = document("after", required=True)
BYTES_MAX: Final = number("bytesMax", limits.BATCH_BYTES_MAX, least=1)
ASKED_COLUMNS: Final = array("columns", "string", check=_columns_exist)
PIPELINE: Final = array("pipeline", "object")
ROWS_MAX: Final = number("rowsMax", _ROWS_DEFAULT, least=1)
SLICE: Final = number("slice", 0, least=0)
SLICES: Final = number("slices", 1, least=1)
STREAM: Final = document("stream")
UNTIL: Final = document("until", Fields(string("_data"), strict=False))
WAIT_MS: Final = number("waitMs", 0, least=0)
FIELDS: Final = Fields(
    AFTER, BYTES_MAX, COLLATION, ASKED_COLUMNS, LET, PIPELINE, ROWS_MAX, SLICE, SLICES, STREAM, UNTIL, WAIT_MS
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parsed request."""

    pipeline: list[dict[str, Any]]
    until: str | None
    columns: tuple[str, ...]
    bounds: ReadBounds
    wait_ms: float


def run(context: CommandContext, request: Request) -> bytes | Wait:
    """headraceChanges: answer the next rows of the range, or wait for the first row."""
    if request.wait_until_ms is not None and context.engine.restricts(request.client):
        context.engine.access.require_again(context.engine, COMMAND, request)
    wanted = _wanted(request)
    cursor = _open(context, request, wanted)
    cursor.read(context, wanted.until)
    token = decode(cursor.token)
    reached = wanted.until is not None and token["_data"].upper() >= wanted.until
    if cursor.idle and wanted.wait_ms and not (cursor.moved or reached or cursor.closed or request.time_is_up):
        return Wait(wanted.wait_ms, cursor.key)
    rest = {
        "rows": len(cursor.rows), "token": token, "done": cursor.idle if wanted.until is None else reached,
        "idle": cursor.idle, "closed": cursor.closed,
    }  # fmt: skip
    arrow = _arrow(cursor.rows, wanted.columns)
    # Copy the megabytes of Arrow only once.
    return b"".join((b"\x05arrow\0", len(arrow).to_bytes(4, "little"), b"\0", arrow, encode(rest)[4:-1]))


def _open(context: CommandContext, request: Request, wanted: Wanted) -> RowCursor:
    """Open the stream for this call."""
    spec = replace(stream_spec(context, request, wanted.pipeline), unbounded=True)
    lookup = ImageReader(context.store)
    builder = EventBuilder(spec, lookup, lookup, context.engine.count)
    return RowCursor(spec, builder, context.engine.feeds, context, context.clock.monotonic_ms, wanted.bounds)


def _arrow(rows: RowColumns, columns: tuple[str, ...]) -> bytes | memoryview:
    """Return the rows as an Arrow IPC stream; empty bytes without columns."""
    if not columns:
        return b""
    try:
        from headrace.values.arrow.batches import columns_batch, ipc_buffer
    except ImportError:
        raise CommandError(
            115, f"{NAME} needs pyarrow on the server: pip install 'headrace[arrow]'; or read with $changeStream"
        ) from None
    made = memoryview(ipc_buffer(columns_batch(rows, columns)))
    if len(made) > limits.ARROW_BYTES_MAX:
        raise CommandError(10334, f"the next event has {len(made)} bytes as Arrow, more than a message can hold")
    return made


def _wanted(request: Request) -> Wanted:
    """Parse the request. Raise 2, 9, 14 or 40415 if it is invalid, and the errors of `$changeStream`."""
    body = request.body
    after, until = AFTER.of(body), UNTIL.of(body)
    if not after:
        raise missing(f"{NAME}.after")
    if until and "_data" not in until:
        raise CommandError(14, f"BSON field '{NAME}.until' must be a resume token")
    stream = STREAM.of(body)
    if resume := sorted(_RESUME & stream.keys()):
        raise CommandError(72, f"{NAME} takes its position as 'after', not as '{resume[0]}'")
    slices = min(SLICES.of(body), limits.ARROW_SLICE_COUNT_MAX)
    if SLICE.of(body) >= slices:
        raise CommandError(51024, f"BSON field 'slice' value must be < slices, actual value '{SLICE.of(body)}'")
    return Wanted(
        pipeline=[{"$changeStream": stream | {"startAfter": after}}, *PIPELINE.of(body)],
        until=until["_data"].upper() if until else None,
        columns=COLUMNS if body.get("columns") is None else tuple(ASKED_COLUMNS.of(body)),
        bounds=ReadBounds(
            rows=min(ROWS_MAX.of(body), limits.ARROW_ROW_COUNT_MAX),
            bytes=min(BYTES_MAX.of(body), limits.BATCH_BYTES_MAX),
            slice=SLICE.of(body), slices=slices, counts=body.get("columns") == [],
        ),
        wait_ms=float(min(WAIT_MS.of(body), limits.AWAIT_MS_MAX)),
    )  # fmt: skip


COMMAND: Final = Command(
    NAME, run, FIELDS, needs_oplog=True, requires=on_collection("changeStream", "find"),
    pauses=lambda engine, request: not request.body.get("waitMs"),  # a request that may wait for events is short
)  # fmt: skip
