"""Columns hold the values that the evaluator finds: random documents, all BSON types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bson import Binary, Code, DBRef, Int64
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.cursors.column_tests import columns_test
from headrace.errors import CommandError
from headrace.query import sort as sorting
from headrace.query.match import parse_filter
from headrace.query.operation_memory import OperationMemory
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.query.projection import Projection, included_fields, parse_projection
from headrace.query.sort import SortColumns, SortKey, parse_sort
from headrace.query.stages import group as group_column_module
from headrace.query.stages.group import Group, group_columns
from headrace.query.stages.reshaping import Unwind
from headrace.query.stages.sort_stage import Sort
from headrace.store.temporary.spill_file import SpillFolder
from headrace.values.bson import MISSING, decode, encode, encode_in_order
from headrace.values.bson import columns as column_module
from headrace.values.bson.columns import Columns, cut_documents
from tests.differential.documents import RARE, Values
from tests.differential.queries import filter_of

Document = dict[str, Any]


@pytest.fixture(autouse=True)
def _patterns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DECODED_COUNT", 0)
    monkeypatch.setattr(column_module, "_SHAPE_COUNT_MAX", 10_000)


def random_documents(seed: int, count: int = 30) -> tuple[Values, list[bytes]]:
    random = Random(seed)
    values = Values(random, arrays=seed % 2 == 0, nested=random.random() < 0.6, rare=random.choice([0.05, 0.4]))
    documents = []
    for number in range(count):
        items = list(values.document(number).items())
        if random.random() < 0.2:
            random.shuffle(items)
        documents.append(encode_in_order(dict(items)))
    return values, documents


def with_a_field_twice(number: int) -> bytes:
    parts = [{"_id": number, "a": number % 3}, {"b": 7, "c": {"a": 5}}, {"a": "last"}, {"b": [number]}]
    body = b"".join(encode(part)[4:-1] for part in parts[: 2 + number % 3])
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def test_a_field_that_a_document_has_twice_is_the_same_in_all_ways_to_read_it() -> None:
    """MongoDB's drivers do not make such a document, and its server takes it."""
    documents = [with_a_field_twice(number) for number in range(30)]
    columns = Columns(("a", "b"))
    columns.values(documents)
    read = columns.values(documents)
    assert read == {name: [decode(document)[name] for document in documents] for name in ("a", "b")}
    cut = list(cut_documents(iter(documents), ("a",), lambda raw: encode({"a": decode(raw)["a"]})))
    assert [decode(document) for document in cut] == [{"a": decode(document)["a"]} for document in documents]


LENGTHS = [0, 1, 15, 16, 62, 63, 64, 65, 127, 128, 255, 256, 257, 70_000]


def of_all_types() -> Iterator[Any]:
    yield from RARE
    yield from ("x" * length for length in LENGTHS)
    yield from ("\0" * length for length in LENGTHS)
    yield from ({"s": "x" * length} for length in LENGTHS)
    yield from (["x" * length] for length in LENGTHS)
    yield from (b"\0" * length for length in LENGTHS)
    yield from (
        Binary(b"\0" * 16, 4),
        Binary(b"\1" * 20, 2),
        Code("f", {"a": 1}),
        DBRef("c", 1),
        [],
        [[]],
        {"a": {"b": None}},
    )
    yield from ("\0\x10a\0\1\0\0\0", b"\x10a\0\1\0\0\0", {"a": 7}, [{"a": 7}], {"$ref": "c", "$id": 2})


def test_a_column_has_the_value_of_every_type_behind_values_of_every_type() -> None:
    whole = []
    for value in of_all_types():
        for other in (1, "x" * 300):
            whole += [
                encode({"b": other, "c": value, "a": other}),
                encode({"a": value, "c": other}),
                encode({"c": value}),
            ]
    whole += [encode({}), encode({"aa": 1, "": 2})]
    found = Columns(("a", "c", "aa", "")).values(whole)
    for name, values in found.items():
        expected = [decode(document).get(name, MISSING) for document in whole]
        assert [repr(value) for value in values] == [repr(value) for value in expected]
        assert list(map(type, values)) == list(map(type, expected))


def test_types_that_are_no_longer_written_are_read_as_the_codec_reads_them() -> None:
    elements = [b"\x06u\0", b"\x0eu\0\2\0\0\0x\0", b"\x0cu\0\2\0\0\0x\0" + b"\0" * 12, b"\x10u\0\1\0\0\0"]
    made = [element + b"\x10a\0\5\0\0\0" for element in elements]
    documents = [(len(body) + 5).to_bytes(4, "little") + body + b"\0" for body in made]
    found = Columns(("a", "u")).values(documents)
    assert found == {name: [decode(document).get(name) for document in documents] for name in ("a", "u")}


def test_fields_are_cut_out_in_their_order_or_not_at_all() -> None:
    documents = [encode({"a": 1, "b": [1, {"c": "x"}], "c": 2}), encode({"c": 1, "a": 2}), encode({"a": 1})]
    assert Columns(("a", "c")).cut(documents) == [encode({"a": 1, "c": 2}), None, encode({"a": 1})]


