"""The texts of a document that a text index covers, their languages, and the scores of their terms.

    the score of a term in one text   weight * (1 + 1/2 + 1/4 ... , one for each time) * (1/2 + 1/2 * share of terms)
                                      and a tenth more where the text is nothing but the term
    in a document                     the sum of all its texts'

An array stands for its elements. A document may name the language of its texts in the field `language_override`. A
subdocument without this field has the language of the document around it. A wildcard index covers all texts except
these language names.

In an index of version 1 a document has one language, a path enters at most one array, and a wildcard index has weights
by field name.
Source: MongoDB's documentation of text indexes, and the scores that its server answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from sys import maxsize
from typing import Any, Final, NamedTuple

from headrace.errors import CommandError
from headrace.text.analyzer import NONE, UNICODE_VERSION, Analyzer, analyzer, language_of

WILDCARD: Final = "$**"
_HALVINGS_MAX: Final = 54
"""After this many occurrences of a term, another one does not change the score."""


class IndexedText(NamedTuple):
    """One text of a document."""

    text: str
    weight: float
    analyzer: Analyzer


@dataclass(frozen=True)
class TextSpec:
    """A text index. `default_language` is a name that `language_of` returns."""

    weights: Mapping[str, float]
    default_language: str
    language_override: str
    version: int = UNICODE_VERSION

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> TextSpec:
        """Return the text spec of a stored index specification."""
        weights = {path: float(weight) for path, weight in spec["weights"].items()}
        version = int(spec.get("textIndexVersion", UNICODE_VERSION))
        language = language_of(spec["default_language"], version) or NONE
        return cls(weights, language, spec["language_override"], version)

    @cached_property
    def _inner(self) -> frozenset[str]:
        """The paths of subdocuments that have fields in the index."""
        pieces = [path.split(".") for path in self.weights]
        return frozenset(".".join(names[:count]) for names in pieces for count in range(1, len(names)))

    def texts(self, document: dict[str, Any]) -> Iterator[IndexedText]:
        """Yield the texts of a document. Raises 17261 and 17262 for an invalid language."""
        if self.version == 1:
            return self._of_version_1(document)
        return self._of_document(document, "", self.default_language)

    def scores(
        self, document: dict[str, Any], wanted: Collection[str] | None = None, count_max: int = maxsize
    ) -> dict[str, float]:
        """Return the scores of a document's terms, or of the `wanted` terms. Only some are returned if there are more
        than `count_max`. Raises as `texts`."""
        scores: dict[str, float] = {}
        for text, weight, analyze in self.texts(document):
            if len(scores) > count_max:
                break
            counts = analyze.counts(text, count_max)
            total = counts.total()
            for term in counts if wanted is None else [term for term in wanted if term in counts]:
                count = counts[term]
                times = 2 - 2.0 ** (1 - min(count, _HALVINGS_MAX))
                share = 0.5 * count / total + 0.5
                whole = 1.1 if len(term) == len(text) and _is_equal(term, text) else 1.0
                scores[term] = scores.get(term, 0.0) + weight * times * share * whole
        return scores

    def _language(self, document: dict[str, Any], around: str) -> str:
        name = document.get(self.language_override)
        if name is None and self.language_override not in document:
            return around
        if type(name) is not str:
            raise CommandError(17261, "found language override field in document with non-string type")
        language = language_of(name, self.version)
        if language is None:
            raise CommandError(17262, f"language override unsupported: {name}")
        return language

    def _of_document(self, document: dict[str, Any], prefix: str, around: str) -> Iterator[IndexedText]:
        language = self._language(document, around)
        for name, value in document.items():
            if type(value) in _KINDS and not (WILDCARD in self.weights and name == self.language_override):
                yield from self._of_value(value, prefix + name, language)

    def _of_value(self, value: Any, path: str, language: str) -> Iterator[IndexedText]:
        kind = type(value)
        if kind is str:
            weight = self.weights.get(path, self.weights.get(WILDCARD))
            if weight is not None:
                yield IndexedText(value, weight, analyzer(language, self.version))
        elif kind is dict:
            if WILDCARD in self.weights or path in self._inner:
                yield from self._of_document(value, path + ".", language)
        elif kind is list and (WILDCARD in self.weights or path in self._inner or path in self.weights):
            for item in value:
                yield from self._of_value(item, path, language)

    def _of_version_1(self, document: dict[str, Any]) -> Iterator[IndexedText]:
        name = document.get(self.language_override)
        language = language_of(name, 1) if type(name) is str and name else self.default_language
        analyze = analyzer(language or NONE, 1)
        if WILDCARD in self.weights:
            yield from self._all_texts(document, analyze)
            return
        for path, weight in self.weights.items():
            value, rest = _up_to_array(document, path)
            for item in value if type(value) is list else [value]:
                found = _up_to_array(item, rest)[0] if rest and type(item) is dict else item
                if type(found) is str:
                    yield IndexedText(found, weight, analyze)

    def _all_texts(self, value: Any, analyze: Analyzer) -> Iterator[IndexedText]:
        for name, item in value.items() if type(value) is dict else enumerate(value):
            if name == self.language_override:
                continue
            if type(item) is str:
                yield IndexedText(item, self.weights.get(str(name), 1.0), analyze)
            elif type(item) in (dict, list):
                yield from self._all_texts(item, analyze)


def _up_to_array(value: Any, path: str) -> tuple[Any, str]:
    """(value, rest of the path) at a path: the first array on the way, otherwise the value at its end, None if
    missing."""
    while path and type(value) is dict:
        name, _, path = path.partition(".")
        value = value.get(name)
    return (None, "") if path and type(value) is not list else (value, path)


_KINDS: Final = frozenset({dict, list, str})


def _is_equal(term: str, text: str) -> bool:
    """Whether a text equals the term, ignoring the case of ASCII letters."""
    return term.encode().lower() == text.encode().lower()
