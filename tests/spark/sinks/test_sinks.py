"""Every sink fulfils the contract in `sinks/contract.py`: crashed at each step and run again, it ends correct."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableOptimizer
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

import headrace.spark.tables.delta_table
import headrace.spark.tables.event_log
from headrace import limits
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_END, Row
from headrace.spark.sinks.contract import BatchReport, MicroBatch, Sink
from headrace.spark.sinks.folding_sink import FoldingSink, HistorySink, mirror_sink
from headrace.spark.sinks.foreach_batch import OnceSink
from headrace.spark.sinks.log_sink import LogSink, changes_sink, parquet_sink
from headrace.spark.sinks.mongodb_sink import mongodb_sink
from headrace.spark.tables.delta_files import FileWriter
from headrace.spark.tables.history_table import at
from headrace.spark.tables.progress import CollectionGone, NotAMirror
from headrace.spark.tables.staged_files import StagingWriter
from headrace.spark.tables.table_location import TableLocation
from headrace.spark.tables.typed.table_schema import TypedOptions
from tests.spark.support.crashes import Crash, crashing, folder_state, states_at, write_folder
from tests.spark.support.generated_changes import GeneratedChanges, batches, generated_changes
from tests.spark.support.local_frame import LocalFrame
from tests.spark.support.object_store import ObjectStore

pytestmark = pytest.mark.long

# Whatever makes something durable: a crash is tried right before each of them, and right behind.
STEPS: tuple[tuple[Any, str], ...] = (
    (Collection, "bulk_write"),
    (Collection, "delete_many"),
    (Collection, "replace_one"),
    (Collection, "update_one"),
    (Database, "drop_collection"),
    (DeltaTable, "create_write_transaction"),
    (FileWriter, "write"),
    (FileWriter, "finish"),
    (TableOptimizer, "compact"),
    (headrace.spark.tables.delta_table, "write_deltalake"),
    (headrace.spark.tables.event_log, "write_deltalake"),
    (headrace.spark.tables.delta_table, "create_table_with_add_actions"),
    (TableLocation, "remove_file"),
    (StagingWriter, "close"),
    (StagingWriter, "write"),
    (os, "fsync"),
    (os, "replace"),
    (pq, "write_table"),
)


class ByTasks:
    """A sink that is given frames, each in two partitions."""

    def __init__(self, sink: LogSink | FoldingSink) -> None:
        self._sink = sink
        self.table: Any = sink.table

    def position(self) -> Any:
        return self._sink.position()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        frame: Any = LocalFrame(batch.table, partition_count=2)
        if isinstance(self._sink, FoldingSink) and self._sink.folded_by_tasks is None:
            return self._sink.apply(batch)
        return self._sink.apply_frame(frame, batch.query, batch.number)


class Target:
    """The folder of a sink: opened as a new process would, copied, read. `is_log`: it keeps rows, not documents."""

    is_log = False
    history = False

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.is_log = kind == "once" or kind.startswith(("changes", "parquet"))
        self.history = kind.startswith("history")

    @property
    def path(self) -> str | Path:
        return self.folder

    def open(self, policy: str = "follow") -> Sink:
        match self.kind:
            case "changes":
                return changes_sink(self.path, policy=policy)
            case "changes by tasks":
                return ByTasks(changes_sink(self.path, policy=policy))
            case "parquet by tasks":
                return ByTasks(parquet_sink(self.path, policy=policy))
            case "parquet":
                return parquet_sink(self.path, policy=policy)
            case "once":
                return OnceSink(self._keep, self.folder / "notes.json")
            case "history by tasks":
                return ByTasks(HistorySink(self.path, policy=policy))
            case "history typed by tasks":
                return ByTasks(HistorySink(self.path, policy=policy, typed=TypedOptions()))
            case "mirror typed by tasks":
                return ByTasks(mirror_sink(self.path, policy=policy, typed=TypedOptions()))
            case "history" | "history merged":
                return HistorySink(self.path, policy=policy)
            case "changes typed":
                return changes_sink(self.path, policy=policy, typed=TypedOptions())
            case "changes typed by tasks":
                return ByTasks(changes_sink(self.path, policy=policy, typed=TypedOptions()))
            case "history typed":
                return HistorySink(self.path, policy=policy, typed=TypedOptions())
            case "mirror typed" | "mirror typed merged":
                options = TypedOptions(file=f"{self.path}.columns", rules=ColumnRules("text"))
                return mirror_sink(self.path, policy=policy, typed=options)
            case "mirror by tasks" | "mirror by tasks merged":
                return ByTasks(mirror_sink(self.path, policy=policy))
            case "mirror buckets by tasks":
                return ByTasks(mirror_sink(self.path, buckets=5, policy=policy))
            case "mirror parquet":
                return mirror_sink(self.path, table="parquet", policy=policy)
            case "mirror buckets":
                return mirror_sink(self.path, buckets=3, policy=policy)
        return mirror_sink(self.path, policy=policy)

    def _keep(self, rows: pa.Table) -> None:
        """A target of the user's, in which a row given twice is one row."""
        self.folder.mkdir(exist_ok=True)
        with sqlite3.connect(self.folder / "rows.db") as file:
            file.execute("create table if not exists rows (kind, token, key, primary key (kind, token, key))")
            names = ("operationType", "token", "documentKey")
            columns = [rows.column(name).fill_null("").to_pylist() for name in names]
            file.executemany("insert or replace into rows values (?, ?, ?)", zip(*columns, strict=True))

    def written(self) -> Any:
        """Return what is written so far, to be compared, and given to `restored`."""
        return folder_state(self.folder)

    def restored(self, name: str, written: Any) -> Target:
        """Return another target, which has what was written to this one."""
        other = Target(self.kind, self.folder.with_name(name))
        write_folder(written, other.folder)
        return other

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def contents(self, opened: Sink | None = None) -> Any:
        """Return the contents of the target, read by the sink `opened`, if given."""
        sink = opened or self.open()
        if self.kind == "once":
            with sqlite3.connect(self.folder / "rows.db") as file:
                return sorted(file.execute("select kind, token, key from rows order by token, kind, key"))
        if self.is_log:
            table = sink.table.read().select(["operationType", "token", "documentKey"])  # type: ignore[attr-defined]
            columns = [column.fill_null("").to_pylist() for column in table.columns]
            return sorted(zip(*columns, strict=True))
        if self.history:
            rows = sink.table.read().to_pylist()
            return {(row["_id"], row["token"], row["until"], row["endedBy"], row["document"]) for row in rows}
        table = sink.table.read()  # type: ignore[attr-defined]
        return dict(zip(table.column("_id").to_pylist(), table.column("document").to_pylist(), strict=True))


