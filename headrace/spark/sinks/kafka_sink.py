"""`kafka`: every event as a record of a Kafka topic, by Spark's own writer; at least once, in order by key.

The rows of a batch are sorted by token, with the rows of one key in one task, and written. Then the sink stores its
position in a file beside the job. A crash in between writes the batch again. So in a Kafka partition the events of a
key are in order, but runs of them may repeat. A reader skips each event that is not newer than the last token that it
has seen of the key. After a snapshot the same rule skips events that the snapshot's document already includes.

A drop, a rename and an invalidate are records without a key; with the policy `fail` the job stops before them.

Not transactional: Spark's writer does not use Kafka's transactions. Spark's tasks make the records:

    key       the document key as canonical Extended JSON; null for events of no document, such as a drop
    value     the event as Extended JSON; null in a tombstone, which may follow a delete
    headers   token, operationType, clusterTime (as Extended JSON)
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bson import json_util

from headrace.clock import SystemClock
from headrace.durable_files import replace_file
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.connection_strings import referred
from headrace.spark.pipelines.row_events import events, text_of
from headrace.spark.rows.events import SNAPSHOT_KINDS
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.tables.progress import Progress, Sieve, TableOwner, check_not_gone, check_owner, checked_policy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def kafka_sink(position: str | Path, policy: str = "follow", **options: Any) -> KafkaSink:
    """Return the sink with the options of a job file."""
    return KafkaSink(kafka_options(options), position, policy)


_LIGHT: Final = ("token", "operationType", "database", "collection", "wallTime", "server")
"""The columns that show how far the batch goes."""


class KafkaSink:
    """See `contract.FrameSink`. `position` is the file of the position."""

    takes_frames = True

    def __init__(self, options: KafkaOptions, position: str | Path, policy: str = "follow") -> None:
        self._options = options
        self._file = Path(position)
        self._policy = checked_policy(policy)
        self.owner: TableOwner | None = None

    def __str__(self) -> str:
        return f"the topic {self._options.topic} (position in {self._file})"

    def position(self) -> Progress:
        return Progress.of(self._file.read_text()) if self._file.exists() else Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        from headrace.spark.session import get_session

        before = self._before()
        if before.has(batch.query, batch.number) or not batch.table.num_rows:
            return None
        return self._publish(get_session().createDataFrame(batch.table), batch, before)

    def apply_frame(self, frame: DataFrame, query: str, number: int) -> BatchReport | None:
        before = self._before()
        if before.has(query, number):
            return None
        # The rows are read twice: first a few columns, then all. With several sinks the frame is already cached.
        cached = not frame.is_cached
        if cached:
            frame.persist()
        try:
            light = frame.select(*(name for name in frame.columns if name in _LIGHT)).toArrow()
            return self._publish(frame, MicroBatch(query, number, light), before) if light.num_rows else None
        finally:
            if cached:
                frame.unpersist()

    def forget(self) -> None:
        """Remove the position; the records stay."""
        self._file.unlink(missing_ok=True)

    def _before(self) -> Progress:
        before = self.position()
        check_owner(before.owner, self.owner, self)
        return before

    def _publish(self, frame: DataFrame, batch: MicroBatch, before: Progress) -> BatchReport:
        """Write the rows of the frame; `batch` has only the columns that show how far they go."""
        rows = batch.rows_of_one_server()
        if self._policy == "fail":
            check_not_gone(rows, before)
        sieve = Sieve(before)
        for row in rows:
            sieve.is_new(row)
        if before.token:
            frame = frame.where(f"token > '{before.token}' OR operationType IN {SNAPSHOT_KINDS}")
        ordered = frame.repartition(_task_count(frame), "documentKey").sortWithinPartitions("token")
        writer: Any = ordered.mapInArrow(encoder(self._options), SCHEMA).write.format("kafka")
        writer.options(**self._options.writer_options()).save()
        after = replace(
            sieve.progress, query=batch.query, batch=batch.number,
            owner=self.owner.text() if self.owner else before.owner,
        )  # fmt: skip
        self._file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, lambda path: path.write_text(after.text()))
        return batch.report(sieve.event_count, after.token)


def _task_count(frame: DataFrame) -> int:
    """Return how many tasks write: as many as run at once."""
    return max(1, int(frame.sparkSession.sparkContext.defaultParallelism))


SCHEMA: Final = "key BINARY, value BINARY, topic STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
"""The columns that Spark's Kafka writer takes."""

Record = tuple[bytes | None, bytes | None, str, list[dict[str, Any]]]


