"""Reads Spark's checkpoint without Spark: the last batch that was planned, the last that was committed, and offsets.

<checkpoint>/offsets/7     `v1`, a line of settings, then a line of JSON for each source: the end of batch 7
<checkpoint>/commits/7     exists once batch 7 is committed
<checkpoint>/headrace.json the record of the job, which Spark ignores; put in place by a rename

Checkpoints of earlier versions have no record; the first start writes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.durable_files import replace_file
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.offsets import ServerOffset, in_snapshot


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


def server_positions(offset: dict[str, Any] | None) -> list[ServerPosition]:
    """Return the positions in a source's offset, the one furthest behind first; [] if it is another source's offset."""
    each = (offset or {}).get("servers", {"": offset or {}})
    positions = [
        ServerPosition(Token(one["token"], one.get("typeBits", "")), in_snapshot(one), server)
        for server, one in each.items()
        if isinstance(one.get("token"), str)
    ]
    return sorted(positions, key=lambda position: (not position.in_snapshot, position.token.text))


def _last(folder: Path) -> int:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def collections_offsets(offset: dict[str, Any] | None) -> dict[str, ServerOffset]:
    """Return an offset of several collections by server name (empty for the only one); {} for another source's."""
    each = (offset or {}).get("servers", {"": offset or {}})
    return {server: ServerOffset.of(one) for server, one in each.items() if "selection" in one}


def snapshot_states(offsets: Mapping[str, ServerOffset], mask: Mask | None = None) -> dict[str, str]:
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


NAME: Final = "headrace.json"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`histories` has the id of each server's replica set, by the server's name. `begun` has the sinks with a table.

    `snapshot`: the first batch begins with a snapshot, whatever `startingPosition` says, because the history has
    changed.
    """

    job: str
    namespace: str
    histories: Mapping[str, str] = field(default_factory=dict)
    begun: tuple[str, ...] = ()
    snapshot: bool = False
    name: str = ""
    """The job's name at the last start; empty if unknown."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """The sinks at the last start, by the names of their tables, with the fields that each omits; empty if unknown."""
    mask: str = ""
    """The fingerprint of the mask of the rows read so far; empty if nothing was masked."""
    pipeline: str = ""
    """The pipeline of the rows read so far, as `pipeline_text` returns it; empty if unknown."""
    collections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The identity of each server's collection (`mongodb/listed_collections.py`), if known.

    It was taken at the last start, or when the collection's first rows, or the end of the previous one, were committed.
    The key is the server's name; with several collections the collection's name, after the server's if there are
    several.
    """


def read_record(checkpoint: Path) -> JobRecord | None:
    """Return the record of a checkpoint; None if it has none."""
    path = checkpoint / NAME
    if not path.exists():
        return None
    given = json.loads(path.read_text("utf-8"))
    return JobRecord(**given | {"begun": tuple(given["begun"])})


def write_record(checkpoint: Path, record: JobRecord) -> None:
    """Store the record durably."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    replace_file(checkpoint / NAME, lambda path: path.write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8"))