class MongoTarget(Target):
    def __init__(self, uri: str, kind: str, folder: Path) -> None:
        super().__init__(kind, folder)
        self.uri = uri
        self.client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self.database = self.client[f"{abs(hash(str(folder))):x}"[:14]]

    def open(self, policy: str = "follow") -> Sink:
        return mongodb_sink(self.uri, database=self.database.name, collection="kept", policy=policy)

    def written(self) -> Any:
        return {name: list(self.database[name].find()) for name in sorted(self.database.list_collection_names())}

    def restored(self, name: str, written: Any) -> Target:
        other = MongoTarget(self.uri, self.kind, self.folder.with_name(name))
        for collection, documents in written.items():
            other.database.create_collection(collection)
            if documents:
                other.database[collection].insert_many(documents)
        return other

    def remove(self) -> None:
        self.client.drop_database(self.database.name)
        self.client.close()


class StoreTarget(Target):
    """In an object store."""

    def __init__(self, store: ObjectStore, kind: str, name: str) -> None:
        super().__init__(kind, Path(name))
        self.store = store
        self._written: list[tuple[str, str]] = []

    @property
    def path(self) -> str:
        return f"s3://tables/{self.folder}"

    def written(self) -> Any:
        """Return the list of the objects, and the prefix of their copies."""
        listed = self.store.listed("tables", f"{self.folder}/")
        if not self._written or self._written[-1][0] != listed:
            copies = f"tables/{self.folder}.{len(self._written)}/"
            self.store.copy(f"tables/{self.folder}/", copies)
            self._written.append((listed, copies))
        return self._written[-1]

    def restored(self, name: str, written: Any) -> Target:
        other = StoreTarget(self.store, self.kind, str(self.folder.with_name(name)))
        self.store.copy(written[1], f"tables/{other.folder}/")
        return other

    def remove(self) -> None:
        """Its objects end with the store."""


KINDS = [
    "changes",
    "changes by tasks",
    "changes typed",
    "changes typed by tasks",
    "history",
    "history by tasks",
    "history merged",
    "history typed",
    "history typed by tasks",
    "mirror buckets",
    "mirror buckets by tasks",
    "mirror by tasks",
    "mirror by tasks merged",
    "mirror delta",
    "mirror parquet",
    "mirror typed",
    "mirror typed by tasks",
    "mirror typed merged",
    "mongodb",
    "once",
    "parquet",
    "parquet by tasks",
]


