"""The recorded families `filters` and `projections`, answered by the query functions alone."""

from __future__ import annotations

from typing import Final

import pytest

from tests.query.filters.recorded_finds import cases, differences, recordings

KNOWN_DIFFERENCES: Final = dict.fromkeys(
    ("filters/00010", "filters/00021", "filters/00080"),
    "$mod takes NaN and infinity for a whole number there; since 5.1 they match no $mod",
)
"""Cases in which the recorded release says otherwise than 8.2, which Headrace follows, and why."""


@pytest.mark.parametrize("family", ["filters", "projections"])
def test_recorded_finds_are_answered_as_recorded(family: str) -> None:
    folder = recordings()
    if folder is None:
        pytest.skip("the recordings are not here")
    wrong = [difference for case in cases(folder, family) for difference in differences(case)]
    wrong = [difference for difference in wrong if difference.split(":")[0] not in KNOWN_DIFFERENCES]
    assert not wrong, f"{len(wrong)} finds differ\n" + "\n".join(wrong[:3])
