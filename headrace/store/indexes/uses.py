"""Counts of reads per index and collection since the start, for `$indexStats` and `$collStats`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Uses:
    """The counts of a store. In a reader process, the counts that were not sent to the server yet."""

    indexes: Counter[int] = field(default_factory=Counter)
    """Uses by the index's number."""
    ids: Counter[int] = field(default_factory=Counter)
    """Uses of the index on `_id`, by the collection's number."""
    scans: Counter[int] = field(default_factory=Counter)
    """Scans of whole collections, by the collection's number."""
    tailable_scans: Counter[int] = field(default_factory=Counter)
    """Scans by tailable cursors, by the collection's number."""

    def taken(self) -> dict[str, dict[str, int]]:
        """Return the counts and reset them."""
        made = {}
        for item in fields(self):
            counts: Counter[int] = getattr(self, item.name)
            made[item.name] = {str(number): count for number, count in counts.items()}
            counts.clear()
        return made

    def add(self, taken: dict[str, dict[str, int]]) -> None:
        """Add the counts of another store."""
        for name, counts in taken.items():
            getattr(self, name).update({int(number): count for number, count in counts.items()})
