"""Upkeep changes files and the log, never what a table says; after a crash anywhere its sink goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer, TableOptimizer

from headrace import limits
from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import MicroBatch, Sink
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.tables.delta_table import delta_history
from headrace.spark.tables.event_log import DeltaLog
from headrace.spark.tables.table_location import TableLocation, location_of
from headrace.spark.tables.typed.table_schema import TypedOptions, parse_partition
from headrace.spark.timetravel.archive import Archive
from headrace.spark.upkeep.delta_upkeep import DeltaUpkeep, UpkeepOptions
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import (
    BEGAN,
    GeneratedChanges,
    batches,
    generated_changes,
    table_of,
    token_at,
)

pytestmark = pytest.mark.long

DAY = 86_400
NOTHING_STAYS = UpkeepOptions(retain_seconds=0, commits=20)


def open_sink(kind: str, path: Path) -> Sink:
    if kind == "changes":
        return changes_sink(path)
    return HistorySink(path) if kind == "history" else mirror_sink(path, buckets=2)


def contents(kind: str, path: Path) -> Any:
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(tuple(map(str, row.values())) for row in rows)


def upkeep_of(kind: str, path: Path, options: UpkeepOptions = NOTHING_STAYS) -> DeltaUpkeep:
    return DeltaUpkeep(location_of(path), kind, options)


def single_events(count: int, seed: int = 1) -> list[MicroBatch]:
    """A batch for each event, behind a snapshot."""
    changes = GeneratedChanges(seed)
    changes.snapshot()
    behind = len(changes.events)
    changes.writes(count)
    rows = [*changes.row_batches, *([row] for row in changes.events[behind:])]
    return [MicroBatch("q", number, table_of(each)) for number, each in enumerate(rows)]


@pytest.mark.parametrize("kind", ["changes", "history", "mirror"])
def test_a_table_reads_the_same_and_its_sink_goes_on(kind: str, tmp_path: Path) -> None:
    """The sink that was open all the time, and one that is opened behind it."""
    path = tmp_path / "t"
    sink, upkeep = open_sink(kind, path), upkeep_of(kind, path)
    *most, last = single_events(115)
    for batch in most:
        sink.apply(batch)
        if batch.number in {40, 110}:
            before, position = contents(kind, path), sink.position()
            report = upkeep.run()
            assert report.did_something
            assert contents(kind, path) == before
            assert sink.position() == position == open_sink(kind, path).position()
    assert open_sink(kind, path).apply(most[-1]) is None
    assert open_sink(kind, path).apply(last)
    expected = contents(kind, path)
    upkeep.run(thorough=True)
    assert len(DeltaTable(str(path)).file_uris()) <= 2
    files = [name for name in path.rglob("*.parquet") if "_delta_log" not in name.parts]
    assert len(files) == len(DeltaTable(str(path)).file_uris())
    assert len(os.listdir(path / "_delta_log")) < 60
    assert contents(kind, path) == expected
    statistics = DeltaTable(str(path)).metadata().configuration["delta.dataSkippingStatsColumns"].split(",")
    assert "token" in statistics and "document" not in statistics


@pytest.mark.parametrize("kind", ["changes", "history", "mirror"])
def test_joined_rows_are_sorted_by_the_columns_of_a_typed_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that is not there, or by which the table is partitioned, is passed over."""
    path, options = tmp_path / "t", TypedOptions(schema="_id INT, n INT", partitions=(parse_partition("none"),))
    sinks = {"changes": changes_sink, "history": HistorySink, "mirror": mirror_sink}
    monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", -1)
    sink: Sink = sinks[kind](path, typed=options)  # type: ignore[operator]
    for number in range(12):
        row = insert(number, 50 - number)
        sink.apply(MicroBatch("q", number, table_of([row])))
    column = "documentKey" if kind == "changes" else "n"
    cluster = ("not_there", "partition_none", column)
    before = contents(kind, path)
    report = DeltaUpkeep(location_of(path), kind, NOTHING_STAYS, cluster).run()
    assert report.compacted_files == 12 and contents(kind, path) == before
    (file,) = DeltaTable(str(path)).file_uris()
    values = pq.read_table(file, partitioning=None).column(column).to_pylist()
    assert len(values) == 12 and values == sorted(values)


def insert(time: int, n: int) -> Row:
    bare = Row(token_at(time), 1_700_000_000_000_000 + time, 1, "insert", "d", "c", dumps({"_id": n}))
    return bare._replace(fullDocument=dumps({"_id": n, "n": n}))


STEPS: tuple[tuple[Any, str], ...] = (
    (TableAlterer, "set_table_properties"),
    (DeltaTable, "delete"),
    (TableOptimizer, "compact"),
    (DeltaTable, "vacuum"),
    (TableLocation, "remove_file"),
)


