"""SASLprep: the normal form in which passwords are compared. Source: RFC 4013, RFC 3454."""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

_PROHIBITED: Final = (
    stringprep.in_table_a1, stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7,
    stringprep.in_table_c8, stringprep.in_table_c9,
)  # fmt: skip


def saslprep(text: str) -> str:
    """Return the prepared text. Raises ValueError if a character is not allowed, or if no character is left."""
    spaced = (" " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char))
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(spaced))
    if text and not prepared:
        raise ValueError("it has only characters that SASLprep leaves out")
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise ValueError("it has a character that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, prepared)):
        ends = prepared[0], prepared[-1]
        if any(map(stringprep.in_table_d2, prepared)) or not all(map(stringprep.in_table_d1, ends)):
            raise ValueError("it mixes directions of writing as SASLprep prohibits")
    return prepared
