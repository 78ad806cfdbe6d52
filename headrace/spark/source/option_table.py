"""Every option of the `headrace` source, with its default and its meaning: what `options.py` accepts.

`docs/reference.py` writes the reference page from this table. Spark does not preserve the case of an option's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVERS: Final = "What to read"
POSITIONS: Final = "From where to where"
SIZES: Final = "How much at a time"
ROWS: Final = "What the rows hold"
STREAM: Final = "Options of `$changeStream`"
GROUPS: Final = (SERVERS, POSITIONS, SIZES, ROWS, STREAM)
"""The groups of options, in the order in which they are documented."""


@dataclass(frozen=True, slots=True)
class SourceOption:
    """One option. `default` is as a user would write it, empty where there is none; `text` is Markdown."""

    group: str
    default: str
    text: str


SOURCE_OPTIONS: Final = {
    "allChangesForCluster": SourceOption(STREAM, "", "as in MongoDB; leave out `database` instead"),
    "archive": SourceOption(
        POSITIONS, "",
        "folder or object store URL of a table of the sink `changes`. Events that the oplog no longer has are read "
        "from it, and so are `asOf` and the snapshot",
    ),
    "asOf": SourceOption(
        POSITIONS, "", "batch reads of a collection: a token or an ISO time; gives the documents as they were then"
    ),
    "awaitMs": SourceOption(
        SIZES, "250",
        "how long to wait on the server for an event before reporting none to Spark; twice as long each time that "
        "happens in a row, up to 16 times; several servers share it, and wait no longer with one collection, up to 4 "
        "times with several",
    ),
    "batchRows": SourceOption(SIZES, "1000", "rows requested from the server, and put into an Arrow batch, at a time"),
    "cappedCollections": SourceOption(
        SERVERS, "read",
        "with a snapshot of several collections: `read` the capped ones, or `skip` them, as what they push out is in "
        "no event. A job with a mirror or a history sets it",
    ),
    "collection": SourceOption(SERVERS, "", "the collection; without it, all collections of `database`"),
    "collections": SourceOption(
        SERVERS, "all",
        "several collections instead of one: names, in which `*` stands for anything, separated by commas or as a JSON "
        "array; without `database` as `database.collection`. With `startingPosition=snapshot` each has a snapshot",
    ),
    "columns": SourceOption(
        ROWS, "all", "the columns wanted, separated by commas; the others are not requested from the server"
    ),
    "database": SourceOption(SERVERS, "", "the database; without it, the whole deployment"),
    "documentSchema": SourceOption(
        ROWS, "", "with `documents=columns`: the typed fields as DDL, such as `_id STRING, n BIGINT`"
    ),
    "documents": SourceOption(
        ROWS, "extjson",
        "how documents are represented: `extjson` (canonical Extended JSON), `bson` (binary) or `columns` (structs)",
    ),
    "endingPosition": SourceOption(
        POSITIONS, "latest", "batch reads: where to end; a resume token, its document as JSON, or an ISO time"
    ),
    "fullDocument": SourceOption(
        STREAM, "default", "`whenAvailable` or `required`: post-images; `updateLookup`: the document as it is now"
    ),
    "fullDocumentBeforeChange": SourceOption(STREAM, "off", "`whenAvailable` or `required`: pre-images"),
    "idleAdvanceMs": SourceOption(
        SIZES, "60000", "how often the position of a quiet stream advances, at the cost of an empty micro-batch"
    ),
    "mask": SourceOption(
        ROWS, "", "what is masked before anything is written, as JSON: the keys of `[mask]` in a job's file"
    ),
    "maxBytesPerTrigger": SourceOption(
        SIZES, "no limit",
        "at most this many bytes of events (as BSON) in a micro-batch; at least one event; transactions are not split",
    ),
    "maxRowsPerTrigger": SourceOption(
        SIZES, "no limit", "at most this many rows in a micro-batch; a transaction is never split"
    ),
    "onPositionLost": SourceOption(
        POSITIONS, "fail",
        "when neither the oplog nor the archive has the position: `fail`, or `resnapshot` to read the collection again",
    ),
    "onServerDown": SourceOption(
        SERVERS, "stall", "when one of several servers cannot be reached: `stall` waits for it, `skip` reads the others"
    ),
    "partitionBy": SourceOption(
        SIZES, "document",
        "`document`: the events of one document are in one partition, in order; for each partition the server looks at "
        "all events. `time`: each partition reads a part of the log of its own, if it has 5,000 events: a job without "
        "stages does that",
    ),
    "partitions": SourceOption(
        SIZES, "1", "partitions of a batch, divided as `partitionBy` says; sort by `token` where the order between "
        "them matters",
    ),
    "path": SourceOption(
        SERVERS, "",
        "instead of `uri`: a data directory on this machine, for which a server is started and stopped with the query",
    ),
    "pipeline": SourceOption(
        ROWS, "[]",
        "a JSON array of stages after `$changeStream`. The server runs those that a change stream allows, the source "
        "the rest (`$fill`, `$unwind`)",
    ),
    "replicaSetId": SourceOption(
        SERVERS, "any",
        "the id that the server's replica set must have (`replSetGetConfig`), else nothing is read; of several servers "
        "the id of each, in their order, `-` for any. A job sets it to the id that it has read from",
    ),
    "showExpandedEvents": SourceOption(STREAM, "false", "also `create`, `createIndexes`, `modify` and similar events"),
    "showMigrationEvents": SourceOption(STREAM, "false", "as in MongoDB; Headrace has no migrations"),
    "showRawUpdateDescription": SourceOption(STREAM, "false", "updates as the oplog's diff; a MongoDB may refuse it"),
    "showSystemEvents": SourceOption(STREAM, "false", "also events of system collections"),
    "snapshotAlso": SourceOption(
        POSITIONS, "",
        "with a snapshot of several collections: some that have one even if they are gone, as a JSON array of "
        "`database.collection`. A job sets it to those that have a table",
    ),
    "stageInto": SourceOption(
        SIZES, "",
        "the folder of a table: workers write the rows there as files and give Spark one row of each. A job whose only "
        "sink is `changes` or `parquet`, without stages, sets it, and its sink commits the files",
    ),
    "startingPosition": SourceOption(
        POSITIONS, "latest",
        "`latest`, `earliest`, `snapshot` (documents first, then events), a resume token, its document as JSON, "
        "or an ISO time",
    ),
    "transport": SourceOption(
        SIZES, "auto", "how events come from the server: `arrow` (Headrace with the extra `arrow`), `bson`, or `auto`"
    ),
    "uri": SourceOption(
        SERVERS, "",
        "connection string, or where it is (`env:NAME`, `file:PATH`); several, one a line or as a JSON array, are read "
        "as one stream",
    ),
}  # fmt: skip
