"""Rows on which a job's stages fail: they pass the evaluator as they are, and go to the dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import CommandError
from headrace.spark.jobs.dead_letter_jobs import replay, with_dead_letters
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.job_stages import reports_failures, server_stages, spark_stages
from headrace.spark.pipelines.evaluate import FAILED, DocumentReader, FilterDocuments, MakeDocuments, RewriteEvents
from headrace.spark.pipelines.program import Program
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.tables.dead_letters import REFUSED, DeadLetters, DeadLettersFull
from headrace.spark.tables.progress import Progress
from tests.spark.support.generated_changes import table_of, token_at

Stages = list[dict[str, Any]]
HALVES: Stages = [{"$set": {"fullDocument.half": {"$divide": ["$fullDocument.n", 2]}}}]
TAKEN: list[str] = []


def event(time: int, n: Any) -> Row:
    bare = Row(token_at(time), 1_700_000_000_000_000 + time, 1, "insert", "d", "c", dumps({"_id": time}))
    return bare._replace(fullDocument=dumps({"_id": time, "n": n}))


ROWS = [event(1, 4), event(2, "four"), event(3, 8), event(4, [1])]


def program(stages: Stages) -> Program:
    return Program(tuple(stages))


def run(evaluator: Any, rows: list[Row] = ROWS) -> list[dict[str, Any]]:
    made = list(evaluator(iter(table_of(rows).to_batches())))
    return pa.Table.from_batches(made).to_pylist()


def columns_of(rows: list[Row]) -> tuple[str, ...]:
    return tuple(table_of(rows).column_names)


def test_events_on_which_a_stage_fails_come_as_they_were() -> None:
    rows = run(RewriteEvents(DocumentReader(), program(HALVES), columns_of(ROWS), failures=True))
    reasons = {row["token"]: row[FAILED] for row in rows}
    assert [time for time in (1, 2, 3, 4) if reasons[token_at(time)]] == [2, 4]
    assert "$divide only supports numeric types" in reasons[token_at(2)]
    texts = {row["token"]: row["fullDocument"] for row in rows}
    assert loads(texts[token_at(1)])["half"] == 2 and texts[token_at(2)] == ROWS[1].fullDocument
    with pytest.raises(CommandError, match="divide"):
        run(RewriteEvents(DocumentReader(), program(HALVES), columns_of(ROWS)))


def test_a_filter_that_fails_lets_the_row_pass_with_the_reason() -> None:
    stages: Stages = [{"$match": {"$expr": {"$gt": [{"$divide": ["$fullDocument.n", 2]}, 3]}}}]
    rows = run(FilterDocuments(DocumentReader(), program(stages), columns_of(ROWS), failures=True))
    assert [(row["token"], bool(row[FAILED])) for row in sorted(rows, key=lambda row: row["token"])] == [
        (token_at(2), True), (token_at(3), False), (token_at(4), True),
    ]  # fmt: skip


def test_of_documents_the_event_is_what_failed() -> None:
    """Also where a stage makes several documents and fails on the last one: then none of them comes."""
    stages: Stages = [
        {"$unwind": "$fullDocument.n"},
        {"$replaceWith": {"half": {"$divide": ["$fullDocument.n", 2]}}},
    ]
    rows = [event(1, [2, 4]), event(2, [2, "four"]), event(3, 6)]
    made = run(MakeDocuments(DocumentReader(), program(stages), ("token",), "document", failures=True), rows)
    texts = [(row["token"], loads(row["document"]), bool(row[FAILED])) for row in made]
    assert [(token, document.get("half"), failed) for token, document, failed in texts] == [
        (token_at(1), 1, False), (token_at(1), 2, False), (token_at(3), 3, False), (token_at(2), None, True),
    ]  # fmt: skip
    assert texts[-1][1]["fullDocument"] == {"_id": 2, "n": [2, "four"]}


def test_what_failed_in_one_step_is_left_alone_in_the_next() -> None:
    stages: Stages = [*HALVES, {"$replaceWith": "$fullDocument"}]
    first = MakeDocuments(DocumentReader(), program(stages), ("token",), "document", failures=True)
    rows = run(first, [event(1, [4, 5]), *ROWS])
    assert [(row["token"], bool(row[FAILED])) for row in rows] == [
        (token_at(1), False), (token_at(3), False), (token_at(1), True), (token_at(2), True), (token_at(4), True),
    ]  # fmt: skip
    assert loads(rows[3]["document"])["fullDocument"] == {"_id": 2, "n": "four"}
    given = pa.Table.from_pylist(rows)
    sevenths = program([{"$set": {"n": {"$divide": [1, {"$subtract": ["$n", 8]}]}}}])
    again = MakeDocuments(DocumentReader("document"), sevenths, ("token",), "document", failures=True)
    made = pa.Table.from_batches(again(iter(given.to_batches()))).to_pylist()
    reasons = {row["token"]: row[FAILED] for row in made if row["token"] != token_at(1)}
    assert "zero" in reasons[token_at(3)] and reasons[token_at(2)] == rows[3][FAILED]
    assert made[0] == {"token": token_at(1), "document": dumps({"_id": 1, "n": -0.25, "half": 2.0}), FAILED: None}


class Taking:
    """A sink of somebody's own."""

    def position(self) -> Progress:
        return Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        assert FAILED not in batch.table.column_names
        TAKEN.extend(batch.table.column("fullDocument").to_pylist())
        return BatchReport(batch.number, batch.table.num_rows, batch.table.num_rows, "", None, 0)


