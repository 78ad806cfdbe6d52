"""`verify` fails where a table is gone or another job's, and says what it did not compare."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient

import headrace
from headrace.cli.main import main
from headrace.spark.jobs.job_file import Job
from headrace.spark.jobs.report import SinkVerification, verify_job
from headrace.spark.jobs.runner import reset_job
from headrace.spark.jobs.start_checks import problems
from headrace.spark.sinks.contract import MicroBatch
from tests.spark.jobs.test_start_checks import insert, job_of, last_event, ran
from tests.spark.support.generated_changes import table_of

pytestmark = pytest.mark.long

KINDS = ("mirror", "history", "changes")


@pytest.fixture
def server() -> Iterator[headrace.Server]:
    with headrace.Server() as server:
        yield server


def verified(job: Job) -> list[SinkVerification]:
    return list(verify_job(job))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_was_removed_after_the_job_ran_fails(server: headrace.Server, tmp_path: Path, kind: str) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, {"kind": kind})
    ran(job)
    shutil.rmtree(tmp_path / kind)
    (result,) = verified(job)
    assert result.equal is False
    assert result.description.startswith("TableGone: the table of the sink") and "reset" in result.description


@pytest.mark.parametrize("collection", ["c", None])
def test_a_copy_that_was_removed_is_named_at_the_start_and_fails(
    server: headrace.Server, tmp_path: Path, collection: str | None
) -> None:
    insert(server.uri, 1)
    with headrace.Server() as target, MongoClient[dict[str, object]](target.uri) as client:
        sink = {"kind": "mongodb", "uri": target.uri}
        job = job_of(server.uri, tmp_path, sink, collection=collection)
        ran(job)
        insert(server.uri, 2)
        job.sinks[0].open().apply(MicroBatch("q", 1, table_of([last_event(server.uri)])))
        assert client.d.c.count_documents({}) == 1
        client.d.c.drop()
        (result,) = verified(job)
        assert result.equal is False
        assert result.description.startswith("TableGone: the copy d.c is gone") and "reset --data" in result.description
        assert any(line.startswith("TableGone: the copy d.c is gone") for line in problems(job))
        client.drop_database("d")
        assert any(line.startswith("TableGone: the table of the sink mongodb") for line in problems(job))
        reset_job(job, data=True)
        assert not problems(job)


def test_a_table_of_another_job_fails(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    ran(job_of(server.uri, tmp_path, {"kind": "mirror"}, checkpoint="one"))
    other = job_of(server.uri, tmp_path, {"kind": "mirror", "path": "other"}, checkpoint="others")
    ran(other)
    shutil.rmtree(tmp_path / "other")
    shutil.copytree(tmp_path / "mirror", tmp_path / "other")
    (result,) = verified(other)
    assert result.equal is False
    assert result.description.startswith("NotOurTable: ") and "is filled by another job" in result.description


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same_server", [True, False])
def test_a_table_of_another_job_fails_without_a_checkpoint(
    server: headrace.Server, tmp_path: Path, kind: str, same_server: bool
) -> None:
    insert(server.uri, 1)
    ran(job_of(server.uri, tmp_path, {"kind": kind}, checkpoint="one"))
    with headrace.Server() as another:
        insert(another.uri, 1)
        job = job_of(server.uri if same_server else another.uri, tmp_path, {"kind": kind}, checkpoint="another")
        (result,) = verified(job)
    assert result.equal is False
    assert result.description.startswith("NotOurTable: ") and "another job, job (checkpoint " in result.description
    assert not job.checkpoint.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_whose_checkpoint_was_removed_is_compared(server: headrace.Server, tmp_path: Path, kind: str) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, {"kind": kind})
    ran(job)
    before = verified(job)
    shutil.rmtree(job.checkpoint)
    assert verified(job) == before and "NotOurTable" not in before[0].description


def test_a_log_with_the_beginning_of_a_snapshot_alone_was_not_compared(server: headrace.Server, tmp_path: Path) -> None:
    insert(server.uri, 1)
    job = job_of(server.uri, tmp_path, {"kind": "changes"})
    ran(job, with_event=False)
    (result,) = verified(job)
    assert result.equal is None
    assert result.description == "0 rows of events, 0 events; 1 rows of a snapshot or before it not compared"


TOML = """
checkpoint = "{folder}/checkpoint"
[source]
uri = "{uri}"
database = "d"
collection = "c"
startingPosition = "snapshot"
[[sink]]
kind = "mirror"
path = "{folder}/mirror"
[[sink]]
kind = "history"
path = "{folder}/history"
"""


def test_the_exit_status_says_whether_everything_was_compared(
    server: headrace.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    insert(server.uri, 1)
    file = tmp_path / "job.toml"
    file.write_text(TOML.format(folder=tmp_path, uri=server.uri))

    def verify(*flags: str) -> tuple[int, str]:
        status = main(["pipeline", "verify", *flags, str(file)])
        return status, capsys.readouterr().out

    status, said = verify()
    assert status == 6 and said.count("not compared: nothing yet") == 2
    assert verify("--allow-not-compared")[0] == 0
    ran(job_of(server.uri, tmp_path, {"kind": "mirror"}, {"kind": "history"}))
    with MongoClient[dict[str, object]](server.uri) as client:
        client.d.c.delete_one({"_id": 1})
    status, said = verify()
    assert status == 0 and said.count(": equal: ") == 2, said
    shutil.rmtree(tmp_path / "mirror")
    status, said = verify("--allow-not-compared")
    assert status == 1 and "NOT EQUAL: TableGone" in said
