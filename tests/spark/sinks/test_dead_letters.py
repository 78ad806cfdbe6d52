"""Rows that a sink refuses go to the dead letters; the rest of the batch is right, whatever crashes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import headrace.spark.tables.dead_letters
import headrace.spark.tables.delta_table
from headrace.spark.rows.events import Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.dead_letter_sink import DeadLetterSink
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink
from headrace.spark.tables.dead_letters import REFUSED, DeadLetters, DeadLettersFull
from headrace.spark.tables.fold import MirrorDiverged
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.refused_rows import RowRefused
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import batches, token_at

STEPS = (
    (headrace.spark.tables.dead_letters, "write_deltalake"),
    (headrace.spark.tables.delta_table, "write_deltalake"),
    (DeltaTable, "create_write_transaction"),
)


def row(time: int, kind: str, key: int | None = None, **fields: Any) -> Row:
    texts = {name: dumps(value) for name, value in fields.items()}
    document_key = None if key is None else dumps({"_id": key})
    bare = Row(token_at(time), operationType=kind, database="d", collection="c", documentKey=document_key)
    return bare._replace(**texts)


def insert(time: int, key: int, **fields: Any) -> Row:
    return row(time, "insert", key, fullDocument={"_id": key, **fields})


def update(time: int, key: int, **fields: Any) -> Row:
    return row(time, "update", key, updateDescription={"updatedFields": fields})


# An update of a path that is not there is refused, and each later one of that document until it is replaced.
BATCHES = [
    [insert(1, 1, n=1), insert(2, 2, n=1)],
    [update(3, 1, n=2), update(4, 2, **{"no.such": 1}), update(5, 1, n=3)],
    [update(6, 2, n=5)],
    [update(7, 2, n=6), row(8, "replace", 2, fullDocument={"_id": 2, "n": 7}), update(9, 2, n=8), update(10, 3, n=1)],
    [row(11, "delete", 3), insert(12, 3, n=1), update(13, 3, n=2)],
]
DOCUMENTS = {1: {"_id": 1, "n": 3}, 2: {"_id": 2, "n": 8}, 3: {"_id": 3, "n": 2}}
REFUSED_AT = [4, 6, 7, 10]


class Guarded:
    """A mirror, or a history, with dead letters, opened as a new process would."""

    def __init__(self, folder: Path, *, history: bool = False, count_max: int = 100) -> None:
        self.folder, self.history, self.count_max = folder, history, count_max

    def inner(self) -> Any:
        return HistorySink(self.folder / "table") if self.history else mirror_sink(self.folder / "table")

    def open(self) -> DeadLetterSink:
        letters = DeadLetters(self.folder / "letters", self.count_max)
        return DeadLetterSink(self.inner(), letters, "mirror", lambda: 0)

    def documents(self) -> list[str]:
        if self.history:
            return sorted(version.document for version in self.inner().table.rows().values())
        return sorted(self.inner().table.read().column("document").to_pylist())

    def refused(self) -> list[str]:
        rows = DeltaTable(str(self.folder / "letters")).to_pyarrow_table().to_pylist()
        return sorted(each["token"] for each in rows if each["state"] == REFUSED)

    def check(self) -> None:
        assert self.documents() == sorted(map(dumps, DOCUMENTS.values()))
        assert self.refused() == [token_at(time) for time in REFUSED_AT]
        assert not self.open()._letters.waiting("mirror")


@pytest.mark.parametrize("history", [False, True])
def test_refused_rows_go_to_the_table_and_the_others_are_applied(tmp_path: Path, history: bool) -> None:
    guarded = Guarded(tmp_path, history=history)
    counts = []
    for batch in batches(BATCHES):
        report = guarded.open().apply(batch)
        assert report
        counts.append(report.dead_letter_count)
        again = guarded.open().apply(batch)
        assert again is None or again.dead_letter_count == 0
    assert counts == [0, 1, 1, 2, 0]
    guarded.check()
    rows = DeltaTable(str(tmp_path / "letters")).to_pyarrow_table().to_pylist()
    reasons = {each["token"]: each["reason"] for each in rows if each["state"] == REFUSED}
    assert "nothing at ['no', 'such']" in reasons[token_at(4)] and "waits" in reasons[token_at(6)]


def test_without_dead_letters_the_first_refused_row_stops(tmp_path: Path) -> None:
    sink = mirror_sink(tmp_path)
    first, second, *_ = batches(BATCHES)
    assert sink.apply(first)
    with pytest.raises(MirrorDiverged, match="nothing at"):
        sink.apply(second)


@pytest.mark.long
def test_a_batch_that_crashes_at_any_step_refuses_the_same_rows_again(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path / "t")
    crashes = 0
    for number, batch in enumerate(batches(BATCHES)):
        before = tmp_path / f"before{number}"
        guarded.folder.mkdir(exist_ok=True)
        shutil.copytree(guarded.folder, before)
        with crashing(STEPS) as steps:
            guarded.open().apply(batch)
        for step in range(len(steps)):
            again = Guarded(tmp_path / f"crashed{number}-{step}")
            shutil.copytree(before, again.folder)
            with pytest.raises(Crash), crashing(STEPS, step):
                again.open().apply(batch)
            crashes += 1
            again.open().apply(batch)
            if number:
                assert (again.documents(), again.refused()) == (guarded.documents(), guarded.refused())
            for later in batches(BATCHES)[number + 1 :]:
                again.open().apply(later)
            again.check()
    guarded.check()
    assert crashes >= 8


def test_too_many_refused_rows_stop_the_job(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, count_max=2)
    first, second, third, fourth, _ = batches(BATCHES)
    for batch in (first, second, third):
        assert guarded.open().apply(batch)
    with pytest.raises(DeadLettersFull, match="the job allows 2"):
        guarded.open().apply(fourth)
    assert guarded.refused() == [token_at(4), token_at(6)]


class EvenNumbers:
    """A sink of somebody's own, which refuses rows without a key."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def position(self) -> Progress:
        return Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        rows = batch.rows()
        for each in rows:
            if int(each.token[2:10], 16) % 2:
                raise RowRefused("odd", each.token)
        self.tokens += [each.token for each in rows]
        return BatchReport(batch.number, len(rows), len(rows), "", None, 0)


