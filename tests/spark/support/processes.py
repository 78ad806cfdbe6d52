"""The processes that a job has started, for tests that kill some of them."""

from __future__ import annotations

from pathlib import Path


def children(parent: int) -> list[int]:
    """The processes that `parent` started, and theirs; a process comes before those that it started."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                processes += [int(entry.name), *children(int(entry.name))]
    return processes
