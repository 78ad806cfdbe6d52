"""What Spark's checkpoint says without Spark: the last batch that was planned, the last that was committed.

<checkpoint>/offsets/7     `v1`, a line of settings, then a line of JSON for each source: where batch 7 ends
<checkpoint>/commits/7     there when batch 7 is done
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.spark.rows.tokens import Token


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`offset` is where the last committed batch ended; -1 and None if there was none."""

    planned: int = -1
    committed: int = -1
    offset: dict[str, Any] | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """What is at `path`; nothing there is a checkpoint of nothing."""
    committed = _last(path / "commits")
    lines = (path / "offsets" / str(committed)).read_text().splitlines() if committed >= 0 else []
    return Checkpoint(_last(path / "offsets"), committed, json.loads(lines[2]) if len(lines) > 2 else None)


def end_of(path: Path, batch: int) -> Token | None:
    """The token at which a batch ends that Spark has planned, as it has those it runs; None of several servers."""
    lines = (path / "offsets" / str(batch)).read_text().splitlines()
    return token_in(json.loads(lines[2])) if len(lines) > 2 else None


def token_in(offset: dict[str, Any] | None) -> Token | None:
    """The token of an offset; None if it has none of its own (several servers have one each)."""
    if not offset or not isinstance(offset.get("token"), str):
        return None
    return Token(offset["token"], offset.get("typeBits", ""))


def _last(folder: Path) -> int:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)
