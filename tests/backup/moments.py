"""Restores random moments of a random history, and compares each with what the server had shown then.

    python -m tests.backup.moments --count 100 --seed 1

A history has writes, transactions, index builds and other DDL; its archive has several snapshots. What is compared:
see `random_history.seen`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path

from headrace.backup.archive import BackupArchive, Sealer
from headrace.backup.places import Folder
from headrace.backup.restore import problems
from tests.backup.test_moments import compare, record

STEPS = 60
ROUNDS = 4


def run(count: int, seed: int, folder: Path) -> int:
    """Compare that many moments, up to 100 of each history; return how many."""
    compared = 0
    while compared < count:
        part = folder / str(seed)
        archive = BackupArchive(Folder(part / "archive"), Sealer())
        moments = record(part / "data", archive, seed, STEPS, ROUNDS)
        chosen = random.Random(seed).sample(moments, min(len(moments), 100, count - compared))
        for position, expected in chosen:
            compare(part, archive, position, expected)
            shutil.rmtree(part / f"at-{position:x}")
        assert list(problems(archive)) == []
        compared += len(chosen)
        shutil.rmtree(part)
        seed += 1
    return compared


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-moments-") as temporary:
        print(run(arguments.count, arguments.seed, Path(temporary)), "restores are right")
