"""Collations: what counts as equal at each strength, and bad specifications."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.collation import parse_collation


@pytest.mark.parametrize(
    ("options", "left", "right", "same"),
    [
        ({"strength": 1}, "É", "e", True),
        ({"strength": 1, "caseLevel": True}, "É", "e", False),
        ({"strength": 1, "caseLevel": True}, "é", "e", True),
        ({"strength": 2}, "E", "e", True),
        ({"strength": 2}, "é", "e", False),
        ({"strength": 3}, "E", "e", False),
        ({"strength": 1}, "straße", "STRASSE", True),
        ({"alternate": "shifted"}, "a-b", "ab", True),
        ({"numericOrdering": True}, "007", "7", True),
    ],
)
def test_strength_says_what_is_equal(options: dict[str, Any], left: str, right: str, same: bool) -> None:
    collation = parse_collation({"locale": "en", **options})
    assert collation is not None
    assert (collation.key(left) == collation.key(right)) is same


def test_lower_case_is_first_by_default() -> None:
    plain, upper = parse_collation({"locale": "en"}), parse_collation({"locale": "en", "caseFirst": "upper"})
    assert plain is not None and upper is not None
    assert plain.key("a") < plain.key("A") < plain.key("b")
    assert upper.key("A") < upper.key("a") < upper.key("b")


@pytest.mark.parametrize("document", [None, {}, {"locale": "simple"}])
def test_no_collation(document: dict[str, Any] | None) -> None:
    assert parse_collation(document) is None


@pytest.mark.parametrize(
    ("document", "code"),
    [({"strength": 1}, 40414), ({"locale": "en", "x": 1}, 40415), ({"locale": "!"}, 2), ({"locale": 1}, 14),
     ({"locale": "en", "strength": 9}, 51024), ({"locale": "en", "caseFirst": "x"}, 2)],
)  # fmt: skip
def test_a_bad_collation_is_refused(document: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_collation(document)
    assert raised.value.code == code
