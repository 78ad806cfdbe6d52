"""What a search finds in a list of documents and with which scores, computed slowly and without the package's own code
but its stemmers and stop words: word by word, as MongoDB's documentation says it."""

from __future__ import annotations

import unicodedata
from typing import Any

from Stemmer import Stemmer

from headrace.text.stop_words import stop_words

Json = dict[str, Any]
_DELIMITERS = set(' \t\n\r.,;:!?"()[]{}<>/\\|-+*=~@#$%^&`«»“”’–—…')


def words_of(text: str, language: str) -> list[str]:
    """Words as they are written. Only delimiters that the tests use are known."""
    delimiters = _DELIMITERS | (set() if language == "english" else {"'"})
    made, word = [], ""
    for character in text + " ":
        if character not in delimiters:
            word += character
        elif word:
            made.append(word)
            word = ""
    return made


def without_accents(text: str) -> str:
    pieces = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(piece for piece in pieces if not unicodedata.combining(piece)))


def terms_of(text: str, language: str, *, case: bool = False, marks: bool = False) -> list[str]:
    made = []
    for word in words_of(text, language):
        if word.lower() in stop_words(language):
            continue
        term = word if case else word.lower()
        if language != "none":
            term = Stemmer(language).stemWord(term)
        made.append(term if marks else without_accents(term))
    return made


def texts_of(
    value: Any, path: str, weights: Json, language: str, override: str = "language"
) -> list[tuple[str, int, str]]:
    """(text, weight, language) of a document, an array or a text."""
    if isinstance(value, str):
        weight = weights.get(path, weights.get("$**"))
        return [] if weight is None else [(value, weight, language)]
    if isinstance(value, list):
        return [item for element in value for item in texts_of(element, path, weights, language, override)]
    if not isinstance(value, dict):
        return []
    language = value.get(override, language)
    made = []
    for name, item in value.items():
        if not ("$**" in weights and name == override):
            made += texts_of(item, f"{path}.{name}" if path else name, weights, language, override)
    return made


def scores_of(document: Json, weights: Json, language: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    for text, weight, spoken in texts_of(document, "", weights, language):
        terms = terms_of(text, spoken)
        for term in set(terms):
            exponent, frequency = 1.0, 0.0
            for _ in range(terms.count(term)):
                frequency += exponent
                exponent /= 2
            score = weight * frequency * (0.5 * terms.count(term) / len(terms) + 0.5)
            scores[term] = scores.get(term, 0) + score * (1.1 if text.lower() == term else 1)
    return scores


def score(
    document: Json, weights: Json, default: str, words: list[str], negated: list[str], phrases: list[str],
    negated_phrases: list[str], *, case: bool = False, marks: bool = False,
) -> float | None:  # fmt: skip
    """The score of a document for words in the default language; None where it does not match."""

    def shown(text: str) -> str:
        text = text if case else text.lower()
        return text if marks else without_accents(text)

    wanted = {term for word in [*words, *phrases] for term in terms_of(word, default)}
    exact = {term for word in [*words, *phrases] for term in terms_of(word, default, case=case, marks=marks)}
    refused = {term for word in negated for term in terms_of(word, default, case=case, marks=marks)}
    scores = scores_of(document, weights, default)
    texts = texts_of(document, "", weights, default)
    there = {term for text, _, spoken in texts for term in terms_of(text, spoken, case=case, marks=marks)}
    if not wanted & scores.keys() or not exact & there or refused & there:
        return None
    for phrase in phrases:
        if not any(shown(phrase) in shown(text) for text, _, _ in texts):
            return None
    if any(shown(phrase) in shown(text) for phrase in negated_phrases for text, _, _ in texts):
        return None
    return sum(scores[term] for term in sorted(wanted & scores.keys()))
