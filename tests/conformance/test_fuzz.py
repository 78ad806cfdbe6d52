"""Fifty seconds of the mutation fuzz, each time with another seed: no answer is an error inside the server."""

from __future__ import annotations

import random

import pytest

from tests.conformance.fuzz import Fuzz
from tests.conformance.test_recorded import FOLDER

SECONDS = 50


@pytest.mark.process
def test_mutated_commands_get_results_or_errors_of_mongodb() -> None:
    seed = random.SystemRandom().randrange(2**32)
    fuzz = Fuzz(seed, FOLDER)
    fuzz.run(SECONDS)
    problems = [
        f"{where}\n{database}: {str(command)[:2000]}" for where, (database, command, _) in fuzz.failures.items()
    ]
    problems += [f"slow\n{database}: {str(command)[:2000]}" for database, command in fuzz.slow]
    assert not problems, f"python -m tests.conformance.fuzz --seed {seed} --seconds {SECONDS}\n" + "\n".join(problems)
    assert fuzz.rounds > 100
