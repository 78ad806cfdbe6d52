"""Time-series collections are refused with the guide to another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

GUIDE = "docs/time-series.md"


def test_the_error_names_the_guide_which_exists() -> None:
    with DrivenServer() as at, pytest.raises(CommandError) as refused:
        at.must("t", {"create": "c", "timeseries": {"timeField": "t"}})
    assert refused.value.code == 115 and GUIDE in refused.value.message
    assert Path(__file__).parents[2].joinpath(GUIDE).is_file()
