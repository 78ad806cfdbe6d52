"""Makes a failing case small: whatever can be left out, while the case still fails, is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from time import monotonic
from typing import Any

from tests.differential.comparison import Case

_Place = tuple[Any, ...]


def shrunk(case: Case, fails: Callable[[Case], bool], *, seconds: float) -> Case:
    """Return a smaller case that fails, after this many seconds at most."""
    ends = monotonic() + seconds
    whole: dict[str, Any] = {"steps": deepcopy(case.steps), "limits": dict(case.limits)}

    def still(tree: dict[str, Any]) -> bool:
        try:
            return fails(Case(deepcopy(tree["steps"]), tree["limits"]))
        except Exception:
            return False

    size = len(whole["steps"]) // 2
    while size and monotonic() < ends:
        at = 0
        while at < len(whole["steps"]):
            tried = {**whole, "steps": whole["steps"][:at] + whole["steps"][at + size :]}
            if still(tried):
                whole = tried
            else:
                at += size
        size //= 2
    goes_on = True
    while goes_on:
        goes_on = False
        for place in reversed(list(_places(whole, ()))):
            if monotonic() > ends:
                return Case(whole["steps"], whole["limits"])
            tried = deepcopy(whole)
            if _without(tried, place) and still(tried):
                whole, goes_on = tried, True
    return Case(whole["steps"], whole["limits"])


def _places(tree: Any, at: _Place) -> Iterator[_Place]:
    """Yield the place of each key and each element."""
    keys = tree.keys() if type(tree) is dict else range(len(tree)) if type(tree) is list else ()
    for key in keys:
        yield (*at, key)
        yield from _places(tree[key], (*at, key))


def _without(tree: Any, place: _Place) -> bool:
    """Remove what is at a place; False where it is no longer there."""
    try:
        for key in place[:-1]:
            tree = tree[key]
        del tree[place[-1]]
    except (IndexError, KeyError, TypeError):
        return False
    return len(place) > 1
