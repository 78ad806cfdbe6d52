"""Debezium's embedded engine reads a backlog of a Headrace, as the bench lets it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from tests.spark.support.other_pyspark import cache

pytestmark = [pytest.mark.network, pytest.mark.process]

BENCH = Path(__file__).parents[2] / "bench"


def jars() -> Path:
    """The folder of Debezium's jars, which Maven fetches once into the user's cache; skips where they cannot be had."""
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("java or mvn is not installed")
    folder = cache() / "debezium"
    line = ["mvn", "-q", "-B", "-f", str(BENCH / "debezium"), "dependency:copy-dependencies"]
    run = subprocess.run([*line, f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False)
    if run.returncode:
        pytest.skip(f"Maven could not fetch Debezium: {run.stdout.strip()[:300]}")
    return folder


def test_debezium_reads_each_change_of_a_backlog_in_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from debezium_engine import FORMATS, DebeziumProcess
    from spark_source import DATABASE

    folder = jars()
    with headrace.Server() as server:
        with MongoClient[dict[str, Any]](server.uri) as client:
            client.admin.command("ping")
            since = client.admin.command("hello")["operationTime"].time
            collection = client[DATABASE].c
            collection.insert_many([{"_id": number, "n": 0} for number in range(100)])
            collection.update_many({"_id": {"$lt": 50}}, {"$set": {"n": 1}})
        with DebeziumProcess(folder, server.uri) as debezium:
            for form in FORMATS:
                rows, _, _ = debezium.read(form, since, 150)
                assert rows == 150
