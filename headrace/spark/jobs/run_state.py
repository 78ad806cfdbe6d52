"""The state that a running job stores for other processes: its figures, its phase, and the error that stopped it.

    <checkpoint>/headrace-run.json     replaced every `report_seconds`, at the start and at the end

The state is not durable and decides nothing: a job that is killed leaves its last state, which says that it runs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from headrace.spark.jobs.metrics import FIGURES, JobMetrics

NAME: Final = "headrace-run.json"
FAILED: Final = "failed"
ENDED: Final = frozenset({"ended", FAILED, "stopped"})
"""The phases of a run that recorded its end."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The recorded state of the last run. `figures` come from `JobMetrics`; `alerted`: the lag was above its bound.

    `collections` has the figures of each of several collections, as in `CollectionFigures`.
    """

    process: int
    phase: str
    updated_ms: int
    started_ms: int
    error: str = ""
    alerted: bool = False
    figures: dict[str, Any] | None = None
    collections: dict[str, dict[str, Any]] | None = None


def read_state(checkpoint: Path) -> RunState | None:
    """Return the state of the last run; None if there is none, or if its file cannot be read."""
    try:
        given = json.loads((checkpoint / NAME).read_text("utf-8"))
        known = {field.name for field in fields(RunState)}
        return RunState(**{name: value for name, value in given.items() if name in known})
    except (OSError, ValueError, TypeError):
        return None


def write_state(checkpoint: Path, state: RunState) -> None:
    """Replace the file. Ignore an OSError: a full disk must not stop a job because of this file."""
    writing = checkpoint / f"_{NAME}.writing"
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        writing.write_text(json.dumps(asdict(state)) + "\n", "utf-8")
        os.replace(writing, checkpoint / NAME)
    except OSError:
        return


def state_of(
    metrics: JobMetrics, *, started_ms: int, now_ms: int, error: str = "", alerted: bool = False
) -> RunState:  # fmt: skip
    """Return the state of this process's run, with the present figures."""
    with metrics.lock:
        figures = {name: getattr(metrics, name) for name in FIGURES}
        collections = {name: asdict(each) for name, each in metrics.collections.items()}
        phase = FAILED if error else metrics.phase
        return RunState(os.getpid(), phase, now_ms, started_ms, error, alerted, figures, collections or None)
