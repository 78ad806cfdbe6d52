"""A job that fills an archive: its table says which stream it is of, and how far it is when nothing happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.tables.event_log import DeltaLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_jobs_table_knows_its_stream_and_goes_on_when_it_is_quiet(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        given = {
            "checkpoint": "checkpoint",
            "source": {"uri": server.uri, "database": "d", "collection": "c", "startingPosition": "snapshot",
                       "idleAdvanceMs": 1},
            "trigger": {"availableNow": True},
            "sink": [{"kind": "changes", "path": "changes"}],
        }  # fmt: skip
        job = parse_job(given, "archive", tmp_path)
        client.d.c.insert_one({"_id": 1})
        run_job(job, session=spark, report=lambda _: None)
        before = DeltaLog(tmp_path / "changes").position()
        began = client.admin.command("ping")["operationTime"]
        while client.admin.command("ping")["operationTime"].time < began.time + 2:
            client.elsewhere.c.insert_one({})
        run_job(job, session=spark, report=lambda _: None)
        after = DeltaLog(tmp_path / "changes").position()
    assert after.token > before.token
    assert (after.begun, after.ended) == (before.begun, before.ended)
    fingerprint = json.loads(after.source)
    assert (fingerprint["database"], fingerprint["collection"], fingerprint["pipeline"], fingerprint["documents"]) == (
        "d",
        "c",
        "[]",
        "extjson",
    )
