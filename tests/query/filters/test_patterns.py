"""Regular expressions by PCRE2: what Python's own would not do, and how much work a pattern may be."""

from __future__ import annotations

import time

import pytest

from headrace import limits
from headrace.errors import CommandError
from headrace.query.patterns import compile_pattern
from headrace.time_limit import limited


@pytest.mark.parametrize(
    ("pattern", "options", "text", "expected"),
    [
        (r"\x{41}\x{e9}", "", "xAéx", True),
        (r"\\x{41}", "", r"\x{41}", False),
        (r"\Qx{2}.\E", "", "x{2}.", True),
        (r"\Q\x{41}", "", r"a\x{41}b", True),
        (r"\p{Lu}\p{L}+", "", "élan Vital", True),
        (r"foo\Kbar", "", "foobar", True),
        (r"^(\((?:[^()]|(?1))*\))$", "", "(a(b)c)", True),  # recursion
        (r"^(\((?:[^()]|(?1))*\))$", "", "(a(b)c", False),
        (r"(?<year>\d{4})-\k<year>", "", "2020-2020", True),
        (r"\d", "", "٣", False),
        (r"\w", "", "é", False),
        ("É", "i", "é", True),
        ("a b # a comment", "x", "ab", True),
        ("^b", "m", "a\nb", True),
        ("a.b", "s", "a\nb", True),
        ("a.b", "", "a\nb", False),
        ("abc$", "", "abc\n", True),
        (r"abc\z", "", "abc\n", False),
        ("^abc", "", "xabc", False),
        ("abc", "", "xabc", True),
        ("(*UTF8)é", "", "é", True),
        ("^a.*b", "", "axxb", True),
        ("^a.*b", "", "xaxxb", False),
        ("a.*b", "", "a\nb", False),
        ("a.*b", "", "a\nab", True),
        ("ab.*ba", "", "aba", False),
        ("ab.*ba", "", "xabba", True),
        (r"^\^a\.b.*\\.*", "", "^a.b-\\", True),
        (r"\^a", "", "a", False),
        (r"a\.b", "", "a-b", False),
        (r"a\.*b", "", "a..b", True),
        (r"a\\.*b", "", "a\\--b", True),
        (".*", "", "\n", True),
        ("^.*", "", "", True),
    ],
)
def test_patterns_mean_what_they_mean_to_mongodb(pattern: str, options: str, text: str, expected: bool) -> None:
    compiled = compile_pattern(pattern, options)
    assert compiled.matches(text) is expected
    assert (compiled.find(text) is not None) is expected
    long = text + "\n" + "~" * limits.PATTERN_QUICK_CHARACTERS_MAX  # by the guarded pattern, which must mean the same
    if not pattern.endswith(("$", r"\z")):
        assert (compiled.find(long) is not None) is expected


@pytest.mark.parametrize(
    ("pattern", "options", "code"),
    [("a(", "", 51091), ("a\0", "", 51091), ("a", "g", 51108), (r"\x{110000}", "", 51091), (r"\x{d800}", "", 51091),
     ("a" * 16385, "", 51091), ("é" * 8193, "", 51091), ("[", "", 51091),
     ("(?<n>a)(?<n>b)", "", 51091), ("\ud800", "", 51091)],
)  # fmt: skip
def test_what_is_no_pattern_is_mongodbs_error(pattern: str, options: str, code: int) -> None:
    with pytest.raises(CommandError) as raised:
        compile_pattern(pattern, options)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 40 + "!"),
        ("(a|a)*$", "a" * 40 + "!"),
        ("(.*)*[xy]", "a" * 100),
        (r"^(\w+\s?)*[!?]$", "aaaa " * 20),
    ],
)
def test_a_pattern_that_backtracks_without_end_is_an_error(pattern: str, text: str) -> None:
    with pytest.raises(CommandError) as raised:
        compile_pattern(pattern).matches(text)
    assert raised.value.code == 51156


def test_a_search_through_a_long_text_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_SECONDS_MAX", 0.0)
    with pytest.raises(CommandError) as raised:
        limited(compile_pattern("(?:a|a|b){14}[cd]").matches)("a" * 1_000_000)
    assert raised.value.code == 50


def test_a_search_through_a_short_text_is_over_soon() -> None:
    """At each position just below the quick limit: the most that a short text can cost (the bound is generous)."""
    text = "a" * limits.PATTERN_QUICK_CHARACTERS_MAX
    started = time.thread_time()
    compile_pattern("(?:a|a|b){9}[cd]").matches(text)
    assert time.thread_time() - started < 5
