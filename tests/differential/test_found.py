"""Wrong answers that the comparison of access paths has found, each as the steps that it was shrunk to."""

from __future__ import annotations

from typing import Any

from bson import Decimal128

from tests.differential.comparison import Case, run_case

Document = dict[str, Any]
LONG = "x" * 600


def check(*steps: Document, **limits: int) -> None:
    finding = run_case(Case(list(steps), limits))
    assert finding is None, finding


def insert(*documents: Document) -> Document:
    return {"do": {"insert": "c", "documents": list(documents)}}


def index(key: Document, **options: Any) -> Document:
    return {"do": {"createIndexes": "c", "indexes": [{"key": key, "name": "i", **options}]}}


def test_a_filter_on_an_id_obeys_a_hint_at_a_sparse_index() -> None:
    check(
        index({"a": 1}, sparse=True),
        insert({"_id": 0, "b": "b"}),
        {"ask": {"kind": "find", "filter": {"_id": 0}}},
        {"ask": {"kind": "distinct", "filter": {"_id": 0}, "path": "b"}},
    )


def test_a_document_with_a_cut_key_of_another_path_of_a_wildcard_index_is_counted_once() -> None:
    check(
        index({"c": -1, "$**": 1}, wildcardProjection={"c": 0}),
        insert({"_id": 12, "b": {"b": {"c": LONG}}, "a": Decimal128("-0")}),
        {"ask": {"kind": "count", "filter": {"a": 0}}},
        {"ask": {"kind": "find", "filter": {"a": 0}}},
    )


def test_a_scan_that_seeks_a_long_value_does_not_pass_its_cut_key() -> None:
    for key in ({"b": 1, "a": 1}, {"b": 1, "a": -1}, {"b": -1, "a": 1}, {"b": 1, "a.$**": 1}):
        check(
            insert({"_id": 0.1, "a": None}, {"_id": 21, "a": LONG + "y"}, {"_id": 22, "a": "z"}),
            index(key),
            {"ask": {"kind": "count", "filter": {"a": LONG + "y"}}},
            {"ask": {"kind": "find", "filter": {"a": LONG + "y"}, "sort": {"b": 1}}},
            {"ask": {"kind": "find", "filter": {"a": LONG + "y"}, "sort": {"b": -1}}},
        )


def test_a_key_that_is_almost_too_long_is_counted_only_if_it_matches() -> None:
    for key in ({"a": 1, "$**": 1}, {"b": 1, "c": 1}):
        check(
            insert({"_id": 0, "b": "x" * 470, "c": 1}),
            index(key, **({"wildcardProjection": {"a": 0}} if "a" in key else {})),
            {"ask": {"kind": "count", "filter": {"c": 2}}},
        )


def test_a_range_that_is_cut_does_not_count_a_key_that_is_almost_too_long() -> None:
    for direction in (1, -1):
        check(
            index({"a": direction}),
            insert({"_id": 0, "a": "x" * 470}),
            {"ask": {"kind": "count", "filter": {"a": LONG}}},
            {"ask": {"kind": "find", "filter": {"a": {"$gte": LONG}}, "projection": {"_id": 0, "a": 1}}},
            {"ask": {"kind": "distinct", "filter": {"a": {"$gte": LONG}}, "path": "a"}},
        )


def test_a_seek_of_a_value_longer_than_a_key_passes_over_shorter_keys() -> None:
    for key in ({"b": 1, "a": 1}, {"b": -1, "a": -1}):
        check(
            insert({"_id": 0, "a": "a"}, {"_id": 1, "a": "z"}),
            index(key),
            {"ask": {"kind": "find", "filter": {"a": LONG}, "sort": {"b": 1}}},
            {"ask": {"kind": "find", "filter": {"a": LONG}, "sort": {"b": -1}}},
            {"ask": {"kind": "distinct", "filter": {"b": None, "a": {"$gte": LONG}}, "path": "a"}},
        )


def test_natural_order_is_that_of_insertion_also_with_a_range_of_ids() -> None:
    check(insert({"_id": 3}, {"_id": 2}), {"ask": {"kind": "find", "filter": {"_id": {"$lte": 4}}}})


def test_min_and_max_distinguish_long_values() -> None:
    documents = [{"_id": 0, "a": LONG + "y"}, {"_id": LONG, "a": LONG}, {"_id": LONG + "y", "a": "x"}]
    for low, high in ((LONG, "z"), (LONG + "x", "z"), ("x", LONG), ("x", LONG + "y"), (LONG, LONG + "y")):
        check(
            index({"a": 1}),
            insert(*documents),
            {"ask": {"kind": "range", "filter": {}, "ends": [[low], [high]]}},
        )


def test_a_wildcard_index_without_some_paths_does_not_say_what_exists() -> None:
    check(
        index({"$**": 1}, wildcardProjection={"a.b": 0}),
        insert({"_id": 1, "a": {"b": 2}}),
        {"ask": {"kind": "find", "filter": {"a": {"$exists": True}}}},
    )


def test_an_empty_array_is_found_in_an_index_with_a_collation() -> None:
    for value in ([], [[]], [{}]):
        check(
            insert({"_id": 1, "a": value}),
            index({"a": -1}, collation={"locale": "en"}),
            {"ask": {"kind": "find", "filter": {"a": value}, "collation": {"locale": "en"}}},
            {"ask": {"kind": "find", "filter": {"a": {"$in": [value, "x"]}}, "collation": {"locale": "en"}}},
        )


def test_ids_that_a_collation_calls_equal_are_not_merged() -> None:
    check(
        insert({"_id": "a"}, {"_id": "A"}),
        {"ask": {"kind": "output", "filter": {}, "collation": {"locale": "sv", "strength": 1}}},
    )
