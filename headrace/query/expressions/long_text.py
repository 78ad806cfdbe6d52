"""Operations on texts of megabytes, cut into pieces with ticks; of a short text they are Python's own.

Rule: the results are those of `str.replace`, `str.split` and `str.translate`. A text that an operator makes is
not longer than `limits.TEXT_BYTES_MAX` (error 13548).
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Final, TypeVar

from headrace import limits
from headrace.errors import CommandError
from headrace.turns import TICK_COUNT, freed_in_pieces, in_pieces, tick

PIECE_LENGTH: Final = 64 * 1024
"""Characters that are looked at without a tick."""

_FEW_CHARACTERS: Final = 32  # to be stripped: Python compares each character of the text with each of them
_QUICK_LENGTH: Final = 16 * PIECE_LENGTH  # of what comes out at most


def check_length(length: int) -> None:
    """Raise 13548 for a text of so many characters; MongoDB's buffer has twice as many."""
    if length > limits.TEXT_BYTES_MAX:
        raise CommandError(13548, f"BufBuilder attempted to grow() to {length} bytes, past the 31MB limit.")


def joined(texts: list[str]) -> str:
    """All of them in one. Raises 13548."""
    length = sum(map(len, texts))
    if length > PIECE_LENGTH:
        tick()
        check_length(length)
    return "".join(texts)


def encoded(text: str) -> bytes:
    """As `str.encode`."""
    if len(text) <= PIECE_LENGTH:
        return text.encode()
    return b"".join([piece.encode() for piece in in_pieces(text, PIECE_LENGTH)])


def decoded(data: bytes) -> str:
    """As `bytes.decode`. Raises `UnicodeDecodeError`."""
    if len(data) <= PIECE_LENGTH:
        return data.decode()
    decoder = getincrementaldecoder("utf-8")()
    pieces = [decoder.decode(piece) for piece in in_pieces(data, PIECE_LENGTH)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def byte_count(text: str) -> int:
    """How many bytes of UTF-8 the text is."""
    if len(text) <= PIECE_LENGTH:
        return len(text.encode())
    return sum([len(piece.encode()) for piece in in_pieces(text, PIECE_LENGTH)])


Text = TypeVar("Text", str, bytes)


def find(text: Text, sought: Text, start: int = 0, end: int | None = None) -> int:
    """As `str.find` and `bytes.find`. What is sought is not cut: one of megabytes takes some 20 ms each."""
    last = len(text) if end is None else min(end, len(text))
    step = max(PIECE_LENGTH, len(sought))
    while last - start > step + len(sought):
        tick()
        at = text.find(sought, start, start + step + len(sought) - 1)  # what begins in the step also ends in it
        if at >= 0:
            return at
        start += step
    if last - start > PIECE_LENGTH:
        tick()
    return text.find(sought, start, last)


def stripped(text: str, characters: str, *, left: bool, right: bool) -> str:
    """As `str.strip`, `str.lstrip` and `str.rstrip`."""
    if len(text) <= PIECE_LENGTH and len(characters) <= _FEW_CHARACTERS:
        strip = str.strip if left and right else str.lstrip if left else str.rstrip
        return strip(text, characters)
    of = frozenset(characters)
    start, end = 0, len(text)
    while left and start < end:
        piece = text[start : min(start + PIECE_LENGTH, end)]
        count = _leading(piece, of)
        start += count
        if count < len(piece):
            break
    while right and start < end:
        piece = text[max(end - PIECE_LENGTH, start) : end]
        count = _leading(piece[::-1], of)
        end -= count
        if count < len(piece):
            break
    return text[start:end]


def _leading(text: str, characters: frozenset[str]) -> int:
    """How many characters at the beginning are among these."""
    tick()
    return next((at for at, character in enumerate(text) if character not in characters), len(text))


def compared(first: str, second: str, table: dict[int, int]) -> int:
    """-1, 0 or 1 as the first, translated, is before, equal to or after the second."""
    for start in range(0, max(len(first), len(second), 1), PIECE_LENGTH):
        if start:
            tick()
        one, other = (text[start : start + PIECE_LENGTH].translate(table) for text in (first, second))
        if one != other:
            return 1 if one > other else -1
    return 0


def replaced(text: str, sought: str, replacement: str, count: int) -> str:
    """As `str.replace`: the first occurrence (1) or all (-1). Raises 13548."""
    if (len(text) + 1) * (len(replacement) + 1) <= _QUICK_LENGTH:
        return text.replace(sought, replacement, count)
    if count == 1:
        at = find(text, sought)
        return text if at < 0 else joined([text[:at], replacement, text[at + len(sought) :]])
    if not sought:
        check_length(len(text) + len(replacement) * (len(text) + 1))
        pieces = [piece.replace("", replacement) for piece in in_pieces(text, PIECE_LENGTH)]  # one too many in each
        end = -len(replacement) or None
        return "".join([*[piece[:end] for piece in pieces], replacement])
    made: list[str] = []
    length = at = 0
    while at < len(text):
        tick()
        end = at + PIECE_LENGTH
        piece = text[at : end + len(sought) - 1]  # what begins in it also ends in it
        pieces = piece.split(sought)
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
    while (at := find(text, separator, start)) >= 0:
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
