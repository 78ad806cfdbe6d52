"""The options of the source, parsed: the servers, the stream, and the positions where reading begins and ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bson import Timestamp
from pymongo.uri_parser import parse_uri

from headrace.spark.masks.mask import Mask
from headrace.spark.mongodb.collection_selection import CollectionSelection
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.tokens import Token


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position where reading begins or ends. `kind` is earliest, latest, snapshot, token or time; the last two have a
    value."""

    kind: str
    token: Token | None = None
    time: Timestamp | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the source, parsed; `source.options.parse_options` documents each."""

    uri: str = field(repr=False)
    database: str | None = None
    collection: str | None = None
    collections: tuple[str, ...] = ()
    """Names of several collections, with `*`; without names and without `collection`, all are read."""
    capped: str = "read"
    """Whether capped collections among several are `read`, or `skip`ped."""
    also: tuple[str, ...] = ()
    """Collections, among several, whose snapshots are read whether or not the collections still exist."""
    pipeline: tuple[dict[str, Any], ...] = ()
    """The stages that the server runs."""
    reader: tuple[dict[str, Any], ...] = ()
    """The stages after `pipeline`, which the source's reader runs."""
    stream: Mapping[str, Any] = field(default_factory=dict)
    start: StreamPosition = StreamPosition("latest")
    end: StreamPosition = StreamPosition("latest")
    rows_max: int | None = None
    bytes_max: int | None = None
    documents: str = "extjson"
    document_schema: str = ""
    not_held: str = "fail"
    """The treatment of a document that a table would change: `fail`, or `mark` to replace it by a mark."""
    columns: tuple[str, ...] = ()
    mask: Mask | None = field(default=None, repr=False)
    """The mask of the rows, with its key."""
    partitions: int = 1
    partition_by: str = "document"
    """The criterion that divides events into partitions: `document` or `time`."""
    transport: str = "auto"
    archive: str = ""
    as_of: StreamPosition | None = None
    on_position_lost: str = "fail"
    on_server_down: str = "stall"
    others: tuple[str, ...] = field(default=(), repr=False)
    """The connection strings of further servers, after `uri`, that are read as one stream with it."""
    histories: tuple[str, ...] = ()
    """The id that each server's replica set must have, in the order of the servers; empty: any."""
    batch_rows: int = 1000
    await_ms: int = 250
    idle_advance_ms: int = 60_000
    stage_into: str = ""
    """The folder of a log into which workers write the rows (`tables/staged_files.py`); empty: Spark gets the rows."""
    stage_slots: str = ""
    """The slots into which rows in these files are divided (`tables/staged_files.py`); empty: not divided."""

    @property
    def selection(self) -> CollectionSelection:
        """The selection of collections, if `collection` is None."""
        return CollectionSelection(self.database, self.collections)

    @property
    def several(self) -> bool:
        """Whether several collections are read, each with a snapshot."""
        return self.collection is None and self.start.kind == "snapshot"

    @property
    def servers(self) -> tuple[SourceOptions, ...]:
        """The same options for each server alone."""
        uris = (self.uri, *self.others)
        histories = (*self.histories, *[""] * (len(uris) - len(self.histories)))
        return tuple(
            replace(self, uri=uri, others=(), histories=(history,) if history else ())
            for uri, history in zip(uris, histories, strict=True)
        )

    @property
    def addresses(self) -> str:
        """The servers' names, for messages."""
        return ", ".join(server_name(one.uri) for one in self.servers)

    @property
    def history(self) -> str:
        """The id that the first server's replica set must have; empty: any."""
        return self.histories[0] if self.histories else ""


def server_name(uri: str) -> str:
    """Return a server's name in the column `server` and in offsets: the connection string's hosts, or its SRV name."""
    if uri.startswith("mongodb+srv://"):
        return uri.removeprefix("mongodb+srv://").rpartition("@")[2].partition("/")[0]
    return ",".join(f"{host}:{port}" if port else host for host, port in parse_uri(uri)["nodelist"])


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The most rows and bytes of events (as BSON) of a micro-batch; None: unlimited. One event is always allowed."""

    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a micro-batch: it has at least `rows` events, and its last event is an invalidate if `closed`."""

    token: Token
    rows: int = 0
    closed: bool = False


def stream_fingerprint(options: SourceOptions, stages: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the stream of these options as JSON; `stages` are applied to its events after the source.

    A table of events can be an archive only if it has every event of the reader's stream, with updates described in the
    same way. So the sink that fills a table records the options that decide this, and a reader compares its own
    options.
    """
    fingerprint = {
        "database": options.database,
        "collection": options.collection,
        "pipeline": dumps([*options.pipeline, *options.reader, *stages]),
        "documents": options.documents,
        "servers": len(options.servers),
    }
    return json.dumps(fingerprint | {name: options.stream[name] for name in sorted(options.stream)})


def difference(fingerprint: str, options: SourceOptions) -> str | None:
    """Return how a table with this fingerprint differs from what these options need; None if it does not.

    A reader applies its own pipeline and may represent documents differently, so neither is compared.
    """
    recorded = json.loads(fingerprint)
    needed = json.loads(stream_fingerprint(options)) | {"pipeline": "[]", "documents": "extjson", "servers": 1}
    for name in (*recorded, *needed):
        if recorded.get(name) != needed.get(name):
            return f"{name} is {_shown(recorded.get(name))} in the table, and {_shown(needed.get(name))} is needed"
    return None


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
