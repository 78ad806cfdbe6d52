"""A job whose sinks are three Iceberg tables, run, verified, and refused where it must be: for `catalog_programs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pyspark.sql import SparkSession

import headrace
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.job_upkeep import upkeep_by_hand
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import reset_job, run_job
from headrace.spark.jobs.start_checks import TableGone
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.tables.progress import NotOurTable
from tests.spark.sinks.catalog_crashes import COLUMNS
from tests.spark.sinks.catalog_session import SETTINGS

KINDS = ("changes", "history", "mirror")


def job_of(uri: str, folder: Path, name: str) -> Job:
    given = {
        "checkpoint": name,
        "source": {"uri": uri, "database": "shop", "collection": "orders", "startingPosition": "snapshot"},
        "sink": [{"kind": kind, "table": f"lake.alone.{kind}", "upkeep": True} for kind in KINDS],
        "spark": {"conf": SETTINGS},
        "trigger": {"availableNow": True},
    }
    return parse_job(given, name, folder)


def equal(job: Job) -> None:
    results = list(verify_job(job))
    assert [result.equal for result in results] == [True] * 3, results


def count(spark: SparkSession, kind: str, condition: str) -> int:
    """The rows of a table now: this session has the table as it last read it, and the job's sessions commit to it."""
    spark.sql(f"REFRESH TABLE lake.alone.{kind}")
    return spark.table(f"lake.alone.{kind}").where(condition).count()


def main(spark: SparkSession, kind: str, folder: Path, _: list[str]) -> None:
    assert kind == "iceberg"
    create = {
        kind: f"CREATE TABLE lake.alone.{kind} ({COLUMNS[kind].removeprefix('server STRING NOT NULL, ')}) USING iceberg"
        for kind in KINDS
    }
    for statement in create.values():
        spark.sql(statement)
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        orders = client["shop"]["orders"]
        orders.insert_many([{"_id": number, "n": 0} for number in range(30)])
        job = job_of(server.uri, folder, "job")
        run_job(job, report=lambda _: None)
        equal(job)
        orders.update_many({"_id": {"$lt": 10}}, {"$inc": {"n": 1}})
        orders.delete_many({"_id": {"$gt": 25}})
        run_job(job, report=lambda _: None)
        equal(job)
        assert count(spark, "history", "not `current`") == 14
        assert any("sink changes lake.alone.changes: batch" in line for line in lines_of(job_status(job)))
        # Five commits have five files, which are joined by hand or at a run's end; the job goes on behind that.
        lines: list[str] = []
        joined = [report.compacted_files for report in upkeep_by_hand(job)]
        for number in range(3):
            orders.insert_one({"_id": f"more {number}", "n": 0})
            run_job(job, report=lines.append)
        equal(job)
        assert any(joined) or any("small files joined" in line for line in lines), (joined, lines)
        with pytest.raises(NotOurTable, match="filled by another job, job"):
            run_job(job_of(server.uri, folder, "other"), report=lambda _: None)
        # A checkpoint that was removed: the tables say that they are of this job, and it begins with a new snapshot.
        reset_job(job)
        orders.insert_one({"_id": 100, "n": 0})
        run_job(job, report=lambda _: None)
        equal(job)
        assert count(spark, "changes", "operationType = 'snapshotBegin'") == 2
        spark.sql("DROP TABLE lake.alone.history")
        spark.sql(create["history"])
        with pytest.raises(TableGone, match=r"history lake\.alone\.history is gone"):
            run_job(job, report=lambda _: None)
