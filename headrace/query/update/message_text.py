"""Parts of MongoDB's messages of failed updates."""

from __future__ import annotations

from typing import Any

from headrace.values.bson import MISSING
from headrace.values.bson.to_string import to_string


def element_text(name: str, value: Any) -> str:
    """A field with its value, as `a: 5`."""
    return f"{name}: {to_string(value)}"


def id_text(document: dict[str, Any]) -> str:
    """The document's `_id` as an element, or `no id`, to identify it in messages."""
    value = document.get("_id", MISSING)
    return "no id" if value is MISSING else element_text("_id", value)
