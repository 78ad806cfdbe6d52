"""Events as records of Kafka: in Spark's tasks, from rows of the source.

key       the document key as canonical Extended JSON; null for events of no document, such as a drop
value     the event as Extended JSON; null in a tombstone, which may follow a delete
headers   token, operationType, clusterTime (as Extended JSON)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from bson import json_util

from headrace.spark.pipelines.row_events import events, text_of
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.kafka_options import KafkaOptions

if TYPE_CHECKING:
    import pyarrow as pa

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
