"""A checkpoint or a table that is removed while the job runs ends it, with a line that says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.database import Database

from headrace.spark.errors import error_line
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import reset_job, run_job
from headrace.spark.sinks.contract import BatchReport
from tests.spark.jobs.test_jobs import job_of, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]
SINKS: list[dict[str, Any]] = [
    {"kind": "mirror"}, {"kind": "mirror", "table": "parquet"}, {"kind": "history"}, {"kind": "parquet"},
    {"kind": "changes", "schema": "_id INT"},
]  # fmt: skip


@pytest.mark.parametrize(("sink", "removed"), [*((sink, "table") for sink in SINKS), (SINKS[0], "checkpoint")])
def test_what_is_removed_while_the_job_runs_is_named_and_nothing_of_spark(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    sink: dict[str, Any], removed: str,
) -> None:  # fmt: skip
    job = job_of(uri, database, tmp_path, {**sink, "path": "table"}, maxRowsPerTrigger=10)
    database.c.insert_many([{"_id": key} for key in range(60)])

    def remove(report: BatchReport) -> None:
        if report.batch == 2:
            shutil.rmtree(tmp_path / removed)

    capfd.readouterr()
    with pytest.raises(RuntimeError) as caught:
        run_job(job, session=spark, report=silent, listener=remove)
    said, what = error_line(caught.value), f"table of the sink {sink['kind']} " if removed == "table" else "checkpoint "
    assert said.startswith(f"{'TableGone' if removed == 'table' else 'CheckpointGone'}: the {what}{tmp_path / removed}")
    assert said.endswith("was removed while the job ran: put it back, or begin again with `headrace pipeline reset`")
    assert "at org.apache.spark" not in capfd.readouterr().err
    reset_job(job)
    run_job(job, session=spark, report=silent)
    results = list(verify_job(job))
    assert [each.equal for each in results] == [True], results
