"""Mirrors and histories of several servers: what they have of each is what one of that server alone would have."""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from headrace import limits
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.rows.events import Row
from headrace.spark.rows.key_identity import of_server
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink
from headrace.spark.tables.progress import CollectionGone, NotOurTable
from headrace.spark.tables.typed.table_schema import TypedOptions
from tests.spark.sinks.test_server_sinks import NAMES, batches, of_servers
from tests.spark.sinks.test_sinks import STEPS
from tests.spark.support.crashes import Crash, crashing, folder_state, states_at, write_folder
from tests.spark.support.generated_changes import GeneratedChanges, generated_changes, table_of

pytestmark = pytest.mark.long

KINDS = ("history", "history typed", "mirror", "mirror buckets", "mirror parquet", "mirror typed")
MERGED = ("history", "history typed", "mirror", "mirror typed")
"""Those that write small tables anew, and merge into larger ones."""


def opened(kind: str, path: Path, policy: str = "follow") -> Any:
    match kind:
        case "history":
            return HistorySink(path, policy=policy)
        case "history typed":
            return HistorySink(path, policy=policy, typed=TypedOptions())
        case "mirror buckets":
            return mirror_sink(path, buckets=3, policy=policy)
        case "mirror parquet":
            return mirror_sink(path, table="parquet", policy=policy)
        case "mirror typed":
            options = TypedOptions(file=f"{path}.columns", rules=ColumnRules("text"))
            return mirror_sink(path, policy=policy, typed=options)
    return mirror_sink(path, policy=policy)


def contents(sink: Any) -> set[tuple[str, ...]]:
    rows = sink.table.read()
    names = [name for name in ("_id", "document", "token", "until", "endedBy") if name in rows.column_names]
    servers = rows.column("server").to_pylist() if "server" in rows.column_names else [""] * rows.num_rows
    columns = [rows.column(name).to_pylist() for name in names]
    rows_there = list(zip(servers, *columns, strict=True))
    assert len(set(rows_there)) == len(rows_there)
    return set(rows_there)


def expected(kind: str, folder: Path, row_batches: list[tuple[list[Row] | None, ...]]) -> set[tuple[str, ...]]:
    """What a sink for each server has, in which no row names its server."""
    each: set[tuple[str, ...]] = set()
    for position, name in enumerate(NAMES):
        sink = opened(kind, folder / f"alone{position}")
        for number, rows in enumerate(row_batches):
            if rows[position]:
                sink.apply(MicroBatch("q", number, table_of(rows[position] or [])))
        each |= {(name, *row[1:]) for row in contents(sink)}
    return each


def of_both(*by_server: GeneratedChanges) -> list[tuple[list[Row] | None, ...]]:
    return list(zip_longest(*(changes.row_batches for changes in by_server)))


