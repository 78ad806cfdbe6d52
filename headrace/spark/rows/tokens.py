"""A resume token as the source carries it: text that sorts in commit order, and the time inside it.

Nothing here decodes a token beyond its first nine bytes; the server does.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from bson import Timestamp

_TIMESTAMP: Final = "82"
TIME_END: Final = 18
"""Where the time in a token's text ends: no bound of a file's tokens is cut shorter, and a transaction has one time."""


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """`text` is the token's `_data`; comparing tokens compares it. `type_bits` is base64, empty if it has none."""

    text: str
    type_bits: str = ""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Token:
        """From the document that a server sends as `_id` and `postBatchResumeToken`."""
        bits = document.get("_typeBits")
        return cls(document["_data"], b64encode(bits).decode() if bits else "")

    def document(self) -> dict[str, Any]:
        """What a server takes as `resumeAfter` and `startAfter`."""
        bits = {"_typeBits": b64decode(self.type_bits)} if self.type_bits else {}
        return {"_data": self.text} | bits

    @property
    def time(self) -> Timestamp:
        """The cluster time inside. A high-water mark comes before every event of its time."""
        if self.text[:2] != _TIMESTAMP or len(self.text) < TIME_END:
            raise ValueError(f"{self.text!r} is not a resume token of MongoDB 4.0 or newer")
        return Timestamp(int(self.text[2:10], 16), int(self.text[10:TIME_END], 16))