def encoder(options: KafkaOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that makes a record of each row, in order."""

    def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch_of(list(records(batch, options)))

    return encode


def records(batch: pa.RecordBatch, options: KafkaOptions) -> Iterator[Record]:
    """Yield the records of the rows. Omit an event without the names that the topic needs."""
    texts: dict[int, str] = {}
    relaxed = options.format == "relaxed"
    decoded = events(batch, texts=None if relaxed else texts)
    names = ("documentKey", "database", "collection")
    rows = zip(*(batch.column(name).to_pylist() for name in names), decoded, strict=True)
    for key_text, database, collection, event in rows:
        topic = options.topic_of(database, collection)
        if topic is None:
            continue
        value = (
            json_util.dumps(event, json_options=json_util.RELAXED_JSON_OPTIONS) if relaxed else text_of(event, texts)
        )
        key = None if key_text is None else key_text.encode()
        headers = [
            {"key": name, "value": text.encode()}
            for name, text in (
                ("token", event["_id"]["_data"]),
                ("operationType", event.get("operationType")),
                ("clusterTime", dumps(event["clusterTime"]) if "clusterTime" in event else None),
            )
            if text is not None
        ]
        yield key, value.encode(), topic, headers
        if options.tombstones and event.get("operationType") == "delete":
            yield key, None, topic, headers


def batch_of(made: list[Record]) -> pa.RecordBatch:
    """Return the records as an Arrow batch of `SCHEMA`."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "headers": pa.list_(header)}
    columns = list(zip(*made, strict=True)) or [()] * len(types)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, types.values(), strict=True)]
    return pa.record_batch(arrays, names=list(types))


FORMATS: Final = ("canonical", "relaxed")
"""Formats of values. Canonical Extended JSON keeps each type; most readers of JSON expect relaxed Extended JSON."""
PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""The class of Spark's Kafka writer, which is in a jar of its own."""
PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_PLACEHOLDER: Final = re.compile(r"\{(database|collection)\}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_TOPIC_LENGTH_MAX: Final = 249
_SERVER: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]/]+):(?P<port>\d{1,5})")
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The sink's options. `client` has the options of Kafka's clients without `kafka.`; a value may be a reference."""

    servers: str
    topic: str
    format: str = "canonical"
    tombstones: bool = False
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def topic_of(self, database: str | None, collection: str | None) -> str | None:
        """Return the topic of an event of this namespace; None if the topic needs a name that the event lacks."""
        names = {"database": database, "collection": collection}
        if any(not names[name] for name in _PLACEHOLDER.findall(self.topic)):
            return None
        return _PLACEHOLDER.sub(lambda name: _in_topic(names[name.group(1)] or ""), self.topic)

    def writer_options(self) -> dict[str, str]:
        """Return the options of Spark's writer. Raise OptionError if a referenced value cannot be read."""
        client = {f"kafka.{name}": referred(value, f"the option {name}") for name, value in self.client.items()}
        return {"kafka.bootstrap.servers": self.servers, **client}


def kafka_options(given: Mapping[str, Any]) -> KafkaOptions:
    """Return the options of a sink's table in a job file. Raise OptionError."""
    servers = given["servers"]
    servers = ",".join(map(str, servers)) if isinstance(servers, list) else str(servers)
    if not all(_port_fits(server) for server in servers.split(",")):
        raise OptionError(f"'servers' are brokers as 'host:port', with commas between them, not {servers!r}", "servers")
    topic, name = str(given["topic"]), given.get("format", "canonical")
    plain = _PLACEHOLDER.sub("x", topic)
    if not _TOPIC.fullmatch(plain) or len(plain) > _TOPIC_LENGTH_MAX or plain in {".", ".."}:
        raise OptionError(
            "'topic' has letters, digits, '.', '_', '-', and {database} and {collection} where these names belong, not "
            f"{topic!r}",
            "topic",
        )
    client = dict(_flat(given.get("kafka", {})))
    if "bootstrap.servers" in client:
        raise OptionError("the brokers are the option 'servers'", "kafka")
    return KafkaOptions(servers, topic, name, given.get("tombstones", False), client)


def unreachable(servers: str, seconds: float) -> str:
    """Return why no broker accepts a connection within `seconds`; empty if one does."""
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + seconds * 1000
    reason = ""
    each = servers.split(",")
    for number, server in enumerate(each):
        host, port = _address(server)
        left_s = max(until_ms - clock.monotonic_ms(), 1) / 1000 / (len(each) - number)
        try:
            socket.create_connection((host, port), left_s).close()
        except OSError as error:
            reason = f"{server.strip()}: {error.strerror or error}"
            continue
        return ""
    return reason


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the options with their dotted names. TOML reads `kafka.security.protocol` as nested tables."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _in_topic(name: str) -> str:
    """Return the name with each character that a topic cannot have as `_` and two hexadecimal digits per byte."""
    return "".join(
        character if _TOPIC.fullmatch(character) else "".join(f"_{byte:02x}" for byte in character.encode())
        for character in name
    )


def _port_fits(server: str) -> bool:
    matched = _SERVER.fullmatch(server.strip())
    return matched is not None and 0 < int(matched["port"]) <= _PORT_MAX


def _address(server: str) -> tuple[str, int]:
    matched = _SERVER.fullmatch(server.strip())
    assert matched is not None
    return matched["host"].strip("[]"), int(matched["port"])
