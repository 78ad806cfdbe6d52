"""Finds out that a job's checkpoint or one of its tables was removed while the job runs.

Spark makes the folder of a checkpoint again, and a table in Parquet begins anew with the rows of one batch: nothing
fails, and the table is not what it seems. So a job looks before each batch, and once more when anything has failed.
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
    """The tables of a job that have begun. Looks for their folders only, so that it may be asked before each batch."""

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
        """The same, and also for tables that are in no local folder, which takes longer."""
        self.check(record)
        for sink in self._job.sinks:
            if sink.kind in {"own", "kafka"} or sink.per_collection or table_name(sink) not in record.begun:
                continue
            exists = True
            with suppress(Exception):  # the error that is being explained says more
                exists = sink_state(sink).exists
            if not exists:
                raise TableGone(f"the table of the sink {table_name(sink)} {_AGAIN}")

    def _local(self, record: JobRecord) -> list[tuple[str, Path]]:
        names = [name for name in record.begun if any(may_be_table_of(sink, name) for sink in self._job.sinks)]
        folders = [(name, name.partition(" ")[2]) for name in names]
        return [(name, Path(path)) for name, path in folders if path.startswith("/") and not location_of(path).in_store]
