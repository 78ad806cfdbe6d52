"""From `headrace pipeline run` to the first commit of a job, and the CPU time of each kind of process until then.

    python bench/spark_start.py                          # starts a Headrace, runs each case, removes it
    python bench/spark_start.py --only mirror --rounds 5 --json figures.json

Each case is a job of two documents, in a new process with a new checkpoint and an empty table, as in the README. The
first round is not counted: it reads files that nobody has read for a while, and starts the making of the archive of
Spark's classes where there is none. Python's bytecode is cached, as in a package that pip has installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from pymongo import MongoClient
from spark_meter import Cpu, cpu_now
from spark_source import DATABASE
from target import StartedServer, Target

CASES: Final = ("changes", "mirror")
_JOB: Final = """\
checkpoint = "checkpoint"
[source]
uri = "{uri}"
database = "{database}"
collection = "c"
startingPosition = "snapshot"
[[sink]]
kind = "{kind}"
path = "to"
"""
_COMMIT: Final = "to/_delta_log/00000000000000000000.json"
_LOOK_S: Final = 0.02


def start(server: Target, uri: str, kind: str) -> tuple[float, float, Cpu]:
    """Seconds until Spark had started and until the first commit, and the CPU time of that; the job is then stopped."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", "job.toml"]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/output", "w+") as output:
        Path(folder, "job.toml").write_text(_JOB.format(uri=uri, database=DATABASE, kind=kind))
        used, begun, started = cpu_now(server), time.perf_counter(), 0.0
        with subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output) as process:
            while not Path(folder, _COMMIT).exists():
                if process.poll() is not None:
                    raise RuntimeError(Path(folder, "output").read_text())
                started = started or ("Spark started" in Path(folder, "output").read_text()) * time.perf_counter()
                # Processes that end are noted with what they had by then.
                cpu_now(server)
                time.sleep(_LOOK_S)
            seconds = time.perf_counter() - begun
            cost = cpu_now(server) - used
            process.terminate()
    return started - begun, seconds, cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="kinds of sinks, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs: dict[str, list[tuple[float, float, Cpu]]] = {kind: [] for kind in given.only.split(",")}
    with StartedServer() as server:
        uri = f"mongodb://{server.address[0]}:{server.address[1]}/?directConnection=true"
        with MongoClient[dict[str, Any]](uri) as client:
            client[DATABASE].c.insert_many([{"_id": 1, "item": "lamp"}, {"_id": 2, "item": "desk"}])
        for _ in range(given.rounds + 1):
            for kind, every in runs.items():
                every.append(start(server, uri, kind))
    figures = {}
    for kind, every in runs.items():
        counted = every[1:]
        # What is not the JVM's is the driver's and that of Spark's Python processes: the bench itself is not counted.
        jvm, python = (median(getattr(cost, part) for _, _, cost in counted) for part in ("jvm", "workers"))
        listed = " ".join(f"{seconds:.1f}" for _, seconds, _ in sorted(counted, key=lambda each: each[1]))
        spark = median(started for started, _, _ in counted)
        print(f"{kind:8} first commit after {listed} s, Spark started after {spark:.1f}; "
              f"CPU {jvm:.1f} s in the JVM, {python:.1f} in Python")  # fmt: skip
        figures[kind] = {"seconds": [seconds for _, seconds, _ in counted], "jvm_s": jvm, "python_s": python}
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
