"""The recorded answers of a real MongoDB, compared with those of stores that have an index on every field.

What is compared, and what is left out: `indexed.py`. What fails without indexes, too, is on the list in `known.py`.
"""

from __future__ import annotations

import gzip
import json
import queue
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import bson
import pytest

import headrace
from tests.conformance.indexed import (
    IndexedConnection,
    Specify,
    all_fields,
    each_field,
    is_about_indexes,
    without_entries,
    without_errors_of_documents,
    without_order,
)
from tests.conformance.known import KNOWN
from tests.conformance.test_recorded import FAMILIES, FOLDER

STORE_COUNT = 8
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(FOLDER is None, reason="the recordings are not beside the checkout"),
]
OPTIONS: Any = bson.CodecOptions(document_class=dict, tz_aware=True)


def module() -> Any:
    """The recordings' own runner and comparison."""
    sys.path.insert(0, str(FOLDER))
    try:
        import check
    finally:
        sys.path.remove(str(FOLDER))
    return check


def cases(check: Any, family: str) -> Iterator[dict[str, Any]]:
    with gzip.open(check.RECORDINGS / f"{family}.jsonl.gz", "rt") as lines:
        for line in lines:
            yield check.loads(line, json_options=check.OPTIONS)


class Comparison:
    """The cases of a family, run on several stores at once."""

    def __init__(self, family: str, specify: Specify) -> None:
        self._check, self._specify = module(), specify
        self._cases: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failures: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        for case in cases(self._check, family):
            if is_about_indexes(case):
                self.counts["left out"] += 1
            elif case["id"] not in KNOWN:
                self._cases.put(case)
        threads = [threading.Thread(target=self._work) for _ in range(STORE_COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self) -> None:
        check = self._check
        ignored = set(json.loads((check.RECORDINGS / "RELEASE").read_text())["later"]) | {"errmsg", "nIndexesWas"}
        with headrace.open(enable_test_commands=True) as store:
            connection = IndexedConnection(
                lambda database, command: bson.decode(store._calls.reply(database, dict(command)), OPTIONS),
                self._specify,
            )
            runner = check.Runner.__new__(check.Runner)
            runner.connection = connection
            while True:
                try:
                    case = self._cases.get_nowait()
                except queue.Empty:
                    break
                connection.begin(case)
                expected = check.plain(without_errors_of_documents(without_entries(case)), ignored)
                got = check.plain(runner.run_case(case), ignored)
                difference = check.first_difference(expected, got)
                if difference is not None:
                    difference = check.first_difference(without_order(expected), without_order(got))
                    self.counts["in another order"] += difference is None
                self.counts["equal"] += difference is None
                if difference is not None:
                    self.failures[case["id"]] = difference
            self.counts["indexes"] += connection.index_count


@pytest.mark.parametrize("specify", [each_field, all_fields])
@pytest.mark.parametrize("family", FAMILIES)
def test_indexes_on_every_field_do_not_change_what_mongodb_answered(family: str, specify: Specify) -> None:
    made = Comparison(family, specify)
    print(family, specify.__name__, dict(made.counts))
    assert not made.failures, "\n".join(f"{name}: {text}" for name, text in sorted(made.failures.items()))
    assert made.counts["indexes"] or family == "oplog"
