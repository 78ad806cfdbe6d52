"""The streams of several servers, in the driver: what both ways to plan their batches share, and the simpler way.

`merged_stream.py` merges the events of one collection's servers by time. `ServersCollectionsStream` reads several
collections of several servers: there is a stream of collections for each server, and a batch has the next of each.
The rows of a server are in its own order. Between servers there is no order, because sinks fold the rows of each server
separately. So no server waits for the time of another. An offset has an offset for each server
(`collections_offset.py`), by its connection string without credentials. Servers can be added but not removed.

A server that cannot be reached stalls the others, unless onServerDown = skip. A server that goes away during a request
has no events in that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pymongo import timeout
from pymongo.errors import ConnectionFailure
from pyspark.sql.datasource import InputPartition

from headrace import limits
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.stream.collections_stream import CollectionsStream
from headrace.spark.stream.partitions import ServerPartition
from headrace.spark.stream.server_stream import Offset, ServerStream

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


class ServersCollectionsStream(ServerStreams):
    """Plans the batches of several servers' collections. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        count = len(options.servers)
        rows_max = options.rows_max and max(options.rows_max // count, 1)
        bytes_max = options.bytes_max and max(options.bytes_max // count, 1)
        wait_ms = max(options.await_ms // count, 1)
        each = [replace(one, rows_max=rows_max, bytes_max=bytes_max, await_ms=wait_ms) for one in options.servers]
        super().__init__(options, [CollectionsStream(one, alone=False) for one in each])

    def initial_offset(self) -> Offset:
        """Return the offset from which the snapshots of each server's collections are read."""
        return {"servers": {name: stream.initial_offset() for name, stream in self._streams.items()}}

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch; `start` if no server has anything new, or if a server is awaited. Raise
        PositionLost."""
        before: dict[str, Offset] = start["servers"]
        if added := self._streams.keys() - before.keys():
            return {"servers": before | {name: self._streams[name].initial_offset() for name in sorted(added)}}
        up = list(filter(self.is_up, self._streams))
        if len(up) < len(self._streams) and not self.skips:
            return start
        after = dict(before)
        for name in up:
            try:
                after[name] = self._streams[name].latest_offset(before[name])
            except ConnectionFailure as error:
                _LOG.warning("The server %s went away while it was asked: %s", name, error)
        return {"servers": after} if after != before else start

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the partitions between two offsets. Raise OptionError if a server was removed from the options."""
        before, after = start["servers"], end["servers"]
        self.check_none_removed(after)
        return [
            ServerPartition(number, part)
            for number, (name, stream) in enumerate(self._streams.items())
            if name in before and before[name] != after[name]
            for part in stream.partitions(before[name], after[name])
        ]
