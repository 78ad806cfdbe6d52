"""The sink `kafka` without a broker: its options, its records, and what is said before Spark starts."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from headrace.spark.errors import OptionError
from headrace.spark.jobs.job_file import JobError, parse_job
from headrace.spark.jobs.machine_checks import machine_problems
from headrace.spark.jobs.sink_states import ServerUnreachable
from headrace.spark.jobs.start_checks import check_job
from headrace.spark.rows.extjson import loads
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.kafka_sink import KafkaOptions, batch_of, kafka_options, records, unreachable
from headrace.spark.sinks.sink_options import SinkError, parse_sink
from tests.spark.support.generated_changes import generated_changes, table_of

GIVEN = {"kind": "kafka", "servers": "localhost:9092", "topic": "orders", "position": "orders.position"}


def job_of(folder: Path, sinks: list[dict[str, Any]], source: dict[str, Any] | None = None, **others: Any) -> Any:
    options = {"uri": "mongodb://localhost:1", "database": "d", "collection": "c"} | (source or {})
    return parse_job({"checkpoint": "c", "source": options, "sink": sinks, **others}, "job", folder)


def test_options_of_clients_are_given_in_each_way_of_toml_and_secrets_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"sasl": {"jaas.config": "env:JAAS"}, "security": {"protocol": "SASL_SSL"}, "linger.ms": 5}
    sink = parse_sink(GIVEN | {"kafka": given}, tmp_path)
    assert sink.options["position"] == str(tmp_path / "orders.position")
    assert "env:JAAS" not in f"{sink} {sink!r}"
    options = kafka_options(sink.options)
    with pytest.raises(OptionError, match=r"JAAS, which is to hold the option sasl\.jaas\.config, is not set"):
        options.writer_options()
    monkeypatch.setenv("JAAS", "secret")
    assert options.writer_options() == {
        "kafka.bootstrap.servers": "localhost:9092", "kafka.sasl.jaas.config": "secret",
        "kafka.security.protocol": "SASL_SSL", "kafka.linger.ms": "5",
    }  # fmt: skip
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"servers": "localhost"}, "'host:port', with commas"),
        ({"servers": "localhost:70000"}, "'host:port', with commas"),
        ({"topic": "a topic"}, "'topic' has letters, digits"),
        ({"topic": "{table}"}, "'topic' has letters, digits"),
        ({"format": "avro"}, "'format' is one of canonical, relaxed"),
        ({"tombstones": "yes"}, "'tombstones' is true or false"),
        ({"kafka": "acks=all"}, "'kafka' is a table"),
        ({"kafka": {"bootstrap.servers": "x:1"}}, "the brokers are the option 'servers'"),
        ({"policy": "keep all"}, "policy"),
        ({"position": "s3://bucket/position"}, "a file of this machine"),
        ({"path": "p"}, "has no 'path'; it has"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises((FileError, SinkError), match=problem):
        parse_sink(GIVEN | wrong, tmp_path)


@pytest.mark.parametrize("missing", ["servers", "topic", "position"])
def test_a_missing_option_is_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"needs '{missing}'"):
        parse_sink({name: value for name, value in GIVEN.items() if name != missing}, tmp_path)


def test_a_job_that_kafka_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="give each server a job and a topic"):
        job_of(tmp_path, [GIVEN], {"uri": '["mongodb://a", "mongodb://b"]'})
    with pytest.raises(JobError, match="needs all columns"):
        job_of(tmp_path, [GIVEN], {"columns": "token"})
    with pytest.raises(SinkError, match=r"position of .* have one path"):
        job_of(tmp_path, [GIVEN, GIVEN])
    brokers = GIVEN | {"servers": ["localhost:9092"], "position": "other"}
    with pytest.raises(SinkError, match="two sinks write one table"):
        job_of(tmp_path, [GIVEN, brokers])
    with pytest.raises(SinkError, match=r"position of .* have one path"):
        job_of(tmp_path, [GIVEN, GIVEN | {"topic": "other"}])


def test_names_in_a_topic_have_only_what_kafka_allows() -> None:
    options = KafkaOptions("h:1", "{database}.{collection}")
    assert options.topic_of("shop", "orders-1.x_y") == "shop.orders-1.x_y"
    assert options.topic_of("shop", "größe $1") == "shop.gr_c3_b6_c3_9fe_20_241"
    assert options.topic_of("shop", None) is None
    assert KafkaOptions("h:1", "all").topic_of(None, None) == "all"


@pytest.mark.parametrize("name", ["canonical", "relaxed"])
def test_a_record_has_the_event_its_key_and_headers(name: str) -> None:
    changes = generated_changes(7)
    rows = [row for batch in changes.row_batches for row in batch]
    options = KafkaOptions("h:1", "{database}.{collection}", name, tombstones=True)
    made = list(records(table_of(rows).to_batches()[0], options))
    valued = [record for record in made if record[1] is not None]
    assert [key and key.decode() for key, *_ in valued] == [row.documentKey for row in rows]
    assert len(made) - len(valued) == sum(row.operationType == "delete" for row in rows) > 0
    for (_, value, topic, headers), row in zip(valued, rows, strict=True):
        assert value is not None
        event = json.loads(value)
        assert topic == "db.c"
        texts = {header["key"]: header["value"].decode() for header in headers}
        assert (texts["token"], texts["operationType"]) == (row.token, row.operationType)
        assert (event["_id"], event["operationType"]) == ({"_data": row.token}, row.operationType)
        if row.fullDocument and name == "canonical":
            assert event["fullDocument"] == json.loads(row.fullDocument)
        elif row.fullDocument:
            assert json_util.loads(value.decode())["fullDocument"] == loads(row.fullDocument)
            assert isinstance(event["fullDocument"]["_id"], int | str)
    assert batch_of(made).num_rows == len(made)
    assert batch_of([]).schema == batch_of(made).schema


def test_a_broker_that_does_not_answer_and_a_missing_jar_are_named_before_spark_starts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert unreachable(f"127.0.0.1:1,127.0.0.1:{port}", 5) == ""
    servers = f"127.0.0.1:{port}"
    job = job_of(tmp_path, [GIVEN | {"servers": servers}], {"uri": uri})
    with pytest.raises(ServerUnreachable, match=f"no broker answers for the sink kafka orders: {servers}: Connection"):
        check_job(job)
    lines = machine_problems(job)
    assert len(lines) == 1
    assert lines[0].startswith("no jar has Spark's writer for Kafka: add org.apache.spark:spark-sql-kafka-0-10_2.13:")
    conf = {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"}
    assert machine_problems(job_of(tmp_path, [GIVEN], spark={"conf": conf})) == []
