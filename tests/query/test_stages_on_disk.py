"""Blocking stages in little memory: what they answer is what they answer in much, by way of the disk."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64

from headrace import limits
from headrace.errors import CommandError
from headrace.memory_budget import Memory
from headrace.query.collation import parse_collation
from headrace.query.operation_memory import OperationMemory, size_of
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.query.sort import parse_sort
from headrace.store.temporary.spill_file import SpillFolder
from headrace.values.bson import encode

pytestmark = pytest.mark.long

LITTLE = 4096


def value(chance: random.Random) -> Any:
    return chance.choice([
        chance.randrange(50), Int64(chance.randrange(50)), chance.random() * 50, Decimal128(str(chance.randrange(50))),
        float("nan"), "abcde"[chance.randrange(5) :] * 3, None, [chance.randrange(9), "x"], {"a": chance.randrange(9)},
    ])  # fmt: skip


def documents(count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    return [
        {"_id": index, "k": chance.randrange(count // 3), "n": chance.randrange(1000), "v": value(chance), "l": [index]}
        for index in range(count)
    ]


def memory(folder: Path, bytes_max: int = LITTLE, **options: Any) -> OperationMemory:
    return OperationMemory(lambda stage: bytes_max, open_file=SpillFolder(folder, 0).open_file, **options)


def run(pipeline: list[Any], operation: OperationMemory | None = None, **context: Any) -> list[dict[str, Any]]:
    bounds = {} if operation is None else {"memory": operation}
    stages = parse_pipeline(pipeline, context=PipelineContext(**bounds, **context))
    return list(run_pipeline(stages, documents(2000)))


def canonical(results: list[dict[str, Any]]) -> list[bytes]:
    return [encode(document) for document in results]


@pytest.mark.parametrize(
    "spec", [{"v": 1}, {"v": -1}, {"k": 1, "v": -1}, {"k": -1, "v": 1, "n": -1}, {"l": -1}, {"nothing": 1}]
)
@pytest.mark.parametrize("wanted", [None, 1, 300])
def test_a_sort_on_disk_is_the_sort_in_memory(tmp_path: Path, spec: dict[str, int], wanted: int | None) -> None:
    tail = [] if wanted is None else [{"$limit": wanted}]
    operation = memory(tmp_path)
    answer = run([{"$sort": spec}, *tail], operation)
    assert canonical(answer) == canonical(parse_sort(spec).sorted(documents(2000))[:wanted])
    assert wanted == 1 or operation.spills["$sort"]["spills"] > 1


ACCUMULATORS: dict[str, Any] = {
    name.lstrip("$"): {name: argument}
    for name, argument in {
        "$addToSet": "$v", "$avg": "$v", "$bottom": {"sortBy": {"v": 1}, "output": "$_id"},
        "$bottomN": {"n": 2, "sortBy": {"v": -1}, "output": "$missing"}, "$concatArrays": "$l", "$count": {},
        "$first": "$v", "$firstN": {"n": 2, "input": "$v"}, "$last": "$v", "$lastN": {"n": 2, "input": "$v"},
        "$max": "$v", "$maxN": {"n": 2, "input": "$v"}, "$median": {"input": "$v", "method": "approximate"},
        "$mergeObjects": {"a": "$v"}, "$min": "$v", "$minN": {"n": 2, "input": "$v"},
        "$percentile": {"input": "$n", "p": [0.1, 0.9], "method": "approximate"}, "$push": "$v", "$setUnion": "$l",
        "$stdDevPop": "$n", "$stdDevSamp": "$v", "$sum": "$v", "$top": {"sortBy": {"v": 1}, "output": "$v"},
        "$topN": {"n": 3, "sortBy": {"n": 1, "v": -1}, "output": ["$_id", "$v"]},
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_groups_on_disk_are_the_groups_in_memory(tmp_path: Path, name: str) -> None:
    pipeline = [{"$group": {"_id": {"k": "$k"}, "x": ACCUMULATORS[name]}}]
    operation = memory(tmp_path, 20_000)
    there = {encode(document["_id"]): encode(document) for document in run(pipeline, operation)}
    assert there == {encode(document["_id"]): encode(document) for document in run(pipeline)}
    assert operation.spills["$group"]["spills"] > 8


def test_groups_that_collate_go_to_disk_without_the_collation(tmp_path: Path) -> None:
    pipeline = [
        {"$group": {"_id": {"$toString": "$k"}, "x": {"$addToSet": "$v"}, "y": {"$maxN": {"n": 2, "input": "$v"}}}}
    ]
    collation = parse_collation({"locale": "en", "strength": 1})
    operation = memory(tmp_path, 20_000)
    there = {document["_id"]: encode(document) for document in run(pipeline, operation, collation=collation)}
    assert there == {document["_id"]: encode(document) for document in run(pipeline, collation=collation)}
    assert operation.spills


@pytest.mark.parametrize(
    "stage",
    [
        {"$bucketAuto": {"groupBy": "$v", "buckets": 7, "output": {"ids": {"$push": "$_id"}}}},
        {"$bucketAuto": {"groupBy": "$n", "buckets": 9, "granularity": "R20"}},
        {"$bucketAuto": {"groupBy": "$nothing", "buckets": 3}},
        {"$setWindowFields": {"partitionBy": "$k", "sortBy": {"n": -1}, "output": {"r": {"$rank": {}}}}},
        {"$facet": {"a": [{"$sort": {"n": 1}}, {"$limit": 3}], "b": [{"$count": "all"}]}},
    ],
    ids=str,
)  # fmt: skip
def test_other_stages_on_disk_answer_what_they_answer_in_memory(tmp_path: Path, stage: dict[str, Any]) -> None:
    operation = memory(tmp_path, 30_000)
    assert canonical(run([stage], operation)) == canonical(run([stage]))
    assert operation.spills[next(iter(stage))]["spilledRecords"] > 0


def open_files(folder: Path) -> list[str]:
    """This process's open files of the folder, with or without a name."""
    files = (os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return [name for name in files if name.startswith(f"{folder}/")]


def test_what_was_taken_is_given_back_and_no_file_stays(tmp_path: Path) -> None:
    budget = Memory()
    operation = memory(tmp_path, account=budget.account("operation"))
    stages = parse_pipeline(
        [{"$group": {"_id": "$_id"}}, {"$sort": {"_id": -1}}], context=PipelineContext(memory=operation)
    )
    answer = run_pipeline(stages, documents(2000))
    assert next(answer)["_id"] == 1999
    assert budget.used > 0
    assert open_files(tmp_path)
    answer.close()  # type: ignore[attr-defined]
    del answer
    assert budget.used == 0
    assert not open_files(tmp_path)
    assert list((tmp_path / "_tmp").iterdir()) == []
    assert (tmp_path / "_tmp").stat().st_mode & 0o777 == 0o700


def refused(pipeline: list[Any], operation: OperationMemory) -> tuple[int, str]:
    with pytest.raises(CommandError) as raised:
        run(pipeline, operation)
    return raised.value.code, raised.value.message


def test_an_operation_that_may_not_use_the_disk_is_refused_in_the_stages_words(tmp_path: Path) -> None:
    operation = memory(tmp_path, may_spill=False)
    sort = f"Sort exceeded memory limit of {LITTLE} bytes, but did not opt in to external sorting."
    group = "Exceeded memory limit for $group, but didn't allow external spilling; pass allowDiskUse:true to opt in"
    assert refused([{"$sort": {"v": 1}}], operation) == (292, sort)
    assert refused([{"$bucketAuto": {"groupBy": "$v", "buckets": 2}}], operation) == (292, sort)
    assert refused([{"$group": {"_id": "$_id"}}], operation) == (292, group)
    assert refused([{"$sortByCount": "$_id"}], operation) == (292, group)


def test_a_full_disk_is_error_14031_for_that_operation(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path, 1 << 60)
    operation = OperationMemory(lambda stage: LITTLE, open_file=folder.open_file)
    assert refused([{"$sort": {"v": 1}}], operation)[0] == 14031


def test_what_cannot_go_to_disk_is_refused(tmp_path: Path) -> None:
    window = {"$setWindowFields": {"sortBy": {"n": 1}, "output": {"r": {"$rank": {}}}}}
    assert refused([window], memory(tmp_path, 30_000))[0] == 5414201
    facet = {"$facet": {"a": [{"$match": {}}]}}
    code, message = refused([facet], memory(tmp_path, 30_000))
    assert code == 4031700 and message.endswith("bytes, which exceeds the limit of 30000 bytes")


@pytest.mark.parametrize("name", ["addToSet", "concatArrays", "mergeObjects", "push", "setUnion"])
def test_one_accumulator_may_hold_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(limits, "ACCUMULATOR_BYTES_MAX", 5000)
    text = {"$toString": "$_id"}
    grown = {"$arrayToObject": [[{"k": text, "v": text}]]} if name == "mergeObjects" else [text]
    pipeline = [{"$set": {"x": grown}}, {"$group": {"_id": None, "x": {f"${name}": "$x"}}}]
    code, message = refused(pipeline, memory(tmp_path, 1_000_000))
    assert code == 146
    assert message.startswith(f"${name} used too much memory and cannot spill to disk. Used: ")
    assert message.endswith("Memory limit: 5000 bytes")


def test_sizes_are_those_of_values_with_all_that_is_in_them() -> None:
    assert size_of("x" * 1000) > 1000
    assert size_of([{"a": "x" * 1000}] * 10) > 10_000
    assert size_of({"a": 1}) < 400
    assert size_of(b"x" * 1000) > 1000
