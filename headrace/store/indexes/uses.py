"""How often indexes and collections were read since the start, for `$indexStats` and `$collStats`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Uses:
    """The counts of a store, or those of a reader that its server does not know yet."""

    indexes: Counter[int] = field(default_factory=Counter)
    """By the index's number."""
    ids: Counter[int] = field(default_factory=Counter)
    """Uses of the index on `_id`, by the collection's number."""
    scans: Counter[int] = field(default_factory=Counter)
    """Walks through all of a collection, by its number."""
    tailable_scans: Counter[int] = field(default_factory=Counter)
    """The same of tailable cursors."""

    def taken(self) -> dict[str, dict[str, int]]:
        """Return the counts, which begin anew."""
        made = {}
        for item in fields(self):
            counts: Counter[int] = getattr(self, item.name)
            made[item.name] = {str(number): count for number, count in counts.items()}
            counts.clear()
        return made

    def add(self, taken: dict[str, dict[str, int]]) -> None:
        """Add what another store has counted."""
        for name, counts in taken.items():
            getattr(self, name).update({int(number): count for number, count in counts.items()})
