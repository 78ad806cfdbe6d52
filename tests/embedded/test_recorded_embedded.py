"""The recorded answers of a real MongoDB, compared with those of embedded stores: the same cases as by wire."""

from __future__ import annotations

import gzip
import queue
import sys
import threading
from typing import Any

import bson
import pytest

import headrace
from tests.conformance.known import KNOWN
from tests.conformance.test_recorded import FAMILIES, FOLDER

STORE_COUNT = 16
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(FOLDER is None, reason="the recordings are not beside the checkout"),
]


class EmbeddedConnection:
    """What the recordings' runner calls a connection."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def command(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        """The reply, also to a command that failed."""
        reply = self.store._calls.reply(database, dict(command))
        return bson.decode(reply, OPTIONS)


OPTIONS: Any = bson.CodecOptions(document_class=dict, tz_aware=True)


def work(cases: queue.SimpleQueue[Any], failures: dict[str, str], check: Any) -> None:
    """Run cases on a store of one's own until there are none."""
    ignored = set(check.json.loads((check.RECORDINGS / "RELEASE").read_text())["later"]) | {"errmsg"}
    with headrace.open(enable_test_commands=True) as store:
        runner = check.Runner.__new__(check.Runner)
        runner.connection = EmbeddedConnection(store)
        while True:
            try:
                case = cases.get_nowait()
            except queue.Empty:
                return
            expected = check.plain(case.pop("expect"), ignored)
            try:
                difference = check.first_difference(expected, check.plain(runner.run_case(case), ignored))
            except Exception as failure:
                difference = f"{type(failure).__name__}: {failure}"
            if difference is not None:
                failures[case["id"]] = difference


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Every case that does not pass, with its first difference."""
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
    differing: dict[str, str] = {}
    threads = [threading.Thread(target=work, args=(cases, differing, check)) for _ in range(STORE_COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return differing


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_case_of_a_family_is_answered_as_mongodb_did(family: str, failures: dict[str, str]) -> None:
    here = {name: text for name, text in failures.items() if name.startswith(f"{family}/") and name not in KNOWN}
    assert not here, "\n".join(f"{name}: {text}" for name, text in sorted(here.items()))
