"""Documents as parsed JSON with values in Extended JSON, for updates that only set, add and remove whole fields.

Such an update does not read the document's values, and inserts its own values unchanged. This takes a quarter of the
time of decoding all values, and gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

_RAW_VERSION: Final = {"$numberInt": "2"}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SECTIONS: Final = frozenset({"d", "u", "i"})


class JsonDocument(dict[str, Any]):
    """A document's fields, each with its value as parsed Extended JSON."""

    def text(self) -> str:
        """Return the document's Extended JSON; it is canonical if the text of its values is."""
        return _ENCODER.encode(self)


def with_fields(before: str | JsonDocument, description: str) -> JsonDocument | None:
    """Return the document after an update in the oplog's form (`$v: 2`); None if it changes more than whole fields.

    A `JsonDocument` is changed in place and returned, unless the result is None.
    """
    update = _parsed(description)
    diff = update.get("diff") if isinstance(update, dict) and update.get("$v") == _RAW_VERSION else None
    if not isinstance(diff, dict) or not _SECTIONS.issuperset(diff) or not all(map(_is_plain, diff.values())):
        return None
    if isinstance(before, str):
        if before.startswith('{"$'):
            return None
        fields = _parsed(before)
        if not isinstance(fields, dict):
            return None
        document = JsonDocument(fields)
    else:
        document = before
    for section, content in diff.items():
        if section == "u":
            document.update(content)
            continue
        for name, value in content.items():
            document.pop(name, None)
            if section == "i":
                document[name] = value
    return document


def _is_plain(section: Any) -> bool:
    """Whether the names in a section are field names: a document that looks like a value is written differently."""
    if not isinstance(section, dict):
        return False
    for name in section:  # noqa: SIM110 - a third of the time of any()
        if name[:1] == "$":
            return False
    return True


def _parsed(text: str) -> Any:
    """Parse JSON as `json.loads` does, but without searching for space around the value."""
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else json.loads(text)