def taking() -> Taking:
    """The factory that the job names."""
    return Taking()


def job_of(folder: Path, stages: Stages, *sinks: dict[str, Any], **more: Any) -> Job:
    given = {
        "checkpoint": "checkpoint",
        "errors": "deadletter",
        "deadletter": "letters",
        "source": {"uri": "mongodb://localhost", "database": "d", "collection": "c", "startingPosition": "earliest"},
        "pipeline": {"stages": stages},
        "sink": list(sinks),
    }
    return parse_job(given | more, "job", folder)


CUSTOM = {"kind": "own", "factory": f"{__name__}:taking"}
CHANGES = {"kind": "changes", "path": "changes"}


def batch_of(stages: Stages, number: int = 0) -> MicroBatch:
    evaluator = RewriteEvents(DocumentReader(), program(stages), columns_of(ROWS), failures=True)
    batches = list(evaluator(iter(table_of(ROWS).to_batches())))
    return MicroBatch("q", number, pa.Table.from_batches(batches))


def test_they_go_to_the_dead_letters_of_each_sink_and_no_further(tmp_path: Path) -> None:
    TAKEN.clear()
    job = job_of(tmp_path, HALVES, CUSTOM, CHANGES)
    for _ in range(2):  # the second time as after a crash between the sinks
        for sink in with_dead_letters(job, [sink.open() for sink in job.sinks]):
            report = sink.apply(batch_of(HALVES))
            assert report is None or report.row_count in (2, 4)
    letters = [letter for letter in DeadLetters(job.deadletter, 10).letters() if letter.state == REFUSED]
    assert sorted((letter.sink.split()[0], letter.token) for letter in letters) == [
        (kind, token_at(time)) for kind in ("changes", "own") for time in (2, 4)
    ]
    assert "numeric" in letters[0].reason and letters[0].operationType == "insert"
    assert changes_sink(tmp_path / "changes").table.read().column("token").to_pylist() == [token_at(1), token_at(3)]
    with pytest.raises(DeadLettersFull):
        (sink,) = with_dead_letters(job_of(tmp_path, HALVES, CUSTOM, deadletter_max=1, deadletter="few"), [Taking()])
        sink.apply(batch_of(HALVES))


def test_a_replay_gives_what_the_stages_make_of_them_now(tmp_path: Path) -> None:
    TAKEN.clear()
    job = job_of(tmp_path, HALVES, CUSTOM, CHANGES)
    for sink in with_dead_letters(job, [sink.open() for sink in job.sinks]):
        sink.apply(batch_of(HALVES))
    lines = list(replay(job))
    assert ["fail again" in line for line in lines] == [True, True, False, False]
    assert "the table is past" in lines[-1]
    TAKEN.clear()
    convert = {"$convert": {"input": "$fullDocument.n", "to": "double", "onError": None}}
    mended: Stages = [{"$set": {"fullDocument.half": {"$divide": [convert, 2]}}}]
    lines = list(replay(job_of(tmp_path, mended, CUSTOM)))
    assert ["replayed" in line for line in lines] == [True, True]
    assert [loads(text) for text in TAKEN] == [
        {"_id": 2, "n": "four", "half": None}, {"_id": 4, "n": [1], "half": None},
    ]  # fmt: skip
    assert list(replay(job_of(tmp_path, mended, CUSTOM))) == []


def test_what_may_fail_does_not_run_in_the_server(tmp_path: Path) -> None:
    """There it would end the stream. Groups have no event that failed."""
    match: Stages = [{"$match": {"operationType": "insert"}}, {"$match": {"$expr": {"$gt": [1, 0]}}}]
    job = job_of(tmp_path, match + HALVES, CHANGES)
    assert list(server_stages(job)) == match[:1] and spark_stages(job) == match[1:] + HALVES
    group: Stages = [{"$group": {"_id": {"$dateTrunc": {"date": "$clusterTime", "unit": "hour"}}}}]
    grouped = job_of(tmp_path, group, {"kind": "documents", "path": "documents"})
    assert reports_failures(job) and not reports_failures(grouped)


def test_what_a_join_would_be_needed_for_is_not_replayed(tmp_path: Path) -> None:
    tables = {"t": {"path": "t", "format": "delta"}}
    lookup = {"$lookup": {"from": "t", "localField": "fullDocument.n", "foreignField": "n", "as": "t"}}
    job = job_of(tmp_path, [*HALVES, lookup], CUSTOM, pipeline={"stages": [*HALVES, lookup], "tables": tables})
    assert reports_failures(job)
    for sink in with_dead_letters(job, [Taking()]):
        sink.apply(batch_of(HALVES))
    assert ["cannot be replayed: $lookup" in line for line in replay(job)] == [True, True]
