"""When a job looks after its tables, and what its file says of that."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.job_upkeep import JobUpkeep, upkeep_by_hand
from headrace.spark.jobs.runner import JobRunning, job_lock
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.sinks.sink_options import SinkError, parse_sink
from headrace.spark.upkeep.delta_upkeep import UpkeepOptions
from tests.spark.support.generated_changes import batches, generated_changes


def job_of(folder: Path, **upkeep: Any) -> Job:
    source = {"uri": "mongodb://nowhere.invalid", "database": "d", "collection": "c", "startingPosition": "snapshot"}
    sink = {"kind": "changes", "path": "changes", "upkeep": upkeep}
    return parse_job({"checkpoint": "checkpoint", "source": source, "sink": [sink]}, "orders", folder)


def filled(folder: Path, rounds: int = 1) -> Path:
    sink = changes_sink(folder / "changes")
    for batch in batches(generated_changes(3).row_batches):
        sink.apply(batch)
    return folder / "changes"


def test_a_table_is_looked_after_when_its_time_has_come_between_two_batches(tmp_path: Path) -> None:
    path, lines = filled(tmp_path), list[str]()
    count = len(DeltaTable(str(path)).file_uris())
    writing, stop = threading.Lock(), threading.Event()
    later = JobUpkeep(job_of(tmp_path))
    assert not later.is_due
    later.run_due(lines.append, stop, writing)
    assert len(DeltaTable(str(path)).file_uris()) == count and not lines
    now = JobUpkeep(job_of(tmp_path, every="0 seconds"))
    assert now.is_due
    writing.acquire()
    thread = threading.Thread(target=now.run_due, args=(lines.append, stop, writing))
    thread.start()
    assert len(DeltaTable(str(path)).file_uris()) == count
    writing.release()
    thread.join()
    assert len(DeltaTable(str(path)).file_uris()) == 1
    assert f"{count} small files joined" in lines[0]


def test_a_job_that_ends_looks_after_the_tables_that_it_has_made(tmp_path: Path) -> None:
    source = {"uri": "mongodb://nowhere.invalid", "database": "d", "startingPosition": "snapshot"}
    sink = {"kind": "changes", "path": "{collection}"}
    job = parse_job({"checkpoint": "_checkpoint", "source": source, "sink": [sink]}, "orders", tmp_path)
    upkeep, lines = JobUpkeep(job), list[str]()
    path = filled(tmp_path)
    upkeep.run_all(lines.append, threading.Event())
    assert len(DeltaTable(str(path)).file_uris()) == 1 and "small files joined" in lines[0]


def test_what_fails_is_reported_and_no_reason_to_stop(tmp_path: Path) -> None:
    path, lines = filled(tmp_path), list[str]()
    for file in (path / "_delta_log").iterdir():
        file.write_text("no log")
    JobUpkeep(job_of(tmp_path)).run_all(lines.append, threading.Event())
    assert lines and "upkeep failed, and will be tried again" in lines[0]


def test_by_hand_a_job_that_runs_is_left_alone(tmp_path: Path) -> None:
    path, job = filled(tmp_path), job_of(tmp_path)
    with job_lock(job), pytest.raises(JobRunning):
        upkeep_by_hand(job)
    (report,) = upkeep_by_hand(job)
    assert report.compacted_files and len(DeltaTable(str(path)).file_uris()) == 1
    assert changes_sink(path).position().batch == len(generated_changes(3).row_batches) - 1


def test_the_options_of_a_file(tmp_path: Path) -> None:
    given = {"commits": 500, "every": "1 hour", "keep": "30 days", "retain": "2 hours", "target": "64 MB"}
    (sink,) = job_of(tmp_path, **given).sinks
    assert sink.upkeep == UpkeepOptions(3600, 64_000_000, 7200, 500, 30 * 86_400)
    assert "upkeep" not in sink.options
    for kind in ("changes", "documents", "history", "mirror"):
        assert parse_sink({"kind": kind, "path": "t"}, tmp_path).upkeep == UpkeepOptions()
        assert parse_sink({"kind": kind, "path": "t", "upkeep": False}, tmp_path).upkeep is None
    assert parse_sink({"kind": "mirror", "path": "t", "table": "parquet"}, tmp_path).upkeep is None
    assert replace(sink, upkeep=None) != sink


@pytest.mark.parametrize(
    "given, message",
    [
        ({"often": 1}, r"\[upkeep\] has no 'often'; it has commits, every, keep, retain, target"),
        ({"keep": "a month"}, "'keep' is a duration such as \"30 days\", not 'a month'"),
        ({"retain": "90 minutes"}, "'retain' is a duration such as \"2 hours\", not '90 minutes'"),
        ({"commits": 3}, "'commits' is a whole number from 100 to 1000000000, not 3"),
        ({"target": "0 MB"}, "'target' is a size such as \"128 MB\", not '0 MB'"),
        ("daily", "'upkeep' is a table, or false for none, not 'daily'"),
    ],
)
def test_what_is_wrong_is_said(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((FileError, SinkError), match=message):
        parse_sink({"kind": "changes", "path": "t", "upkeep": given}, tmp_path)


def test_tables_that_are_not_looked_after_say_so(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="keep is for changes and history"):
        parse_sink({"kind": "mirror", "path": "t", "upkeep": {"keep": "1 day"}}, tmp_path)
    with pytest.raises(SinkError, match="upkeep is for Delta tables in a path"):
        parse_sink({"kind": "mirror", "path": "t", "table": "parquet", "upkeep": {"every": "1 hour"}}, tmp_path)
    with pytest.raises(FileError, match="has no 'upkeep'"):
        parse_sink({"kind": "parquet", "path": "t", "upkeep": {}}, tmp_path)
