"""Pytest's processes take the files of tests from one list, each the next one when it is done with the one before.

    python -m pytest -p tests.file_queue --file-queue=LIST

`LIST` is a file with a path of a test file in each line. A process imports and collects only the files that it runs,
where those of pytest-xdist collect all of them each. One that ends early leaves the rest of the list to the others.
"""

from __future__ import annotations

import fcntl
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest


class FileQueue:
    """The list, shared by processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, names: Sequence[str]) -> None:
        """Begin with these."""
        self._path.write_text("".join(f"{name}\n" for name in names), "utf-8")

    def names(self) -> list[str]:
        """Those that no process has taken."""
        return self._path.read_text("utf-8").splitlines()

    def take(self) -> str | None:
        """The first one, which is then on the list no more; None if there is none."""
        with self._path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            names = file.read().splitlines()
            file.seek(0)
            file.writelines(f"{name}\n" for name in names[1:])
            file.truncate()
        return names[0] if names else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--file-queue", type=Path, help="a list of test files, shared with other processes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool | None:
    """Find the files, and import none of them: that is done file by file, between the tests.

    They are found together, since what a `conftest.py` defines belongs to the node of its folder.
    """
    path: Path | None = session.config.getoption("file_queue")
    if path is None:
        return None
    options = session.config.option
    marks, options.markexpr = options.markexpr, ""  # a file that is not imported has none
    found = session.perform_collect(FileQueue(path).names(), genitems=False)
    options.markexpr = marks
    session.config.stash[_FILES] = {
        node.path.relative_to(session.config.invocation_params.dir).as_posix(): node for node in found
    }
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own loop. The next file is collected before the last test of a file, which says what it leaves up."""
    path: Path | None = session.config.getoption("file_queue")
    if path is None:
        return None
    queue = FileQueue(path)
    session.items, at = _next_items(session, queue), 0
    while at < len(session.items):
        if at + 1 == len(session.items):
            session.items += _next_items(session, queue)
        item, following = session.items[at], session.items[at + 1] if at + 1 < len(session.items) else None
        session.testscollected = len(session.items)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        at += 1
    return True


_FILES = pytest.StashKey[dict[str, pytest.Item | pytest.Collector]]()


def _next_items(session: pytest.Session, queue: FileQueue) -> list[pytest.Item]:
    """The tests of the next file that has any with the marks that were asked for; none if there is no such file."""
    while name := queue.take():
        items = list(session.genitems(session.config.stash[_FILES][name]))
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        if items:
            # Later passes leave out what is there now: modules, and tests that are still to run.
            gc.collect()
            gc.freeze()
            return items
    return []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """One for which the others have left no file has not failed."""
    if session.config.getoption("file_queue") is not None and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
