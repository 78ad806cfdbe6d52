"""A job of twenty collections whose processes are killed for as long as you say, in random order.

    python -m tests.spark.jobs.kills --minutes 30 --seed 1

Writers write, drop and rename all the while, and upkeep runs every few seconds. After some kills they pause, the job
catches up, and its mirrors, histories and the copy in MongoDB are compared with the collections, by code that the
pipeline does not share. Exit status: 1 at the first difference, whose folder stays.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.spark.jobs.test_collections_killed import JOB, CollectionsJob, writers
from tests.spark.jobs.test_job_killed import KINDS

KILLS: Final = 6
"""Kills between two comparisons."""
UPKEEP: Final = """
[sink.upkeep]
every = "2 seconds"
target = "1 MB"
retain = "1 hour"
commits = 100
"""
COPY: Final = """
[[sink]]
kind = "mongodb"
uri = "{uri}"
database = "copy"
"""


def main() -> int:
    """Kill and compare until the time is over; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.jobs.kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    mirror, _, history = JOB.partition('schema = "infer"')
    folder = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
    job = CollectionsJob(folder, given.seed, f'{mirror}schema = "infer"{UPKEEP}{history}{UPKEEP}{COPY}')
    ends, killed, compared = time.monotonic() + 60 * given.minutes, Counter[str](), 0
    try:
        while time.monotonic() < ends:
            with writers(job.server.uri, 2):
                for _ in range(KILLS):
                    kind = job.choose.choice((*KINDS, "server"))
                    if kind == "server":
                        job.server.restart_killed()
                    else:
                        job.kill(kind)
                    killed[kind] += 1
            job.catch_up()
            count = job.compare()
            compared += 1
            print(f"{sum(killed.values())} kills, {compared} comparisons, the last of {count} documents", flush=True)
    except Exception as error:
        print(f"seed {given.seed}, {dict(killed)}, {folder}: {error!r}", flush=True)
        return 1
    finally:
        job.close()
    print(f"{dict(killed)}: {compared} comparisons, all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
