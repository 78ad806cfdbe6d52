"""The progress of long work as a bar on the standard error, if this is a terminal.

    with progress("orders", total, "documents") as bar:
        bar.add(1)

A bar appears after one second and disappears when the work ends.
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
    """The bar of one piece of work. Without a terminal it is not shown."""

    def __init__(self, shown: Any = None) -> None:
        self._shown = shown

    @property
    def is_shown(self) -> bool:
        """Whether a terminal shows the bar."""
        return self._shown is not None

    @property
    def done(self) -> int:
        """The number of units done; 0 without a terminal."""
        return 0 if self._shown is None else int(self._shown.n)

    def add(self, count: int) -> None:
        """Add the units done since the last call."""
        if self._shown is not None:
            self._shown.update(count)

    def set(self, done: int, total: int | None = None) -> None:
        """Set the units done in all, and the total if it is known only now."""
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
        """Remove the bar; later calls show nothing."""
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def name(self, title: str) -> None:
        """Set the title of the work that is being done now."""
        if self._shown is not None:
            self._shown.set_description_str(title, refresh=False)


@contextmanager
def progress(title: str, total: int | None, unit: str) -> Iterator[Bar]:
    """Yield the bar of work with `total` units, None for an unknown total. The unit "B" stands for bytes."""
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
    """Return the standard error if it is a terminal that can rewrite a line."""
    return sys.stderr if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None


@contextmanager
def index_progress(client: Client, database: str, collection: str) -> Iterator[None]:
    """Show the progress of a collection's index builds, from `$currentOp`, while the body waits for them."""
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
