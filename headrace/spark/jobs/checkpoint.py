"""Reads Spark's checkpoint without Spark: the last batch that was planned, and the last that was committed.

<checkpoint>/offsets/7     `v1`, a line of settings, then a line of JSON for each source: the end of batch 7
<checkpoint>/commits/7     exists once batch 7 is committed
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.spark.rows.tokens import Token


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last planned and committed batches (-1: none). `offset` is the end of the last committed batch."""

    planned: int = -1
    committed: int = -1
    offset: dict[str, Any] | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`; `Checkpoint()` if there is none."""
    committed = _last(path / "commits")
    lines = (path / "offsets" / str(committed)).read_text().splitlines() if committed >= 0 else []
    return Checkpoint(_last(path / "offsets"), committed, json.loads(lines[2]) if len(lines) > 2 else None)


@dataclass(frozen=True, slots=True)
class ServerPosition:
    """A query's position on one server. `server` is its name if there are several, otherwise empty.

    `in_snapshot`: the query still reads the initial snapshot, and will then follow events from `token` on.
    """

    token: Token
    in_snapshot: bool = False
    server: str = ""


def planned_ends(path: Path, batch: int) -> list[ServerPosition]:
    """Return the positions at the end of a planned batch, such as the running batch; see `server_positions`."""
    lines = (path / "offsets" / str(batch)).read_text().splitlines()
    return server_positions(json.loads(lines[2])) if len(lines) > 2 else []


_SNAPSHOTS: Final = frozenset({"after", "reading", "waiting"})
"""The fields of an offset while a snapshot is read, of one collection or of several."""


def server_positions(offset: dict[str, Any] | None) -> list[ServerPosition]:
    """Return the positions in a source's offset, the one furthest behind first; [] if it is another source's offset."""
    each = (offset or {}).get("servers", {"": offset or {}})
    positions = [
        ServerPosition(Token(one["token"], one.get("typeBits", "")), bool(_SNAPSHOTS & one.keys()), server)
        for server, one in each.items()
        if isinstance(one.get("token"), str)
    ]
    return sorted(positions, key=lambda position: (not position.in_snapshot, position.token.text))


def _last(folder: Path) -> int:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
