"""Texts as terms: divided at delimiters, without stop words, stemmed, in lower case and without diacritical marks.

    "The Cafés' waiters"   →   cafe, waiter

The order is MongoDB's. Stop words are recognised in lower case with their marks. The stemmer sees the marks. Then the
marks are removed. Case is folded character by character (Unicode's common and simple foldings, the special ones in
Turkish), so that no text becomes longer. In English, an apostrophe is part of a word: the stemmer and the stop words
know "don't".

In an index of a version before 3, only ASCII characters are delimiters and have a lower case, and marks are kept.

Source: MongoDB's documentation of text indexes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from sys import maxsize
from typing import Final
from unicodedata import normalize

from headrace.text.characters import DELIMITERS, DIACRITICS, character_class
from headrace.text.languages import NONE, UNICODE_VERSION
from headrace.text.stop_words import stop_words

_FOLDED_COUNT_MAX: Final = 10_000
"""Characters whose folding is cached."""
_KNOWN_COUNT_MAX: Final = 20_000
_KNOWN_LENGTH_MAX: Final = 40
"""Words whose terms are cached, and the length of the longest: most texts share words."""
_PIECE_LENGTH: Final = 100_000
"""Characters of a text that are divided into words at once, to bound memory."""


@cache
def analyzer(language: str, version: int = UNICODE_VERSION) -> Analyzer:
    """Return the analyzer of a language, as `language_of` names it, in an index of a version."""
    return Analyzer(language, version)


class Analyzer:
    """Divides texts of one language into terms."""

    __slots__ = ("_as_written", "_in_lower_case", "_known", "_stem", "_stop_words", "folded", "without_marks")

    def __init__(self, language: str, version: int) -> None:
        is_ascii = version < UNICODE_VERSION
        self.folded: Callable[[str], str] = (
            _ascii_folded if is_ascii else partial(folded, turkish=True) if language == "turkish" else folded
        )
        """The function that folds a text to lower case."""
        self.without_marks: Callable[[str], str] = str if is_ascii else without_marks
        """The function that removes the marks that comparisons ignore."""
        self._stop_words = stop_words(language)
        self._stem = _stemmer(language)
        delimiter = _delimiter(with_apostrophe=language != "english", is_ascii=is_ascii)
        lower = _ascii_folded if is_ascii else _turkish_lower if language == "turkish" else _lower
        self._in_lower_case = _Table(lambda piece: " " if delimiter.match(piece) else lower(piece))
        self._as_written = _Table(lambda piece: " " if delimiter.match(piece) else piece)
        self._known: dict[str, str] = {"": ""}

    def counts(self, text: str, count_max: int = maxsize) -> Counter[str]:
        """Return the number of times that each term occurs in a text. Only some terms are counted if there are more
        than `count_max`."""
        counted: Counter[str] = Counter()
        known = self._known
        for words in _words(text.translate(self._in_lower_case)):
            for word, count in Counter(words).items():
                term = known.get(word)
                if term is None:
                    term = self._remembered(word)
                if term:
                    counted[term] += count
            if len(counted) > count_max:
                break
        return counted

    def terms(self, text: str, *, with_case: bool, with_marks: bool) -> set[str]:
        """Return the terms of a text, with their case (`with_case`) and their marks (`with_marks`) if requested."""
        if not with_case and not with_marks:
            return set(self.counts(text))
        made = set()
        for words in _words(text.translate(self._as_written if with_case else self._in_lower_case)):
            for word in set(words):
                if self.folded(word) not in self._stop_words:
                    stem = self._stem(word)
                    made.add(stem if with_marks else self.without_marks(stem))
        return made - {""}

    def _remembered(self, word: str) -> str:
        """The cached term of a word in lower case; empty for a stop word."""
        term = "" if not word or word in self._stop_words else self.without_marks(self._stem(word))
        if len(word) <= _KNOWN_LENGTH_MAX:
            if len(self._known) >= _KNOWN_COUNT_MAX:
                self._known.clear()
            self._known[word] = term
        return term


def _words(text: str) -> Iterator[list[str]]:
    """Yield lists of the words between spaces, a bounded number at a time. A word may be empty."""
    start = 0
    while len(text) - start > _PIECE_LENGTH:
        end = text.find(" ", start + _PIECE_LENGTH)
        if end < 0:
            break
        yield text[start:end].split(" ")
        start = end + 1
    yield text[start:].split(" ")


def stemmer_version() -> str:
    """Return the version of the stemmers. The terms in an index depend on it."""
    from Stemmer import version

    return str(version())


def _stemmer(language: str) -> Callable[[str], str]:
    if language == NONE:
        return lambda word: word
    from Stemmer import Stemmer

    stem: Callable[[str], str] = Stemmer(language, 0).stemWord
    return stem


@cache
def _delimiter(*, with_apostrophe: bool, is_ascii: bool) -> re.Pattern[str]:
    exception = ("" if with_apostrophe else "(?!')") + ("(?=[\\x00-\\x7f])" if is_ascii else "")
    return re.compile(f"{exception}[{character_class(DELIMITERS)}]")


def _ascii_folded(text: str) -> str:
    """A text with its ASCII letters in lower case."""
    return text.lower() if text.isascii() else text.translate(_ASCII)


def folded(text: str, *, turkish: bool = False) -> str:
    """Return a text in lower case."""
    if turkish:
        return text.translate(_TURKISH)
    return text.lower() if text.isascii() else text.translate(_LOWER)


def without_marks(text: str) -> str:
    """Return a text without diacritical marks."""
    if text.isascii() and "^" not in text and "`" not in text:
        return text
    return text.translate(_UNMARKED)


class _Table(dict[int, str]):
    """A table for `str.translate` that adds characters as they occur."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, code: int) -> str:
        if len(self) >= _FOLDED_COUNT_MAX:
            self.clear()
        made = self[code] = self._make(chr(code))
        return made


def _lower(character: str) -> str:
    for made in (character.casefold(), character.lower()):
        if len(made) == 1:
            return made
    return character


def _turkish_lower(character: str) -> str:
    return {"I": "ı", "İ": "i"}.get(character) or _lower(character)


def _unmarked(character: str) -> str:
    pieces = normalize("NFD", character)
    return normalize("NFC", "".join([piece for piece in pieces if not _mark().match(piece)]))


@cache
def _mark() -> re.Pattern[str]:
    return re.compile(f"[{character_class(DIACRITICS)}]")


_ASCII: Final = {code: code + 32 for code in range(65, 91)}
_LOWER: Final = _Table(_lower)
_TURKISH: Final = _Table(_turkish_lower)
_UNMARKED: Final = _Table(_unmarked)
