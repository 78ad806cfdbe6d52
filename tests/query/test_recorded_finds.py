"""The recorded families `filters` and `projections`, answered by the query functions alone."""

from __future__ import annotations

import pytest

from tests.query.recorded_finds import cases, differences, recordings


@pytest.mark.parametrize("family", ["filters", "projections"])
def test_recorded_finds_are_answered_as_recorded(family: str) -> None:
    folder = recordings()
    if folder is None:
        pytest.skip("the recordings are not here")
    wrong = [difference for case in cases(folder, family) for difference in differences(case)]
    assert not wrong, f"{len(wrong)} finds differ\n" + "\n".join(wrong[:3])
