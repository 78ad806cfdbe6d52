"""Fail points: errors made on demand, for drivers' own test suites; only with `--enable-test-commands`.

`configureFailPoint` sets them; the shell asks `FailPoints` before it runs a command.
"""

from __future__ import annotations

from typing import Any


class FailPoints:
    """The fail points that are on. `active` is False on a server that has none, and nothing is asked then."""

    def __init__(self) -> None:
        self.active = False
        self.points: dict[str, Any] = {}
