"""A job whose server is replaced while it runs: it stops before it commits anything of the other, or begins again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.mongodb.server_history import HistoryChanged
from tests.ports import free_port
from tests.spark.jobs.test_start_checks import job_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def insert(uri: str, *keys: int) -> None:
    with MongoClient[dict[str, Any]](uri) as client:
        client.d.c.insert_many([{"_id": key} for key in keys])


def test_a_job_follows_the_policy_when_its_server_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    port = free_port()
    one = headrace.Server(port=port).start()
    insert(one.uri, *range(5))
    job = replace(job_of(one.uri, tmp_path, {"kind": "changes"}, {"kind": "mirror"}), every="0 seconds")
    failures: list[Exception] = []
    committed = threading.Event()

    def run() -> None:
        try:
            run_job(job, session=spark, report=lambda _: None, listener=lambda _: committed.set())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert committed.wait(240)
    one.close()
    with headrace.Server(port=port) as two:
        insert(two.uri, *range(100, 130))
        thread.join(240)
        assert "HistoryChanged" in str(failures[0]) and "has another history" in str(failures[0])
        with pytest.raises(HistoryChanged, match="onPositionLost"):
            run_job(replace(job, every=None), session=spark, report=lambda _: None)
        again = replace(job, every=None, source={**job.source, "onpositionlost": "resnapshot"})
        run_job(again, session=spark, report=lambda _: None)
        changes, mirror = verify_job(again)
        assert mirror.equal and mirror.description == "30 rows, 30 documents"
        assert changes.equal, changes
