"""Events of over 16 MB, which a server sends in fragments (`$changeStreamSplitLargeEvent`), put together again.

    fragment   {_id: token with fragmentNum, splitEvent: {fragment: 1, 2, ..., of: n}, fields of the event}

Rule: whoever reads a cursor gets whole events and stands at tokens of whole events, as if nothing had been split: an
event put together has the token that it would have had, and no position lies between its fragments. Its fields come
in the order of the fragments.
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
"""The servers, by connection string, that were seen not to know the stage: MongoDB before 6.0.9."""
STAGE_UNKNOWN_CODES: Final = frozenset({323, 40324})
"""What such a server answers: 40324, or 323 where the API version asked for has no such stage."""

_INT32 = Struct("<i").unpack_from
_PACK = Struct("<i").pack
_SPLIT_EVENT: Final = b"\x03splitEvent\0"

Event = dict[str, Any]


def has_split_stage(pipeline: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the user has put the stage in himself: then fragments are what he wants."""
    return any("$changeStreamSplitLargeEvent" in stage for stage in pipeline)


class FragmentAssembler:
    """Those of the one event that is coming, and where the last one stood. Not for two threads."""

    def __init__(self) -> None:
        self._fragments: list[Event] = []
        self._last_fragment = ""
        self._event_token: Token | None = None

    @property
    def waiting(self) -> bool:
        """Whether an event has begun and not ended."""
        return bool(self._fragments)

    def reset(self) -> None:
        """The stream begins again, before the event that had begun."""
        self._fragments.clear()
        self._event_token = None

    def assemble(self, events: list[Event]) -> list[Event]:
        """The whole events of a batch; what is missing of the last one is in the next."""
        if not any(map(_may_be_fragment, events)):
            return events
        events_out: list[Event] = []
        for event in events:
            token = decode_token(event["_id"]) if _may_be_fragment(event) else None
            if token is None or token.fragment is None:
                events_out.append(event)
                continue
            self._fragments.append(event)
            self._last_fragment, self._event_token = event["_id"]["_data"], None
            number = event["splitEvent"]
            if number["fragment"] == number["of"]:
                identity = token.whole_event()
                self._event_token = Token.of(identity)
                events_out.append(_assembled(identity, self._fragments))
                self._fragments.clear()
        return events_out

    def position_of(self, position: Mapping[str, Any]) -> Token:
        """A position that came with a batch: of a fragment it is where its event stands, or nothing before its end."""
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
    """What stands behind `_id` and `splitEvent`."""
    return next((fragment[end:-1] for _, name, _, end in iter_elements(fragment) if name == b"splitEvent"), b"")
