"""Wrong names from a caller, and the most similar right ones: keywords of functions, flags of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

_SIMILARITY_MIN: Final = 0.6
"""The lowest similarity (difflib's ratio, from 0 to 1) of a suggested name."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`, whatever its case, or None if no name is similar."""
    import difflib  # only needed for errors

    by_plain = {_plain(known): known for known in names}
    found = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=_SIMILARITY_MIN)
    return by_plain[found[0]] if found else None


def check_keywords(function: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise TypeError, in Python's words, for a keyword that the public function `function` does not take."""
    names = sorted(allowed)
    for keyword in given:
        if keyword not in names:
            similar = nearest(keyword, names)
            hint = "" if similar is None else f". Did you mean {similar!r}?"
            raise TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{hint}")


def keywords_of(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a function's parameters."""
    code = function.__code__
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
