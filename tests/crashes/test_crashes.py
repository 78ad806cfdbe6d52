"""A minute of kills and losses of power, some on a disk that is full or fails; losses that are planted are found.

`python -m tests.crashes` runs for as long as one likes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the calls are seen on Linux"),
]
RUN = "from tests.crashes.__main__ import run\nimport sys\nsys.exit(run(sys.argv[1:]))"
ROOT = Path(__file__).resolve().parents[2]


def crashes(kind: str, path: Path, count: int, planted: str = "") -> subprocess.CompletedProcess[str]:
    words = [kind, "--count", str(count), "--seed", "1", "--dir", str(path)]
    return subprocess.run(
        [sys.executable, "-c", f"{planted}\n{RUN}", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("kind", "counted", "count"),
    [("errors", "kills", 20), ("full", "kills", 20), ("kills", "kills", 50), ("power", "power losses", 150)],
)
def test_crashes_lose_nothing_that_was_acknowledged(kind: str, counted: str, count: int, tmp_path: Path) -> None:
    done = crashes(kind, tmp_path, count)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = re.search(rf"(\d+) {counted}[,;]", done.stdout)
    assert figures and int(figures[1]) >= count, done.stdout
    assert "0 lost, 0 skipped or repeated" in done.stdout


UNSYNCED = """
import lmdb
open_environment = lmdb.open
lmdb.open = lambda *words, **options: open_environment(*words, **options | {"sync": False})
"""
ONE_COMMIT_OF_MANY_IS_LOST = """
import itertools
from headrace.store.store import Store
sync, numbers = Store.sync, itertools.count()
Store.sync = lambda self, txn: sync(self, txn) if next(numbers) % 9 else txn.kv.abort()
"""


@pytest.mark.parametrize(("kind", "planted"), [("kills", ONE_COMMIT_OF_MANY_IS_LOST), ("power", UNSYNCED)])
def test_a_planted_loss_is_found(kind: str, planted: str, tmp_path: Path) -> None:
    done = crashes(kind, tmp_path, 400, planted)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FOUND in" in done.stdout
