"""Detects that a job's checkpoint or one of its tables was removed while the job runs.

Spark would create the checkpoint's folder again, and a Parquet table would begin again with the rows of one batch:
nothing fails, but the table is incomplete. So a job checks before each batch, and again after any failure.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.jobs.job_record import NAME, JobRecord
from headrace.spark.jobs.job_tables import has_table, may_be_table_of, table_name
from headrace.spark.jobs.sink_states import sink_state
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.table_location import location_of

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job

_AGAIN = "was removed while the job ran: put it back, or begin again with `headrace pipeline reset`"


class CheckpointGone(RuntimeError):
    """The folder of the job's checkpoint was removed, or emptied, while the job ran."""


class TablesThere:
    """The tables of a job that have begun. Only their folders are checked, which is cheap enough before each batch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun: tuple[str, ...] = ()
        self._folders: dict[str, Path] = {}

    def check(self, record: JobRecord) -> None:
        """Raise CheckpointGone or TableGone."""
        if not (self._job.checkpoint / NAME).exists():
            raise CheckpointGone(f"the checkpoint {self._job.checkpoint} {_AGAIN}")
        if record.begun != self._begun:
            self._begun, self._folders = record.begun, dict(self._local(record))
        for name, folder in self._folders.items():
            if not has_table(folder):
                raise TableGone(f"the table of the sink {name} {_AGAIN}")

    def check_thoroughly(self, record: JobRecord) -> None:
        """Do `check`, and also check tables that are in no local folder, which takes longer."""
        self.check(record)
        for sink in self._job.sinks:
            if sink.kind in {"own", "kafka"} or sink.per_collection or table_name(sink) not in record.begun:
                continue
            exists = True
            with suppress(Exception):  # the error to be explained says more
                exists = sink_state(sink).exists
            if not exists:
                raise TableGone(f"the table of the sink {table_name(sink)} {_AGAIN}")

    def _local(self, record: JobRecord) -> list[tuple[str, Path]]:
        names = [name for name in record.begun if any(may_be_table_of(sink, name) for sink in self._job.sinks)]
        folders = [(name, name.partition(" ")[2]) for name in names]
        return [(name, Path(path)) for name, path in folders if path.startswith("/") and not location_of(path).in_store]