@pytest.mark.parametrize("part", range(4))
def test_filters_by_columns_choose_what_the_evaluator_chooses(part: int) -> None:
    by_columns = 0
    for seed in range(100 * part, 100 * part + 100):
        values, documents = random_documents(seed)
        for _ in range(5):
            spec = filter_of(values)
            try:
                predicate = parse_filter(spec)
            except CommandError:
                continue
            keep = columns_test(predicate.node)
            if keep is not None:
                by_columns += 1
                expected = [document for document in documents if predicate(decode(document))]
                assert keep(documents) == expected, spec
    assert by_columns > 200


def mostly_of_one_type(random: Random, share: float) -> list[bytes]:
    kinds: list[Callable[[], Any]] = [
        lambda: DatetimeMS(random.choice([-(2**63), -1, 0, 1, 2**63 - 1])),
        lambda: random.randrange(5),
        lambda: "x" * random.randrange(400),
        lambda: {"b": DatetimeMS(random.randrange(3)), "c": random.choice([1, None])},
    ]
    usual = random.choice(kinds)
    documents = []
    for number in range(300):
        value = random.choice([*kinds, lambda: [], lambda: None])() if random.random() < share else usual()
        document = {"_id": number, "a": value, "d": random.choice(kinds)() if random.random() < share else 1}
        if random.random() < share:
            del document["a"]
        documents.append(encode(document))
    return documents


@pytest.mark.parametrize("share", [0.0, 0.004, 0.05, 0.5])
def test_columns_of_mostly_one_type_are_those_of_the_evaluator(share: float) -> None:
    date = DatetimeMS(0)
    filters = [{"a": {operator: date}} for operator in ("$gt", "$gte", "$lt", "$lte", "$eq")]
    filters += [{"a.b": {"$gt": date}}, {"a.b": None}, {"a.c": {"$exists": False}}, {"a": "x" * 7}]
    filters += [{"a": {"$regex": "^x.*x"}}, {"d": 1, "a": {"$gte": date}}, {"a": {"$not": {"$gte": date}}}]
    for seed in range(12):
        documents = mostly_of_one_type(Random(seed), share)
        chunks = [documents[first : first + 60] for first in range(0, len(documents), 60)]
        for spec in filters:
            predicate = parse_filter(spec)
            keep = columns_test(predicate.node)
            assert keep is not None
            expected = [document for document in documents if predicate(decode(document))]
            assert [document for chunk in chunks for document in keep(chunk)] == expected, spec
        for order in (parse_sort({"a": 1}), parse_sort({"a.b": -1}), parse_sort({"a": 1, "d": -1})):
            keys = SortColumns(order)
            found = [key for chunk in chunks for key in keys.of(chunk)]
            assert found == [order.merge_key(decode(document)) for document in documents]
        names = ("d", "a", "missing")
        columns, raw = Columns(names), Columns(names)
        for chunk in chunks:
            values, elements = columns.values(chunk), raw.raw(chunk)
            for name in names:
                expected = [decode(document).get(name, MISSING) for document in chunk]
                assert list(map(repr, values[name])) == list(map(repr, expected))
                assert [element is None for element in elements[name].elements] == [
                    value is MISSING for value in expected
                ]
                for document, element, end in zip(chunk, elements[name].elements, elements[name].ends):
                    assert element is None or document[end - len(element) : end] == element


def test_a_document_that_contains_the_separator_is_read_as_any_other() -> None:
    separator = column_module._SEPARATOR
    whole = [{"a": number, "b": Binary(separator)} for number in range(40)]
    documents = list(map(encode, whole))
    for names in (("a", "b"), ("b",)):
        columns = Columns(names)
        cut, raw = columns.cut(documents), Columns(names).raw(documents)
        assert cut == [None] * 40 or [decode(document) for document in cut if document] == whole
        assert [decode_element(element) for element in raw["b"].elements] == [separator] * 40


def decode_element(element: bytes | None) -> Any:
    assert element is not None
    (value,) = decode((len(element) + 5).to_bytes(4, "little") + element + b"\0").values()
    return value


KEYS: list[Any] = [
    None, 1, "$a", "$b", "$a.b", {"x": "$a"}, {"x": "$a", "y": "$b"}, {"$type": "$c"}, "$_id",
    {"$ifNull": ["$a", "$b"]}, {"x": "$missing"}, ["$a", "$b"],
]  # fmt: skip
INPUTS: list[Any] = [1, "$b", "$a.b", "$c", {"$ifNull": ["$a", 2]}, {"$type": "$a"}, None, Int64(2), 1.5, "$_id"]
ACCUMULATORS = (
    "$addToSet", "$avg", "$first", "$last", "$max", "$mergeObjects", "$min", "$push", "$stdDevPop", "$sum", "$sum",
)  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_groups_by_columns_are_those_of_the_evaluator(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_column_module, "_KNOWN_COUNT_MAX", [0, 3, 10, 10_000][part])
    monkeypatch.setattr(column_module, "BATCH_COUNT", [2, 7, 20, 256][part])
    by_columns = 0
    for seed in range(100 * part, 100 * part + 100):
        _, documents = random_documents(seed, 40)
        random = Random(seed)
        for _ in range(5):
            spec = {"_id": random.choice(KEYS)}
            for number in range(random.choice([0, 1, 2])):
                spec[f"f{number}"] = {random.choice(ACCUMULATORS): random.choice(INPUTS)}
            stages: list[Document] = [{"$group": spec}]
            if random.random() < 0.4:
                keeps = random.choice([True, False])
                stages.insert(
                    0, {"$unwind": {"path": random.choice(["$a", "$b"]), "preserveNullAndEmptyArrays": keeps}}
                )
            by_columns += compare_groups(stages, documents)
    assert by_columns > 300


