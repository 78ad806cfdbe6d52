"""Values by their hash keys, also very many of them: a `dict`, or one spread over several.

A dict that grows beyond a million keys moves them all at once, which takes some 30 ms for each million.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

from headrace.turns import LARGE_COUNT, freed_in_pieces

SHARD_COUNT: Final = 128


class Sharded:
    """The part of a dict's methods that sets of values need. Its order is not that of insertion."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: list[dict[Hashable, Any]] = [{} for _ in range(SHARD_COUNT)]

    def _of(self, key: Hashable) -> dict[Hashable, Any]:
        return self._shards[hash((key,)) % SHARD_COUNT]  # mixed: the hash of a number is the number

    def __contains__(self, key: Hashable) -> bool:
        return key in self._of(key)

    def __iter__(self) -> Iterator[Hashable]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def items(self) -> Iterator[tuple[Hashable, Any]]:
        """All keys with their values."""
        for shard in self._shards:
            yield from shard.items()

    def setdefault(self, key: Hashable, value: Any) -> Any:
        """As `dict.setdefault`."""
        return self._of(key).setdefault(key, value)


Hashed = dict[Hashable, Any] | Sharded


def hashed(count: int) -> Hashed:
    """An empty one, for so many values at most."""
    if count <= LARGE_COUNT:
        return {}
    made = Sharded()
    freed_in_pieces(made._shards, count)
    return made


def key_set(keys: Iterable[Hashable], count: int) -> frozenset[Hashable] | Sharded:
    """The set of the keys, of which there are so many at most."""
    if count <= LARGE_COUNT:
        return frozenset(keys)
    made = hashed(count)
    for key in keys:
        made.setdefault(key, None)
    assert type(made) is Sharded
    return made
