"""Readers are killed at random under load."""

from __future__ import annotations

import pytest

from tests.server.readers.kills import GOING_ON, READING, run

pytestmark = pytest.mark.process


def test_twenty_kills_of_readers_cost_no_answer() -> None:
    answered = run(20, 1)
    assert answered["lost"] >= 15
    for work in (*READING, *GOING_ON):
        assert answered[work]
