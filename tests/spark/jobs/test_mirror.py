"""The mirror against a server: equal after every run, through drops, renames, lost checkpoints and kill -9."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import Decimal128, Int64, ObjectId
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from headrace.spark.mirror import BatchReport, Mirror, catch_up, follow
from headrace.spark.mongodb.mongodb_stream import description_option
from headrace.spark.verify.comparison import compare
from tests.spark.support.processes import children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Db = Database[dict[str, Any]]


def mirror_of(uri: str, database: Db, path: Path, **more: Any) -> Mirror:
    return Mirror(uri, database.name, "c", path / "mirror", **more)


def scribble(database: Db, seed: int, count: int) -> None:
    """Writes of every kind, to few keys, so that they meet often."""
    choose = random.Random(seed)
    for number in range(count):
        key = {"_id": choose.choice([choose.randrange(40), f"k{choose.randrange(20)}"])}
        match choose.randrange(8):
            case 0:
                database.c.delete_one(key)
            case 1:
                database.c.replace_one(key, {"n": Int64(number), "list": [1, 2, 3]}, upsert=True)
            case 2:
                database.c.update_one(
                    key, {"$set": {"deep.er": {"x": Decimal128("1.0")}}, "$unset": {"n": 1}}, upsert=True
                )
            case 3:
                database.c.update_one(key, {"$push": {"list": {"$each": [number], "$slice": -4}}}, upsert=True)
            case 4:
                database.c.update_one(key, {"$rename": {"deep": "deeper"}, "$inc": {"count": 1}}, upsert=True)
            case 5:
                database.c.update_many({"count": {"$gte": 2}}, {"$set": {"marked": ObjectId()}, "$mul": {"count": 0}})
            case _:
                database.c.update_one(key, {"$push": {"list": number}, "$set": {"at": number}}, upsert=True)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_after_every_run_the_table_is_the_collection(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, kind: str
) -> None:
    mirror = mirror_of(uri, database, tmp_path, kind=kind, rows_max=50)
    for seed in range(3):
        scribble(database, seed, 150)
        catch_up(mirror, session=spark)
        assert compare(mirror).equal, compare(mirror)
    assert compare(mirror).row_count > 20


def test_a_collection_of_a_server_that_is_no_headrace_is_mirrored_too(
    spark: SparkSession, no_headrace: None, tmp_path: Path
) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        mirror = mirror_of(server.uri, client.d, tmp_path, rows_max=50)
        for seed in (1, 2):
            scribble(client.d, seed, 150)
            catch_up(mirror, session=spark)
            assert compare(mirror).equal, compare(mirror)
        client.d.c.drop()
        client.d.c.insert_one({"_id": "after the drop"})
        catch_up(mirror, session=spark)
        assert (str(compare(mirror)), compare(mirror).equal) == ("1 rows, 1 documents", True)


def test_fields_that_an_update_moves_are_where_the_collection_has_them(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    mirror = mirror_of(uri, database, tmp_path)
    database.c.insert_one({"_id": 1, "a": 1, "b": {"x": 1, "y": 2}, "text": "t" * 500})
    catch_up(mirror, session=spark)
    moved = {"$replaceWith": {"$mergeObjects": [{"_id": 1, "b": {"y": 3, "x": "$b.x"}, "text": "$text"}, {"a": 1}]}}
    database.c.update_one({"_id": 1}, [moved])
    catch_up(mirror, session=spark)
    assert list(database.c.find_one({})["b"]) == ["y", "x"]  # type: ignore[index]
    assert compare(mirror).equal, compare(mirror)


@pytest.mark.parametrize("option", ["showRawUpdateDescription", "showExpandedEvents"])
def test_however_updates_are_described_the_table_is_the_collection(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("headrace.spark.mongodb.mongodb_stream._DESCRIPTION_OPTIONS", (option,))
    assert description_option(uri, database.name, "c") == {option: "true"}
    mirror = mirror_of(uri, database, tmp_path)
    for seed in (20, 21):
        scribble(database, seed, 400)
        catch_up(mirror, session=spark)
        assert compare(mirror).equal, compare(mirror)


def test_a_collection_that_is_dropped_renamed_away_or_renamed_onto_is_followed(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    mirror = mirror_of(uri, database, tmp_path)
    catch_up(mirror, session=spark)
    assert compare(mirror).row_count == 0
    scribble(database, 1, 60)
    database.c.drop()
    database.c.insert_one({"_id": "after the drop"})
    catch_up(mirror, session=spark)
    assert (str(compare(mirror)), compare(mirror).equal) == ("1 rows, 1 documents", True)
    database.other.insert_many([{"_id": number, "never": "written here"} for number in range(5)])
    database.other.rename("c", dropTarget=True)
    database.c.update_one({"_id": 1}, {"$set": {"n": 1}})
    catch_up(mirror, session=spark)
    assert (compare(mirror).row_count, compare(mirror).equal) == (5, True)
    database.c.rename("gone")
    catch_up(mirror, session=spark)
    assert (compare(mirror).row_count, compare(mirror).equal) == (0, True)


def test_a_running_job_follows_drops_and_renames_between_the_writes(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    mirror = mirror_of(uri, database, tmp_path, rows_max=30)
    choose = random.Random(11)
    stop = threading.Event()
    job = ThreadPoolExecutor(1).submit(follow, mirror, stop, session=spark)
    for seed in range(200, 225):
        scribble(database, seed, 25)
        match choose.randrange(5):
            case 0:
                database.c.drop()
            case 1:
                database.other.insert_many([{"_id": number, "list": []} for number in range(20)])
                database.other.rename("c", dropTarget=True)
            case 2:
                database.c.insert_one({"_id": ObjectId()})
                database.c.rename(f"old{seed}")
    stop.set()
    job.result()
    catch_up(mirror, session=spark)
    assert compare(mirror).equal, compare(mirror)
    assert compare(mirror).row_count > 5


def test_a_removed_checkpoint_costs_a_new_snapshot_and_no_wrong_row(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    mirror = mirror_of(uri, database, tmp_path)
    scribble(database, 5, 100)
    catch_up(mirror, session=spark)
    shutil.rmtree(mirror.checkpoint)
    database.c.delete_many({"_id": {"$type": "string"}})
    catch_up(mirror, session=spark)
    assert compare(mirror).equal, compare(mirror)


def test_a_batch_that_failed_after_its_commit_is_not_applied_twice(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    mirror = mirror_of(uri, database, tmp_path, rows_max=20)

    def fail(report: BatchReport) -> None:
        if report.batch % 3 == 2:
            raise RuntimeError("crash behind the commit")

    scribble(database, 6, 30)
    for seed in range(7, 10):
        scribble(database, seed, 90)  # five batches, of which one fails, whatever the last run has left
        with pytest.raises(Exception, match="crash behind the commit"):
            catch_up(mirror, session=spark, listener=fail)
    catch_up(mirror, session=spark)
    assert compare(mirror).equal, compare(mirror)


def killed(process: int, *, only_it: bool) -> None:
    """Ends the job as a machine that dies would, or only its driver."""
    for victim in [process] if only_it else [process, *children(process)]:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the job's processes in /proc")
def test_the_job_killed_while_writers_write_ends_equal(
    spark: SparkSession, uri: str, database: Db, tmp_path: Path
) -> None:
    """Killed right behind a commit of the table, where Spark does not know of it yet, and a moment later."""
    choose = random.Random(3)
    mirror = mirror_of(uri, database, tmp_path, rows_max=40)
    scribble(database, 1, 300)
    stop = threading.Event()

    def write() -> None:
        seed = 100
        while not stop.wait(0.2):
            scribble(database, seed := seed + 1, 10)

    writer = threading.Thread(target=write)
    writer.start()
    command = [sys.executable, "-m", "headrace.spark.mirror", "--uri", uri, "--database", database.name]
    command += ["--collection", "c", "--path", str(mirror.path), "--rows-max", "40", "--follow", "--quick"]
    try:
        for line_count in (1, 3, 6):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
                assert job.stdout
                for _ in range(line_count):
                    assert job.stdout.readline().startswith("batch "), "the job ended by itself"
                threading.Event().wait(choose.choice([0, 0.02, 0.05]))
                killed(job.pid, only_it=line_count == 3)
    finally:
        stop.set()
        writer.join()
    catch_up(replace(mirror, rows_max=1000), session=spark)
    assert compare(mirror).equal, compare(mirror)
