"""Prints the records of topics of Kafka, a line of JSON for each, by partition and offset: run as a program.

python -m tests.spark.sinks.kafka_topic SERVERS TOPICS JARS
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headrace.spark.session import get_session


def main(servers: str, topics: str, jars: str) -> None:
    spark = get_session(quick=True, conf={"spark.jars": jars})
    options = {"kafka.bootstrap.servers": servers, "subscribe": topics, "includeHeaders": "true"}
    rows = spark.read.format("kafka").options(**options).option("startingOffsets", "earliest").load()
    for row in rows.orderBy("topic", "partition", "offset").collect():
        record: dict[str, Any] = {name: row[name] for name in ("topic", "partition", "offset")}
        record |= {name: None if row[name] is None else bytes(row[name]).decode() for name in ("key", "value")}
        record["headers"] = {header.key: bytes(header.value).decode() for header in row.headers or ()}
        print(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
