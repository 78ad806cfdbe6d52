"""Collations: what counts as equal at each strength, and bad specifications."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.collation import filled_collation, parse_collation
from headrace.values import collator


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
     ({"locale": "en", "strength": 9}, 2), ({"locale": "en", "caseFirst": "x"}, 2)],
)  # fmt: skip
def test_a_bad_collation_is_refused(document: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_collation(document)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"locale": "en"}, ["a", "å", "z", "zz"]),
        ({"locale": "sv"}, ["a", "z", "zz", "å"]),
        ({"locale": "da"}, ["A", "a", "z", "å", "aa"]),
        ({"locale": "es@collation=traditional"}, ["cz", "ch", "d", "lz", "ll"]),
        ({"locale": "de@collation=phonebook"}, ["ad", "ä", "af"]),
        ({"locale": "de"}, ["ä", "ad", "af"]),
        ({"locale": "fr_CA"}, ["cote", "côte", "coté", "côté"]),
        ({"locale": "fr"}, ["cote", "coté", "côte", "côté"]),
        ({"locale": "lt"}, ["i", "y", "j"]),
        ({"locale": "en", "numericOrdering": True}, ["a2", "a10", "a100"]),
        ({"locale": "en", "alternate": "shifted", "maxVariable": "space"}, ["ab", "a b ", "a-b"][::-1]),
        ({"locale": "en", "caseFirst": "upper"}, ["A", "a", "B"]),
        ({"locale": "en", "strength": 5}, ["a\u0301", "á"]),
    ],
)
def test_order_is_that_of_the_language(spec: dict[str, Any], expected: list[str]) -> None:
    collation = parse_collation(spec)
    assert collation is not None
    assert sorted(sorted(expected), key=collation.key) == expected


def test_what_the_locale_says_is_filled_in() -> None:
    assert filled_collation({"locale": "da"}) == {
        "locale": "da", "caseLevel": False, "caseFirst": "upper", "strength": 3, "numericOrdering": False,
        "alternate": "non-ignorable", "maxVariable": "punct", "normalization": False, "backwards": False,
        "version": "57.1",
    }  # fmt: skip
    filled = filled_collation({"locale": "th"})
    assert filled is not None and filled["alternate"] == "shifted" and filled_collation(filled) == filled


@pytest.mark.parametrize(
    ("document", "code"),
    [({"locale": "xx"}, 2), ({"locale": "en_XX"}, 2), ({"locale": "en@collation=phonebook"}, 2),
     ({"locale": "en", "backwards": True, "strength": 1}, 2),
     ({"locale": "en", "caseFirst": "upper", "strength": 2}, 2),
     ({"locale": "en", "version": "58.1"}, 161)],
)  # fmt: skip
def test_what_icu_does_not_know_or_cannot_do_is_refused(document: dict[str, Any], code: int) -> None:
    with pytest.raises(CommandError) as raised:
        parse_collation(document)
    assert raised.value.code == code


def test_keys_of_texts_of_any_length() -> None:
    collation = parse_collation({"locale": "en", "strength": 1})
    assert collation is not None
    for length in (0, 1, 63, 64, 65, 1000, 100_000):
        upper, lower = collation.key("É" * length), collation.key("e" * length)
        assert upper == lower and b"\0" not in upper
    assert collation.key("a" * 70) < collation.key("a" * 69 + "b")


def test_a_collation_is_pickled_by_its_options() -> None:
    collation = parse_collation({"locale": "sv", "strength": 2})
    again = pickle.loads(pickle.dumps(collation))
    assert again == collation and hash(again) == hash(collation) and again.key("Å") == again.key("å")


def test_without_the_library_collations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collator, "find_spec", lambda name: None)
    monkeypatch.setattr(collator, "_icu", collator._icu.__wrapped__)
    with pytest.raises(CommandError) as raised:
        collator.Collator("en", {})
    assert raised.value.code == 115 and "icu4py" in raised.value.message


def test_its_libraries_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries that it uses and the tables that these use; nothing without the package."""
    assert len(collator._libraries("libicu*")) >= 3 and len(collator._libraries("libicui18n")) == 1
    collator.read_ahead()
    monkeypatch.setattr(collator, "find_spec", lambda name: None)
    assert not collator._libraries("libicu*")
    collator.read_ahead()
