"""Reads Spark's checkpoint without Spark: the last batch that was planned, the last that was committed, and offsets.

<checkpoint>/offsets/7     `v1`, a line of settings, then a line of JSON for each source: the end of batch 7
<checkpoint>/commits/7     exists once batch 7 is committed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.spark.masks.mask import Mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.collections_offset import CollectionsOffset


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


def collections_offsets(offset: dict[str, Any] | None) -> dict[str, CollectionsOffset]:
    """Return an offset of several collections by server name (empty for the only one); {} for another source's."""
    each = (offset or {}).get("servers", {"": offset or {}})
    return {server: CollectionsOffset.of(one) for server, one in each.items() if "selection" in one}


def snapshot_states(offsets: Mapping[str, CollectionsOffset], mask: Mask | None = None) -> dict[str, str]:
    """Return the state of each collection whose snapshot is not complete, or that is skipped.

    `mask` is the job's mask; keys are shown masked.
    """
    states: dict[str, list[str]] = {}
    for server, offset in offsets.items():
        some = dict.fromkeys(offset.waiting, "waits for its snapshot")
        if offset.reading:
            after = offset.reading.after
            if mask and after:
                after = dumps(mask.document(loads(after)))
            some[offset.reading.name] = f"in its snapshot, after {after or 'nothing'}"
        for name, text in (some | dict.fromkeys(offset.skipped, "left out: a capped collection")).items():
            states.setdefault(name, []).append(f"{server}: {text}" if server else text)
    return {name: "; ".join(texts) for name, texts in states.items()}
