"""Files that tasks write beside a log: which are committed as they are, what is told of them, what is swept."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.foreach_batch import for_each_batch
from headrace.spark.sinks.log_sink import LogSink, changes_sink, parquet_sink
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.tables.delta_files import files_between
from headrace.spark.tables.event_log import DeltaLog
from headrace.spark.tables.progress import CollectionGone
from headrace.spark.tables.staged_files import (
    FilesNotShared,
    StagedBatch,
    StagingWriter,
    staged_batches,
    staged_prefix,
    staged_row,
)
from headrace.spark.tables.table_location import location_of
from headrace.spark.tables.typed.table_schema import TypedOptions
from tests.spark.support.generated_changes import MOMENT, SCHEMA, GeneratedChanges, batches, table_of, token_at
from tests.spark.support.local_frame import LocalFrame, SourceFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def events(count: int, seed: int = 1) -> pa.Table:
    changes = GeneratedChanges(seed)
    changes.writes(count)
    return table_of(changes.events)


Spread = Callable[..., Any]


@pytest.fixture(params=["by the sink's tasks", "by the source's"])
def spread(request: pytest.FixtureRequest) -> Spread:
    """Applies rows to a sink, which tasks of the sink write, or those that have read them."""

    def apply(sink: LogSink, rows: pa.Table, number: int = 0, query: str = "q") -> Any:
        frame: Any = LocalFrame(rows)
        if request.param == "by the source's":
            sink.staged_by_source = True
            frame = SourceFrame(rows, sink.table.location.url, staged_prefix(query, number))
        return sink.apply_frame(frame, query, number)

    return apply


def stored_rows(path: Path) -> list[dict[str, Any]]:
    return DeltaLog(path).read().sort_by("token").to_pylist()


def test_a_plain_batch_is_committed_as_the_files_that_tasks_wrote(
    spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogSink, "_apply", lambda *_: pytest.fail("the rows came to the driver"))
    rows = events(30)
    report = spread(changes_sink(tmp_path), rows)
    assert (report.row_count, report.event_count, report.token) == (30, 30, token_at(30))
    assert report.first_event_ms == rows["wallTime"][0].as_py().timestamp() * 1000
    assert stored_rows(tmp_path) == rows.to_pylist()
    assert len(DeltaTable(tmp_path).file_uris()) == 3
    assert spread(changes_sink(tmp_path), rows) is None
    # Rows in slices, whose ranges overlap, are plain as well; and so are those of which the first half is in.
    mixed = events(60).take([*range(10, 60, 3), *range(11, 60, 3), *range(12, 60, 3)])
    assert spread(changes_sink(tmp_path), mixed, 1).event_count == 30
    assert stored_rows(tmp_path) == events(60).to_pylist()


def test_tasks_write_the_same_table_as_the_driver(spread: Spread, tmp_path: Path) -> None:
    rows = events(30)
    spread(changes_sink(tmp_path / "tasks"), rows)
    changes_sink(tmp_path / "driver").apply(MicroBatch("q", 0, rows))
    tasks, driver = DeltaTable(tmp_path / "tasks"), DeltaTable(tmp_path / "driver")
    assert tasks.schema() == driver.schema()
    assert tasks.to_pyarrow_table().sort_by("token") == driver.to_pyarrow_table().sort_by("token")
    assert changes_sink(tmp_path / "tasks").position() == changes_sink(tmp_path / "driver").position()


def test_tasks_write_typed_rows_until_a_document_needs_another_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = events(60)
    grown = rows.slice(40, 10)
    more = pa.array(
        [text and text.replace("{", '{"more": 1, "mixed": "x", ', 1) for text in grown["fullDocument"].to_pylist()]
    )
    grown = grown.set_column(grown.schema.get_field_index("fullDocument"), "fullDocument", more)
    given = [rows.slice(0, 30), rows.slice(30, 10), grown, rows.slice(50, 10)]
    by_driver: list[int] = []
    commit = DeltaLog.commit
    monkeypatch.setattr(DeltaLog, "commit", lambda log, *batch: (by_driver.append(number), commit(log, *batch)))
    tables = {}
    for name in ("tasks", "driver"):
        sink = changes_sink(tmp_path / name, typed=TypedOptions())
        reports = []
        for number, some in enumerate(given):
            frame: Any = LocalFrame(some)
            batch = MicroBatch("q", number, some)
            reports.append(sink.apply_frame(frame, "q", number) if name == "tasks" else sink.apply(batch))
        table = DeltaTable(tmp_path / name)
        tables[name] = (table.to_pyarrow_table().sort_by("token"), sink.table.read().sort_by("token"), sink.position())
        tables[name] += ([(each.row_count, each.event_count, each.rest_count) for each in reports if each],)
        assert by_driver == ([0, 2] if name == "tasks" else [0, 1, 2, 3]), "tasks write what fits the columns"
        by_driver.clear()
    assert tables["tasks"] == tables["driver"]
    log = DeltaLog(tmp_path / "tasks", TypedOptions())
    assert log.takes(rows.schema)
    encode = log.encoder()
    assert encode and pickle.loads(pickle.dumps(encode))(rows).table == encode(rows).table


def test_tokens_that_come_twice_in_overlapping_files_are_taken_once(spread: Spread, tmp_path: Path) -> None:
    rows = events(12)
    assert spread(changes_sink(tmp_path), pa.concat_tables([rows, rows])).event_count == 12
    assert stored_rows(tmp_path) == rows.to_pylist()
    assert len(list(tmp_path.glob("part-q-0-*"))) == 0


def test_a_range_is_read_from_the_files_that_may_have_it(spread: Spread, tmp_path: Path) -> None:
    rows = events(40)
    for number in range(4):
        spread(changes_sink(tmp_path), rows.slice(number * 10, 10), number)
    assert len(files_between(DeltaTable(tmp_path), token_at(11), token_at(13))) < 3
    assert len(files_between(DeltaTable(tmp_path), token_at(1), None)) == 12
    between = DeltaLog(tmp_path).between(token_at(11), token_at(13))
    assert between["token"].to_pylist() == [token_at(12), token_at(13)]
    assert DeltaLog(tmp_path).between(token_at(90)).num_rows == 0


def test_the_bounds_of_times_in_a_files_statistics_are_rounded_outwards(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("token", pa.string()), pa.field("clusterTime", MOMENT)])
    writer = StagingWriter(location_of(tmp_path), "f.parquet", schema, "")
    moments = [datetime(2026, 1, 1, 0, 0, 0, 1500, UTC), datetime(2026, 1, 1, 0, 0, 59, 999_001, UTC)]
    for token, moment in zip("ab", moments, strict=True):
        writer.write(pa.record_batch([[token], pa.array([moment], MOMENT)], schema=schema))
    stats = json.loads(writer.close().files[0].stats)
    assert stats == {
        "numRecords": 2,
        "minValues": {"token": "a", "clusterTime": "2026-01-01T00:00:00.001Z"},
        "maxValues": {"token": "b", "clusterTime": "2026-01-01T00:01:00.000Z"},
    }


def test_columns_that_the_table_has_not_yet_come_through_the_driver(spread: Spread, tmp_path: Path) -> None:
    spread(changes_sink(tmp_path), events(5))
    more = events(9).append_column("more", pa.array(["a"] * 9))
    assert spread(changes_sink(tmp_path), more, 1).row_count == 9
    assert [row["more"] for row in stored_rows(tmp_path)] == [None] * 5 + ["a"] * 4


@pytest.mark.parametrize("make", [changes_sink, parquet_sink])
def test_what_an_attempt_that_crashed_left_is_removed_by_the_next(spread: Spread, tmp_path: Path, make: Any) -> None:
    tmp_path.joinpath("part-q-0-left.parquet").write_bytes(b"")
    tmp_path.joinpath("part-q-00-other.parquet").write_bytes(b"")
    spread(make(tmp_path), events(9))
    assert not tmp_path.joinpath("part-q-0-left.parquet").exists()
    assert tmp_path.joinpath("part-q-00-other.parquet").exists()
    assert len(list(tmp_path.glob("part-q-0-*"))) == 3
    assert sorted(make(tmp_path).table.read()["token"].to_pylist()) == events(9)["token"].to_pylist()


def test_the_policy_fail_leaves_nothing_of_the_batch(spread: Spread, tmp_path: Path) -> None:
    changes = GeneratedChanges(3)
    changes.writes(5)
    changes.drop()
    rows = table_of(changes.events)
    with pytest.raises(CollectionGone, match=r"drop of db\.c at"):
        spread(changes_sink(tmp_path, policy="fail"), rows)
    assert list(tmp_path.iterdir()) == []


def test_files_that_the_driver_does_not_see_stop_the_sink(
    spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = StagingWriter.close

    def elsewhere(writer: StagingWriter) -> Any:
        staged = close(writer)
        return replace(staged, files=tuple(replace(file, name=f"{file.name}.not") for file in staged.files))

    monkeypatch.setattr(StagingWriter, "close", elsewhere)
    with pytest.raises(FilesNotShared, match="writers = 'driver'"):
        spread(changes_sink(tmp_path), events(5))
    assert changes_sink(tmp_path).position().token == ""


def test_what_a_row_says_of_files_is_read_back_and_names_files_of_its_batch_only(tmp_path: Path) -> None:
    changes = GeneratedChanges(3)
    changes.writes(5)
    changes.snapshot()
    changes.drop()
    rows = table_of([row for batch in changes.row_batches for row in batch])
    row = staged_row(rows.to_batches(), str(tmp_path), "part-q-1-", rows.schema)
    table = pa.Table.from_batches([row])
    assert row.num_rows == 1
    (staged,) = staged_batches(table, "part-q-1-") or ()
    assert staged.seen_count == rows.num_rows == staged.stats.row_count and staged.stats.invalidated
    assert StagedBatch.of(staged.text()) == staged
    assert staged_batches(rows, "part-q-1-") is None and staged_batches(rows.slice(0, 0), "") is None
    with pytest.raises(ValueError, match="no file of this micro-batch"):
        staged_batches(table, "part-q-2-")


def test_writers_that_there_are_not_are_refused(tmp_path: Path) -> None:
    assert not parse_sink({"kind": "changes", "path": "c", "writers": "driver"}, tmp_path).open().takes_frames  # type: ignore[attr-defined]
    with pytest.raises(FileError, match="tasks, driver"):
        parse_sink({"kind": "changes", "path": "c", "writers": "nobody"}, tmp_path)


@pytest.mark.spark
def test_in_spark_each_task_writes_a_file_and_two_sinks_read_the_source_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes = GeneratedChanges(8)
    changes.writes(20)
    changes.snapshot()
    reads = spark.sparkContext.accumulator(0)

    def counted(batches: Any) -> Any:
        for batch in batches:
            reads.add(batch.num_rows)
            yield batch

    apply = for_each_batch(changes_sink(tmp_path / "c"), parquet_sink(tmp_path / "p"))
    rows = [row for row_batch in changes.row_batches for row in row_batch]
    for batch in batches(changes.row_batches):
        pq.write_table(batch.table.slice(0, 2), tmp_path / "first.parquet")
        pq.write_table(batch.table.slice(2), tmp_path / "second.parquet")
        frame = spark.read.schema(spark.createDataFrame([], _ddl()).schema).parquet(
            *(str(tmp_path / f"{name}.parquet") for name in ("first", "second"))
        )
        frame = frame.repartition(2).mapInArrow(counted, frame.schema)
        apply(frame, batch.number)
    assert reads.value == len(rows)
    expected = sorted((row.token, row.operationType, row.fullDocument) for row in rows)
    for log in (changes_sink(tmp_path / "c").table, parquet_sink(tmp_path / "p").table):
        table = log.read().select(["token", "operationType", "fullDocument"])
        stored = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)
        assert stored == sorted(expected, key=str)


def _ddl() -> str:
    from headrace.spark.rows.events import SCHEMA as DDL

    assert [column.split()[0] for column in DDL.split(", ")] == SCHEMA.names
    return DDL
