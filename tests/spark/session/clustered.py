"""The jobs that `test_cluster.py` gives to a cluster: mirror, history, typed ones, changes, and a worker killed.

spark-submit clustered.py URI DIRECTORY
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import limits
from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.sinks.contract import BatchReport
from headrace.spark.sinks.folding_sink import FoldTask

limits.FOLD_ROW_COUNT_MIN = 1000  # type: ignore[misc]
KINDS = {
    "mirror": {"kind": "mirror"},
    "history": {"kind": "history"},
    "mirror typed": {"kind": "mirror", "schema": "infer", "buckets": 2},
    "history typed": {"kind": "history", "schema": "infer"},
    "changes": {"kind": "changes"},
}


def kill_worker(folder: str) -> bool:
    """Kills a worker that runs in the folder, with which its executor ends; false if there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, place = process.joinpath("cmdline").read_bytes(), os.readlink(process / "cwd")
        except OSError:
            continue
        if b".deploy.worker.Worker" in words and place.startswith(folder):
            os.kill(int(process.name), signal.SIGKILL)
            return True
    return False


def run(kind: str, uri: str, folder: str, listener: Callable[[BatchReport], None]) -> None:
    source = {"uri": uri, "database": "d", "collection": "c", "startingPosition": "snapshot", "partitions": "4"}
    given = {
        "checkpoint": f"{kind}.checkpoint", "source": source | {"maxRowsPerTrigger": "5000"},
        "sink": [{**KINDS[kind], "path": kind, "upkeep": False}], "trigger": {"availableNow": True},
    }  # fmt: skip
    job = parse_job(given, kind, Path(folder))
    run_job(job, report=lambda _: None, listener=listener)
    states = list(verify_job(job))
    assert states and all(each.equal for each in states), states


def main(uri: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    folded: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    tasks = FoldTask.run

    def counted(task: FoldTask, session: SparkSession) -> Any:
        done = tasks(task, session)
        folded[kind].append(done is not None)
        return done

    FoldTask.run = counted  # type: ignore[method-assign]
    killed: list[bool] = []

    def kill_one(_: BatchReport) -> None:
        if not killed:
            killed.append(kill_worker(folder))

    for kind in KINDS:
        run(kind, uri, folder, kill_one)
    result: dict[str, Any] = {"folded": folded, "killed": killed, "master": spark.sparkContext.master}
    (Path(folder) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
