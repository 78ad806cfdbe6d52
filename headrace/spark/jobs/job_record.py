"""The record of a job in its checkpoint: its id, what it reads, from which histories, which of its sinks have begun.

    <checkpoint>/headrace.json     beside Spark's own files, which Spark leaves alone; put in place by a rename

Checkpoints of earlier versions lack it: they get one at the first start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.durable_files import replace_file

NAME: Final = "headrace.json"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`histories`: the id of each server's replica set, by the server's name. `begun`: the sinks that have a table.

    `snapshot`: the first batch begins with a snapshot, whatever `startingPosition` says, as the history is another one.
    """

    job: str
    namespace: str
    histories: Mapping[str, str] = field(default_factory=dict)
    begun: tuple[str, ...] = ()
    snapshot: bool = False
    name: str = ""
    """The job's name at the last start; empty: unknown."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """The sinks that the job had at the last start, by their tables' names, each with what it omits; empty: unknown."""
    mask: str = ""
    """The fingerprint of the mask of what was read; empty if nothing was masked."""
    pipeline: str = ""
    """The pipeline that made the rows of what was read, as `pipeline_text`; empty: unknown."""
    collections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The identity of each server's collection (`mongodb/collection_identity.py`), if known: at the last start, or when
    the first of it, or the end of the one before, was committed.

    By the server's name; of several collections by that of the collection, behind the server's if there are several.
    """


def read_record(checkpoint: Path) -> JobRecord | None:
    """The record of a checkpoint; None if it has none."""
    path = checkpoint / NAME
    if not path.exists():
        return None
    given = json.loads(path.read_text("utf-8"))
    return JobRecord(**given | {"begun": tuple(given["begun"])})


def write_record(checkpoint: Path, record: JobRecord) -> None:
    """Stores it, durably."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    replace_file(checkpoint / NAME, lambda path: path.write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8"))
