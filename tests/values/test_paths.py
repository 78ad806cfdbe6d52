"""Walking dotted paths: what filters reach, in which order, and what expressions get."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.values.bson import MISSING
from headrace.values.paths import any_value, get_path, located_values, split_path


def reached(document: dict[str, Any], path: str, *, enter_last: bool = True) -> list[Any]:
    seen: list[Any] = []
    any_value(split_path(path), lambda value: bool(seen.append(value)), enter_last=enter_last)(document)
    return seen


@pytest.mark.parametrize(
    ("document", "path", "values"),
    [
        ({}, "a", [MISSING]),
        ({"a": 1}, "a.b", [MISSING]),
        ({"a": [1, [2]]}, "a", [1, [2], [1, [2]]]),
        ({"a": []}, "a", [[]]),
        ({"a": []}, "a.b", []),
        ({"a": [1, 2]}, "a.b", []),
        ({"a": [{"b": 1}, {}, 3]}, "a.b", [1, MISSING]),
        ({"a": [{"b": [1]}]}, "a.b", [1, [1]]),
        ({"a": [[{"b": 1}]]}, "a.b", []),
        ({"a": [5, [2, 4]]}, "a.1", [[2, 4]]),
        ({"a": [5, {"1": 4}]}, "a.1", [4, {"1": 4}]),
        ({"a": [[{"b": 1}]]}, "a.0.b", [1]),
        ({"a": [[1, 2]]}, "a.0.1", [2]),
        ({"a": [1]}, "a.0.b", []),
        ({"a": {"0": 7}}, "a.0", [7]),
        ({"a": [1]}, "a.00", []),
    ],
)
def test_filters_reach(document: dict[str, Any], path: str, values: list[Any]) -> None:
    assert reached(document, path) == values
    assert sorted(map(repr, (value for value, _ in located_values(document, split_path(path))))) == sorted(
        map(repr, values)
    )


def test_an_array_at_the_end_can_be_taken_without_its_elements() -> None:
    assert reached({"a": [{"b": [1]}]}, "a.b", enter_last=False) == [[1]]


def test_the_index_is_the_one_in_the_outermost_array() -> None:
    document = {"a": [{"b": [1]}, {"b": [2, 3]}]}
    assert [(v, i) for v, i in located_values(document, ("a", "b")) if v == 3] == [(3, "1")]
    assert list(located_values({"a": 1}, ("a",))) == [(1, None)]


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a": 1}, "a.b", MISSING),
        ({"a": [{"b": 1}, 2, {}, [{"b": 3}]]}, "a.b", [1]),
        ({"a": []}, "a.b", []),
        ({"a": [1]}, "a.0", []),
    ],
)
def test_expressions_get(document: dict[str, Any], path: str, value: Any) -> None:
    assert get_path(document, split_path(path)) == value
