"""Schemas: their text, their inference from documents and validators, and how they grow."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128, Int64, MinKey, ObjectId

from headrace import limits
from headrace.spark.columns.column_types import SchemaError, file_text, is_edited, parse_path, parse_schema, schema_text
from headrace.spark.columns.infer import ColumnRules, grown, infer_schema, validator_schema

RULES = ColumnRules(reserved=frozenset({"_rest", "_shape"}))


def lines(text: str) -> list[str]:
    return text.splitlines()


def inferred(*documents: dict[str, Any], rules: ColumnRules = RULES) -> list[str]:
    return lines(schema_text(infer_schema(documents, rules)))


def test_sparks_ddl_and_lines_are_the_same_schema() -> None:
    ddl = parse_schema("_id STRING, address STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>, m MAP<STRING, BIGINT>")
    text = "_id string  # the key\n\naddress struct<\n  city: string,\n  zip: int>\ntags array<string>"
    text += "\nm map<string, long>"
    assert ddl == parse_schema(text)
    assert lines(schema_text(ddl))[1] == "address struct<city: string, zip: int>"


@pytest.mark.parametrize(
    "text",
    [
        "a", "a date", "a struct<>", "a map<int, int>", "a decimal(99,1)", "a int b int", "a array<rest>", "a `b",
        "a int -> ", "a int, a.b int", "a int, a int", "a int -> A, b int -> a", "s struct<x: int, x: int>",
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_schema(text)


def test_names_that_delta_and_spark_refuse_are_replaced_and_those_that_clash_numbered() -> None:
    document = {"first name": 1, "first_name": 1, "First_Name": 1, "a.b": 1, "": 1, "_rest": 1, "é": 1}
    assert inferred(document) == [
        "`first name` int -> first_name", "first_name int -> first_name_2", "First_Name int -> First_Name_3",
        "`a.b` int -> a_b", "`` int -> _", "_rest int -> _rest_2", "é int",
    ]  # fmt: skip


def test_a_schema_is_that_of_all_documents() -> None:
    documents = [
        {"_id": ObjectId(), "n": 1, "tags": [], "price": Decimal128("1.50"), "at": {"city": None}},
        {"_id": ObjectId(), "n": Int64(1), "tags": ["x", None], "price": Decimal128("2.505"), "at": {"city": "Oslo"}},
        {"_id": ObjectId(), "n": 2.5, "what": MinKey(), "mixed": [1, "a"]},
    ]
    assert inferred(*documents) == [
        "_id objectId", "n int as double", "price decimal(38,2) as decimal(38,4)", "tags array<string>",
        "at struct<city: string>",
    ]  # fmt: skip


def test_objects_are_flattened_renamed_and_mapped_as_the_rules_say() -> None:
    rules = ColumnRules(flatten=frozenset({("at",)}), rename={("at", "city"): "town"})
    document = {"at": {"city": "Oslo", "geo": {"lat": 1.5}}}
    assert inferred(document, rules=rules) == ["at.city string -> town", "at.geo struct<lat: double>"]
    assert inferred(document, rules=ColumnRules(flatten=None)) == ["at.city string", "at.geo.lat double"]
    open_ended = [{"counts": {f"k{number}": number, "all": 1}} for number in range(40)]
    assert inferred(*open_ended) == ["counts map<string, int>"]


def test_what_comes_later_becomes_columns_and_widens_numbers() -> None:
    schema = parse_schema("n int, at.city string, s string, off rest")
    new = {"n": Int64(1 << 40), "at": {"zip": "1", "city": 5}, "s": 5, "off": 1, "x": [{"y": 1}]}
    widened = grown(schema, new, RULES)
    assert lines(schema_text(widened)) == [
        "n int as bigint", "at.city string", "s string", "off rest", "at.zip string", "x array<struct<y: int>>",
    ]  # fmt: skip
    assert grown(widened, new, RULES) is widened
    assert lines(schema_text(grown(schema, new, ColumnRules("add"))))[0] == "n int"
    assert grown(schema, new, ColumnRules("none")) is schema


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, Int64(1), 0.5, Decimal128("1.5"), "x"], "n int as string"),
        ([1, Decimal128("1.5")], "n int as decimal(38,2)"),
        ([0.5, Decimal128("1.5")], "n double as decimal(38,10)"),
        (["x", 1], "n string"),
        ([True, 1], "n boolean"),
    ],
)
def test_numbers_widen_step_by_step(values: list[Any], text: str) -> None:
    schema = infer_schema([{"n": values[0]}], RULES)
    for value in values[1:]:
        schema = grown(schema, {"n": value}, ColumnRules("text"))
    assert lines(schema_text(schema)) == [text]


def test_a_table_does_not_gain_more_columns_than_the_limit() -> None:
    schema = infer_schema([{f"f{number}": 1 for number in range(limits.TYPED_COLUMN_COUNT_MAX + 5)}], RULES)
    assert len(schema.fields) == limits.TYPED_COLUMN_COUNT_MAX
    assert grown(schema, {"more": 1}, RULES) is schema


def test_a_validator_is_a_schema() -> None:
    validator = {
        "bsonType": "object",
        "properties": {
            "_id": {"bsonType": "objectId"},
            "n": {"bsonType": ["long", "null"]},
            "at": {"bsonType": "object", "properties": {"city": {"type": "string"}}},
            "m": {"type": "object", "additionalProperties": {"bsonType": "double"}},
            "tags": {"bsonType": "array", "items": {"bsonType": "string"}},
            "any": {"enum": [1, "a"]},
        },
    }
    assert lines(schema_text(validator_schema(validator, RULES))) == [
        "_id objectId", "n bigint", "at struct<city: string>", "m map<string, double>", "tags array<string>",
    ]  # fmt: skip


def test_a_file_says_whether_somebody_has_edited_it() -> None:
    text = file_text(parse_schema("a int, `b c` string"), "The columns of shop.orders.")
    assert not is_edited(text) and lines(schema_text(parse_schema(text))) == ["a int", "`b c` string -> b_c"]
    assert is_edited(text.replace("a int", "a bigint")) and is_edited("a int")


def test_a_path_has_names_between_dots() -> None:
    assert parse_path("a.b") == ("a", "b") and parse_path("`a.b`.c.`d`") == ("a.b", "c", "d")
