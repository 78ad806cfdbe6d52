"""Reasons for `make clients` to fail: a failure that is not expected, and an expectation that is not met."""

from __future__ import annotations

from tests.clients.expected import FAILURES, NOT_RUN, differences
from tests.clients.go_suite import read_outcomes
from tests.clients.suites import SUITES

OUTCOMES = {"a.one": "failed", "a.two": "failed", "b.one[x]": "failed", "b.two": "passed", "c": "skipped"}


def test_a_new_failure_is_shown() -> None:
    assert differences(OUTCOMES, ["a.*"]) == (["b.one[x]"], [])


def test_an_unexpected_pass_is_shown() -> None:
    assert differences(OUTCOMES, ["a.*", "b.*"]) == ([], ["b.*"])


def test_an_expectation_that_matches_no_failure_is_shown() -> None:
    assert differences(OUTCOMES, ["a.one", "a.two", "b.one[x]", "c", "gone"]) == ([], ["c", "gone"])


def test_a_go_test_fails_by_itself_or_by_its_parts() -> None:
    lines = """
=== RUN   TestA/x/one
--- FAIL: TestA (0.52s)
    --- FAIL: TestA/x (0.52s)
        --- FAIL: TestA/x/one (0.00s)
        --- PASS: TestA/x/two (0.00s)
--- FAIL: TestB (0.52s)
    --- PASS: TestB/one (0.00s)
--- SKIP: TestC (0.52s)
"""
    assert read_outcomes(lines) == {
        "TestA/x/one": "failed", "TestA/x/two": "passed", "TestB": "failed", "TestB/one": "passed", "TestC": "skipped",
    }  # fmt: skip


def test_every_expectation_names_a_suite_and_a_reason() -> None:
    runs = {run for name in SUITES for run in (name, f"{name}, plain", f"{name}, secure")}
    for table in (FAILURES, NOT_RUN):
        assert set(table) <= runs
        assert all(reason and patterns for reasons in table.values() for reason, patterns in reasons.items())
