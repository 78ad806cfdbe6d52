"""Sinks of several servers' rows: logs judge each row by its own server's progress; a copy of one refuses them."""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.rows.events import Row
from headrace.spark.sinks.contract import MicroBatch, SeveralServers
from headrace.spark.sinks.log_sink import LogSink, changes_sink, parquet_sink
from headrace.spark.sinks.mongodb_sink import mongodb_sink
from tests.spark.sinks.test_sinks import STEPS
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import GeneratedChanges, generated_changes, table_of

pytestmark = pytest.mark.process

NAMES = ("one:1", "two:2")
SINKS: dict[str, Any] = {"changes": changes_sink, "parquet": parquet_sink}


def of_servers(rows_by_server: tuple[list[Row] | None, ...]) -> pa.Table:
    """The rows of both servers, whose tokens are the same."""
    tables = [
        table_of(rows).append_column("server", pa.array([name] * len(rows), pa.string()))
        for name, rows in zip(NAMES, rows_by_server, strict=True)
        if rows
    ]
    return pa.concat_tables(tables)


def batches(by_server: list[GeneratedChanges], query: str = "q") -> list[MicroBatch]:
    rows_by_server = zip_longest(*(changes.row_batches for changes in by_server))
    return [MicroBatch(query, number, of_servers(rows)) for number, rows in enumerate(rows_by_server)]


def expected(by_server: list[GeneratedChanges]) -> list[tuple[str, ...]]:
    return sorted(
        (name, row.token, row.operationType or "", row.documentKey or "")
        for name, changes in zip(NAMES, by_server, strict=True)
        for row_batch in changes.row_batches
        for row in row_batch
    )


def contents(sink: LogSink) -> list[tuple[str, ...]]:
    table = sink.table.read().select(["server", "token", "operationType", "documentKey"])
    return sorted(zip(*(column.fill_null("").to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("kind", SINKS)
def test_a_log_has_each_servers_rows_once_whatever_crashes(kind: str, tmp_path: Path) -> None:
    by_server = [generated_changes(1), generated_changes(2)]
    crashes = 0
    tried = set()
    for number, batch in enumerate(batches(by_server)):
        before = tmp_path / f"before{number}"
        if (tmp_path / "log").exists():
            shutil.copytree(tmp_path / "log", before)
        with crashing(STEPS) as steps:
            SINKS[kind](tmp_path / "log").apply(batch)
        trial = (frozenset(batch.table["operationType"].to_pylist()), tuple(steps))
        if trial in tried:  # the same kinds of rows, in the same steps, crashed at each of them
            continue
        tried.add(trial)
        for step in range(len(steps)):
            again = tmp_path / f"again{number}-{step}"
            if before.exists():
                shutil.copytree(before, again)
            with pytest.raises(Crash), crashing(STEPS, step):
                SINKS[kind](again).apply(batch)
            crashes += 1
            SINKS[kind](again).apply(batch)
            assert contents(SINKS[kind](again)) == contents(SINKS[kind](tmp_path / "log"))
    assert crashes > number
    assert contents(SINKS[kind](tmp_path / "log")) == expected(by_server)


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("applied_before", [1, 4, 100])
def test_another_checkpoint_adds_nothing_twice(kind: str, applied_before: int, tmp_path: Path) -> None:
    by_server = [generated_changes(3), generated_changes(4)]
    for batch in batches(by_server)[:applied_before]:
        SINKS[kind](tmp_path / "log").apply(batch)
    for batch in batches(by_server, "another"):
        SINKS[kind](tmp_path / "log").apply(batch)
    assert contents(SINKS[kind](tmp_path / "log")) == expected(by_server)


@pytest.mark.parametrize("kind", SINKS)
def test_a_server_that_was_skipped_is_not_taken_for_old(kind: str, tmp_path: Path) -> None:
    by_server = [generated_changes(5), generated_changes(6)]
    alone = [(row_batch, None) for row_batch in by_server[0].row_batches] + [
        (None, row_batch) for row_batch in by_server[1].row_batches
    ]
    for number, rows in enumerate(alone):
        SINKS[kind](tmp_path / "log").apply(MicroBatch("q", number, of_servers(rows)))
    assert contents(SINKS[kind](tmp_path / "log")) == expected(by_server)


def test_a_copy_of_one_collection_refuses_rows_of_several_servers(uri: str) -> None:
    sink = mongodb_sink(uri, database="elsewhere", collection="c")
    with pytest.raises(SeveralServers, match="one server"):
        sink.apply(batches([generated_changes(1), generated_changes(2)])[0])
