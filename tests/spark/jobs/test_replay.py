"""Replaying dead letters: the documents that wait come as the server has them, and other sinks get their rows again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from headrace.spark.jobs.dead_letter_jobs import replay, with_dead_letters
from headrace.spark.jobs.job_file import Job, JobError, parse_job
from headrace.spark.jobs.runner import source_options
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.folding_sink import mirror_sink
from headrace.spark.sinks.sink_options import SinkError
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.refused_rows import RowRefused
from tests.spark.rows.test_not_held import CASES
from tests.spark.support.generated_changes import batches, token_at

REFUSING: list[str] = []
TAKEN: list[str] = []


class Choosy:
    """A sink that refuses the tokens in REFUSING."""

    def position(self) -> Progress:
        return Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        for row in batch.rows():
            if row.token in REFUSING:
                raise RowRefused("not now", row.token)
        TAKEN.extend(row.token for row in batch.rows())
        return None


def choosy() -> Choosy:
    """The factory that the job names."""
    return Choosy()


def job_of(uri: str, database: str, folder: Path, sink: dict[str, Any], **more: Any) -> Job:
    given = {
        "checkpoint": "checkpoint",
        "errors": "deadletter",
        "deadletter": "letters",
        "source": {"uri": uri, "database": database, "collection": "c", "startingPosition": "snapshot"},
        "sink": [sink],
    }
    return parse_job(given | more, "job", folder)


def rows_of(*times: int, **texts: Any) -> list[Row]:
    key = dumps({"_id": 1})
    return [Row(token_at(time), operationType="update", database="d", collection="c", documentKey=key)._replace(**texts)
            for time in times]  # fmt: skip


def test_a_document_that_waits_comes_as_the_server_has_it(
    uri: str, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.c.insert_one({"_id": 1, "name": "Ada", "n": 5})
    mask = {"mask": {"redact": ["name"]}}
    job = job_of(uri, database.name, tmp_path, {"kind": "mirror", "path": "mirror"}, **mask)
    description = dumps({"updatedFields": {"no.such": 1}})
    (sink,) = with_dead_letters(job, [job.sinks[0].open()])
    report = sink.apply(batches([rows_of(1, 2, updateDescription=description)])[0])
    assert report and report.dead_letter_count == 2
    assert [line.partition(": ")[2] for line in replay(job)] == ['replayed {"_id":{"$numberInt":"1"}}']
    table = mirror_sink(tmp_path / "mirror").table.read()
    assert table.column("document").to_pylist() == [dumps({"_id": 1, "name": "***", "n": 5})]
    assert list(replay(job)) == []
    database.c.delete_one({"_id": 1})
    (sink,) = with_dead_letters(job, [job.sinks[0].open()])
    assert sink.apply(batches([rows_of(12 << 24, updateDescription=description)])[0])
    (line,) = replay(job)
    assert "is not in the collection" in line


def test_a_document_whose_key_is_hashed_cannot_be_asked_for(
    uri: str, database: Database[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_KEY", "a key of the test that is long enough")
    database.c.insert_one({"_id": 1})
    mask = {"mask": {"hash": ["_id"], "key": "env:MASK_KEY"}}
    job = job_of(uri, database.name, tmp_path, {"kind": "mirror", "path": "mirror"}, **mask)
    description = dumps({"updatedFields": {"no.such": 1}})
    (sink,) = with_dead_letters(job, [job.sinks[0].open()])
    sink.apply(batches([rows_of(1, updateDescription=description)])[0])
    (line,) = replay(job)
    assert "is a hash" in line and "is not in the collection" not in line


def test_a_custom_sink_gets_its_rows_again(tmp_path: Path) -> None:
    factory = {"kind": "own", "factory": f"{__name__}:choosy"}
    job = job_of("mongodb://localhost", "d", tmp_path, factory)
    REFUSING[:], TAKEN[:] = [token_at(2)], []
    (sink,) = with_dead_letters(job, [job.sinks[0].open()])
    sink.apply(batches([[row._replace(documentKey=None) for row in rows_of(1, 2, 3)]])[0])
    assert [token_at(1), token_at(3)] == TAKEN
    assert ["refused again: not now" in line for line in replay(job)] == [True]
    REFUSING.clear()
    assert len(list(replay(job))) == 1 and list(replay(job)) == []
    assert [token_at(1), token_at(3), token_at(2)] == TAKEN


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"errors": "skip"}, "'errors' is one of stop, deadletter, not 'skip'"),
        ({"errors": "stop"}, "go together"),
        ({"deadletter": "mirror/letters"}, "one is inside the other"),
        ({"source": {"uri": "mongodb://localhost", "database": "d"}}, "of one collection"),
    ],
)
def test_what_is_wrong_about_dead_letters_is_said(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises((FileError, JobError, SinkError), match=message):
        job_of("mongodb://localhost", "d", tmp_path, {"kind": "mirror", "path": "mirror"}, **more)


def test_a_document_that_is_not_held_cannot_be_replayed(
    uri: str, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    database.c.insert_one(RawBSONDocument(CASES["symbol"][0]))
    job = job_of(uri, database.name, tmp_path, {"kind": "mirror", "path": "mirror"})
    assert source_options(job)["notheld"] == "mark"
    (sink,) = with_dead_letters(job, [job.sinks[0].open()])
    sink.apply(batches([rows_of(1, fullDocument=dumps({"$notHeld": "x is a symbol"}))])[0])
    (line,) = replay(job)
    assert "would change: x is a symbol" in line
