"""A parsed `$text`: the terms and phrases that a document must have, and those that it must not have.

    desk "oil lamp" -red -"two lamps"     some of desk, oil, lamp; the phrase; not red; not the other phrase

A hyphen at the beginning or after white space negates everything up to the next white space. A phrase matches any piece
of a text that begins where a word begins. The terms of phrases that are not negated are searched for like other terms.

Source: MongoDB's documentation of `$text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.text.analyzer import analyzer
from headrace.text.text_spec import TextSpec

_PIECE: Final = re.compile(r'[-"]|[^-" \n\v\f\r\t]+')


@dataclass(frozen=True, slots=True)
class _Pieces:
    words: str
    negated_words: str
    phrases: tuple[str, ...]
    negated_phrases: tuple[str, ...]


def _divided(search: str) -> _Pieces:
    """The words and phrases of a search, as written."""
    words: list[str] = []
    negated_words: list[str] = []
    phrases: list[str] = []
    negated_phrases: list[str] = []
    is_negated = False
    phrase_start: int | None = None
    end = -1
    for match in _PIECE.finditer(search):
        piece, follows_space = match[0], match.start() != end
        end = match.end()
        if piece == '"' and phrase_start is not None:
            (negated_phrases if is_negated else phrases).append(search[phrase_start : match.start()])
            phrase_start = None
        elif piece == '"':
            is_negated = is_negated and not follows_space
            phrase_start = end
        elif piece == "-":
            is_negated = is_negated or (phrase_start is None and follows_space)
        elif phrase_start is not None:
            if not is_negated:
                words.append(piece)
        else:
            is_negated = is_negated and not follows_space
            (negated_words if is_negated else words).append(piece)
    return _Pieces(" ".join(words), " ".join(negated_words), tuple(phrases), tuple(negated_phrases))


class TextSearch:
    """A search in the documents of one text index."""

    __slots__ = (
        "_analyzer", "_last", "_negated", "_positive", "_spec", "_with_case", "_with_marks", "negated_phrases",
        "negated_terms", "phrases", "terms",
    )  # fmt: skip

    def __init__(self, spec: TextSpec, search: str, language: str, *, with_case: bool, with_marks: bool) -> None:
        """Parse a search in a language that `language_of` returns. `with_case`, `with_marks`: compare case, compare
        marks.

        Raises 2 for a search that is too long.
        """
        if len(search) > limits.SEARCH_LENGTH_MAX:
            raise CommandError(2, f"$search may have at most {limits.SEARCH_LENGTH_MAX} characters")
        pieces, analyze = _divided(search), analyzer(language, spec.version)
        self._spec = spec
        self._with_case = with_case
        self._with_marks = with_marks
        self._analyzer = analyze
        self.terms = sorted(analyze.counts(pieces.words))
        """The terms to look up in the index: each match has at least one."""
        self._positive = analyze.terms(pieces.words, with_case=with_case, with_marks=with_marks)
        self._negated = analyze.terms(pieces.negated_words, with_case=with_case, with_marks=with_marks)
        self.negated_terms = sorted(self._negated)
        self.phrases = pieces.phrases
        self.negated_phrases = pieces.negated_phrases
        counts = len(self.terms), len(self._negated), len(self.phrases), len(self.negated_phrases)
        if max(counts) > limits.SEARCH_TERM_COUNT_MAX:
            raise CommandError(2, f"$search may have at most {limits.SEARCH_TERM_COUNT_MAX} terms and phrases")
        self._last: tuple[dict[str, Any], float | None] | None = None

    @property
    def version(self) -> int:
        """The version of the index."""
        return self._spec.version

    @property
    def is_plain(self) -> bool:
        """Whether a document matches as soon as it has one of the terms."""
        is_sensitive = self._with_case or self._with_marks
        return not (is_sensitive or self._negated or self.phrases or self.negated_phrases)

    def score(self, document: dict[str, Any]) -> float | None:
        """Return the score of a document; None if the document does not match. Raises 17261 and 17262."""
        if self._last is None or self._last[0] is not document:
            self._last = document, self._scored(document)
        return self._last[1]

    def _scored(self, document: dict[str, Any]) -> float | None:
        scores = self._spec.scores(document, self.terms)
        found = [scores[term] for term in self.terms if term in scores]
        if not found or not self._is_accepted(document):
            return None
        return sum(found)

    def _is_accepted(self, document: dict[str, Any]) -> bool:
        """Whether a document that has a term meets the other conditions."""
        is_sensitive = self._with_case or self._with_marks
        if is_sensitive and not self._has_one(document, self._positive):
            return False
        if self._negated and self._has_one(document, self._negated):
            return False
        if not self.phrases and not self.negated_phrases:
            return True
        texts = [self._shown(text) for text, _, _ in self._spec.texts(document)]
        return all(_is_in(texts, self._shown(phrase)) for phrase in self.phrases) and not any(
            _is_in(texts, self._shown(phrase)) for phrase in self.negated_phrases
        )

    def _has_one(self, document: dict[str, Any], wanted: set[str]) -> bool:
        return any(
            not wanted.isdisjoint(analyze.terms(text, with_case=self._with_case, with_marks=self._with_marks))
            for text, _, analyze in self._spec.texts(document)
        )

    def _shown(self, text: str) -> str:
        """A text in the form in which phrases are compared."""
        if not self._with_case:
            text = self._analyzer.folded(text)
        return text if self._with_marks else self._analyzer.without_marks(text)


def _is_in(texts: list[str], phrase: str) -> bool:
    return any(phrase in text for text in texts)
