"""Two minutes of the soak with fewer clients; `bench/soak.py` runs it for as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.mark.soak
def test_events_are_complete_and_memory_is_flat_under_attacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Takes more than a minute: memory is compared between thirds of the time."""
    monkeypatch.syspath_prepend(BENCH)
    from soak import soak

    seed = random.SystemRandom().randrange(2**31)
    assert not soak(2.0, 60, seed, tmp_path), f"seed {seed}"
