"""Jobs whose tables are in an object store, whose address they and their workers have from the environment."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from bson import Timestamp
from deltalake import write_deltalake
from pymongo import MongoClient

import headrace
from headrace import limits
from headrace.spark.jobs.job_file import Job, read_job
from headrace.spark.jobs.job_stages import checked_lookup_tables, open_lookup_table
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import reset_job
from headrace.spark.jobs.start_checks import begin, problems
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.log_sink import LogSink
from headrace.spark.tables.delta_table import delta_history
from headrace.spark.tables.table_location import StoreUnreachable, location_of
from tests.spark.support.object_store import ObjectStore
from tests.spark.support.pruning import prune_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = limits.PREFETCH_ROW_COUNT_MAX + 200
"""Documents: more than the driver reads itself."""

SOURCE = """
checkpoint = "{name}-checkpoint"
[source]
uri = "{uri}"
database = "d"
collection = "c"
startingPosition = "snapshot"
partitions = 2
{more}
[trigger]
availableNow = true
[spark]
quick = true
"""
CHANGES = """
[[sink]]
kind = "changes"
path = "s3://tables/shop/changes"
"""
FOLDED = """
[[sink]]
kind = "mirror"
path = "s3://tables/shop/mirror"
[[sink]]
kind = "history"
path = "s3a://tables/shop/history"
"""


def job_of(folder: Path, name: str, uri: str, sinks: str, more: str = "") -> Job:
    file = folder / f"{name}.toml"
    file.write_text(SOURCE.format(name=name, uri=uri, more=more) + sinks)
    return read_job(file)


def run(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", f"{name}.toml"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


@pytest.mark.process
@pytest.mark.spark
def test_tasks_write_to_a_store_and_what_they_wrote_is_an_archive(tmp_path: Path, store: ObjectStore) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        client.d.c.insert_many([{"_id": number, "n": 0} for number in range(COUNT)])
        job = job_of(tmp_path, "changes", server.uri, CHANGES, "showRawUpdateDescription = true")
        run(tmp_path, "changes")
        assert [each.equal for each in verify_job(job)] == [True]
        (sink,) = (each.open() for each in job.sinks)
        assert isinstance(sink, LogSink) and sink.table.read().num_rows == COUNT + 2
        names = location_of("s3://tables/shop/changes").names()
        assert any(name.startswith("part-") and "-c000" not in name for name in names)  # not the driver's

        last = client.admin.command("ping")["operationTime"]
        for number in range(5):
            client.d.c.update_one({"_id": number}, {"$inc": {"n": 1}})
        prune_to(server, 30)
        folded = job_of(tmp_path, "folded", server.uri, FOLDED, 'archive = "s3://tables/shop/changes"')
        run(tmp_path, "folded")
        assert [each.equal for each in verify_job(folded)] == [True, True]
        versions = delta_history("s3a://tables/shop/history").read().to_pylist()
        first = {row["token"] for row in versions if row["operationType"] == "snapshot"}
        # They are as they were when the archive ended, at the mark behind that entry; the server's would be later.
        assert len(first) == 1 and Token(first.pop()).time <= Timestamp(last.time, last.inc + 1)

        assert reset_job(folded, data=True)[1:] == ("s3://tables/shop/mirror", "s3a://tables/shop/history")
        assert location_of("s3://tables/shop").names() == ["changes"]


@pytest.mark.spark
@pytest.mark.parametrize("where", ["a store", "a folder"])
def test_a_table_of_a_lookup_is_read_from_wherever_it_is(
    spark: SparkSession, store: ObjectStore, tmp_path: Path, where: str
) -> None:
    path = "s3://tables/regions" if where == "a store" else str(tmp_path / "the regions")
    rows = [{"_id": '"Oslo"', "document": '{"_id": "Oslo", "region": "east"}'}]
    write_deltalake(path, pa.Table.from_pylist(rows))
    given = checked_lookup_tables({"regions": {"path": path, "format": "delta", "document": "document"}}, tmp_path)
    assert [row.asDict() for row in open_lookup_table(given["regions"], spark).collect()] == rows
    with pytest.raises(ValueError, match="no Delta table at"):
        open_lookup_table({"path": f"{path}-of-old", "format": "delta"}, spark)


@pytest.mark.parametrize("listens", [True, False])
def test_a_store_that_does_not_answer_is_named_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr(limits, "START_CHECK_SECONDS_MAX", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        for name, value in ObjectStore(f"http://127.0.0.1:{silent.getsockname()[1]}").environment.items():
            monkeypatch.setenv(name, value)
        for bucket, sinks in (("tables", CHANGES), ("letters", "[[sink]]\nkind = 'mirror'\npath = 'mirror'\n")):
            job = job_of(tmp_path, "job", "mongodb://localhost:1", sinks)
            job = replace(job, deadletter="s3://letters/orders") if bucket == "letters" else job
            (line,) = problems(job)
            assert line.startswith(f"StoreUnreachable: no object store answers at s3://{bucket} within 0.2 s: see")
            with pytest.raises(StoreUnreachable):
                begin(job)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ('kind = "parquet"\npath = "s3://b/t"', "'parquet': 'path': this needs a path that is mounted"),
        ('kind = "mirror"\ntable = "parquet"\npath = "gs://b/t"', "needs a path that is mounted, not 'gs://b/t'"),
        ('kind = "history"\npath = "ftp://b/t"', "no table can be at 'ftp://b/t': Headrace knows paths and abfs"),
    ],
)
def test_what_cannot_be_in_a_store_is_refused_by_its_name(tmp_path: Path, sink: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job_of(tmp_path, "job", "mongodb://localhost", f"[[sink]]\n{sink}\n")


def test_a_url_that_was_made_a_path_of_is_no_folder() -> None:
    with pytest.raises(ValueError, match="pass it as text"):
        location_of(Path("s3://bucket/table"))
