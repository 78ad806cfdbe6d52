"""Sinks of several servers' rows: logs judge each row by its own server's progress; what follows one refuses them."""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark.rows.events import Row
from headrace.spark.sinks.changes_sink import changes_sink
from headrace.spark.sinks.contract import MicroBatch, SeveralServers, Sink
from headrace.spark.sinks.history_sink import HistorySink
from headrace.spark.sinks.log_sink import LogSink
from headrace.spark.sinks.mirror_sink import mirror_sink
from headrace.spark.sinks.mongodb_sink import mongodb_sink
from headrace.spark.sinks.parquet_sink import parquet_sink
from tests.spark.sinks.test_sinks import STEPS
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import Story, story, table_of

pytestmark = pytest.mark.process

NAMES = ("one:1", "two:2")
SINKS: dict[str, Any] = {"changes": changes_sink, "parquet": parquet_sink}


def of_servers(parts: tuple[list[Row] | None, ...]) -> pa.Table:
    """The rows of both servers, whose tokens are the same."""
    tables = [
        table_of(rows).append_column("server", pa.array([name] * len(rows), pa.string()))
        for name, rows in zip(NAMES, parts, strict=True)
        if rows
    ]
    return pa.concat_tables(tables)


def batches(stories: list[Story], query: str = "q") -> list[MicroBatch]:
    parts = zip_longest(*(told.parts for told in stories))
    return [MicroBatch(query, number, of_servers(rows)) for number, rows in enumerate(parts)]


def expected(stories: list[Story]) -> list[tuple[str, ...]]:
    return sorted(
        (name, row.token, row.operationType or "", row.documentKey or "")
        for name, told in zip(NAMES, stories, strict=True)
        for part in told.parts
        for row in part
    )


def contents(sink: LogSink) -> list[tuple[str, ...]]:
    table = sink.log.read().select(["server", "token", "operationType", "documentKey"])
    return sorted(zip(*(column.fill_null("").to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("kind", SINKS)
def test_a_log_has_each_servers_rows_once_whatever_crashes(kind: str, tmp_path: Path) -> None:
    stories = [story(1), story(2)]
    crashes = 0
    tried = set()
    for number, batch in enumerate(batches(stories)):
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
    assert contents(SINKS[kind](tmp_path / "log")) == expected(stories)


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("lost_after", [1, 4, 100])
def test_another_checkpoint_adds_nothing_twice(kind: str, lost_after: int, tmp_path: Path) -> None:
    stories = [story(3), story(4)]
    for batch in batches(stories)[:lost_after]:
        SINKS[kind](tmp_path / "log").apply(batch)
    for batch in batches(stories, "another"):
        SINKS[kind](tmp_path / "log").apply(batch)
    assert contents(SINKS[kind](tmp_path / "log")) == expected(stories)


@pytest.mark.parametrize("kind", SINKS)
def test_a_server_that_was_skipped_is_not_taken_for_old(kind: str, tmp_path: Path) -> None:
    stories = [story(5), story(6)]
    alone = [(part, None) for part in stories[0].parts] + [(None, part) for part in stories[1].parts]
    for number, rows in enumerate(alone):
        SINKS[kind](tmp_path / "log").apply(MicroBatch("q", number, of_servers(rows)))
    assert contents(SINKS[kind](tmp_path / "log")) == expected(stories)


def test_what_follows_one_collection_refuses_rows_of_several_servers(uri: str, tmp_path: Path) -> None:
    sinks: list[Sink] = [
        HistorySink(tmp_path / "history"),
        mirror_sink(tmp_path / "mirror"),
        mongodb_sink(uri, database="elsewhere", collection="c"),
    ]
    for sink in sinks:
        with pytest.raises(SeveralServers, match="one server"):
            sink.apply(batches([story(1), story(2)])[0])
    assert not list(tmp_path.iterdir())
