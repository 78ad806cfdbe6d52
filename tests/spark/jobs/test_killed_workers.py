"""A batch whose Python worker was killed is run again by the job, and the table is right."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.database import Database

from headrace import limits
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import WorkerKilled, run_job
from headrace.spark.sinks import foreach_batch
from headrace.spark.sinks.contract import BatchReport
from tests.spark.jobs.test_jobs import job_of, silent
from tests.spark.support.processes import children

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the workers in /proc"),
]

Db = Database[dict[str, Any]]
AGAIN = "job: a Python worker of Spark was killed; running its batch again"


def kill_itself(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run by a worker, amid its task."""
    yield from list(batches)[:1]
    os.kill(os.getpid(), signal.SIGKILL)


def command_of(process: str | int) -> bytes:
    """The process's command line; empty if it has ended meanwhile."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def workers(session: SparkSession) -> list[int]:
    """The Python processes of this process's Spark; its sources and their host may have another parent."""
    sources = bytes(Path(session.sparkContext.pythonExec).with_name("workers"))
    every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = [each for each in children(os.getpid()) if b"\0-m\0pyspark." in command_of(each)]
    return found + [each for each in every if sources in command_of(each)]


def test_a_killed_worker_amid_its_task_and_killed_planners_cost_no_row(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": "mirror"}, {"kind": "changes"}, maxRowsPerTrigger=20)
    database.c.insert_many([{"_id": key} for key in range(100)])
    collected, killed = foreach_batch._collected_rows, list[str]()

    def killing(frame: DataFrame, number: int) -> pa.Table:
        if number == 1 and not killed:
            killed.append("worker")
            return frame.mapInArrow(kill_itself, frame.schema).toArrow()
        return collected(frame, number)

    def kill_planners(report: BatchReport) -> None:
        if report.batch == 3 and len(killed) == 1:
            killed.append("planners")
            for process in workers(spark):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    monkeypatch.setattr(foreach_batch, "_collected_rows", killing)
    said: list[str] = []
    run_job(job, session=spark, report=said.append, listener=kill_planners)
    assert killed == ["worker", "planners"]
    # Spark notices one by one that its daemons are gone.
    assert 2 <= said.count(AGAIN) <= 1 + limits.WORKER_KILL_COUNT_MAX
    assert [each.equal for each in verify_job(job)] == [True, True]


def test_a_worker_that_is_killed_each_time_ends_the_job(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job_of(uri, database, tmp_path, {"kind": "mirror"}), every="0 seconds")
    database.c.insert_many([{"_id": key} for key in range(10)])
    said: list[str] = []

    def killing(frame: DataFrame, number: int) -> pa.Table:
        return frame.mapInArrow(kill_itself, frame.schema).toArrow()

    with monkeypatch.context() as patch:
        patch.setattr(foreach_batch, "_collected_rows", killing)
        with pytest.raises(WorkerKilled, match=rf"killed {limits.WORKER_KILL_COUNT_MAX + 1} times in the same batch"):
            run_job(job, session=spark, report=said.append)
    assert said.count(AGAIN) == limits.WORKER_KILL_COUNT_MAX
    run_job(replace(job, every=None), session=spark, report=silent)
    assert [each.equal for each in verify_job(job)] == [True]
