"""Descriptions of updates: diffs told as paths."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.changes.document_events import describe


def test_fields_come_level_by_level_updates_before_inserts_before_removals() -> None:
    diff = {
        "d": {"gone": False},
        "u": {"b": 2},
        "i": {"a": 1},
        "sn": {"d": {"x": False}, "u": {"y": 1}, "sdeep": {"i": {"z": 3}}},
        "sarr": {"a": True, "l": 4, "u1": 9, "s0": {"u": {"k": 1}}, "u3": 7},
    }
    described = describe(diff)
    assert list(described) == ["updatedFields", "removedFields", "truncatedArrays"]
    assert list(described["updatedFields"].items()) == [
        ("b", 2), ("a", 1), ("n.y", 1), ("n.deep.z", 3), ("arr.1", 9), ("arr.3", 7), ("arr.0.k", 1),
    ]  # fmt: skip
    assert described["removedFields"] == ["gone", "n.x"]
    assert described["truncatedArrays"] == [{"field": "arr", "newSize": 4}]


@pytest.mark.parametrize(
    ("diff", "paths"),
    [
        ({"u": {"a": 1}}, {}),
        ({"u": {"0": 1}}, {}),
        ({"u": {"a.b": 1}}, {"a.b": ["a.b"]}),
        ({"sa": {"u": {"0": 1}}}, {"a.0": ["a", "0"]}),
        ({"sa": {"u": {"01": 1}}}, {}),
        ({"sa": {"a": True, "u0": 1}}, {}),
        ({"sa": {"d": {"1": False}}}, {"a.1": ["a", "1"]}),
        ({"sa": {"a": True, "s0": {"i": {"1": 1}}}}, {"a.0.1": ["a", 0, "1"]}),
        ({"sa": {"s0": {"u": {"b": 1}}}}, {"a.0.b": ["a", "0", "b"]}),
        ({"sa.b": {"a": True, "l": 1, "u0": 5}}, {"a.b": ["a.b"], "a.b.0": ["a.b", 0]}),
        ({"s0": {"u": {"x": 1}}}, {}),
    ],
)
def test_expanded_events_distinguish_what_a_dotted_path_does_not(diff: dict[str, Any], paths: dict[str, Any]) -> None:
    assert describe(diff, expanded=True)["disambiguatedPaths"] == paths
