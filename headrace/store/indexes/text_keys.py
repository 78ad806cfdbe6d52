"""The keys of a text index: the terms of a document, each with its score, between the values of the other fields.

    {a: 1, t: "oil lamps"}  under  {a: 1, _fts: "text", _ftsx: 1}   →  (1, "lamp", 0.75), (1, "oil", 0.75)

A document without a term has no key, whatever its other fields are; those must not be arrays (16675). Keys hold a long
term as its beginning and a digest. Keys depend on the version of the stemmers, which is stored with the index. Source:
MongoDB's documentation of text indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import CommandError
from headrace.hashing import sha256
from headrace.store.indexes.field_keys import field_keys
from headrace.store.indexes.index_keys import (
    CUT_BYTES,
    CUT_KEY,
    INVERTED,
    NO_TRAITS,
    UNBOUNDED,
    Row,
    Traits,
    descends,
    too_many_keys,
)
from headrace.values.bson import MISSING, decode
from headrace.values.keystring.encoding import END, encode_value

if TYPE_CHECKING:
    from headrace.text.text_spec import TextSpec

TERM: Final = "_fts"
SCORE: Final = "_ftsx"
_TERM_LENGTH_MAX: Final = 64
_TERM_BYTES_MAX: Final = 128
_FORMAT: Final = 1
_ARRAYS: Final[Traits] = frozenset({TERM})
"""The trait of an index in which a document has several keys."""


def is_text(pattern: Mapping[str, Any]) -> bool:
    """Return whether a key pattern is a text index's."""
    return "text" in pattern.values()


def text_format() -> str:
    """Return the version that the keys of a text index depend on, besides its specification."""
    from headrace.text.analyzer import stemmer_version

    return f"text {_FORMAT} snowball {stemmer_version()}"


def text_spec_of(spec: Mapping[str, Any]) -> TextSpec:
    """Return the parsed specification of a text index: its fields, weights and languages."""
    from headrace.text.text_spec import TextSpec  # imported only for such an index

    return TextSpec.of(spec)


def term_in_index(term: str) -> str:
    """Return a term as keys hold it."""
    if len(term) <= _TERM_LENGTH_MAX and len(term.encode()) <= _TERM_BYTES_MAX:
        return term
    return term[:_TERM_LENGTH_MAX].encode()[:_TERM_LENGTH_MAX].decode(errors="ignore") + sha256(term.encode()).hex()


class TextKeyMaker:
    """Makes the keys of one text index, with the interface of `KeyMaker`."""

    __slots__ = ("_after", "_before", "_keys", "_prefix", "covers", "made_count", "text_spec")

    def __init__(
        self, number: int, spec: dict[str, Any], covers: Callable[[dict[str, Any]], bool] | None
    ) -> None:  # fmt: skip
        self._prefix = number.to_bytes(4, "big")
        pattern = [(tuple(path.split(".")), descends(kind)) for path, kind in spec["key"].items()]
        at = list(spec["key"]).index(TERM)
        self._before, self._after = pattern[:at], pattern[at + 2 :]
        self._keys = field_keys(1, None)
        self.text_spec = text_spec_of(spec)
        self.covers = covers
        self.made_count = 0

    def keys(
        self, document: bytes, count_max: int = UNBOUNDED, decoded: dict[str, Any] | None = None
    ) -> tuple[list[bytes], Traits]:
        """Return keys as `KeyMaker.keys` does. Raises 16675, 17261 and 17262 for an invalid language, and 201."""
        self.made_count = 1
        rows = self._rows(decode(document) if decoded is None else decoded, count_max)
        self.made_count = max(len(rows), 1)
        traits = _ARRAYS if len(rows) > 1 else NO_TRAITS
        if any(len(key) > CUT_BYTES + 4 for key in rows):
            return list(dict.fromkeys(key[: CUT_BYTES + 4] for key in rows)), traits | {CUT_KEY}
        return list(rows), traits

    def rows(self, document: bytes) -> dict[bytes, Row]:
        """Return the keys of a raw document, each with its values."""
        return self._rows(decode(document), UNBOUNDED)

    def _rows(self, decoded: dict[str, Any], count_max: int) -> dict[bytes, Row]:
        if self.covers is not None and not self.covers(decoded):
            return {}
        before, row_before = self._others(decoded, self._before)
        after, row_after = self._others(decoded, self._after)
        scores = self.text_spec.scores(decoded, count_max=count_max)
        if len(scores) > count_max:
            raise too_many_keys()
        before, after = self._prefix + before, after + END
        return {
            before + encode_value(term_in_index(term)) + encode_value(score) + after: (
                *row_before, term, score, *row_after
            )
            for term, score in scores.items()
        }  # fmt: skip

    def _others(self, decoded: dict[str, Any], fields: list[tuple[tuple[str, ...], bool]]) -> tuple[bytes, list[Any]]:
        """Return the key bytes and the values of the fields other than the text."""
        key, values = b"", []
        for path, down in fields:
            value = _plain(decoded, path)
            piece = self._keys.missing if value is MISSING else self._keys.of_value(value)
            key += piece.translate(INVERTED) if down else piece
            values.append(None if value is MISSING else value)
        return key, values


def _plain(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path, or MISSING. Raises 16675 for an array at the path or before its end."""
    for name in path:
        if type(value) is not dict:
            value = MISSING
            break
        value = value.get(name, MISSING)
        if type(value) is list:
            raise CommandError(16675, "cannot have a multi-key as a prefix to a text index")
    return value
