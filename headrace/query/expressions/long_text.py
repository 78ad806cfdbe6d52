"""Operations on texts of megabytes, cut into pieces with ticks; of a short text they are Python's own.

Rule: the results are those of `str.replace`, `str.split` and `str.translate`. A text that an operator makes is no
longer than a document may be, also where it is not stored (error 10334).
"""

from __future__ import annotations

from typing import Final

from headrace import limits
from headrace.errors import CommandError
from headrace.turns import TICK_COUNT, freed_in_pieces, in_pieces, tick

PIECE_LENGTH: Final = 64 * 1024
"""Characters that are looked at without a tick."""

_QUICK_LENGTH: Final = 16 * PIECE_LENGTH  # of what comes out at most


def check_length(length: int) -> None:
    """Raise 10334 for a text of so many characters that no document could hold it."""
    if length > limits.INTERNAL_DOCUMENT_BYTES_MAX:
        most = limits.INTERNAL_DOCUMENT_BYTES_MAX
        message = f"BSONObj size: {length} ({length:#x}) is invalid. Size must be between 0 and {most}(16MB)"
        raise CommandError(10334, message)


def joined(texts: list[str]) -> str:
    """All of them in one. Raises 10334."""
    check_length(sum(map(len, texts)))
    return "".join(texts)


def replaced(text: str, find: str, replacement: str, count: int) -> str:
    """As `str.replace`: at most `count` occurrences, -1 for all. Raises 10334."""
    if (len(text) + 1) * (len(replacement) + 1) <= _QUICK_LENGTH:
        return text.replace(find, replacement, count)
    if count == 1 or not find:
        times = 1 if count == 1 else len(text) + 1
        check_length(len(text) + (len(replacement) - len(find)) * times)
        return text.replace(find, replacement, count)
    made: list[str] = []
    length = at = 0
    while at < len(text):
        tick()
        end = at + PIECE_LENGTH
        piece = text[at : end + len(find) - 1]  # what begins in it also ends in it
        pieces = piece.split(find)
        rest = at + len(piece) - len(pieces[-1])  # where the last occurrence ends
        pieces[-1] = text[rest:end]
        length += sum(map(len, pieces)) + len(replacement) * (len(pieces) - 1)
        check_length(length)
        made.append(replacement.join(pieces))
        at = max(end, rest)
    return "".join(made)


def split(text: str, separator: str) -> list[str]:
    """As `str.split`. Raises 146 for more elements than an array may have."""
    if len(text) <= PIECE_LENGTH:
        return text.split(separator)
    pieces: list[str] = []
    start = 0
    while (at := text.find(separator, start)) >= 0:
        pieces.append(text[start:at])
        start = at + len(separator)
        if not len(pieces) % TICK_COUNT:
            tick()
            if len(pieces) > limits.EXPRESSION_ARRAY_LENGTH_MAX:
                raise CommandError(146, "$split would use too much memory")
    pieces.append(text[start:])
    return freed_in_pieces(pieces)


def translated(text: str, table: dict[int, int]) -> str:
    """As `str.translate`."""
    if len(text) <= PIECE_LENGTH:
        return text.translate(table)
    return "".join([piece.translate(table) for piece in in_pieces(text, PIECE_LENGTH)])