def test_a_custom_sink_may_refuse_rows_by_their_tokens(tmp_path: Path) -> None:
    sink = EvenNumbers()
    guarded = DeadLetterSink(sink, DeadLetters(tmp_path, 10), "own", lambda: 0)
    (batch,) = batches([[row(2, "createIndexes"), row(3, "createIndexes"), row(4, "create"), row(5, "create")]])
    report = guarded.apply(batch)
    assert report and report.dead_letter_count == 2
    assert sink.tokens == [token_at(2), token_at(4)]


@pytest.mark.parametrize("history", [False, True])
def test_a_document_that_is_not_held_is_refused_and_waits(tmp_path: Path, history: bool) -> None:
    mark = {"$notHeld": "x is a symbol"}
    guarded = Guarded(tmp_path, history=history)
    begin, end = row(2, "snapshotBegin"), row(2, "snapshotEnd")
    good, bad = row(2, "snapshot", 3, fullDocument={"_id": 3}), row(2, "snapshot", 2, fullDocument=mark)
    given = [
        [begin, good, bad, end],
        [row(4, "insert", 1, fullDocument=mark), update(5, 1, n=2), row(6, "update", 3, updateDescription=mark)],
        [update(7, 2, n=2), row(8, "replace", 1, fullDocument={"_id": 1, "n": 7})],
    ]
    counts = []
    for batch in batches(given):
        report = guarded.open().apply(batch)
        assert report
        counts.append(report.dead_letter_count)
    assert counts == [1, 3, 1]
    assert guarded.documents() == [dumps({"_id": 1, "n": 7}), dumps({"_id": 3})]
    assert guarded.refused() == [token_at(time) for time in (2, 4, 5, 6, 7)]
    rows = DeltaTable(str(tmp_path / "letters")).to_pyarrow_table().to_pylist()
    assert {"fullDocument: x is a symbol", "updateDescription: x is a symbol"} <= {each["reason"] for each in rows}
    assert len(guarded.open()._letters.waiting("mirror")) == 2