@pytest.mark.parametrize(
    ("kind", "merges"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS if kind in MERGED)]
)
def test_a_crash_at_any_step_leaves_what_each_server_alone_would(
    kind: str, merges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server's collection is dropped while the other's goes on; the keys and tokens of both are the same."""
    if merges:
        monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", -1)  # no file is small
    one, two = generated_changes(1), GeneratedChanges(2)
    two.writes(12)
    two.snapshot()
    two.writes(30)
    two.stream(two.time - 30)
    row_batches = of_both(one, two)
    crashes, tried, ended = 0, set(), set[str]()
    path, again = tmp_path / "table", tmp_path / "again"
    for number, rows in enumerate(row_batches):
        batch = MicroBatch("q", number, of_servers(rows))
        with states_at(STEPS, lambda: folder_state(path)) as (steps, killed):
            opened(kind, path).apply(batch)
        trial = (frozenset(batch.table["operationType"].to_pylist()), tuple(steps))
        if trial in tried:  # other batches have the same kinds of rows, in the same steps
            continue
        tried.add(trial)
        after = contents(opened(kind, path))
        errors = [steps.index(name) for name in dict.fromkeys(steps) if name not in ended]
        ended.update(steps)
        for written, step in [*((written, -1) for written in killed), *((killed[0], step) for step in errors)]:
            write_folder(written, again)
            if step >= 0:
                with pytest.raises(Crash), crashing(STEPS, step):
                    opened(kind, again).apply(batch)
            opened(kind, again).apply(batch)
            assert contents(opened(kind, again)) == after, (number, step)
            shutil.rmtree(again)
            crashes += 1
    assert crashes > 4
    assert contents(opened(kind, path)) == expected(kind, tmp_path, row_batches)


@pytest.mark.parametrize("kind", ["history", "mirror", "mirror typed"])
@pytest.mark.parametrize("applied_before", [1, 5, 100])
def test_another_checkpoint_changes_nothing(kind: str, applied_before: int, tmp_path: Path) -> None:
    by_server = [generated_changes(3), generated_changes(4)]
    for batch in batches(by_server)[:applied_before]:
        opened(kind, tmp_path / "table").apply(batch)
    for batch in batches(by_server, "another"):
        opened(kind, tmp_path / "table").apply(batch)
    sink = opened(kind, tmp_path / "table")
    now = sink.table.rows
    for name, changes in zip(NAMES, by_server, strict=True):
        wanted = {f"{name}\n{key}" for key in changes.contents()}
        documents = {key: row.document for key, row in of_server(name, now(wanted)).items()}
        assert documents == changes.contents()


def test_a_server_that_comes_later_begins_with_a_snapshot_of_it(tmp_path: Path) -> None:
    one, two = generated_changes(5), generated_changes(6)
    alone = [(rows, None) for rows in one.row_batches] + [(None, rows) for rows in two.row_batches]
    for kind in ("history", "mirror"):
        for number, rows in enumerate(alone):
            opened(kind, tmp_path / kind).apply(MicroBatch("q", number, of_servers(rows)))
        assert contents(opened(kind, tmp_path / kind)) == expected(kind, tmp_path / f"{kind}s", list(alone))


@pytest.mark.parametrize("kind", ["history", "mirror"])
def test_a_drop_on_one_server_follows_the_policy(kind: str, tmp_path: Path) -> None:
    one, two = GeneratedChanges(7), GeneratedChanges(8)
    for changes in (one, two):
        changes.writes(6)
        changes.snapshot()
    row_batches = of_both(one, two)
    path = tmp_path / "table"
    for number, rows in enumerate(row_batches):
        opened(kind, path).apply(MicroBatch("q", number, of_servers(rows)))
    before = contents(opened(kind, path))
    gone = MicroBatch("q", len(row_batches), of_servers(([one.row("drop")], None)))
    with pytest.raises(CollectionGone):
        opened(kind, path, "fail").apply(gone)
    assert contents(opened(kind, path)) == before
    opened(kind, path).apply(gone)
    left = {row for row in contents(opened(kind, path)) if kind == "mirror" or row[4] != "drop"}
    assert {row[0] for row in before} == set(NAMES)
    assert {row for row in left if row[0] == NAMES[1]} == {row for row in before if row[0] == NAMES[1]}
    assert not [row for row in left if row[0] == NAMES[0] and (kind == "mirror" or row[3] is None)]


@pytest.mark.parametrize("kind", ["history", "mirror", "mirror parquet"])
def test_the_rows_of_one_server_and_those_of_several_are_not_mixed(kind: str, tmp_path: Path) -> None:
    changes = generated_changes(9)
    several, one = of_servers((changes.row_batches[0], None)), table_of(changes.row_batches[0])
    for first, second, message in ((several, one, "several servers, and.*one"), (one, several, "one server, and.*sev")):
        sink = opened(kind, tmp_path / f"{first is one}")
        sink.apply(MicroBatch("q", 0, first))
        with pytest.raises(NotOurTable, match=message):
            sink.apply(MicroBatch("q", 1, second))
