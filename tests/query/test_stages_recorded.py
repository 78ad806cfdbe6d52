"""The recorded aggregations of a real server."""

import pytest

from tests.query.recorded_aggregations import differences, recorded

CASES = {case["id"]: case for case in recorded("aggregations")}


@pytest.mark.parametrize("name", sorted(CASES) or [pytest.param("", marks=pytest.mark.skip("no recordings here"))])
def test_a_recorded_aggregation_gives_the_recorded_answer(name: str) -> None:
    assert not list(differences(CASES[name]))
