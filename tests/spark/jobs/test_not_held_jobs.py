"""A job meets BSON that its table would change: it ends with one line, or the row goes to the dead letters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from headrace.spark.errors import error_line
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.tables.dead_letters import DeadLetters
from tests.spark.jobs.test_jobs import job_of, silent
from tests.spark.rows.test_not_held import CASES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("kind", "way"), [("mirror", "snapshot"), ("history", "event")])
def test_a_document_that_is_not_held_ends_the_job_or_goes_to_the_dead_letters(
    spark: SparkSession, uri: str, database: Database[dict[str, Any]], tmp_path: Path, kind: str, way: str
) -> None:
    job = job_of(uri, database, tmp_path, {"kind": kind}, startingPosition="snapshot")
    database.c.insert_many([{"_id": 0}, {"_id": 2}])
    if way == "event":
        run_job(job, session=spark, report=silent)
    database.c.insert_one(RawBSONDocument(CASES["duplicate"][0]))
    with pytest.raises(Exception, match="NotHeld") as raised:
        run_job(job, session=spark, report=silent)
    line = error_line(raised.value)
    assert line.startswith(f'NotHeld: {database.name}.c: the document {{"_id":{{"$numberInt":"1"}}}} has BSON')
    assert "fullDocument: the field x is there twice" in line
    job = replace(job, deadletter=str(tmp_path / "letters"))
    run_job(job, session=spark, report=silent)
    (letter,) = DeadLetters(job.deadletter, 10).letters()
    assert letter.reason == "fullDocument: the field x is there twice"
    assert [each.equal for each in verify_job(job)] == [False]
    database.c.replace_one({"_id": 1}, {"x": 1})
    run_job(job, session=spark, report=silent)
    assert [each.equal for each in verify_job(job)] == [True]
