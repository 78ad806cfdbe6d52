"""Texts as terms, and searches as terms and phrases."""

from __future__ import annotations

import pytest

from headrace.text.analyzer import analyzer, folded, language_of, without_marks
from headrace.text.search import TextSearch
from headrace.text.stop_words import stop_words
from headrace.text.text_spec import TextSpec

ENGLISH = TextSpec({"t": 1}, "english", "language")


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("english", "The Cafés' waiters, running", {"cafe", "waiter", "run"}),
        ("english", "I don't know what's a_b: 'quoted'", {"know", "a_b", "quot"}),
        ("french", "Il a dit qu'il «était le meilleur joueur du monde»", {"a", "dit", "meilleur", "joueur", "mond"}),
        ("none", "The running-shoes cost 3.50", {"the", "running", "shoes", "cost", "3", "50"}),
        ("turkish", "IŞIK İstanbul", {"ısık", "istanbul"}),
        ("russian", "Книги и книга", {"книг"}),
        ("german", "Straßen über Flüsse", {"strass", "fluss"}),
        ("english", "e\u0301te\u0301 ÉTÉ", {"ete"}),
        ("english", " \u3000—…", set()),
    ],
)
def test_a_text_has_terms(language: str, text: str, terms: set[str]) -> None:
    assert set(analyzer(language).counts(text)) == terms


def test_times_are_counted_without_stop_words() -> None:
    assert analyzer("english").counts("lamp and Lamps and the lamp's oil") == {"lamp": 3, "oil": 1}


def test_a_long_text_is_divided_between_words() -> None:
    text = " ".join(f"w{number % 700} and" for number in range(70_000))
    counts = analyzer("english").counts(text)
    assert set(counts.values()) == {100} and len(counts) == 700
    assert analyzer("none").terms(text, with_case=True, with_marks=True) == {*counts, "and"}
    assert 500 < len(analyzer("english").counts(" ".join(f"w{number}" for number in range(70_000)), 500)) < 70_000
    assert analyzer("none").counts("x" * 200_000 + " y") == {"x" * 200_000: 1, "y": 1}


def test_case_and_marks_count_where_they_are_asked_for() -> None:
    english = analyzer("english")
    assert english.terms("The Café cafés", with_case=True, with_marks=True) == {"Café", "café"}
    assert english.terms("The Café cafés", with_case=True, with_marks=False) == {"Cafe", "cafe"}
    assert english.terms("The Café cafés", with_case=False, with_marks=True) == {"café"}


def test_folding_makes_no_text_longer() -> None:
    assert folded("ẞ Straße İ ſ Σς ᾈ") == "ß straße İ s σσ ᾀ"
    assert folded("I İ", turkish=True) == "ı i"
    assert without_marks("ǻ é à̂ ñ й 한") == "a e a n и 한"


def test_languages_have_two_names() -> None:
    assert [language_of(name) for name in ("en", "English", "NB", "none", "xx", "")] == [
        "english", "english", "norwegian", "none", None, None,
    ]  # fmt: skip
    assert all(stop_words(language_of(code) or "") for code in "da de en es fi fr hu it nb nl pt ro ru sv tr".split())
    assert not stop_words("none")


@pytest.mark.parametrize(
    ("search", "terms", "negated", "phrases", "negated_phrases"),
    [
        ("doing a \"phrase test\" for fun", ["fun", "phrase", "test"], [], ["phrase test"], []),
        ("this is -really fun", ["fun"], ["realli"], [], []),
        ("- really fun", ["fun", "realli"], [], [], []),
        ("really-fun", ["fun", "realli"], [], [], []),
        ("-really-fun stuff", ["stuff"], ["fun", "realli"], [], []),
        ("-\"really fun\" stuff", ["stuff"], [], [], ["really fun"]),
        ("- \"really fun\" stuff", ["fun", "realli", "stuff"], [], ["really fun"], []),
        ("off-\"really fun\"", ["fun", "realli"], [], ["really fun"], []),
        ("-\"a b\"-\"c d\" -\"e f\"", [], [], [], ["a b", "c d", "e f"]),
        ("-\"a b\"\"c d\" \"red lamp\"", ["lamp", "red"], [], ["red lamp"], ["a b", "c d"]),
        ("\"red-hot -lamp\"", ["hot", "lamp", "red"], [], ["red-hot -lamp"], []),
        ("\"never closed", ["close", "never"], [], [], []),
        ("the and", [], [], [], []),
    ],
)  # fmt: skip
def test_a_search_has_terms_and_phrases(
    search: str, terms: list[str], negated: list[str], phrases: list[str], negated_phrases: list[str]
) -> None:
    made = TextSearch(ENGLISH, search, "english", with_case=False, with_marks=False)
    assert (made.terms, made.negated_terms) == (terms, negated)
    assert (list(made.phrases), list(made.negated_phrases)) == (phrases, negated_phrases)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("cat", 1.1), ("Cats", 1.0), ("cat cat", 1.5), ("cat cat cat dog", (1 + 0.5 + 0.25) * (0.5 * 3 / 4 + 0.5)),
        ("the cat", 1.0), ("cat dog", 0.75), ("dog", None),
    ],
)  # fmt: skip
def test_a_score_is_mongodbs(text: str, score: float | None) -> None:
    search = TextSearch(ENGLISH, "cat", "english", with_case=False, with_marks=False)
    assert search.score({"t": text}) == (None if score is None else pytest.approx(score))
    assert search.score({"t": [text, text]}) == (None if score is None else pytest.approx(2 * score))
