"""The recipes of docs/spark/operation.md for Airflow and Dagster run a job in these, and its failure is the task's.

Each is installed once, into an environment of its own in the cache of tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.jobs.job_file import read_job
from headrace.spark.jobs.report import verify_job
from tests.spark.support.other_pyspark import PIP, cache

pytestmark = [pytest.mark.network, pytest.mark.process, pytest.mark.spark]

CHECKOUT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = CHECKOUT / "docs" / "spark" / "operation.md"
TESTED: Final = {
    "airflow": ("apache-airflow==3.1.8", "apache-airflow-providers-standard"),
    "dagster": ("dagster==1.13.29",),
}
JOB: Final = """
checkpoint = "checkpoint"
[source]
uri = "{uri}"
database = "shop"
collection = "orders"
startingPosition = "snapshot"
[spark]
quick = true
[[sink]]
kind = "mirror"
path = "mirror"
"""


def installed(name: str) -> Path:
    """The Python of an environment that has the scheduler. Skips the test where it cannot be had."""
    first = TESTED[name][0].replace("==", "-")
    folder = cache() / f"{first}-{sys.version_info[0]}.{sys.version_info[1]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            subprocess.run([sys.executable, "-m", "venv", made], check=True)
            done = subprocess.run(
                [made / "bin" / "python", *PIP, *TESTED[name]], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"{name} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
            made.rename(folder)
    return folder / "bin" / "python"


def recipe(name: str) -> str:
    """The page's block of Python that imports the scheduler."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if re.search(rf"^(from|import) {name}\b", block, re.MULTILINE)]
    return str(block)


def run_in(name: str, folder: Path, job: Path) -> int:
    """Runs the recipe on the job, as the scheduler runs one by hand; the exit status."""
    python = installed(name)
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    command = commands / "headrace"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} -m headrace.cli.main "$@"\n')
    command.chmod(0o755)
    definitions = folder / "definitions" / "orders.py"
    definitions.parent.mkdir(exist_ok=True)
    definitions.write_text(recipe(name).replace("/etc/headrace/orders.toml", str(job)), encoding="utf-8")
    environ = os.environ | {
        "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__DAGS_FOLDER": str(definitions.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "DAGSTER_HOME": str(folder),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    runs = {
        "airflow": (*([] if (folder / "airflow.db").exists() else [["db", "migrate"]]), ["dags", "test", "orders"]),
        "dagster": (["asset", "materialize", "-f", str(definitions), "--select", "orders"],),
    }
    status = 0
    for arguments in runs[name]:
        done = subprocess.run(
            [python, "-m", name, *arguments], env=environ, cwd=folder, capture_output=True, text=True, check=False
        )
        print(done.stdout[-3000:], done.stderr[-3000:])
        status = done.returncode
    return status


@pytest.mark.parametrize("name", TESTED)
def test_the_recipe_runs_the_job_and_fails_with_it(name: str, tmp_path: Path) -> None:
    """Takes half a minute, and minutes where the scheduler has to be installed."""
    job = tmp_path / "orders.toml"
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.shop.orders.insert_many([{"_id": number} for number in range(3)])
        job.write_text(JOB.format(uri=server.uri))
        assert run_in(name, tmp_path, job) == 0
        assert [each.equal for each in verify_job(read_job(job))] == [True]
    assert run_in(name, tmp_path, tmp_path / "none.toml") == 1
