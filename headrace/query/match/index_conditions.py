"""Conditions that an index answers: `$near` and `$nearSphere`, and `$text`.

A `$near` matches a document that has a geometry in a range of distances. The plan orders the documents by an index
(`execution/near_documents.py`). A `$text` is a search in the documents of a collection's text index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import CommandError
from headrace.query.document_metadata import search_score
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    DocumentTest,
    MatchExpression,
    MatchType,
    Nor,
    Not,
    Or,
)
from headrace.values.bson import type_name
from headrace.values.paths import ValueTest, split_path

if TYPE_CHECKING:
    from headrace.geo.near import Near
    from headrace.text.search import TextSearch
    from headrace.text.text_spec import TextSpec


@dataclass(frozen=True, slots=True)
class GeoNearMatchExpression(MatchExpression):
    """`$near`, which is allowed only at the top of a filter."""

    near: Near

    @property
    def order(self) -> tuple[Any, ...]:
        return (MatchType.GEO_NEAR, self.near.path, ())

    def compiled(self) -> DocumentTest:
        find = self.near.finder()
        return lambda document: find(document) is not None

    def single(self) -> ValueTest:
        return lambda value: False

    def fields(self) -> set[str] | None:
        return {split_path(self.near.path)[0]}


def check_nears(node: MatchExpression, count: int) -> None:
    """Raise 2 for a filter with more than one `$near`, or with a `$near` that is not at its top. `count`: how many it
    has."""
    if count > 1:
        raise CommandError(2, "Too many geoNear expressions")
    if near_of(node) is None and not isinstance(node, AlwaysBoolean):
        raise CommandError(2, "geoNear must be top-level expr")


def near_of(node: MatchExpression) -> Near | None:
    """Return the `$near` of an optimized filter; None if it has none."""
    children = node.children if isinstance(node, And) else (node,)
    return next((child.near for child in children if isinstance(child, GeoNearMatchExpression)), None)


def without_near(node: MatchExpression) -> MatchExpression:
    """Return a filter without its `$near`."""
    children = node.children if isinstance(node, And) else (node,)
    return And(tuple(child for child in children if not isinstance(child, GeoNearMatchExpression))).optimized()


_FIELDS = {"$caseSensitive": bool, "$diacriticSensitive": bool, "$language": str, "$search": str}
_TYPES = {bool: "bool", str: "string"}


@dataclass(frozen=True, slots=True)
class TextMatchExpression(MatchExpression):
    """Tells whether a document matches a search."""

    search: TextSearch

    @property
    def order(self) -> tuple[Any, ...]:
        return (MatchType.TEXT, "", ())

    def compiled(self) -> DocumentTest:
        score = self.search.score
        return lambda document: score(document) is not None

    def single(self) -> ValueTest:
        raise CommandError(2, "$text can only be applied to the top-level document")

    def fields(self) -> set[str] | None:
        return None


class TextQuery:
    """The one search that a filter may have. `spec` returns the text index of the collection, or raises 27."""

    __slots__ = ("_spec", "score", "search")

    def __init__(self, spec: Callable[[], TextSpec]) -> None:
        self._spec = spec
        self.search: TextSearch | None = None
        """The parsed search; None before the filter is parsed, and if it has no search."""
        self.score = search_score()
        """The scores, for expressions that read them."""

    def parse(self, argument: Any) -> TextMatchExpression:
        """Return the condition `{$text: argument}`. Raises 2, 4, 14, 27."""
        from headrace.text.analyzer import language_of  # imported only when a filter searches
        from headrace.text.search import TextSearch

        if self.search is not None:
            raise CommandError(2, "Too many text expressions")
        if type(argument) is not dict:
            raise CommandError(2, "$text expects an object")
        if "$search" not in argument:
            raise CommandError(4, 'Missing expected field "$search"')
        for name, kind in _FIELDS.items():
            if name in argument and type(argument[name]) is not kind:
                raise CommandError(
                    14, f'"{name}" had the wrong type. Expected {_TYPES[kind]}, found {type_name(argument[name])}'
                )
        if argument.keys() - _FIELDS.keys():
            raise CommandError(2, "extra fields in $text")
        spec = self._spec()
        given = argument.get("$language")
        language = spec.default_language if given is None else language_of(given, spec.version)
        if language is None:
            raise CommandError(2, f'unsupported language: "{given}" for text index version {spec.version}')
        self.search = TextSearch(
            spec, argument["$search"], language, with_case=argument.get("$caseSensitive", False),
            with_marks=argument.get("$diacriticSensitive", False),
        )  # fmt: skip
        return TextMatchExpression(self.search)


def has_text(spec: Any) -> bool:
    """Whether an unparsed filter has a `$text`."""
    if "$text" in spec:
        return True
    return any(
        type(item) is dict and has_text(item)
        for name in ("$and", "$nor", "$or") if type(spec.get(name)) is list for item in spec[name]
    )  # fmt: skip


def is_within_or(node: MatchExpression) -> bool:
    """Whether the search of a filter is inside an `$or`. Raises 2 for a negated search."""
    if isinstance(node, And):
        return any(is_within_or(child) for child in node.children)
    if isinstance(node, Nor | Not) and has_search(node):
        raise CommandError(2, "text expression not allowed in nor")
    return isinstance(node, Or) and has_search(node)


def has_search(node: MatchExpression) -> bool:
    """Whether a filter has a search."""
    if isinstance(node, And | Nor | Or):
        return any(has_search(child) for child in node.children)
    return isinstance(node, TextMatchExpression) or (isinstance(node, Not) and has_search(node.inner))
