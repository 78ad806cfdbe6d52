"""Documents of one layout as typed columns, all at once: the columns equal those of the parser."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.columns import arrow_columns
from headrace.spark.columns.arrow_columns import ArrowColumns, loads_rest
from headrace.spark.columns.column_types import parse_schema
from headrace.spark.columns.infer import ColumnRules, infer_schema
from headrace.spark.rows.extjson import dumps, loads
from tests.spark.columns.test_document_columns import DOCUMENTS, RULES, Document
from tests.values import bson_models

EDGES: dict[type, list[Any]] = {
    bool: [True, False],
    bytes: [b"", b"\0\xff"],
    Binary: [Binary(bytes(16), 4), Binary(b"short", 4), Binary(b"x", 128)],
    DatetimeMS: [DatetimeMS(each) for each in (0, -1, -62135596800000, -62135596800001, 253402214400000, 1 << 60)],
    Decimal128: [Decimal128(each) for each in ("1.50", "1.5", "-0", "NaN", "Infinity", "1E+20", "0.001")],
    float: [0.0, -0.0, 0.1, 1e300, 5e-324, float("nan"), float("inf"), float("-inf"), 1e16],
    int: [0, 1, -1, 127, 128, -129, 32768, (1 << 31) - 1],
    Int64: [Int64(each) for each in (0, 1 << 53, (1 << 53) + 1, -(1 << 63), (1 << 63) - 1)],
    ObjectId: [ObjectId("a" * 24), ObjectId("0123456789abcdef01234567")],
    str: ["", "plain", 'a "quoted" \\ text', "line\nbreak\t\0", "é €", "\U0001f600", "$oid", '"],["'],
    type(None): [None],
}
"""Values of each type at which columns differ."""


def variant(value: Any, chance: random.Random) -> Any:
    """A value of the same kind, mostly."""
    if chance.random() < 0.02:
        return chance.choice([None, 7, "other", MaxKey(), Timestamp(1, 2), {"a": 1}, [1]])
    if type(value) is dict:
        return {name: variant(item, chance) for name, item in value.items()}
    if type(value) is list:
        return [variant(item, chance) for item in value] * chance.randrange(3)
    return chance.choice([value, value, *EDGES.get(type(value), [])])


def document_like(template: Document, chance: random.Random) -> Document:
    """A document of the same layout, mostly."""
    return {name: variant(item, chance) for name, item in template.items()}


def rows(columns: ArrowColumns, split: Any) -> tuple[list[str], list[str]]:
    arrays, rests = split
    assert [array.type for array in arrays] == [field.type for field in columns.arrow]
    return [repr(array.to_pylist()) for array in arrays], sorted(map(dumps, rests))


def assert_equal(columns: ArrowColumns, texts: list[str | None]) -> None:
    documents = [loads_rest(text) for text in texts]
    expected = rows(columns, columns.split(documents))
    for _ in range(2):
        # The second time the layouts are known.
        assert rows(columns, columns.split_texts(texts)) == expected


@pytest.fixture(autouse=True)
def few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_columns, "ROWS_MIN", 2)
        yield


@settings(max_examples=300)
@given(st.lists(DOCUMENTS, max_size=3), st.lists(DOCUMENTS, min_size=1, max_size=2), RULES, st.integers())
def test_the_columns_are_those_of_the_parser(
    sample: list[Document], templates: list[Document], rules: Any, seed: int
) -> None:
    chance = random.Random(seed)
    documents = [document_like(chance.choice(templates), chance) for _ in range(24)]
    texts: list[str | None] = [dumps(document) for document in documents]
    texts[chance.randrange(24)] = None
    columns = ArrowColumns(infer_schema([*sample, *templates], rules))
    assert_equal(columns, texts)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from("abc"), bson_models.SCALARS, min_size=1), st.integers())
def test_a_damaged_text_is_judged_by_the_parser(template: Document, seed: int) -> None:
    chance = random.Random(seed)
    columns = ArrowColumns(infer_schema([loads(dumps(template))], ColumnRules()))
    texts = [dumps(document_like(template, chance)) for _ in range(12)]
    damaged = list(texts[0])
    damaged[chance.randrange(len(damaged))] = chance.choice('"{}[],:\\0x \n')
    texts.append("".join(damaged))
    try:
        documents = [loads(text) for text in texts]
        expected = rows(columns, columns.split(documents))
    except Exception as error:
        with pytest.raises(type(error)):
            columns.split_texts(texts)
        return
    assert rows(columns, columns.split_texts(texts)) == expected


@pytest.mark.parametrize(
    "stored", ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)", "string"]
)
@pytest.mark.parametrize("natural", ["int", "bigint", "double", "decimal(38,2)", "string"])
def test_every_number_is_as_the_parser_says(natural: str, stored: str) -> None:
    columns = ArrowColumns(parse_schema(f"a {natural} as {stored}\nb {stored}"))
    for kind in (int, Int64, float, Decimal128, str):
        texts: list[str | None] = [dumps({"a": value, "b": value}) for value in EDGES[kind] * 3]
        assert_equal(columns, texts)


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ("a timestamp", {"a": DatetimeMS(0)}),
        ("a string", {"a": ObjectId("a" * 24)}),
        ("a objectId", {"a": "text"}),
        ("a uuid", {"a": Binary(bytes(16), 4)}),
        ("a binary", {"a": b"x"}),
        ("a boolean", {"a": True}),
        ("a array<string>", {"a": ["x", "y"]}),
        ("a array<objectId>", {"a": ["x", "y"]}),
        ("a array<int>", {"a": [1, 2, None]}),
        ("a array<struct<x: int, y: timestamp>>", {"a": [{"x": 1, "y": DatetimeMS(5)}]}),
        ("a map<string, double>", {"a": {"x": 0.5, "y": 1.5}}),
        ("a struct<x: int, y: struct<z: string>>", {"a": {"x": 1, "y": {"z": "s"}}}),
        ("a struct<x: int, y: string>", {"a": {"y": "s", "x": 1}}),
        ("a.b string\na.c int -> other", {"a": {"c": 1, "b": "s"}}),
        ("b string\na string", {"a": "s", "b": "t"}),
        ("a string", {"a": "s", "more": 1}),
        ("a struct<x: string>", {"a": None}),
        ('`a"b` string', {'a"b': "s"}),
    ],
)
def test_every_kind_of_column_is_as_the_parser_says(schema: str, document: Document) -> None:
    columns = ArrowColumns(parse_schema(schema))
    chance = random.Random(1)
    assert_equal(columns, [dumps(document_like(document, chance)) for _ in range(60)])


def test_documents_of_one_layout_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ArrowColumns(parse_schema("_id objectId\nn bigint\ntags array<string>\naddress struct<city: string>"))
    texts = [dumps({"_id": ObjectId(), "n": Int64(n), "tags": ["a"], "address": {"city": "é"}}) for n in range(50)]
    columns.split_texts(texts)

    def parse(_: str) -> Any:
        raise AssertionError("a document was parsed")

    monkeypatch.setattr(arrow_columns, "loads", parse)
    arrays, rests = columns.split_texts(texts)
    assert (arrays[1].to_pylist(), rests) == (list(range(50)), [])


@pytest.mark.parametrize(
    "extra", ["1 ", '"\\u0041"', '{"$numberInt":"99999999999"}', '{"$numberLong":"9223372036854775808"}']
)
def test_an_unusual_text_is_left_to_the_parser(extra: str) -> None:
    columns = ArrowColumns(parse_schema("a bigint"))
    texts: list[str | None] = [f'{{"a":{value}}}' for value in ['{"$numberInt":"1"}', '{"$numberLong":"2"}', extra] * 9]
    assert_equal(columns, texts)


def test_a_name_is_no_expression() -> None:
    columns = ArrowColumns(parse_schema("`a.b` int\naxb int\n`(c` string"))
    documents = [{"a.b": 1, "(c": "x"}, {"axb": 2, "(c": "y"}] * 9
    assert_equal(columns, [dumps(document) for document in documents])
