"""The longest text of an expression, which MongoDB bounds wherever it makes or reads one."""

from __future__ import annotations

from headrace import limits
from headrace.errors import CommandError


def check_text_length(length: int) -> None:
    """Raise 16493 if the length of a text, in bytes or at least in characters, is over the limit."""
    if length > limits.TEXT_BYTES_MAX:
        raise CommandError(16493, "Tried to create string longer than 16MB")


def checked_text(text: str) -> str:
    """Return the text. Raise 16493 if it is too long."""
    if len(text) > limits.TEXT_BYTES_MAX // 4:  # a character has four bytes at most
        check_text_length(len(text) if text.isascii() else len(text.encode()))
    return text
