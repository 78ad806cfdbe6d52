"""Resume tokens as text that sorts in commit order, and the cluster time in them.

Only the first nine bytes of a token are decoded here.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from bson import Timestamp

_TIMESTAMP: Final = "82"
TIME_END: Final = 18
"""The end of the cluster time in a token's text; the token bounds of files are not truncated below it."""


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """`text` is the token's `_data`, by which tokens compare; `type_bits` is base64, empty if there are none."""

    text: str
    type_bits: str = ""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Token:
        """The token of a server's document, from `_id` or `postBatchResumeToken`."""
        bits = document.get("_typeBits")
        return cls(document["_data"], b64encode(bits).decode() if bits else "")

    def document(self) -> dict[str, Any]:
        """The document for `resumeAfter` and `startAfter`."""
        bits = {"_typeBits": b64decode(self.type_bits)} if self.type_bits else {}
        return {"_data": self.text} | bits

    @property
    def time(self) -> Timestamp:
        """The cluster time; a high-water mark sorts before every event of its time. Raises ValueError."""
        if self.text[:2] != _TIMESTAMP or len(self.text) < TIME_END:
            raise ValueError(f"{self.text!r} is not a resume token of MongoDB 4.0 or newer")
        return Timestamp(int(self.text[2:10], 16), int(self.text[10:TIME_END], 16))
