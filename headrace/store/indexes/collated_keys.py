"""Keystrings of values in an index with a collation: those of strings hold ICU's sort keys, in place of their text.

    string                        3C | sort key | 00
    string in an object or array  the keystring of the sort key's bytes as Latin-1, which sorts as they do

Such keys are valid for one version of ICU (`key_format`), those of a text index for one of the stemmers; an index with
keys of another one is built again at start.
Source: MongoDB's collation comparison keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.values.collator import version
from headrace.values.keystring import encode_value

SortKey = Callable[[str], bytes]
"""Returns the sort key of a string under a collation."""


def key_format(spec: dict[str, Any]) -> str:
    """Return what the keys of an index with this specification depend on, beside the specification."""
    if "text" in spec["key"].values():
        from headrace.store.indexes.text_keys import text_format  # imported where there is such an index

        return text_format()
    return f"icu {version()}" if "collation" in spec else ""


def collated_key(sort_key: SortKey, value: Any) -> bytes:
    """The keystring of a value."""
    if type(value) is str:
        return b"<" + sort_key(value) + b"\0"
    return encode_value(folded(sort_key, value))


def folded(sort_key: SortKey, value: Any) -> Any:
    """The value with sort keys, as Latin-1, for its strings."""
    if type(value) is str:
        return sort_key(value).decode("latin-1")
    if type(value) is dict:
        return {name: folded(sort_key, item) for name, item in value.items()}
    return [folded(sort_key, item) for item in value] if type(value) is list else value