@pytest.mark.parametrize("kind", ["changes", "history"])
def test_upkeep_that_crashed_at_any_step_and_runs_again_ends_the_same(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = open_sink(kind, path)
    *first, last = single_events(140)
    for batch in first:
        sink.apply(batch)
    options = UpkeepOptions(retain_seconds=0, commits=20, keep_seconds=170)
    now_ms = (BEGAN + 240) * 1000
    shutil.copytree(path, tmp_path / "done")
    with crashing(STEPS) as steps:
        report = upkeep_of(kind, tmp_path / "done", options).run(now_ms=now_ms)
    assert report.removed_rows and report.compacted_files and report.vacuumed_files and report.log_files
    expected = contents(kind, tmp_path / "done")
    position = open_sink(kind, tmp_path / "done").position()
    # The state after a step is the state before the next. The files of the log are removed alike: a crash at the first
    # and the last of them.
    removals = [number for number, name in enumerate(steps) if name == "remove_file"]
    tried = [*(number for number in range(0, len(steps), 2) if number not in removals[2:-2]), len(steps) - 1]
    assert len(tried) >= 6
    for step in tried:
        crashed = tmp_path / f"crashed{step}"
        shutil.copytree(path, crashed)
        with pytest.raises(Crash), crashing(STEPS, step):
            upkeep_of(kind, crashed, options).run(now_ms=now_ms)
        between = open_sink(kind, crashed).position()
        assert (between.query, between.batch, between.token) == (position.query, position.batch, position.token)
        upkeep_of(kind, crashed, options).run(now_ms=now_ms)
        assert (contents(kind, crashed), open_sink(kind, crashed).position()) == (expected, position), steps[step]
        assert open_sink(kind, crashed).apply(first[-1]) is None
        assert open_sink(kind, crashed).apply(last)
        shutil.rmtree(crashed)


def test_events_older_than_keep_are_deleted_and_an_archive_begins_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = changes_sink(path)
    for batch in batches(generated_changes(3).row_batches):
        sink.apply(batch)
    before = DeltaLog(path).read().sort_by("token")["token"].to_pylist()
    assert len(Archive(SourceOptions("", archive=str(path))).contents().snapshots) == 2
    upkeep = upkeep_of("changes", path, UpkeepOptions(keep_seconds=20))
    cut = BEGAN + 30
    assert not upkeep.run(now_ms=(BEGAN + 20) * 1000).removed_rows
    assert upkeep.run(now_ms=(cut + 20) * 1000).removed_rows == sum(token < token_at(30)[:10] for token in before)
    assert sink.position().removed == DeltaLog(path).position().removed == token_at(30)[:10]  # type: ignore[attr-defined]
    left = DeltaLog(path).read().sort_by("token")["token"].to_pylist()
    assert left == [token for token in before if token >= token_at(30)[:10]]
    contents_now = Archive(SourceOptions("", archive=str(path))).contents()
    assert len(contents_now.snapshots) == 1
    assert contents_now.spans[0].first.time.time >= cut


def test_versions_that_ended_before_keep_are_deleted_and_current_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = HistorySink(path)
    for batch in single_events(80):
        sink.apply(batch)
    before = delta_history(path).read().to_pylist()
    current = delta_history(path).rows()
    cut = token_at(40)[:10]
    report = upkeep_of("history", path, UpkeepOptions(keep_seconds=50)).run(now_ms=(BEGAN + 90) * 1000)
    after = delta_history(path).read().to_pylist()
    assert report.removed_rows == len(before) - len(after) > 0
    assert delta_history(path).rows() == current
    key = lambda row: (row["_id"], row["token"])  # noqa: E731
    wanted = [row for row in before if row["until"] is None or row["until"] >= cut]
    assert sorted(after, key=key) == sorted(wanted, key=key)


def test_a_table_that_others_have_committed_to_keeps_its_position(tmp_path: Path) -> None:
    """Their commits have none of ours, and the log must not be cut behind the newest that has."""
    path = tmp_path / "t"
    sink = changes_sink(path)
    for batch in single_events(20):
        sink.apply(batch)
    table = DeltaTable(str(path))
    for _ in range(210):
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    position = sink.position()
    upkeep_of("changes", path).run()
    assert changes_sink(path).position() == position


def test_what_is_too_much_for_the_time_between_two_batches_is_left_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    sink = changes_sink(path)
    for batch in single_events(20):
        sink.apply(batch)
    monkeypatch.setattr(limits, "UPKEEP_BYTES_MAX", 1)
    report = upkeep_of("changes", path).run()
    assert report.skipped_bytes and not report.compacted_files
    assert "headrace pipeline upkeep" in str(report)
    assert upkeep_of("changes", path).run(thorough=True).compacted_files
    assert upkeep_of("changes", path).run(stop=lambda: True).compacted_files == 0


@pytest.mark.parametrize("kind", ["changes", "mirror"])
def test_what_is_not_the_tables_stays_in_its_folder(kind: str, tmp_path: Path) -> None:
    """A checkpoint, another table, somebody's notes; the files of old versions go nevertheless."""
    path = tmp_path / "t"
    for sink in (open_sink(kind, path), open_sink("changes", path / "inside")):
        for batch in single_events(20):
            sink.apply(batch)
    (path / "checkpoint" / "offsets").mkdir(parents=True)
    for name in ("checkpoint/offsets/0", "checkpoint/headrace.json", "notes.txt"):
        (path / name).write_text("")
    others = [file for file in path.rglob("*") if file.is_file() and "inside" in str(file)]
    others += [path / "checkpoint/offsets/0", path / "checkpoint/headrace.json", path / "notes.txt"]
    for file in path.rglob("*"):
        os.utime(file, (0, 0))
    before = contents(kind, path)
    report = upkeep_of(kind, path).run(thorough=True)
    assert all(file.exists() for file in others)
    assert report.vacuumed_files and contents(kind, path) == before


def test_of_no_table_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert not upkeep_of("changes", tmp_path / "none").run().did_something
