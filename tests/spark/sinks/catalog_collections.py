"""Tables of Spark's catalogs for each of several collections, made by the sinks: for `catalog_programs`.

    collections [SINK...]

With sinks, their batches are crashed at each step and applied again. Without any a job is run, verified, and refused
where it must be.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pyspark.sql import SparkSession

import headrace
from headrace import limits
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.job_tables import tables_of
from headrace.spark.jobs.job_upkeep import upkeep_by_hand
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import reset_job, run_job
from headrace.spark.jobs.start_checks import TableGone
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.mongodb.collection_selection import Namespace
from headrace.spark.session import get_session
from headrace.spark.sinks.collections_sink import CollectionsSink
from headrace.spark.sinks.contract import MicroBatch, Sink
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.sinks.table_paths import table_in
from headrace.spark.tables.catalog.catalog_table import MIRROR_COLUMNS, CatalogTable, TableMissing
from headrace.spark.tables.progress import NotOurTable
from tests.spark.sinks.catalog_crashes import STEPS, contents, in_folder
from tests.spark.sinks.catalog_session import SETTINGS
from tests.spark.sinks.test_collections_sink import ALL, batch, insert, row
from tests.spark.support.crashes import Crash, crashing

CATALOGS: Final = {"delta": "spark_catalog", "iceberg": "lake"}
KINDS: Final = ("changes", "mirror")


def batches(query: str = "q") -> list[MicroBatch]:
    """Two collections, one of which is renamed while a third appears, and one that is only dropped."""
    renamed = row("5", "rename", "a", other={"to": {"db": "d", "coll": "e"}})
    of_each = [
        [insert("1", "a", 1), insert("2", "b-c", 1), insert("3", "a", 2), row("4", "drop", "never")],
        [renamed, insert("6", "e", 3), row("7", "delete", "b-c", 1), insert("8", "b-c", 2)],
    ]
    return [MicroBatch(query, number, batch(number, *rows).table) for number, rows in enumerate(of_each)]


def crashed(kind: str, sink: str, folder: Path) -> None:
    template = f"{CATALOGS[kind]}.crashed.{sink}_{{collection}}"
    options = parse_sink({"kind": sink, "table": template, "using": kind}, folder)

    def new_process() -> CollectionsSink:
        return CollectionsSink(lambda name: options.of_collection(name).open(), ALL)

    references: dict[Namespace, Any] = {}

    def open_reference(name: Namespace) -> Sink:
        references[name] = in_folder(sink, folder / f"{sink} {name[1]}")
        return references[name]  # type: ignore[no-any-return]

    reference = CollectionsSink(open_reference, ALL)
    steps, done = [*STEPS, (CatalogTable, "create")], set[str]()
    for each in batches():
        reference.apply(each)
        crash_count = 0
        while True:
            try:
                # Behind the first step that is left to do: none of them is done twice.
                with crashing(steps, 1) as names:
                    new_process().apply(each)
                break
            except Crash:
                crash_count += 1
                done.add(names[0])
        print(sink, each.number, crash_count, file=sys.stderr, flush=True)
        assert crash_count >= 3, crash_count
        equal(options, references)
    for each in batches("another"):
        new_process().apply(each)
        reference.apply(each)
    equal(options, references)
    assert len(done) >= 2 and "create" in done, done
    assert not get_session().catalog.tableExists(table_in(template, ("d", "never")))


def equal(options: Any, references: dict[Namespace, Any]) -> None:
    for name, reference in references.items():
        if name != ("d", "never"):
            opened = options.of_collection(name).open()
            assert contents(opened) == contents(reference), name
            assert opened.position() == reference.position(), name


def job_of(uri: str, kind: str, folder: Path, *, upkeep: bool = False, **given: Any) -> Job:
    sinks = [
        {"kind": sink, "table": f"{CATALOGS[kind]}.{{database}}.{sink}_{{collection}}", "using": kind, "upkeep": upkeep}
        for sink in KINDS
    ]
    job = {
        "checkpoint": "job",
        "source": {"uri": uri, "database": "shop", "startingPosition": "snapshot"},
        "sink": sinks,
        "spark": {"conf": SETTINGS},
        "trigger": {"availableNow": True},
    }
    return parse_job(job | given, "job", folder)


def run(job: Job) -> None:
    run_job(job, report=lambda _: None)
    results = list(verify_job(job))
    assert all(result.equal for result in results), results


def rows(name: str) -> Any:
    """The table's, in a session that has not read it before: Iceberg's remember what they have read."""
    return get_session().newSession().table(name)


def tables(job: Job) -> list[str]:
    return [each.sink.target.rpartition(".")[2] for each in tables_of(job)]


def run_and_refused(spark: SparkSession, kind: str, folder: Path) -> None:
    shop = f"{CATALOGS[kind]}.shop"
    spark.sql(f"CREATE NAMESPACE {shop}")
    # One table is the user's, with a property that is theirs, and one is nobody's.
    mine = f"CREATE TABLE {shop}.mirror_orders ({MIRROR_COLUMNS}) USING {kind} TBLPROPERTIES ('whose' = 'mine')"
    spark.sql(mine)
    spark.sql(f"CREATE TABLE {shop}.mirror_other (n INT) USING {kind}")
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        db = client["shop"]
        for name in ("orders", "fs.files"):
            db[name].insert_many([{"_id": number, "n": 0} for number in range(9)])
        job = job_of(server.uri, kind, folder)
        run_job(job, report=lambda _: None)
        assert tables(job) == [f"{sink}_{name}" for sink in KINDS for name in ("fs_files", "orders")]
        assert rows(f"{shop}.mirror_fs_files").count() == 9
        properties = spark.sql(f"SHOW TBLPROPERTIES {shop}.mirror_orders").collect()
        assert ("whose", "mine") in {(row.key, row.value) for row in properties}
        db["orders"].update_many({"_id": {"$lt": 3}}, {"$inc": {"n": 1}})
        db["fs.files"].rename("files")
        db["Late"].insert_one({"_id": 1})
        run(job)
        assert len(tables(job)) == 8 and rows(f"{shop}.mirror_files").count() == 9
        assert rows(f"{shop}.mirror_fs_files").count() == 0
        lines = list(lines_of(job_status(job)))
        assert any(f"sink changes {shop}.changes_late: batch" in line for line in lines), lines
        assert any("shop.Late: streaming" in line for line in lines), lines
        reports = upkeep_by_hand(job_of(server.uri, kind, folder, upkeep=True))
        assert {report.table for report in reports} >= {f"{shop}.mirror_late"}
        # Its checkpoint lost, a job knows its tables by what was committed to them, those of what is gone, too.
        db["Late"].drop()
        reset_job(job, data=True)
        assert len(tables(job)) == 8
        run(job)
        assert rows(f"{shop}.mirror_late").count() == 0
        # Two names that come to one table.
        with pytest.raises(NotOurTable, match=r"has the rows of shop\.Late, and the job reads shop\.late"):
            db["late"].insert_one({"_id": 1})
            run_job(job, report=lambda _: None)
        db["late"].drop()
        with pytest.raises(NotOurTable, match="filled by another job, job"):
            run_job(job_of(server.uri, kind, folder, checkpoint="other"), report=lambda _: None)
        refused(job, server.uri, kind, folder)
        spark.sql(f"DROP TABLE {shop}.mirror_orders")
        with pytest.raises(TableGone, match=r"mirror .*shop\.mirror_orders is gone"):
            run_job(job, report=lambda _: None)
        spark.sql(mine)
        with pytest.raises(TableGone, match=r"mirror .*shop\.mirror_orders is gone"):
            run_job(job, report=lambda _: None)


def refused(job: Job, uri: str, kind: str, folder: Path) -> None:
    """Without `using` there is no table that is made, and nothing is committed to one."""
    sink = {"kind": "mirror", "table": f"{CATALOGS[kind]}.elsewhere.{{collection}}"}
    with pytest.raises(TableMissing, match=r"there is no table .*elsewhere.*; make it, or set `using`"):
        run_job(job_of(uri, kind, folder, sink=[sink], checkpoint="refused"), report=lambda _: None)


def main(spark: SparkSession, kind: str, folder: Path, sinks: list[str]) -> None:
    # One table after the other, so that a step is the same one each time.
    writers, limits.TABLE_WRITER_COUNT_MAX = limits.TABLE_WRITER_COUNT_MAX, 1
    for sink in sinks:
        crashed(kind, sink, folder)
    limits.TABLE_WRITER_COUNT_MAX = writers
    if not sinks:
        run_and_refused(spark, kind, folder)