IN_STORE = ["changes", "changes by tasks", "history", "mirror buckets", "mirror by tasks", "mirror delta"]


@pytest.fixture(params=IN_STORE)
def in_store(
    store: ObjectStore, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Target:
    monkeypatch.setattr(limits, "FOLD_ROW_COUNT_MIN", 4)
    return StoreTarget(store, request.param, f"{tmp_path.name}/t")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    # What crashes here is a process: whatever it has written, the next one reads, on the disk or not.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    if request.param.endswith(" merged"):
        monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", -1)  # no file is small
    if "mirror" in request.param or "history" in request.param:
        monkeypatch.setattr(limits, "FOLD_ROW_COUNT_MIN", 4)
    if request.param != "mongodb":
        yield Target(request.param, tmp_path / "a table")
        return
    uri = request.getfixturevalue("uri")
    yield MongoTarget(uri, "mongodb", tmp_path / "t")
    with MongoClient[dict[str, Any]](uri) as client:
        for name in client.list_database_names():
            if name not in {"admin", "config", "local"}:
                client.drop_database(name)


def check(target: Target, changes: GeneratedChanges) -> None:
    """The target equals the collection at the end of the changes and, with a history, at every token."""
    contents = target.contents()
    if target.is_log:
        rows = [row for row_batch in changes.row_batches for row in row_batch]
        assert contents == sorted((row.operationType, row.token, row.documentKey or "") for row in rows)
    elif target.history:
        sink: Any = target.open()
        table = sink.table.read()
        ends = [
            row.token for row_batch in changes.row_batches for row in row_batch if row.operationType == SNAPSHOT_END
        ]
        dropped = next((row.token for row in changes.events if row.operationType == "invalidate"), "")
        for token, expected in changes.at.items():
            # While a snapshot was read only the documents that it had come to are known; nothing before it.
            if token >= ends[-1] or ends[0] <= token <= dropped:
                at_token = at(table, token)
                assert (
                    dict(zip(at_token.column("_id").to_pylist(), at_token.column("document").to_pylist(), strict=True))
                    == expected
                )
        assert {row[0] for row in contents if row[2] is None} == changes.contents().keys()
    else:
        assert contents == changes.contents()


@pytest.mark.parametrize("seed", [1])
def test_all_batches_once_give_the_right_state(target: Target, seed: int) -> None:
    changes = generated_changes(seed)
    sink: Any = target.open()
    for batch in batches(changes.row_batches):
        assert sink.apply(batch)
        assert sink.apply(batch) is None
    check(target, changes)


@pytest.mark.process
def test_a_batch_crashed_at_any_step_and_given_again_ends_as_if_nothing_had_been(target: Target) -> None:
    changes = generated_changes(3)
    assert crashed_at_each_step(target, changes.row_batches) >= 18
    check(target, changes)


@pytest.mark.process
def test_in_a_store_as_well(in_store: Target) -> None:
    """The first batches, crashed at each step, and the others: a store takes its time."""
    changes = generated_changes(3)
    assert crashed_at_each_step(in_store, changes.row_batches[:2]) >= 4
    for batch in batches(changes.row_batches)[2:]:
        assert in_store.open().apply(batch)
        assert in_store.open().apply(batch) is None
    check(in_store, changes)


def crashed_at_each_step(target: Target, row_batches: list[list[Row]]) -> int:
    """How often there was a crash: the process is killed at each step, and ends by an error in each kind of step.

    A batch that holds the same kinds of rows and is applied in the same steps as one that crashed at each of them is
    applied without a crash.
    """
    crashes = 0
    tried, ended = set(), set[str]()
    for number, batch in enumerate(batches(row_batches)):
        with states_at(STEPS, target.written) as (steps, killed):
            target.open().apply(batch)
        trial = (frozenset(batch.table["operationType"].to_pylist()), tuple(steps))
        if trial in tried:
            continue
        tried.add(trial)
        after = state(target)
        for moment, written in enumerate(killed):
            again = target.restored(f"killed{number}-{moment}", written)
            again.open().apply(batch)
            assert state(again) == after, (number, moment)
            again.remove()
        errors = [steps.index(name) for name in dict.fromkeys(steps) if name not in ended]
        for step in errors:
            again = target.restored(f"ended{number}-{step}", killed[0])
            with pytest.raises(Crash), crashing(STEPS, step):
                again.open().apply(batch)
            again.open().apply(batch)
            assert state(again) == after, (number, steps[step])
            again.remove()
        ended.update(steps)
        crashes += len(killed) + len(errors)
    return crashes


def state(target: Target) -> tuple[Any, Any]:
    """Return the contents and the position of the target, as a new process reads them."""
    sink = target.open()
    return target.contents(sink), sink.position()


@pytest.mark.process
@pytest.mark.parametrize("crashed_at", [1, 5, 100])
def test_another_checkpoint_that_begins_at_batch_0_ends_the_same(target: Target, crashed_at: int) -> None:
    """The same rows in other pieces under another query's name, after a crash in the middle of the first query."""
    changes = generated_changes(4)
    for batch in batches(changes.row_batches)[: crashed_at + 1]:
        try:
            with crashing(STEPS, 1 if batch.number == crashed_at else -1):
                target.open().apply(batch)
        except Crash:
            break
    for batch in batches(changes.row_batches, "another"):
        for half, table in enumerate((batch.table.slice(0, 2), batch.table.slice(2))):
            target.open().apply(replace(batch, number=batch.number * 2 + half, table=table))
    check(target, changes)


def test_a_new_snapshot_behind_a_gap_brings_the_state_up(target: Target) -> None:
    changes = GeneratedChanges(5)
    changes.writes(12)
    changes.snapshot()
    known = len(changes.row_batches)
    changes.writes(15)
    changes.snapshot()
    for batch in batches(changes.row_batches[:known]):
        target.open().apply(batch)
    for batch in batches(changes.row_batches[known:], "another"):
        target.open().apply(batch)
    if target.history:
        sink: Any = target.open()
        current = sink.table.rows()
        assert {key: version.document for key, version in current.items()} == changes.contents()
    else:
        check(target, changes)


def test_a_mirror_is_never_emptied_by_a_new_snapshot(target: Target) -> None:
    if target.is_log or target.history or target.kind == "once":
        pytest.skip("it is no mirror")
    changes = GeneratedChanges(5)
    changes.writes(12)
    changes.snapshot()
    known = len(changes.row_batches)
    before = changes.contents().keys()
    changes.snapshot()
    for batch in batches(changes.row_batches[:known]):
        target.open().apply(batch)
    kinds = set()
    for batch in batches(changes.row_batches[known:], "another"):
        target.open().apply(batch)
        kinds |= set(batch.table.column("operationType").to_pylist())
        if SNAPSHOT_END not in kinds:
            assert before <= target.contents().keys()
    assert {SNAPSHOT, SNAPSHOT_END} <= kinds
    check(target, changes)


def test_with_the_policy_fail_a_drop_stops_the_sink_before_anything_of_its_batch(target: Target) -> None:
    if target.kind == "once":
        pytest.skip("what a drop does to it is the user's affair")
    changes = generated_changes(6)
    position = None
    with pytest.raises(CollectionGone, match=r"drop of db\.c"):
        for batch in batches(changes.row_batches):
            position = target.open("fail").position()
            target.open("fail").apply(batch)
    assert position == target.open("fail").position()


def test_with_the_policy_keep_what_a_drop_took_away_stays(target: Target) -> None:
    if target.is_log:
        pytest.skip("it keeps everything")
    changes = generated_changes(6)
    dropped = next(
        number for number, row_batch in enumerate(changes.row_batches) if row_batch[-1].operationType == "invalidate"
    )
    for batch in batches(changes.row_batches[: dropped + 1]):
        target.open("keep").apply(batch)
    sink: Any = target.open()
    count = len(sink.table.rows()) if target.history else len(target.contents())
    assert count > 0
    for batch in batches(changes.row_batches)[dropped + 1 :]:
        target.open("keep").apply(batch)
    remaining = target.contents()
    if target.history:
        remaining = {key: version.document for key, version in sink.table.rows().items()}
    assert {key: remaining[key] for key in changes.contents()} == changes.contents()


@pytest.mark.parametrize("kind", ["changes", "changes by tasks", "history", "mirror buckets", "mirror delta"])
def test_a_table_that_is_removed_under_a_running_sink_stops_it(kind: str, tmp_path: Path) -> None:
    """It would go on with a table that lacks what was in the other one."""
    target = Target(kind, tmp_path / "t")
    sink: Any = target.open()
    first, second, third, *_ = batches(generated_changes(7).row_batches)
    assert sink.apply(first) and sink.apply(second)
    shutil.rmtree(target.folder)
    with pytest.raises(NotAMirror, match="no commit of"):
        sink.apply(third)
    assert not (target.folder / "_delta_log").exists()
