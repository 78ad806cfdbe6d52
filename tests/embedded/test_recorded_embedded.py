"""The recorded answers of a real MongoDB, compared with those of embedded stores: the same cases as by wire."""

from __future__ import annotations

import queue
from typing import Any

import bson
import pytest

import headrace
from tests.conformance.test_recorded import FAMILIES, FOLDER, all_failing, run_cases, unexpected

STORE_COUNT = 16
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(FOLDER is None, reason="the recordings are not beside the checkout"),
]


class EmbeddedConnection:
    """The connection of the recordings' runner."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def command(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        """The reply, also to a command that failed."""
        reply = self.store._calls.reply(database, dict(command))
        return bson.decode(reply, OPTIONS)


OPTIONS: Any = bson.CodecOptions(document_class=dict, tz_aware=True)


def work(cases: queue.SimpleQueue[Any], failures: dict[str, str], check: Any) -> None:
    """Run cases on a store of one's own until there are none."""
    with headrace.open(enable_test_commands=True) as store:
        runner = check.Runner.__new__(check.Runner)
        runner.connection = EmbeddedConnection(store)
        run_cases(cases, failures, check, lambda: runner)


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return all_failing(work, STORE_COUNT)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_case_of_a_family_is_answered_as_mongodb_did(family: str, failures: dict[str, str]) -> None:
    assert unexpected(failures, family) == ""
