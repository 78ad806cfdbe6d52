"""The mutation fuzz with two fixed seeds: no answer is an error inside the server. `fuzz.py` runs others."""

from __future__ import annotations

import pytest

from tests.conformance.fuzz import Fuzz
from tests.conformance.test_recorded import FOLDER


@pytest.mark.process
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_commands_get_results_or_errors_of_mongodb(seed: int) -> None:
    fuzz = Fuzz(seed, FOLDER)
    fuzz.run(30_000)
    assert not fuzz.problems()
