"""Keystrings in an index with a collation: ICU's sort keys replace the text of strings.

    string                        3C | sort key | 00
    string in an object or array  the keystring of the sort key's bytes as Latin-1, which sorts as they do

Such keys are valid for one version of ICU (`key_format`), and the keys of a text index for one version of the stemmers.
At a start with another version the index is rebuilt. Source: MongoDB's collation comparison keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.values.collator import version
from headrace.values.keystring.encoding import encode_value

SortKey = Callable[[str], bytes]
"""Returns the sort key of a string under a collation."""


def key_format(spec: dict[str, Any]) -> str:
    """Return the version that an index's keys depend on, besides the specification."""
    if "text" in spec["key"].values():
        from headrace.store.indexes.text_keys import text_format  # imported only for such an index

        return text_format()
    return f"icu {version()}" if "collation" in spec else ""


def collated_key(sort_key: SortKey, value: Any) -> bytes:
    """Return the keystring of a value under a collation."""
    if type(value) is str:
        return b"<" + sort_key(value) + b"\0"
    return encode_value(folded(sort_key, value))


def folded(sort_key: SortKey, value: Any) -> Any:
    """Return the value with each string replaced by its sort key as Latin-1."""
    if type(value) is str:
        return sort_key(value).decode("latin-1")
    if type(value) is dict:
        return {name: folded(sort_key, item) for name, item in value.items()}
    return [folded(sort_key, item) for item in value] if type(value) is list else value
