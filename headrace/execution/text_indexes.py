"""The text index that a `$text` searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import CommandError
from headrace.query.match.text_match import TextQuery
from headrace.store.catalog import Collection
from headrace.store.indexes.index_entries import key_maker
from headrace.store.indexes.text_keys import TextKeyMaker, is_text

if TYPE_CHECKING:
    from headrace.text.text_spec import TextSpec


def text_query(collection: Collection | None, namespace: str = "") -> TextQuery:
    """Return the parser of text searches in a collection. `namespace`: the name of a missing collection, for errors."""
    return TextQuery(lambda: _spec_of(collection, namespace))


def _spec_of(collection: Collection | None, namespace: str) -> TextSpec:
    if collection is None:
        raise CommandError(27, f"text index required for $text query (no such collection '{namespace}')")
    for index in collection.indexes:
        if index.has_entries and is_text(index.spec["key"]):
            maker = key_maker(index)
            assert isinstance(maker, TextKeyMaker)
            return maker.text_spec
    raise CommandError(27, "text index required for $text query")
