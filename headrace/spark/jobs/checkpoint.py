"""Reads Spark's checkpoint without Spark: the last batch that was planned, and the last that was committed.

<checkpoint>/offsets/7     `v1`, a line of settings, then a line of JSON for each source: where batch 7 ends
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
    """`offset` is where the last committed batch ended; -1 and None if there was none."""

    planned: int = -1
    committed: int = -1
    offset: dict[str, Any] | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`; `Checkpoint()` if there is none."""
    committed = _last(path / "commits")
    lines = (path / "offsets" / str(committed)).read_text().splitlines() if committed >= 0 else []
    return Checkpoint(_last(path / "offsets"), committed, json.loads(lines[2]) if len(lines) > 2 else None)


@dataclass(frozen=True, slots=True)
class ServerPosition:
    """How far a query has read one server. `server` is its name if there are several, else empty.

    `in_snapshot`: it still reads the initial snapshot, and follows events from `token` on after that.
    """

    token: Token
    in_snapshot: bool = False
    server: str = ""


def planned_ends(path: Path, batch: int) -> list[ServerPosition]:
    """Where a planned batch ends, as every running batch is; see `server_positions`."""
    lines = (path / "offsets" / str(batch)).read_text().splitlines()
    return server_positions(json.loads(lines[2])) if len(lines) > 2 else []


_SNAPSHOTS: Final = frozenset({"after", "reading", "waiting"})
"""The part of an offset that is there while a snapshot is read, of one collection or of several."""


def server_positions(offset: dict[str, Any] | None) -> list[ServerPosition]:
    """The positions in a source's offset, the one furthest behind first; [] if it is another source's offset."""
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
