"""A work queue: jobs are documents, workers take them one each, and sleep until there is one. No polling.

A worker that dies leaves its job taken: another takes it when its time is over (`LEASE_SECONDS`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import headrace

LEASE_SECONDS = 60


def take(jobs: Any) -> Any:
    """The oldest job that nobody works on, now taken; None if there is none."""
    now = datetime.now(UTC)
    free = {"state": "new"}
    overdue = {"state": "taken", "until": {"$lt": now}}
    until = now + timedelta(seconds=LEASE_SECONDS)
    return jobs.find_one_and_update(
        {"$or": [free, overdue]}, {"$set": {"state": "taken", "until": until}}, sort=[("_id", 1)]
    )


def work(jobs: Any, do: Callable[[Any], Any]) -> None:
    """Do jobs until the store is closed."""
    with contextlib.suppress(headrace.Closed), jobs.watch(operation_types=["insert"]) as stream:
        while True:
            while (job := take(jobs)) is not None:
                jobs.update_one({"_id": job["_id"]}, {"$set": {"state": "done", "result": do(job["work"])}})
            with contextlib.suppress(headrace.Timeout):  # then there may be one that is overdue
                stream.next(timeout=LEASE_SECONDS / 2)


def main(path: str | None = None, count: int = 20) -> list[int]:
    """Have four workers square numbers; the results in order."""
    with headrace.open(path) as store:
        jobs = store["queue"]["jobs"]
        jobs.create_index([("state", 1), ("_id", 1)])
        done = jobs.watch(operation_types=["update"], filter={"updateDescription.updatedFields.state": "done"})
        workers = [threading.Thread(target=work, args=(jobs, lambda number: number**2)) for _ in range(4)]
        for worker in workers:
            worker.start()
        jobs.insert_many([{"_id": number, "state": "new", "work": number} for number in range(count)])
        for _ in range(count):
            done.next(timeout=60)
        results = [job["result"] for job in jobs.find().sort("_id", 1)]
    for worker in workers:
        worker.join()
    return results


if __name__ == "__main__":
    print(main())
