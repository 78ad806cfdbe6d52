"""The record of a job in its checkpoint: its id, its source, the source's histories, and the sinks that have begun.

    <checkpoint>/headrace.json     beside Spark's own files; Spark ignores it; put in place by a rename

Checkpoints of earlier versions have no record; the first start writes one.
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
