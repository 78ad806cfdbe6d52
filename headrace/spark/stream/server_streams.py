"""The streams of several servers, in the driver: what both ways to plan their batches share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from pymongo import timeout
from pymongo.errors import ConnectionFailure

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.stream.server_stream import ServerStream

_LOG: Final = logging.getLogger(__name__)


class ServerStreams:
    """The streams by the names of their servers. `skips`: the others continue without a server that cannot be
    reached."""

    def __init__(self, options: SourceOptions, streams: Sequence[ServerStream]) -> None:
        self._streams = {server_name(stream.options.uri): stream for stream in streams}
        self.skips = options.on_server_down == "skip"
        self._down: set[str] = set()

    def stop_at_now(self) -> None:
        """End each server's stream at its present time, for the trigger availableNow."""
        for stream in self._streams.values():
            stream.stop_at_now()

    def is_up(self, name: str) -> bool:
        """Whether the server answers. A change of the answer is logged."""
        try:
            with timeout(limits.MERGED_PING_SECONDS_MAX):
                self._streams[name].mongodb.now()
        except ConnectionFailure as error:
            if name not in self._down:
                policy = "going on without it" if self.skips else "waiting for it; there are no batches until then"
                _LOG.warning("The server %s cannot be reached, %s: %s", name, policy, error)
                self._down.add(name)
            return False
        if name in self._down:
            _LOG.warning("The server %s is back", name)
            self._down.discard(name)
        return True

    def check_none_removed(self, offsets: Iterable[str]) -> None:
        """Raise OptionError if an offset has a server that is not in the options."""
        if missing := sorted(set(offsets) - self._streams.keys()):
            raise OptionError(f"the checkpoint has the server {missing[0]}, which the option 'uri' has not")

    def close(self) -> None:
        """Close the cursors that read ahead."""
        for stream in self._streams.values():
            stream.close()
