"""The progress of long work as a bar on the standard error, where that is a terminal; nothing elsewhere.

    with progress("orders", total, "documents") as bar:
        bar.add(1)

A bar appears when the work has taken a second, and is gone at its end.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.cli.connection import Client

DELAY_S = 1.0
INTERVAL_S = 0.1
_POLL_S: Final = 0.5


class Bar:
    """The bar of one piece of work; without a terminal its methods do nothing."""

    def __init__(self, shown: Any = None) -> None:
        self._shown = shown

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to show it."""
        return self._shown is not None

    @property
    def done(self) -> int:
        """How much has been done."""
        return 0 if self._shown is None else int(self._shown.n)

    def add(self, count: int) -> None:
        """Count what has been done since the last call."""
        if self._shown is not None:
            self._shown.update(count)

    def set(self, done: int, total: int | None = None) -> None:
        """Show how much has been done in all, and of how much, if that is known only now."""
        if self._shown is not None:
            if total is not None:
                self._shown.total = total
            self._shown.update(done - self._shown.n)

    def say(self, line: str) -> None:
        """Print a line on the standard output, above the bar."""
        if self._shown is None:
            print(line, flush=True)
        else:
            self._shown.write(line, file=sys.stdout)
            sys.stdout.flush()

    def close(self) -> None:
        """Remove the bar; what is done from here on is not shown."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def name(self, title: str) -> None:
        """Say what is being done now."""
        if self._shown is not None:
            self._shown.set_description_str(title, refresh=False)


@contextmanager
def progress(title: str, total: int | None, unit: str) -> Iterator[Bar]:
    """The bar of work that `total` units make; None where the total is not known. `unit` is "B" for bytes."""
    terminal = _terminal()
    if terminal is None:
        yield Bar()
        return
    from tqdm import tqdm

    with tqdm(
        total=total, desc=title, unit="B" if unit == "B" else f" {unit}", unit_scale=unit == "B", unit_divisor=1024,
        delay=DELAY_S, mininterval=INTERVAL_S, leave=False, file=terminal, dynamic_ncols=True,
    ) as shown:  # fmt: skip
        yield Bar(shown)


def _terminal() -> IO[str] | None:
    """The standard error, if it is a terminal on which a line can be written again."""
    return sys.stderr if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None


@contextmanager
def index_progress(client: Client, database: str, collection: str) -> Iterator[None]:
    """Show the index builds of a collection, as `$currentOp` reports them, while the `with` waits for them."""
    with progress(f"indexes of {database}.{collection}", None, "documents") as bar:
        if not bar.is_shown:
            yield
            return
        ended = threading.Event()
        looking = threading.Thread(target=_look, args=(client, f"{database}.{collection}", bar, ended), daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


def _look(client: Client, namespace: str, bar: Bar, ended: threading.Event) -> None:
    from pymongo.errors import PyMongoError

    stages: list[dict[str, Any]] = [{"$currentOp": {}}, {"$match": {"ns": namespace, "progress.total": {"$gt": 0}}}]
    while not ended.wait(_POLL_S):
        try:
            builds = list(client.admin.aggregate(stages))
        except PyMongoError:  # the user may not run $currentOp: the work continues without a bar
            return
        if builds:
            done, total = (int(builds[0]["progress"][name]) for name in ("done", "total"))
            bar.set(done, total)
