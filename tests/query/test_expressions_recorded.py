"""The recorded expressions of a real server, and where release 8.2 is followed instead."""

import pytest

from tests.query.recorded_aggregations import differences, recorded

CASES = {case["id"]: case for case in recorded("expressions")}

KNOWN_DIFFERENCES = {
    ('"$dateAdd"', "1577934245678"): "milliseconds are kept since 5.0; the recorded release drops them",
    ('"$dateSubtract"', "1577934245678"): "milliseconds are kept since 5.0; the recorded release drops them",
    ('"$filter"', '"limit"'): "$filter takes a limit since 5.2; the recorded release refuses it",
}
"""The contents of a step that differs, and why it may differ."""


def is_known(difference: str) -> bool:
    return any(all(word in difference for word in words) for words in KNOWN_DIFFERENCES)


@pytest.mark.parametrize("name", sorted(CASES) or [pytest.param("", marks=pytest.mark.skip("no recordings here"))])
def test_a_recorded_expression_gives_the_recorded_answer(name: str) -> None:
    assert not [difference for difference in differences(CASES[name]) if not is_known(difference)]