def test_a_key_with_a_random_number_is_computed_for_each_document() -> None:
    documents = [encode({"a": 1})] * 300
    (group,) = parse_pipeline([{"$group": {"_id": {"$add": ["$a", {"$rand": {}}]}}}], context=PipelineContext())
    assert isinstance(group, Group)
    columns = group_columns(group)
    assert columns is not None
    assert len(list(group.apply_columns(columns, iter(documents)))) == 300


def compare_groups(stages: list[Document], documents: list[bytes]) -> bool:
    parsed = parse_pipeline(stages, context=PipelineContext())
    unwind = parsed[0] if isinstance(parsed[0], Unwind) else None
    group = parsed[-1]
    assert isinstance(group, Group)
    columns = group_columns(group, unwind)
    if columns is None:
        return False
    expected = answer(run_pipeline(parsed, map(decode, documents)))
    got = answer(group.apply_columns(columns, iter(documents)))
    assert got == expected, stages
    return True


def answer(documents: Iterator[Document]) -> Any:
    try:
        return list(map(encode, documents))
    except CommandError as error:
        return error.code


def test_a_group_by_columns_goes_on_where_its_memory_is_full(tmp_path: Path) -> None:
    documents = [encode({"_id": number, "k": number * 7 % 1000, "a": [number, "x" * 20]}) for number in range(3000)]
    stages = [{"$unwind": "$a"}, {"$group": {"_id": "$k", "n": {"$sum": 1}, "all": {"$push": "$a"}}}]
    memory = OperationMemory(lambda stage: 50_000, open_file=SpillFolder(tmp_path, 0).open_file)
    unwind, group = parse_pipeline(stages, context=PipelineContext(memory=memory))
    assert isinstance(group, Group) and isinstance(unwind, Unwind)
    columns = group_columns(group, unwind)
    assert columns is not None
    expected = run_pipeline(parse_pipeline(stages, context=PipelineContext()), map(decode, documents))
    assert sorted(map(encode, group.apply_columns(columns, iter(documents)))) == sorted(map(encode, expected))


@pytest.mark.parametrize("part", range(4))
def test_sort_keys_by_columns_are_those_of_the_evaluator(part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        _, documents = random_documents(seed, 40)
        random = Random(seed)
        paths = random.sample(["a", "b", "c", "_id", "a.b", "b.c"], random.choice([1, 1, 2, 3]))
        order = parse_sort({path: random.choice([1, -1]) for path in paths})

        def keys(order: SortKey = order, documents: list[bytes] = documents) -> list[Any]:
            return [order.merge_key(decode(document)) for document in documents]

        expected: Any = None
        try:
            expected = keys()
        except CommandError as error:
            with pytest.raises(CommandError) as raised:
                SortColumns(order).of(documents)
            assert raised.value.code == error.code
        else:
            assert list(SortColumns(order).of(documents)) == expected


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("wanted", [None, 1, 50])
def test_chunks_are_put_together_in_order(direction: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "CHUNK_COUNT", 16)
    monkeypatch.setattr(sorting, "_STRIDE", 4)
    random = Random(1)
    whole = [{"_id": number, "a": random.choice([number, random.randrange(20), 7])} for number in range(700)]
    spec = {"$sort": {"a": direction}}
    stages = [spec] if wanted is None else [spec, {"$limit": wanted}]
    (sort, *_) = parse_pipeline(stages, context=PipelineContext())
    assert isinstance(sort, Sort)
    expected = sorted(whole, key=lambda document: direction * document["a"])
    assert list(map(decode, sort.apply_raw(map(encode, whole)))) == expected[:wanted]


def test_projections_by_columns_are_those_of_the_evaluator() -> None:
    for seed in range(100):
        _, documents = random_documents(seed, 40)
        names = Random(seed).sample(["a", "b", "c", "_id"], 2)
        spec = dict.fromkeys(names, 1) | ({} if "_id" in names else {"_id": 0})
        project = parse_projection(spec, kind="find")
        fields = included_fields(spec)
        assert fields is not None

        def otherwise(raw: bytes, project: Projection = project) -> bytes:
            return encode_in_order(project(decode(raw)))

        assert list(cut_documents(iter(documents), fields, otherwise)) == list(map(otherwise, documents))
