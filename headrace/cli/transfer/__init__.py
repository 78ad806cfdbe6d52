"""`headrace export` and `import`: collections to files and back, as JSON lines, CSV, or BSON as mongodump writes it."""

from __future__ import annotations

from typing import Final

FORMATS: Final = ("bson", "csv", "json")


def counted(count: int) -> str:
    """Return a number of documents as text."""
    return "1 document" if count == 1 else f"{count} documents"
