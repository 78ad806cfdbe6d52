"""Bugs that are planted on purpose are found: some of them here, all of them by `python -m tests.planted`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.planted.planting import FINDERS, PATCHES, ROOT, Planted, find

QUICK = ("multikey-repeats", "descending-bound", "count-ahead-of-find", "retry-forgotten", "pre-image-is-new")


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies(path: Path) -> None:
    """A patch that no longer applies is made again: README.md says how."""
    assert Planted.read(path).finder in FINDERS
    checked = subprocess.run(
        ["git", "apply", "--check", str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not checked.returncode, checked.stderr


@pytest.mark.process
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    (path,) = (path for path in PATCHES if path.stem[3:] == name)
    found = find(Planted.read(path), 60)
    assert found.seconds is not None, found.output
