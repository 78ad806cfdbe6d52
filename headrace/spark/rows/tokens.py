"""Resume tokens as text that sorts in commit order, and the cluster time in them.

The token of a document's event contains its documentKey in clear text. Rule for masked rows: their tokens contain the
masked key instead, marked as masked. Tokens keep their order and stay unique, because time and index come before the
key. A masked token sorts just before the original. No stream can be opened at a masked token.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from bson import Timestamp

_TIMESTAMP: Final = "82"
TIME_END: Final = 18
"""The end of the cluster time in a token's text; the token bounds of files are not truncated below it."""

MASKED_KEY: Final = "0A000A"
"""The first field of a masked documentKey: a MinKey with an empty name, which sorts before all other fields."""
_INDEX: Final = "(?:29|2B..|2C.{4}|2D.{6}|2E.{8})"
_UUID: Final = "5A1004.{32}"
_OPERATION: Final = "3C6F7065726174696F6E5479706500"  # a string named operationType
_KEY: Final = "46646F63756D656E744B657900"  # an object named documentKey
_UP_TO_KEY: Final = re.compile(
    f"82.{{16}}(?:2B042C0100{_INDEX}6[EF](?:{_UUID}|14)46{_OPERATION}3C(?:[1-9A-F].|0[1-9A-F])+00(?P<named>{_KEY})46"
    f"|(?:29{_INDEX}|2B022C0100{_INDEX}6[EF]){_UUID}46(?!{_OPERATION}))"
)
"""A token of version 2, 1 or 0, up to the fields of its documentKey; see `values/token.py`."""


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """`text` is the token's `_data`, by which tokens compare. `type_bits` is base64, or empty."""

    text: str
    type_bits: str = ""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Token:
        """Return the token of a server's document, from `_id` or `postBatchResumeToken`."""
        bits = document.get("_typeBits")
        return cls(document["_data"], b64encode(bits).decode() if bits else "")

    def document(self) -> dict[str, Any]:
        """Return the document for `resumeAfter` and `startAfter`."""
        bits = {"_typeBits": b64decode(self.type_bits)} if self.type_bits else {}
        return {"_data": self.text} | bits

    @property
    def time(self) -> Timestamp:
        """The cluster time; a high-water mark sorts before every event of its time. Raises ValueError."""
        if self.text[:2] != _TIMESTAMP or len(self.text) < TIME_END:
            raise ValueError(f"{self.text!r} is not a resume token of MongoDB 4.0 or newer")
        return Timestamp(int(self.text[2:10], 16), int(self.text[10:TIME_END], 16))

    @property
    def is_masked(self) -> bool:
        """Whether the documentKey in the token is masked: no server knows such a token."""
        matched = _UP_TO_KEY.match(self.text)
        return matched is not None and self.text.startswith(MASKED_KEY, matched.end())


def with_masked_key(text: str, key: bytes) -> str:
    """Return the token with this documentKey, the fields of a keystring, marked as masked; unchanged if it has no key.

    The number of a fragment is dropped.
    """
    matched = _UP_TO_KEY.match(text)
    if matched is None:
        return text
    ends = "000004" if matched["named"] else "0004"  # the ends of the key, the identifier and the token
    return matched[0] + MASKED_KEY + key.hex().upper() + ends
