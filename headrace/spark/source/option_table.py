"""Every option of the `headrace` source, with its default and its meaning; `options.py` parses them.

`docs/reference.py` writes the reference page from this table. Spark does not preserve the case of option names.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from headrace import limits

SERVERS: Final = "What to read"
POSITIONS: Final = "From where to where"
SIZES: Final = "How much at a time"
ROWS: Final = "What the rows hold"
STREAM: Final = "Options of `$changeStream`"
GROUPS: Final = (SERVERS, POSITIONS, SIZES, ROWS, STREAM)
"""The groups of options, in the order in which they are documented."""


@dataclass(frozen=True, slots=True)
class SourceOption:
    """One option. `default` is as a user would write it, or empty; `text` is Markdown."""

    group: str
    default: str
    text: str
    example: Any = ""
    choices: tuple[str, ...] = ()
    """All values, if they are few."""
    most: int = 0
    """The greatest value of a whole number from 1 on; 0 if the option is not a number."""
    kind: str = "a text"
    """The kind of values of any other option: a key of `_TYPES`."""

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"a whole number from 1 to {self.most}" if self.most else self.kind

    @property
    def is_path(self) -> bool:
        """Whether the option is a path or an object store URL."""
        return self.kind == _PATH

    @property
    def is_position(self) -> bool:
        """Whether the option is a position in the server's oplog."""
        return self.kind == _POSITION

    @property
    def types(self) -> tuple[type, ...]:
        """The types that a value in a job file may have."""
        if self.choices:
            return (bool, str) if "true" in self.choices else (str,)
        return (int, str) if self.most else _TYPES[self.kind]


_JSON: Final = "JSON, or a table or an array"
_NAMES: Final = "names with commas between them, or an array of names"
_PATH: Final = "a path"
_POSITION: Final = "a resume token, an ISO time, or a word"
_FLAG: Final = ("true", "false")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "a text": (str,),
    _JSON: (str, list, dict),
    _NAMES: (str, list),
    _PATH: (str,),
    _POSITION: (str, dict, date, datetime),
}


