"""Geospatial queries and time-series collections are refused alike, with the guide to other ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.guided import GUIDE
from headrace.testing.driven import DrivenServer

COMMANDS: list[dict[str, Any]] = [
    {"create": "c", "timeseries": {"timeField": "t"}},
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_error_names_the_guide_and_no_index_that_is_refused(command: dict[str, Any]) -> None:
    with DrivenServer() as at, pytest.raises(CommandError) as refused:
        at.must("t", command)
    assert refused.value.code == 115 and GUIDE in refused.value.message
    assert "required" not in refused.value.message and "needs" not in refused.value.message


def test_the_guide_exists() -> None:
    text = Path(__file__).parents[2].joinpath(GUIDE).read_text("utf-8")
    assert all(f"## {title}" in text for title in ("Text search", "Places", "Time series"))
