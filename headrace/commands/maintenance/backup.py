"""`headraceBackup`, Headrace's own command: oplog and snapshots for `headrace backup` and `headrace standby`.

    {headraceBackup: 1, after: <Timestamp>}
  →
    {entries: <binary>, history: <binary>, newest: <Timestamp>, newestChecksum, before: <checksum> | null}

`entries` are the oplog entries after a position, each as its position (8 bytes, big-endian) and its BSON: 4 MB at most,
but the last entry may exceed this. `before` is the CRC-32 of the entry at the position; null if there is none or it was
pruned.

    {headraceBackup: 1, snapshot: 0}                       → {snapshot: <id>}
    {headraceBackup: 1, snapshot: <id>, offset: <bytes>}   → {data: <binary>, size, newest, newestChecksum, history},
                                                             or {} while the snapshot is being made
    {headraceBackup: 1, snapshot: <id>, end: true}         → {}

A snapshot is one commit as a data file: see `store/temporary/snapshot_copies.py`. `data` has at most 4 MB of it and can
be read again. Error 43: the snapshot no longer exists.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import ANY_NORMAL
from headrace.dispatch.arguments import Field, Fields, boolean, number
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import encode
from headrace.values.position import LAST, from_timestamp, to_key, to_timestamp

if TYPE_CHECKING:
    pass

NAME: Final = "headraceBackup"
PIECE_BYTES: Final = 4 << 20
_WAIT_MS: Final = 200.0
_FIND: Final = frozenset({"find"})
_NEEDS: Final = tuple((resource, _FIND) for resource in (ANY_NORMAL, "config.", "local.", "admin.system.users"))

AFTER: Final[Field[Any]] = Field("after", "timestamp", None)
END: Final = boolean("end")
OFFSET: Final = number("offset", 0, least=0)
SNAPSHOT: Final = number("snapshot", least=0)


def run(context: CommandContext, request: Request) -> dict[str, Any] | bytes | Wait:
    """headraceBackup: answer oplog entries, or a piece of a snapshot. Raise 2, 43, 301 or 14031."""
    after, number = AFTER.of(request.body), SNAPSHOT.of(request.body)
    if (after is None) == (number is None):
        raise CommandError(2, f"{NAME} takes either after or snapshot")
    if number is None:
        return _entries(context, from_timestamp(after))
    copies, now_ms = context.store.snapshot_copies, context.clock.monotonic_ms()
    if number == 0:
        return {"snapshot": copies.begin(now_ms)}
    if END.of(request.body):
        copies.end(number)
        return {}
    return _piece(context, request, number)


def _entries(context: CommandContext, after: int) -> bytes:
    view = context.view
    newest, before = view.newest_position() or 0, view.entry(after)
    entry = view.entry(newest)
    assert entry is not None
    parts: list[bytes] = []
    size = 0
    for position, raw in context.paced(view.entries(after + 1)) if after < LAST else ():
        parts += (to_key(position), raw)
        size += len(raw)
        if size >= PIECE_BYTES:
            break
    found = {"before": None if before is None else zlib.crc32(before)}
    return _with_bytes(b"entries", b"".join(parts), found | _state(context, newest, zlib.crc32(entry)))


def _piece(context: CommandContext, request: Request, number: int) -> dict[str, Any] | bytes | Wait:
    copy = context.store.snapshot_copies.get(number, context.clock.monotonic_ms())
    state = copy.state()
    if state is None:
        return {} if request.time_is_up else Wait(_WAIT_MS)
    data = copy.read(OFFSET.of(request.body), PIECE_BYTES)
    return _with_bytes(b"data", data, {"size": state.size} | _state(context, state.position, state.checksum))


def _state(context: CommandContext, newest: int, checksum: int) -> dict[str, Any]:
    return {"history": context.store.history_id, "newest": to_timestamp(newest), "newestChecksum": checksum}


def _with_bytes(name: bytes, data: bytes, rest: dict[str, Any]) -> bytes:
    """Return a reply with megabytes of data, which are copied only once."""
    return b"".join((b"\x05", name, b"\0", len(data).to_bytes(4, "little"), b"\0", data, encode(rest)[4:-1]))


COMMAND: Final = Command(
    NAME,
    run,
    Fields(AFTER, END, OFFSET, SNAPSHOT),
    admin_only=True,
    needs_oplog=True,
    pauses=True,
    requires=Requirement(
        "find on all databases, config, local and admin.system.users, as the role backup has it", lambda *_: _NEEDS
    ),
)
