"""Readers are killed at random under load."""

from __future__ import annotations

import pytest

from tests.server.readers.kills import run

pytestmark = pytest.mark.process


def test_twenty_kills_of_readers_cost_no_answer() -> None:
    assert run(20, 1)["lost"] >= 15
