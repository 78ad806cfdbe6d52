"""A mirror whose large batches tasks fold: the same table as the driver's, from files that the driver only commits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from bson import Int64
from bson.datetime_ms import DatetimeMS
from deltalake import DeltaTable

from headrace import limits
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.rows.extjson import dumps
from headrace.spark.sinks import folding_sink
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.folding_sink import FoldingSink, FoldTask, HistorySink, MirrorSink, is_cluster, mirror_sink
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.tables.delta_table import DeltaDocumentTable
from headrace.spark.tables.fold import MirrorDiverged
from headrace.spark.tables.staged_files import Slots, staged_prefix
from headrace.spark.tables.typed.table_schema import TypedOptions, parse_partition
from tests.spark.support.generated_changes import GeneratedChanges, table_of, token_at
from tests.spark.support.local_frame import LocalFrame, SourceFrame


@pytest.fixture(autouse=True)
def _every_batch_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_ROW_COUNT_MIN", 0)


Spread = Callable[..., Any]
KINDS = (
    "mirror", "mirror buckets", "mirror typed", "mirror typed buckets", "mirror typed partitions", "history",
    "history typed", "history typed partitions",
)  # fmt: skip


def opened(kind: str, path: Path) -> FoldingSink:
    typed = None
    if "typed" in kind:
        partitions = (parse_partition("b"), parse_partition("day(at)")) if "partitions" in kind else ()
        typed = TypedOptions(rules=ColumnRules("text"), partitions=partitions)
    if kind.startswith("history"):
        return HistorySink(path, typed=typed)
    return mirror_sink(path, buckets=5 if "buckets" in kind else 0, typed=typed)


@pytest.fixture(params=["by the sink's tasks", "by the source's"])
def spread(request: pytest.FixtureRequest) -> Spread:
    """Gives rows to a mirror, divided by tasks of the sink, or by those that have read them."""

    def apply(sink: FoldingSink, rows: pa.Table, number: int = 0) -> Any:
        frame: Any = LocalFrame(rows)
        table = sink.folded_by_tasks
        assert table is not None
        if request.param == "by the source's":
            sink.staged_by_source = True
            frame = SourceFrame(
                rows, table.location.url, staged_prefix("q", number), sink.slots(frame.sparkSession).text()
            )
        return sink.apply_frame(frame, "q", number)

    return apply


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it lets no row come to the driver."""
    return lambda: monkeypatch.setattr(FoldingSink, "apply", lambda *_: pytest.fail("the rows came to the driver"))


def rows_of(sink: Any) -> list[dict[str, Any]]:
    table = sink.table.read()
    return table.sort_by([(name, "ascending") for name in ("_id", "token")]).to_pylist()


def stored(table: DeltaTable) -> list[str]:
    """The rows of a table as they are stored, whatever the order of its columns."""
    rows = table.to_pyarrow_table()
    return sorted(map(str, rows.select(sorted(rows.column_names)).to_pylist()))


def some_changes(count: int, seed: int) -> pa.Table:
    changes = GeneratedChanges(seed)
    changes.writes(count)
    return table_of(changes.events)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_make_the_table_that_the_driver_makes(spread: Spread, tmp_path: Path, kind: str) -> None:
    rows = some_changes(300, 4)
    sinks = [opened(kind, tmp_path / name) for name in ("tasks", "driver")]
    for number, start in enumerate(range(0, 300, 60)):
        part = rows.slice(start, 60)
        driver = sinks[1].apply(MicroBatch("q", number, part))
        with pytest.MonkeyPatch.context() as patch:
            if "typed" not in kind:
                patch.setattr(FoldingSink, "apply", lambda *_: pytest.fail("the rows came to the driver"))
            report = spread(sinks[0], part, number)
        assert replace(report, committed_ms=0) == replace(driver, committed_ms=0)
        assert rows_of(sinks[0]) == rows_of(sinks[1])
        assert sinks[0].position() == sinks[1].position()
    assert spread(opened(kind, tmp_path / "tasks"), part, number) is None
    tasks, driver_table = DeltaTable(tmp_path / "tasks"), DeltaTable(tmp_path / "driver")
    assert tasks.schema() == driver_table.schema()
    assert stored(tasks) == stored(driver_table)
    assert not list(Path(tmp_path / "tasks").glob("part-q-*")), "staged rows stay"


