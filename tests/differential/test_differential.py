"""Random documents, indexes and questions: every access path gives the answer that the list in memory gives.

`python -m tests.differential --minutes 10` goes on for longer, and shrinks a case that fails.
"""

from __future__ import annotations

import pytest

from tests.differential.__main__ import report
from tests.differential.cases import random_case
from tests.differential.comparison import Case, run_case
from tests.differential.shrinking import shrunk


def compare(seeds: range) -> None:
    for seed in seeds:
        case = random_case(seed)
        finding = run_case(case)
        assert finding is None, report(seed, case, finding)


def test_access_paths_agree() -> None:
    compare(range(25))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_access_paths_agree_in_many_cases(part: int) -> None:
    compare(range(1000 + 50 * part, 1050 + 50 * part))


@pytest.mark.process
def test_readers_agree() -> None:
    """Each case has a reader process of its own."""
    for seed in range(2000, 2006):
        case = random_case(seed)
        finding = run_case(case, in_reader=True)
        assert finding is None, report(seed, case, finding)


def test_a_case_shrinks_to_what_fails() -> None:
    steps = [{"do": {"insert": "c", "documents": [{"_id": at, "a": at} for at in range(5)]}}, {"ask": {"kind": "find"}}]

    def fails(case: Case) -> bool:
        return any({"_id": 3, "a": 3}.items() <= document.items() for step in case.steps if "do" in step
                   for document in step["do"].get("documents", ()))  # fmt: skip

    small = shrunk(Case(steps, {"view": 1}), fails, seconds=60)
    assert small == Case([{"do": {"documents": [{"_id": 3, "a": 3}]}}], {})
