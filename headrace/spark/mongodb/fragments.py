"""Assembles events of over 16 MB, which a server sends in fragments (`$changeStreamSplitLargeEvent`).

    fragment   {_id: token with fragmentNum, splitEvent: {fragment: 1, 2, ..., of: n}, fields of the event}

Rule: a reader sees complete events and their tokens, as if nothing had been split. An assembled event has the token of
the unsplit event, and no position lies between its fragments. Its fields are in the order of the fragments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from headrace.spark.rows.tokens import Token
from headrace.values.bson import encode, iter_elements
from headrace.values.token import decode_token

SPLIT_STAGE: Final[dict[str, Any]] = {"$changeStreamSplitLargeEvent": {}}
SERVERS_WITHOUT_SPLIT: Final[set[str]] = set()
"""The servers, by connection string, that refused the stage: MongoDB before 6.0.9."""
STAGE_UNKNOWN_CODES: Final = frozenset({323, 40324})
"""The codes of this refusal: 40324, or 323 if the requested API version lacks the stage."""

_INT32 = Struct("<i").unpack_from
_PACK = Struct("<i").pack
_SPLIT_EVENT: Final = b"\x03splitEvent\0"

Event = dict[str, Any]


def has_split_stage(pipeline: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the user's pipeline has the stage itself: then fragments are not assembled."""
    return any("$changeStreamSplitLargeEvent" in stage for stage in pipeline)


class FragmentAssembler:
    """Collects the fragments of one event at a time. Not thread-safe."""

    def __init__(self) -> None:
        self._fragments: list[Event] = []
        self._last_fragment = ""
        self._event_token: Token | None = None

    def reset(self) -> None:
        """Drop the fragments of an incomplete event: the stream is reopened before the event."""
        self._fragments.clear()
        self._event_token = None

    def assemble(self, events: list[Event]) -> list[Event]:
        """Return the complete events of a batch; keep the fragments of an incomplete event for the next call."""
        if not any(map(_may_be_fragment, events)):
            return events
        complete: list[Event] = []
        for event in events:
            token = decode_token(event["_id"]) if _may_be_fragment(event) else None
            if token is None or token.fragment is None:
                complete.append(event)
                continue
            self._fragments.append(event)
            self._last_fragment, self._event_token = event["_id"]["_data"], None
            number = event["splitEvent"]
            if number["fragment"] == number["of"]:
                identity = token.unsplit_event()
                self._event_token = Token.of(identity)
                complete.append(_assembled(identity, self._fragments))
                self._fragments.clear()
        return complete

    def position_of(self, position: Mapping[str, Any]) -> Token:
        """Return the token of a postBatchResumeToken: for a fragment its event's, or empty if that is incomplete."""
        if position["_data"] == self._last_fragment:
            return self._event_token or Token("")
        return Token.of(dict(position))


def _may_be_fragment(event: Event) -> bool:
    if isinstance(event, RawBSONDocument):
        raw = event.raw
        at = 9 + _INT32(raw, 9)[0]
        return bool(raw[4:9] == b"\x03_id\0" and raw[at : at + 12] == _SPLIT_EVENT)
    return "splitEvent" in event


def _assembled(identity: dict[str, Any], fragments: Sequence[Event]) -> Any:
    if not isinstance(fragments[0], RawBSONDocument):
        event: Event = {"_id": identity}
        for fragment in fragments:
            event |= {name: value for name, value in fragment.items() if name not in ("_id", "splitEvent")}
        return event
    raws = [bytes(fragment.raw) for fragment in fragments if isinstance(fragment, RawBSONDocument)]
    body = [b"\x03_id\0" + encode(identity), *map(_body, raws)]
    size = sum(map(len, body)) + 5
    return RawBSONDocument(b"".join((_PACK(size), *body, b"\0")))


def _body(fragment: bytes) -> bytes:
    """Return the fields after `_id` and `splitEvent`, as BSON elements."""
    return next((fragment[end:-1] for _, name, _, end in iter_elements(fragment) if name == b"splitEvent"), b"")