def some_value(chance: random.Random, depth: int = 0) -> Any:
    values: list[Callable[[], Any]] = [
        lambda: None, lambda: chance.randrange(9), lambda: Int64(chance.randrange(1 << 40)), chance.random,
        lambda: chance.choice("abc"), lambda: DatetimeMS(chance.randrange(3) * 86_400_000),
        lambda: [some_value(chance, 2) for _ in range(chance.randrange(3))],
        lambda: {name: some_value(chance, depth + 1) for name in chance.sample("xyz", chance.randrange(3))},
    ]  # fmt: skip
    return chance.choice(values if depth < 2 else values[:5])()


def any_changes(seed: int, count: int, *, floats: bool = True) -> pa.Table:
    """Events of documents with any fields, whose keys become other types of numbers, and rows of a snapshot."""
    chance = random.Random(seed)
    documents: dict[int, dict[str, Any]] = {}
    rows = []
    for number in range(1, count + 1):
        key = chance.randrange(12)
        fields = {name: some_value(chance) for name in chance.sample(("at", "b", "c", "d"), chance.randrange(4))}
        old, new = documents.get(key), {"_id": float(key) if floats and chance.random() < 0.5 else key, **fields}
        if old is None:
            rows.append(_row(number, chance.choice(["insert", "snapshot"]), new))
        elif chance.random() < 0.3:
            rows.append(_row(number, "delete", old))
        elif chance.random() < 0.5:
            rows.append(_row(number, "replace", new, key=old["_id"]))
        else:
            new = old | fields
            update = {"fullDocument": None, "updateDescription": dumps({"updatedFields": fields, "removedFields": []})}
            rows.append(_row(number, "update", new) | update)
        documents[key] = new
        if rows[-1]["operationType"] == "delete":
            del documents[key]
    return _table(rows)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_batches_of_the_driver_and_of_tasks_take_turns(
    spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """A file that the driver wrote has rows of all slots, and tasks rewrite it; the driver adds and widens columns."""
    run, folded = FoldTask.run, list[bool]()

    def counted(task: FoldTask, session: Any) -> Any:
        done = run(task, session)
        folded.append(done is not None)
        return done

    monkeypatch.setattr(FoldTask, "run", counted)
    rows = any_changes(seed, 240, floats="buckets" not in kind)
    sink, expected = (opened(kind, tmp_path / name) for name in ("mixed", "driver"))
    for number, start in enumerate(range(0, 240, 30)):
        part = rows.slice(start, 30)
        expected.apply(MicroBatch("q", number, part))
        if number % 4 == 2:
            sink.apply(MicroBatch("q", number, part))
        else:
            spread(sink, part, number)
        assert rows_of(sink) == rows_of(expected)
    assert sink.position() == expected.position()
    assert any(folded) and (all(folded) or "typed" in kind), "the rows came to the driver"


def test_a_file_is_written_anew_only_if_a_row_of_it_changes(
    spread: Spread, in_tasks: Callable[[], None], tmp_path: Path
) -> None:
    in_tasks()
    sink = mirror_sink(tmp_path)
    inserts = [_row(number, "insert", {"_id": number, "n": 0}) for number in range(40)]
    spread(sink, _table(inserts), 0)
    before = set(DeltaTable(tmp_path).file_uris())
    assert len(before) == 3
    spread(sink, _table([_row(40, "update", {"_id": 7, "n": 1})]), 1)
    after = set(DeltaTable(tmp_path).file_uris())
    assert len(before & after) == 2 and len(after) == 3
    spread(sink, _table([_row(41, "insert", {"_id": 99, "n": 1})]), 2)
    assert after < set(DeltaTable(tmp_path).file_uris())
    for number in range(40):
        spread(sink, _table([_row(50 + number, "delete", {"_id": number})]), 3 + number)
    assert [row["_id"] for row in rows_of(sink)] == [dumps(99)]


@pytest.mark.parametrize("kind", ["mirror typed partitions", "history typed partitions"])
def test_the_value_of_a_partition_may_have_any_character(spread: Spread, tmp_path: Path, kind: str) -> None:
    sink = opened(kind, tmp_path)
    documents = [{"_id": number, "b": text} for number, text in enumerate(("a b/c", "é", "x=y%20z"))]
    for number in range(2):
        rows = [_row(10 * number + each["_id"] + 1, "replace", each | {"n": number}) for each in documents]
        if number:
            spread(sink, _table(rows), number)
        else:
            sink.apply(MicroBatch("q", number, _table(rows)))
    current = [row for row in rows_of(sink) if row.get("current", True)]
    assert [row["document"] for row in current] == [dumps(each | {"n": 1}) for each in documents]


def test_rows_about_more_than_one_document_are_folded_in_the_driver(
    spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FoldTask, "run", lambda *_: pytest.fail("tasks fold it"))
    changes = GeneratedChanges(3)
    changes.writes(9)
    changes.drop()
    sink = mirror_sink(tmp_path)
    assert spread(sink, table_of(changes.events)).row_count > 9
    assert rows_of(sink) == []
    assert not list(tmp_path.glob("part-q-*"))


def test_an_event_that_does_not_fit_is_named_as_the_driver_does(spread: Spread, tmp_path: Path) -> None:
    sink = mirror_sink(tmp_path)
    update = _row(5, "update", {"_id": 1}) | {"fullDocument": None, "updateDescription": '{"updatedFields":{"a":1}}'}
    with pytest.raises(MirrorDiverged, match="has no document") as caught:
        spread(sink, _table([_row(4, "insert", {"_id": 2}), update]))
    assert caught.value.token == token_at(5)
    assert sink.position().token == "" and not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize("buckets", [0, 7])
def test_a_document_whose_key_becomes_another_type_of_number_is_one_document(
    spread: Spread, tmp_path: Path, buckets: int
) -> None:
    sink, expected = (mirror_sink(tmp_path / name, buckets=buckets) for name in ("tasks", "driver"))
    batches = [
        [_row(number, "insert", {"_id": number}) for number in range(9)],
        [_row(20 + number, "replace", {"_id": float(number)}, key=number) for number in range(9)],
        [_row(30 + number, "delete", {"_id": float(number)}) for number in range(0, 9, 2)],
    ]
    for number, rows in enumerate(batches):
        expected.apply(MicroBatch("q", number, _table(rows)))
        spread(sink, _table(rows), number)
        assert rows_of(sink) == rows_of(expected)


def test_a_small_batch_stays_in_the_driver(spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_ROW_COUNT_MIN", 4)
    folded: list[int] = []
    run = FoldTask.run
    monkeypatch.setattr(FoldTask, "run", lambda *given: folded.append(1) or run(*given))
    sink = mirror_sink(tmp_path)
    spread(sink, _table([_row(number, "insert", {"_id": number}) for number in range(3)]))
    assert not folded
    spread(sink, _table([_row(10 + number, "insert", {"_id": 10 + number}) for number in range(4)]), 1)
    assert folded == [1] and len(rows_of(sink)) == 7


def test_a_table_too_large_for_tasks_is_folded_by_the_driver(
    spread: Spread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = mirror_sink(tmp_path)
    spread(sink, _table([_row(1, "insert", {"_id": 1})]))
    monkeypatch.setattr(limits, "FOLD_SLOT_BYTES_MAX", 1)
    monkeypatch.setattr(FoldTask, "run", lambda *_: pytest.fail("tasks fold it"))
    spread(sink, _table([_row(2, "insert", {"_id": 2})]), 1)
    assert len(rows_of(sink)) == 2


def test_a_large_table_has_more_tasks_and_keeps_the_files_that_no_row_changes(
    spread: Spread, in_tasks: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tasks()
    for number in range(2):
        inserts = [_row(100 * number + key, "insert", {"_id": 100 * number + key}) for key in range(1, 41)]
        spread(mirror_sink(tmp_path), _table(inserts), number)
    before = DeltaTable(tmp_path)
    sizes = pa.table(before.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    monkeypatch.setattr(limits, "FOLD_SLOT_BYTES_MAX", sum(sizes) / 5)
    sink = mirror_sink(tmp_path)
    spread(sink, _table([_row(300, "replace", {"_id": 7, "n": 1})]), 2)
    assert sink.slots(None).count == 12
    files = set(DeltaTable(tmp_path).file_uris())
    assert len(files & set(before.file_uris())) == len(sizes) - 1 and len(files) > len(sizes)
    keys = [row["_id"] for row in rows_of(sink)]
    assert len(keys) == len(set(keys)) == 80


def test_fields_that_the_table_omits_are_omitted_by_tasks(
    spread: Spread, in_tasks: Callable[[], None], tmp_path: Path
) -> None:
    in_tasks()
    sink = parse_sink({"kind": "mirror", "path": "m", "omit": ["secret"]}, tmp_path).open()
    assert isinstance(sink, MirrorSink)
    spread(sink, _table([_row(1, "insert", {"_id": 1, "secret": 2, "n": 3})]))
    assert [row["document"] for row in rows_of(sink)] == [dumps({"_id": 1, "n": 3})]


def test_at_a_snapshot_s_end_a_history_reads_the_versions_that_it_did_not_confirm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, read = HistorySink(tmp_path), list[str]()
    current = DeltaDocumentTable.rows

    def recorded(*given: Any) -> Any:
        versions = current(*given)
        read.extend(versions)
        return versions

    monkeypatch.setattr(DeltaDocumentTable, "rows", recorded)
    for number, keys in enumerate([range(9), range(1, 9)]):
        rows = [_row(20 * number + key, "snapshot", {"_id": key}) for key in keys]
        around = [rows[0] | {"operationType": kind, "documentKey": None} for kind in ("snapshotBegin", "snapshotEnd")]
        ends = around[1] | {"token": token_at(20 * number + 10)}
        for batch, part in enumerate([[around[0] | {"token": token_at(20 * number)}], rows, [ends]]):
            read.clear()
            sink.apply(MicroBatch("q", 3 * number + batch, _table(part)))
        assert read == ([dumps(0)] if number else [])
    assert [row["_id"] for row in rows_of(sink) if row["endedBy"]] == [dumps(0)]


@pytest.mark.parametrize("kind", ["mirror", "history"])
def test_who_folds_follows_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(folding_sink, "_active_session", lambda: None)  # another test's, of one process

    def open_sink(**options: Any) -> Any:
        return parse_sink({"kind": kind, "path": "m", **options}, tmp_path).open()

    assert open_sink().folded_by_tasks and open_sink(schema="infer").folded_by_tasks
    for options in ({"writers": "driver"}, {"policy": "keep"}, *([{"table": "parquet"}] if kind == "mirror" else [])):
        assert open_sink(**options).folded_by_tasks is None and not open_sink(**options).takes_frames
    new = open_sink()
    assert not new.takes_frames, "the driver looks at the first rows of a table"
    new.apply(MicroBatch("q", 0, _table([_row(1, "insert", {"_id": 1})])))
    assert new.takes_frames


@pytest.mark.parametrize(
    ("master", "folds"),
    [("local", False), ("local[4]", False), ("local-cluster[2,1,1024]", True), ("spark://a:7077", True)],
)
def test_the_driver_folds_where_tasks_run_in_its_process(master: str, folds: bool) -> None:
    assert is_cluster(SimpleNamespace(sparkContext=SimpleNamespace(master=master))) is folds


def test_slots_have_whole_buckets_and_keys_that_are_equal() -> None:
    chance = random.Random(1)
    keys = [dumps(chance.choice([number, float(number), str(number)])) for number in range(300)]
    slots = Slots.of("4/6")
    assert slots == Slots(4, 6) and Slots.of("") is None and Slots.of(slots.text()) == slots
    assert all(slots.slot(key) == slots.bucket(key) % 4 for key in keys)
    plain = Slots(4)
    assert all(plain.slot(dumps(number)) == plain.slot(dumps(float(number))) for number in range(50))
    assert {plain.slot(key) for key in keys} == {0, 1, 2, 3}
    name = plain.file_name(3)
    assert plain.slot_of_file(name) == 3 and Slots(5).slot_of_file(name) is None
    assert plain.slot_of_file("part-0001.parquet") is None


def _row(number: int, kind: str, document: dict[str, Any], key: Any = None) -> dict[str, Any]:
    return {
        "token": token_at(number), "operationType": kind, "database": "db", "collection": "c",
        "documentKey": dumps({"_id": document["_id"] if key is None else key}),
        "fullDocument": None if kind == "delete" else dumps(document), "updateDescription": None, "other": None,
    }  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in rows[0]]))
