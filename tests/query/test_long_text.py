"""Operations on long texts give what Python's give on short ones."""

from __future__ import annotations

import random

import pytest

from headrace.errors import CommandError
from headrace.query.expressions import long_text


@pytest.mark.parametrize("seed", range(20))
def test_replacing_splitting_and_translating_are_pythons(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "PIECE_LENGTH", 7)
    monkeypatch.setattr(long_text, "_QUICK_LENGTH", 0)
    rng = random.Random(seed)
    for _ in range(200):
        text = "".join(rng.choice("aabé") for _ in range(rng.randrange(60)))
        find = "".join(rng.choice("ab") for _ in range(rng.randrange(4)))
        replacement = rng.choice(("", "a", "xyz", "ab"))
        count = rng.choice((1, -1))
        assert long_text.replaced(text, find, replacement, count) == text.replace(find, replacement, count)
        if find:
            assert long_text.split(text, find) == text.split(find)
        assert long_text.translated(text, {97: 65}) == text.translate({97: 65})
        start, end = rng.randrange(20), rng.choice((None, rng.randrange(60)))
        assert long_text.find(text, find, start, end) == text.find(find, start, end)
        assert long_text.find(text.encode(), find.encode(), start, end) == text.encode().find(find.encode(), start, end)
        assert long_text.decoded(long_text.encoded(text)) == text
        assert long_text.byte_count(text) == len(text.encode())
        if find:
            assert long_text.stripped(text, find, left=True, right=True) == text.strip(find)
            assert long_text.stripped(text, find, left=True, right=False) == text.lstrip(find)
            assert long_text.stripped(text, find, left=False, right=True) == text.rstrip(find)
        other = rng.choice((text, text.upper(), text[:-1], text + "c"))
        one, two = text.translate({97: 65}), other.translate({97: 65})
        assert long_text.compared(text, other, {97: 65}) == (one > two) - (one < two)


def test_a_text_that_is_too_long_is_not_made() -> None:
    for make in (
        lambda: long_text.joined(["x" * 20_000_000] * 2),
        lambda: long_text.joined(["x" * 2**24] * 2),  # which the C library would map anew, page by page
        lambda: long_text.replaced("x" * 1_000_000, "x", "y" * 100, -1),
        lambda: long_text.replaced("x" * 1_000_000, "", "y" * 100, -1),
    ):
        with pytest.raises(CommandError) as raised:
            make()
        assert raised.value.code == 13548
