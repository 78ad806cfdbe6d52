"""`errInfo.details`: what a document that fails validation is told, in MongoDB's words."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64, Regex
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.query.match import parse_filter
from headrace.query.match.filter_failures import failure_details
from headrace.values.bson import encode


def compared(operator: str, argument: Any, **rest: Any) -> dict[str, Any]:
    return {"operatorName": operator, "specifiedAs": {"a": {operator: argument}}, **rest}


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"a": {"$gt": 0}}, {"a": -1}, compared("$gt", 0, reason="comparison failed", consideredValue=-1)),
    ({"a": {"$gt": 0}}, {}, compared("$gt", 0, reason="field was missing")),
    ({"a": {"$gt": 9}}, {"a": [1, 2]}, compared("$gt", 9, reason="comparison failed", consideredValues=[1, 2])),
    (
        {"a": 1}, {"a": 2},
        {"operatorName": "$eq", "specifiedAs": {"a": 1}, "reason": "comparison failed", "consideredValue": 2},
    ),
    ({"a": {"$ne": 1}}, {"a": 1}, compared("$ne", 1, reason="comparison succeeded", consideredValue=1)),
    (
        {"a": {"$in": [1, 2]}}, {"a": 3},
        compared("$in", [1, 2], reason="no matching value found in array", consideredValue=3),
    ),
    (
        {"a": {"$nin": [1, 2]}}, {"a": 1},
        compared("$nin", [1, 2], reason="matching value found in array", consideredValue=1),
    ),
    ({"a": {"$exists": True}}, {}, compared("$exists", True, reason="path does not exist")),
    ({"a": {"$exists": False}}, {"a": 1}, compared("$exists", False, reason="path does exist")),
    (
        {"a": {"$type": "int"}}, {"a": "x"},
        compared("$type", "int", reason="type did not match", consideredValue="x", consideredType="string"),
    ),
    (
        {"a": {"$size": 2}}, {"a": 5},
        compared(
            "$size", 2, reason="type did not match", consideredType="int", expectedType="array", consideredValue=5,
        ),
    ),
    (
        {"a": {"$size": 2}}, {"a": [1]},
        compared("$size", 2, reason="array length was not equal to given size", consideredValue=[1]),
    ),
    ({"a": {"$gt": 9}}, {"a": []}, compared("$gt", 9, reason="comparison failed", consideredValues=[])),
    ({"a": {"$gt": 9}}, {"a": [[1]]}, compared("$gt", 9, reason="comparison failed", consideredValue=[1])),
    (
        {"a": {"$lt": 0}}, {"a": list(range(11))},
        compared(
            "$lt", 0, reason="comparison failed", consideredValues=list(range(10)), consideredValuesTruncated=True,
        ),
    ),
    ({"a": {"$ne": None}}, {}, compared("$ne", None, reason="field was missing")),
    ({"a": {"$nin": [None]}}, {}, compared("$nin", [None], reason="field was missing")),
    (
        {"a": {"$type": "int"}}, {"a": ["x", True]},
        compared(
            "$type", "int", reason="type did not match", consideredValues=["x", True],
            consideredTypes=["bool", "string"],
        ),
    ),
    (
        {"a": {"$mod": [2, 0]}}, {"a": []},
        compared(
            "$mod", [2, 0], reason="type did not match", expectedTypes=["decimal", "double", "int", "long"],
            consideredValues=[],
        ),
    ),
    (
        {"a": {"$all": [1, 2]}}, {"a": 1},
        compared("$all", [1, 2], reason="array did not contain all specified values", consideredValue=1),
    ),
    (
        {"a": {"$geoWithin": {"$box": [[0, 0], [1, 1]]}}}, {"a": [5, 5]},
        compared(
            "$geoWithin", {"$box": [[0, 0], [1, 1]]}, consideredValues=[5, 5],
            reason="none of the considered geometries were contained within the expression’s geometry",
        ),
    ),
    (
        {"a": {"$geoIntersects": {"$geometry": {"type": "Point", "coordinates": [0, 0]}}}}, {"a": "x"},
        compared(
            "$geoIntersects", {"$geometry": {"type": "Point", "coordinates": [0, 0]}}, consideredValue="x",
            reason="could not find a valid geometry at the given path",
        ),
    ),
    (
        {"$nor": [{"$jsonSchema": {"title": "t", "required": ["a"]}}]}, {"a": 1},
        {"operatorName": "$nor", "clausesSatisfied": [
            {"index": 0, "details": {"operatorName": "$jsonSchema", "title": "t", "reason": "schema matched"}}
        ]},
    ),
    (
        {"$jsonSchema": {"bsonType": "int"}}, {"a": 1},
        {
            "operatorName": "$jsonSchema", "specifiedAs": {"$jsonSchema": {"bsonType": "int"}},
            "reason": "expression always evaluates to false",
        },
    ),
    (
        {"a": {"$regex": "^x", "$options": "i"}}, {"a": "y"},
        {
            "operatorName": "$regex", "specifiedAs": {"a": {"$regex": "^x", "$options": "i"}},
            "reason": "regular expression did not match", "consideredValue": "y",
        },
    ),
    (
        {"a": {"$gt": 0, "$lt": 5}}, {"a": 7},
        {
            "operatorName": "$and",
            "clausesNotSatisfied": [
                {"index": 1, "details": compared("$lt", 5, reason="comparison failed", consideredValue=7)}
            ],
        },
    ),
    (
        {"$or": [{"a": {"$gt": 5}}, {"b": {"$exists": True}}]}, {"a": 1},
        {
            "operatorName": "$or",
            "clausesNotSatisfied": [
                {"index": 0, "details": compared("$gt", 5, reason="comparison failed", consideredValue=1)},
                {
                    "index": 1,
                    "details": {
                        "operatorName": "$exists", "specifiedAs": {"b": {"$exists": True}},
                        "reason": "path does not exist",
                    },
                },
            ],
        },
    ),
    (
        {"$nor": [{"a": {"$gt": 0}}, {"a": {"$lt": 0}}]}, {"a": 1},
        {
            "operatorName": "$nor",
            "clausesSatisfied": [
                {"index": 0, "details": compared("$gt", 0, reason="comparison succeeded", consideredValue=1)}
            ],
        },
    ),
    (
        {"a": {"$not": {"$gt": 0}}}, {"a": 1},
        {"operatorName": "$not", "details": compared("$gt", 0, reason="comparison succeeded", consideredValue=1)},
    ),
    (
        {"$expr": {"$gt": ["$a", "$b"]}}, {"a": 1, "b": 2},
        {
            "operatorName": "$expr", "specifiedAs": {"$expr": {"$gt": ["$a", "$b"]}},
            "reason": "expression did not match", "expressionResult": False,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("validator", "document", "details"), CASES, ids=lambda item: str(item)[:50])
def test_conditions(validator: dict[str, Any], document: dict[str, Any], details: dict[str, Any]) -> None:
    assert failure_details(validator, document, {}) == details


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"required": ["a", "b"]}, {"a": 1},
        [{"operatorName": "required", "specifiedAs": {"required": ["a", "b"]}, "missingProperties": ["b"]}],
    ),
    (
        {"properties": {"a": {"bsonType": "int", "description": "a number", "minimum": 5}, "b": {}}}, {"a": "x"},
        [{"operatorName": "properties", "propertiesNotSatisfied": [{
            "propertyName": "a", "description": "a number",
            "details": [{
                "operatorName": "bsonType", "specifiedAs": {"bsonType": "int"}, "reason": "type did not match",
                "consideredValue": "x", "consideredType": "string",
            }],
        }]}],
    ),
    (
        {"properties": {"a": {"minimum": 5, "enum": [6]}}}, {"a": 3},
        [{"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "a", "details": [
            {
                "operatorName": "minimum", "specifiedAs": {"minimum": 5}, "reason": "comparison failed",
                "consideredValue": 3,
            },
            {
                "operatorName": "enum", "specifiedAs": {"enum": [6]}, "reason": "value was not found in enum",
                "consideredValue": 3,
            },
        ]}]}],
    ),
    (
        {"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2},
        [{
            "operatorName": "additionalProperties", "specifiedAs": {"additionalProperties": False},
            "additionalProperties": ["b"],
        }],
    ),
    (
        {"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]},
        [{"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "a", "details": [{
            "operatorName": "items", "reason": "At least one item did not match the sub-schema", "itemIndex": 1,
            "details": [{
                "operatorName": "type", "specifiedAs": {"type": "string"}, "reason": "type did not match",
                "consideredValue": 1, "consideredType": "int",
            }],
        }]}]}],
    ),
    (
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {},
        [{"operatorName": "anyOf", "schemasNotSatisfied": [
            {"index": index, "details": [
                {"operatorName": "required", "specifiedAs": {"required": [name]}, "missingProperties": [name]}
            ]}
            for index, name in enumerate("ab")
        ]}],
    ),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1},
        [{"operatorName": "oneOf", "reason": "more than one subschema matched", "matchingSchemaIndexes": [0, 1]}],
    ),
    (
        {"not": {"required": ["a"]}}, {"a": 1},
        [{"operatorName": "not", "reason": "child expression matched"}],
    ),
    (
        {"dependencies": {"a": ["b"]}}, {"a": 1},
        [{"operatorName": "dependencies", "failingDependencies": [
            {"conditionalProperty": "a", "missingProperties": ["b"]}
        ]}],
    ),
    (
        {"minProperties": 2}, {"a": 1},
        [{
            "operatorName": "minProperties", "specifiedAs": {"minProperties": 2},
            "reason": "specified number of properties was not satisfied", "numberOfProperties": 1,
        }],
    ),
    (
        {"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 2, Int64(1)]},
        [{"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "a", "details": [{
            "operatorName": "uniqueItems", "specifiedAs": {"uniqueItems": True}, "reason": "found a duplicate item",
            "consideredValue": [1, 2, 1], "duplicatedValue": 1,
        }]}]}],
    ),
    (
        {"patternProperties": {"^n": {"type": "number"}}}, {"name": "x", "a": "y"},
        [{"operatorName": "patternProperties", "details": [{
            "propertyName": "name", "regexMatched": "^n",
            "details": [{
                "operatorName": "type", "specifiedAs": {"type": "number"}, "reason": "type did not match",
                "consideredValue": "x", "consideredType": "string",
            }],
        }]}],
    ),
    (
        {"required": ["d", "c"], "properties": {"a": {"minimum": 10, "maximum": -10, "exclusiveMinimum": True}}},
        {"a": 5},
        [
            {"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "a", "details": [
                {
                    "operatorName": "maximum", "specifiedAs": {"maximum": -10}, "reason": "comparison failed",
                    "consideredValue": 5,
                },
                {
                    "operatorName": "minimum", "specifiedAs": {"minimum": 10, "exclusiveMinimum": True},
                    "reason": "comparison failed", "consideredValue": 5,
                },
            ]}]},
            {"operatorName": "required", "specifiedAs": {"required": ["d", "c"]}, "missingProperties": ["c", "d"]},
        ],
    ),
    (
        {"properties": {"a": {
            "minItems": 5, "items": [{"maximum": 0}, {}, {"maximum": 0}],
            "additionalItems": {"maximum": 0, "description": "more"},
        }}},
        {"a": [1, 2, 3, 4]},
        [{"operatorName": "properties", "propertiesNotSatisfied": [{"propertyName": "a", "details": [
            {
                "operatorName": "minItems", "specifiedAs": {"minItems": 5},
                "reason": "array did not match specified length", "consideredValue": [1, 2, 3, 4], "numberOfItems": 4,
            },
            {"operatorName": "items", "details": [
                {"itemIndex": index, "details": [{
                    "operatorName": "maximum", "specifiedAs": {"maximum": 0}, "reason": "comparison failed",
                    "consideredValue": index + 1,
                }]}
                for index in (0, 2)
            ]},
            {
                "operatorName": "additionalItems", "description": "more",
                "reason": "At least one additional item did not match the sub-schema", "itemIndex": 3,
                "details": [{
                    "operatorName": "maximum", "specifiedAs": {"maximum": 0}, "reason": "comparison failed",
                    "consideredValue": 4,
                }],
            },
        ]}]}],
    ),
    (
        {
            "patternProperties": {"^n": {"maximum": 0, "title": "names"}},
            "additionalProperties": {"maximum": 0, "title": "others"}, "dependencies": {"n1": ["x"], "title": "both"},
        },
        {"n0": 0, "n1": 1, "n2": 2, "a": 1},
        [
            {
                "operatorName": "additionalProperties", "title": "others",
                "reason": "at least one additional property did not match the subschema", "failingProperty": "a",
                "details": [{
                    "operatorName": "maximum", "specifiedAs": {"maximum": 0}, "reason": "comparison failed",
                    "consideredValue": 1,
                }],
            },
            {"operatorName": "patternProperties", "details": [{
                "propertyName": "n1", "title": "names", "regexMatched": "^n",
                "details": [{
                    "operatorName": "maximum", "specifiedAs": {"maximum": 0}, "reason": "comparison failed",
                    "consideredValue": 1,
                }],
            }]},
            {
                "operatorName": "dependencies", "title": "both",
                "failingDependencies": [{"conditionalProperty": "n1", "missingProperties": ["x"]}],
            },
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "document", "failures"), SCHEMAS, ids=lambda item: str(item)[:50])
def test_schemas(schema: dict[str, Any], document: dict[str, Any], failures: list[dict[str, Any]]) -> None:
    validator = {"$jsonSchema": {"title": "orders", **schema}}
    expected = {"operatorName": "$jsonSchema", "title": "orders", "schemaRulesNotSatisfied": failures}
    assert failure_details(validator, document, {}) == expected


LEAVES: Any = st.sampled_from([
    {"$gt": 1}, {"$lte": "x"}, {"$in": [1, None]}, {"$nin": [1]}, {"$ne": 1}, {"$exists": False}, {"$type": "array"},
    {"$size": 1}, {"$all": [1, 2]}, {"$elemMatch": {"$gt": 0}}, {"$mod": [2, 0]}, {"$bitsAllSet": 1}, {"$regex": "x"},
    {"$not": {"$gt": 0, "$lt": 9}}, Regex("^x"), 1, None, [1],
])  # fmt: skip
FILTERS: Any = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b.c"]), LEAVES, min_size=1),
    lambda inner: st.builds(
        lambda name, clauses: {name: clauses},
        st.sampled_from(["$and", "$or", "$nor"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
VALUES: Any = st.sampled_from([None, 0, 1, 2.5, "x", "y", [], [1], [1, 2], {"c": 1}, {"c": [0, "x"]}, [{"c": 3}]])


@settings(max_examples=300, deadline=None)
@given(FILTERS, st.dictionaries(st.sampled_from(["a", "b"]), VALUES))
def test_whatever_fails_has_details(validator: dict[str, Any], document: dict[str, Any]) -> None:
    if not parse_filter(validator)(document):
        details = failure_details(validator, document, {})
        assert details["operatorName"].startswith("$") and encode(details)
