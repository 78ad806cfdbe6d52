"""The recorded answers of a real MongoDB, compared case by case with a running Headrace.

Where the recordings are: `tests/recordings.py`.
A case waits for its streams to fall idle, so several servers answer at once. What may not pass stands in
`known.py`, each with its reason, and in docs/differences.md.
"""

from __future__ import annotations

import gzip
import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.running_command import TURN_SECONDS
from tests.conformance.known import KNOWN
from tests.recordings import CONFORMANCE

SERVER_COUNT = 16
FAMILIES = (
    "aggregations", "commands", "events", "expressions", "filters", "full-document", "oplog", "options", "projections",
    "random-streams", "resume", "stages", "updates", "upserts",
)  # fmt: skip


FOLDER = CONFORMANCE if (CONFORMANCE / "check.py").is_file() else None
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(FOLDER is None, reason="the recordings are not beside the checkout"),
]


def run_cases(cases: queue.SimpleQueue[Any], failures: dict[str, str], check: Any, runner_of: Any) -> None:
    """Run cases with a runner, made again where one fails, until there are none."""
    ignored = set(json.loads((check.RECORDINGS / "RELEASE").read_text())["later"]) | {"errmsg"}
    runner = runner_of()
    while True:
        try:
            case = cases.get_nowait()
        except queue.Empty:
            return
        expected = check.plain(case.pop("expect"), ignored)
        try:
            difference = check.first_difference(expected, check.plain(runner.run_case(case), ignored))
        except Exception as failure:  # a broken connection is a failed case, not the end of the test
            difference = f"{type(failure).__name__}: {failure}"
            runner = runner_of()
        if difference is not None:
            failures[case["id"]] = difference


def all_failing(work: Callable[[queue.SimpleQueue[Any], dict[str, str], Any], None], count: int) -> dict[str, str]:
    """Every case that does not pass, with its first difference: `work` runs cases in so many threads."""
    assert FOLDER is not None
    sys.path.insert(0, str(FOLDER))
    try:
        import check
    finally:
        sys.path.remove(str(FOLDER))
    cases: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for family in FAMILIES:
        with gzip.open(FOLDER / "recordings" / f"{family}.jsonl.gz", "rt") as lines:
            for line in lines:
                cases.put(check.loads(line, json_options=check.OPTIONS))
    failures: dict[str, str] = {}
    threads = [threading.Thread(target=work, args=(cases, failures, check)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return failing(TURN_SECONDS)


def failing(turn_seconds: float) -> dict[str, str]:
    """As `all_failing`, by wire, on servers whose commands run in turns that long."""

    def work(cases: queue.SimpleQueue[Any], failures: dict[str, str], check: Any) -> None:
        with headrace.Server(enable_test_commands=True) as server:
            server._running.scheduler.turns.seconds = turn_seconds
            with MongoClient[dict[str, Any]](server.uri) as client:  # so that no case finds an empty oplog
                client["hr"]["c"].insert_one({})
                client["hr"]["c"].drop()
            host, _, port = server.address.rpartition(":")
            run_cases(cases, failures, check, lambda: check.Runner(host, int(port)))

    return all_failing(work, SERVER_COUNT)


def unexpected(failures: dict[str, str], family: str) -> str:
    """What fails of a family and may not, a line each."""
    here = sorted(item for item in failures.items() if item[0].startswith(f"{family}/") and item[0] not in KNOWN)
    return "\n".join(f"{name}: {text}" for name, text in here)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_case_of_a_family_is_answered_as_mongodb_did(family: str, failures: dict[str, str]) -> None:
    assert unexpected(failures, family) == ""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_known_difference_is_still_one(name: str, failures: dict[str, str]) -> None:
    assert name in failures, f"{name} passes now: take it off the list"


def test_commands_that_pause_at_every_tick_answer_the_same(failures: dict[str, str]) -> None:
    here = {name: text for name, text in failing(0.0).items() if name not in KNOWN and name not in failures}
    assert not here, "\n".join(f"{name}: {text}" for name, text in sorted(here.items()))
