"""Keystrings: BSON values as bytes that sort in MongoDB's order of values, and back (KeyString V1, ascending)."""

from headrace.values.keystring.decoding import decode_all, decode_value, value_end
from headrace.values.keystring.encoding import (
    DIRECT_ENCODERS,
    END,
    GENERAL_TYPES,
    encode_array_items,
    encode_element,
    encode_fields,
    encode_value,
    encode_values,
)
from headrace.values.keystring.typebits import TypeBits, type_bits

__all__ = [
    "DIRECT_ENCODERS",
    "END",
    "GENERAL_TYPES",
    "TypeBits",
    "decode_all",
    "decode_value",
    "encode_array_items",
    "encode_element",
    "encode_fields",
    "encode_value",
    "encode_values",
    "type_bits",
    "value_end",
]
