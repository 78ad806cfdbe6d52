"""The connections and commands of `headrace status` itself, which its output leaves out.

The client polls the server's state only once (`OPTIONS`), so that only the commands of the samples count.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from pymongo import monitoring

OPTIONS: Final[dict[str, Any]] = {"heartbeatFrequencyMS": 86_400_000, "serverMonitoringMode": "poll"}
"""Options of the client: one monitoring connection to each server, with one hello."""
_MONITORS: Final = 1
_COUNTERS: Final = {"aggregate": "query", "find": "query", "getMore": "getmore"}
"""The counter in opcounters of a command; all other commands count as `command`."""


class OwnTraffic(monitoring.CommandListener, monitoring.ConnectionPoolListener):
    """A pymongo listener that counts the commands and connections of one client."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        """The number of answered commands, by the name of their counter in opcounters."""
        self._pooled: Counter[Any] = Counter()

    def connections(self, address: Any) -> int:
        """Return the number of open connections to a server, (host, port)."""
        return self._pooled[address] + _MONITORS

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Do nothing: a command counts once it is answered."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count a command."""
        self.commands[_COUNTERS.get(event.command_name, "command")] += 1

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Count a command."""
        self.commands[_COUNTERS.get(event.command_name, "command")] += 1

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        """Count a connection."""
        self._pooled[event.address] += 1

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None:
        """Stop counting a connection."""
        self._pooled[event.address] -= 1

    def _ignore(self, event: Any) -> None:
        """Do nothing."""

    pool_created = pool_ready = pool_cleared = pool_closed = connection_ready = _ignore
    connection_check_out_started = connection_check_out_failed = connection_checked_out = _ignore
    connection_checked_in = _ignore
