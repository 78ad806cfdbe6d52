"""Dead letters of tables in Spark's catalogs, replayed, and tables of two servers, made: for `catalog_programs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pyspark.sql import SparkSession

import headrace
from headrace.spark.jobs.dead_letter_jobs import replay
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.rows.extjson import dumps
from tests.spark.sinks.catalog_collections import CATALOGS
from tests.spark.sinks.catalog_session import SETTINGS

KINDS: Final = ("changes", "history", "mirror")


def job_of(kind: str, name: str, source: dict[str, Any], kinds: tuple[str, ...], folder: Path, **more: Any) -> Job:
    """A job whose tables are made by its sinks, `catalog.name.kind`, of several collections `kind_collection`."""
    suffix = "" if "collection" in source else "_{collection}"
    sinks = [{"kind": each, "table": f"{CATALOGS[kind]}.{name}.{each}{suffix}", "using": kind} for each in kinds]
    given = {"checkpoint": name, "source": source | {"startingPosition": "snapshot"}, "sink": sinks}
    return parse_job(given | {"spark": {"conf": SETTINGS}, "trigger": {"availableNow": True}} | more, name, folder)


def equal(job: Job) -> list[bool]:
    return [result.equal for result in verify_job(job)]


def replayed(spark: SparkSession, kind: str, folder: Path) -> None:
    """Somebody takes a document out of the tables; its update is refused, and what waits comes by a replay."""
    letters = {"errors": "deadletter", "deadletter": str(folder / "refused")}
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        orders = client["shop"]["orders"]
        orders.insert_many([{"_id": number, "n": 0} for number in range(5)])
        source = {"uri": server.uri, "database": "shop", "collection": "orders"}
        job = job_of(kind, "letters", source, KINDS[1:], folder, **letters)
        run_job(job, report=lambda _: None)
        for table in KINDS[1:]:
            spark.sql(f"DELETE FROM {CATALOGS[kind]}.letters.{table} WHERE _id = '{dumps(1)}'")
        orders.update_many({"_id": {"$lt": 3}}, {"$inc": {"n": 1}})
        figures = run_job(job, report=lambda _: None)
        assert figures.dead_letters_total == 2 and equal(job) == [False, False]
        lines = list(replay(job))
        assert [line.partition(": ")[2] for line in lines] == ['replayed {"_id":{"$numberInt":"1"}}'] * 2, lines
        assert equal(job) == [True, True]
        assert list(replay(job)) == []
        orders.update_one({"_id": 1}, {"$inc": {"n": 1}})
        figures = run_job(job, report=lambda _: None)
        assert figures.dead_letters_total == 0 and equal(job) == [True, True]


def of_two_servers(spark: SparkSession, kind: str, folder: Path) -> None:
    """The same keys on both servers; a table of one collection, and one for each of several."""
    with headrace.Server() as one, headrace.Server() as two:
        uris = f"{one.uri}\n{two.uri}"
        with MongoClient[dict[str, Any]](one.uri) as first, MongoClient[dict[str, Any]](two.uri) as second:
            for number, client in enumerate((first, second)):
                client["shop"]["orders"].insert_many([{"_id": key, "n": number} for key in range(3)])
            second["shop"]["late"].insert_one({"_id": 1})
            single = job_of(kind, "single", {"uri": uris, "database": "shop", "collection": "orders"}, KINDS, folder)
            several = job_of(kind, "several", {"uri": uris, "database": "shop"}, KINDS, folder)
            for turn in range(2):
                for job in (single, several):
                    run_job(job, report=lambda _: None)
                    # The tables of several are compared once, when they have all.
                    results = list(verify_job(job)) if turn or job is single else []
                    # In the first turn a log has the snapshots only, and these are not compared.
                    assert all(each.equal or (turn == 0 and ".changes" in each.sink) for each in results), results
                first["shop"]["orders"].update_one({"_id": 1}, {"$inc": {"n": 7}})
                second["shop"]["orders"].delete_one({"_id": 2})
                first["shop"]["late"].update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
        for name in ("single.mirror", "several.mirror_orders"):
            mirror = spark.newSession().table(f"{CATALOGS[kind]}.{name}")
            assert mirror.groupBy("server").count().count() == 2 and mirror.count() == 5, name
        assert spark.newSession().table(f"{CATALOGS[kind]}.several.mirror_late").count() == 2


def main(spark: SparkSession, kind: str, folder: Path, _: list[str]) -> None:
    replayed(spark, kind, folder)
    of_two_servers(spark, kind, folder)
