"""Several collections of several servers: a stream of collections for each server; a batch has the next of each.

The rows of a server are in its own order. Between servers there is no order, because sinks fold the rows of each server
separately. So no server waits for the time of another. An offset has an offset for each server
(`collections_offset.py`), by its connection string without credentials. Servers can be added but not removed.

A server that cannot be reached stalls the others, unless onServerDown = skip. A server that goes away during a request
has no events in that batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pymongo.errors import ConnectionFailure
from pyspark.sql.datasource import InputPartition

from headrace.spark.mongodb.source_options import SourceOptions, server_name
from headrace.spark.stream.collections_stream import CollectionsStream
from headrace.spark.stream.merged_stream import ReachedServers, check_none_removed
from headrace.spark.stream.partitions import ServerPartition
from headrace.spark.stream.server_stream import Offset

_LOG: Final = logging.getLogger(__name__)


class ServersCollectionsStream:
    """Plans the batches of several servers' collections. Not thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        count = len(options.servers)
        rows_max = options.rows_max and max(options.rows_max // count, 1)
        bytes_max = options.bytes_max and max(options.bytes_max // count, 1)
        wait_ms = max(options.await_ms // count, 1)
        each = [replace(one, rows_max=rows_max, bytes_max=bytes_max, await_ms=wait_ms) for one in options.servers]
        self._streams = {server_name(one.uri): CollectionsStream(one, alone=False) for one in each}
        self._reached = ReachedServers(skips=options.on_server_down == "skip")

    def initial_offset(self) -> Offset:
        """Return the offset from which the snapshots of each server's collections are read."""
        return {"servers": {name: stream.initial_offset() for name, stream in self._streams.items()}}

    def stop_at_now(self) -> None:
        """End each server's stream at its present time, for the trigger availableNow."""
        for stream in self._streams.values():
            stream.stop_at_now()

    def latest_offset(self, start: Offset) -> Offset:
        """Return the end of the next batch; `start` if no server has anything new, or if a server is awaited. Raise
        PositionLost."""
        before: dict[str, Offset] = start["servers"]
        if added := self._streams.keys() - before.keys():
            return {"servers": before | {name: self._streams[name].initial_offset() for name in sorted(added)}}
        up = [name for name, stream in self._streams.items() if self._reached.is_up(name, stream.mongodb)]
        if len(up) < len(self._streams) and not self._reached.skips:
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
        check_none_removed(after, self._streams)
        return [
            ServerPartition(number, part)
            for number, (name, stream) in enumerate(self._streams.items())
            if name in before and before[name] != after[name]
            for part in stream.partitions(before[name], after[name])
        ]

    def close(self) -> None:
        """Close the cursors that read ahead."""
        for stream in self._streams.values():
            stream.close()
