"""Attacks on a server: each is answered with a result or an error of MongoDB, and other clients go on.

The bounds here are generous, since the machine may be busy; `bench/fairness.py` measures.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")
sys.path.insert(0, BENCH)
try:
    from attacks import ALL
    from attacks.attacker import Attack
    from fairness import measure
    from target import StartedServer, Target
finally:
    sys.path.remove(BENCH)

SECONDS = 1.5
WAIT_MS_MAX = 6000.0
MEMORY_MIB_MAX = 1536.0
QUICK = {
    "a pattern of nested repetition, over 1,000 strings",
    "$unwind of 1,000 × 1,000 × 1,000",
    "a filter of 16 MB: $in of 1,200,000 numbers",
}
"""The attacks that run in `make test`."""
HEAVY = (
    "30 aggregates of ranges of 3,900,000",
    "60 aggregates of three such ranges in a $let",
    "40 aggregates of arrays of 1,000,000 texts",
    "60 open transactions of 15 MB",
    "60 views with pipelines of 14 MB",
    "40 filters with $in of 150,000 documents",
)
"""The attacks that took gigabytes while only accounts bounded the memory of the process."""


@pytest.fixture(scope="module")
def idle() -> Iterator[Target]:
    with StartedServer() as target:
        yield target


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=attack.name, marks=pytest.mark.process if attack.name in QUICK else pytest.mark.soak)
        for attack in ALL
    ],
)
def test_an_attack_is_answered_and_others_go_on(attack: Attack, idle: Any) -> None:
    result = measure(attack, idle, SECONDS)
    assert result.alive
    assert all(not latency.failure for latency in result.latency.values()), result
    assert not set(result.answers) & {"1", "no answer", "the attacker failed"}, result
    assert all(worst < WAIT_MS_MAX for worst, _ in map(result.wait, ("ping", "insert", "watch"))), result
    before, most, _ = result.memory
    assert not math.isnan(most)
    assert most - before < MEMORY_MIB_MAX, result


@pytest.mark.process
@pytest.mark.parametrize("name", HEAVY)
def test_a_server_with_a_memory_limit_takes_half_more_at_most(name: str, idle: Any) -> None:
    attack = next(attack for attack in ALL if attack.name == name)
    result = measure(attack, idle, SECONDS, flags=("--memoryLimit", "512M"))
    assert result.alive
    assert result.peak <= 768, result


def test_names_of_attacks_differ() -> None:
    assert len({attack.name for attack in ALL}) == len(ALL) >= 60
    assert {attack.name for attack in ALL} >= QUICK
