"""The key of one field's value in an index: its keystring, the keystring under a collation, or its hash.

Under a collation ICU's sort keys replace the text of strings:

    string                        3C | sort key | 00
    string in an object or array  the keystring of the sort key's bytes as Latin-1, which sorts as they do

Such keys are valid for one version of ICU (`key_format`), and the keys of a text index for one version of the stemmers.
At a start with another version the index is rebuilt. Source: MongoDB's collation comparison keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from headrace.values.bson import MISSING
from headrace.values.collator import version
from headrace.values.index_hash import NULL_HASH, hash_of, hash_of_element
from headrace.values.keystring.encoding import DIRECT_ENCODERS, encode_value, integer_key

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


Encoders = Mapping[type, Callable[[Any], bytes]]


class FieldKeys(NamedTuple):
    """The functions that make keys of a field's values."""

    of_value: Callable[[Any], bytes]
    missing: bytes
    """The key of a missing value, equal to the key of null."""
    encoders: Encoders
    """Encoders by type, equivalent to `of_value`, for plain values and MISSING."""


_MISSING: Final = b"\x14"
_PLAIN: Final = FieldKeys(encode_value, _MISSING, {**DIRECT_ENCODERS, type(MISSING): lambda value: _MISSING})


def field_keys(kind: Any, sort_key: SortKey | None) -> FieldKeys:
    """Return the functions for a field with this kind in the index's pattern, and this collation."""
    if kind == "hashed":
        hashed = partial(hashed_key, sort_key=sort_key)
        missing = integer_key(NULL_HASH)
        encoders: Encoders = dict.fromkeys(DIRECT_ENCODERS, hashed) | {type(MISSING): lambda value: missing}
        return FieldKeys(hashed, missing, encoders)
    if sort_key is None:
        return _PLAIN
    collated = partial(collated_key, sort_key)
    return FieldKeys(collated, _MISSING, {**_PLAIN.encoders, str: collated})


def hash_in_index(value: Any, sort_key: SortKey | None) -> int:
    """Return the hash of a value. With a collation, strings are hashed by their sort keys."""
    if sort_key is None:
        return hash_of(value)
    if type(value) is str:
        return hash_of_element(0x02, _string(sort_key(value)))
    return hash_of(folded(sort_key, value))


def hashed_key(value: Any, *, sort_key: SortKey | None) -> bytes:
    """Return the key of a value in a hashed field."""
    return integer_key(hash_in_index(value, sort_key))


def _string(text: bytes) -> bytes:
    return (len(text) + 1).to_bytes(4, "little") + text + b"\0"
