"""BSON: documents to Python values and back, raw documents read without decoding, values as text in error messages."""

from headrace.values.bson.codec import (
    OPTIONS,
    LearnedLayout,
    RawElement,
    check_all,
    decode,
    encode,
    encode_in_order,
    find_element,
    first_element,
    iter_elements,
    value_of,
    value_size,
)
from headrace.values.bson.value_types import (
    MISSING,
    Missing,
    regex_text,
    to_compact_string,
    to_string,
    type_name,
    type_number,
    types_named,
)

__all__ = [
    "MISSING",
    "OPTIONS",
    "LearnedLayout",
    "Missing",
    "RawElement",
    "check_all",
    "decode",
    "encode",
    "encode_in_order",
    "find_element",
    "first_element",
    "iter_elements",
    "regex_text",
    "to_compact_string",
    "to_string",
    "type_name",
    "type_number",
    "types_named",
    "value_of",
    "value_size",
]