SOURCE_OPTIONS: Final = {
    "allChangesForCluster": SourceOption(STREAM, "", "as in MongoDB; leave out `database` instead", choices=_FLAG),
    "archive": SourceOption(
        POSITIONS, "",
        "folder or object store URL of a table of the sink `changes`. Events that the oplog no longer has are read "
        "from it, and so are `asOf` and the snapshot", example="lake/events", kind=_PATH,
    ),
    "asOf": SourceOption(
        POSITIONS, "", "batch reads of a collection: a token or an ISO time; gives the documents as they were then",
        example="2026-01-31T12:00:00Z", kind=_POSITION,
    ),
    "awaitMs": SourceOption(
        SIZES, "250",
        "how long to wait on the server for an event before reporting none to Spark; twice as long each time that "
        "happens in a row, up to 16 times; several servers share it, and wait no longer with one collection, up to 4 "
        "times with several", example=100, most=3_600_000,
    ),
    "batchRows": SourceOption(
        SIZES, "1000", "rows requested from the server, and put into an Arrow batch, at a time",
        example=500, most=1_000_000,
    ),
    "cappedCollections": SourceOption(
        SERVERS, "read",
        "with a snapshot of several collections: `read` the capped ones, or `skip` them, as what they push out is in "
        "no event. A job with a mirror or a history sets it", choices=("read", "skip"),
    ),
    "collection": SourceOption(
        SERVERS, "", "the collection; without it, all collections of `database`",
        example="orders",
    ),
    "collections": SourceOption(
        SERVERS, "all",
        "several collections instead of one: names, in which `*` stands for anything, separated by commas or as a JSON "
        "array; without `database` as `database.collection`. With `startingPosition=snapshot` each has a snapshot",
        example="orders, order*", kind=_NAMES,
    ),
    "columns": SourceOption(
        ROWS, "all", "the columns wanted, separated by commas; the others are not requested from the server",
        example="token, fullDocument",
    ),
    "database": SourceOption(SERVERS, "", "the database; without it, the whole deployment", example="shop"),
    "documentSchema": SourceOption(
        ROWS, "", "with `documents=columns`: the typed fields as DDL, such as `_id STRING, n BIGINT`",
        example="_id STRING, n BIGINT",
    ),
    "documents": SourceOption(
        ROWS, "extjson",
        "how documents are represented: `extjson` (canonical Extended JSON), `bson` (binary) or `columns` (structs)",
        choices=("extjson", "bson", "columns"),
    ),
    "endingPosition": SourceOption(
        POSITIONS, "latest", "batch reads: where to end; a resume token, its document as JSON, or an ISO time",
        example="2026-01-31T12:00:00Z", kind=_POSITION,
    ),
    "fullDocument": SourceOption(
        STREAM, "default", "`whenAvailable` or `required`: post-images; `updateLookup`: the document as it is now",
        choices=("default", "updateLookup", "whenAvailable", "required"),
    ),
    "fullDocumentBeforeChange": SourceOption(
        STREAM, "off", "`whenAvailable` or `required`: pre-images",
        choices=("off", "whenAvailable", "required"),
    ),
    "idleAdvanceMs": SourceOption(
        SIZES, "60000", "how often the position of a quiet stream advances, at the cost of an empty micro-batch",
        example=10_000, most=86_400_000,
    ),
    "mask": SourceOption(
        ROWS, "", "what is masked before anything is written, as JSON: the keys of `[mask]` in a job's file",
        example={"omit": ["notes"]}, kind=_JSON,
    ),
    "maxBytesPerTrigger": SourceOption(
        SIZES, "no limit",
        "at most this many bytes of events (as BSON) in a micro-batch; at least one event; transactions are not split",
        example=100_000_000, most=10**15,
    ),
    "maxRowsPerTrigger": SourceOption(
        SIZES, "no limit", "at most this many rows in a micro-batch; a transaction is never split",
        example=100_000, most=10**12,
    ),
    "notHeld": SourceOption(
        ROWS, "fail",
        "when a document has BSON that a table would change: `fail`, or `mark` for `{\"$notHeld\": reason}` in its "
        "place. A job with dead letters sets it if its sinks refuse such rows", choices=("fail", "mark"),
    ),
    "onPositionLost": SourceOption(
        POSITIONS, "fail",
        "when neither the oplog nor the archive has the position: `fail`, or `resnapshot` to read the collection again",
        choices=("fail", "resnapshot"),
    ),
    "onServerDown": SourceOption(
        SERVERS, "stall",
        "when one of several servers cannot be reached: `stall` waits for it, `skip` reads the others",
        choices=("stall", "skip"),
    ),
    "partitionBy": SourceOption(
        SIZES, "document",
        "`document`: the events of one document are in one partition, in order; for each partition the server looks at "
        "all events. `time`: each partition reads a part of the log of its own, if it has 5,000 events: a job without "
        "stages does that", choices=("document", "time"),
    ),
    "partitions": SourceOption(
        SIZES, "1", "partitions of a batch, divided as `partitionBy` says; sort by `token` where the order between "
        "them matters", example=4, most=limits.PARTITION_COUNT_MAX,
    ),
    "path": SourceOption(
        SERVERS, "",
        "instead of `uri`: a data directory on this machine, for which a server is started and stopped with the query",
        example="data", kind=_PATH,
    ),
    "pipeline": SourceOption(
        ROWS, "[]",
        "a JSON array of stages after `$changeStream`. The server runs those that a change stream allows, the source "
        "the rest (`$fill`, `$unwind`)", example=[{"$match": {"operationType": "insert"}}], kind=_JSON,
    ),
    "replicaSetId": SourceOption(
        SERVERS, "any",
        "the id that the server's replica set must have (`replSetGetConfig`), or nothing is read; of several servers "
        "the id of each, in their order, `-` for any. A job sets it to the id that it has read from", example="-",
    ),
    "showExpandedEvents": SourceOption(
        STREAM, "false", "also `create`, `createIndexes`, `modify` and similar events",
        choices=_FLAG,
    ),
    "showMigrationEvents": SourceOption(STREAM, "false", "as in MongoDB; Headrace has no migrations", choices=_FLAG),
    "showRawUpdateDescription": SourceOption(
        STREAM, "false", "updates as the oplog's diff; a MongoDB may refuse it",
        choices=_FLAG,
    ),
    "showSystemEvents": SourceOption(STREAM, "false", "also events of system collections", choices=_FLAG),
    "snapshotAlso": SourceOption(
        POSITIONS, "",
        "with a snapshot of several collections: some that have one even if they are gone, as a JSON array of "
        "`database.collection`. A job sets it to those that have a table", example=["shop.orders"], kind=_NAMES,
    ),
    "stageInto": SourceOption(
        SIZES, "",
        "the folder of a table: workers write the rows there as files and give Spark one row of each. A job whose only "
        "sink is `changes`, `mirror` or `parquet`, without stages, sets it, and its sink commits or folds the files",
        example="lake/orders", kind=_PATH,
    ),
    "stageSlots": SourceOption(
        SIZES, "",
        "with `stageInto`: how many tasks fold the rows, and the table's buckets, as in `4/0`. A job sets it",
        example="4/0",
    ),
    "startingPosition": SourceOption(
        POSITIONS, "latest",
        "`latest`, `earliest`, `snapshot` (documents first, then events; a batch: documents only), a resume token, "
        "its document as JSON, or an ISO time", example="snapshot", kind=_POSITION,
    ),
    "transport": SourceOption(
        SIZES, "auto", "how events come from the server: `arrow` (Headrace with the extra `arrow`), `bson`, or `auto`",
        choices=("auto", "arrow", "bson"),
    ),
    "uri": SourceOption(
        SERVERS, "",
        "connection string, or where it is (`env:NAME`, `file:PATH`); several, one a line or as a JSON array, are read "
        "as one stream", example="mongodb://localhost:27017", kind=_NAMES,
    ),
}  # fmt: skip
