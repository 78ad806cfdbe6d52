"""Events too large for one document, sent in fragments (`$changeStreamSplitLargeEvent`).

    fragment   {_id: token with fragmentNum 0, 1, ..., splitEvent: {fragment: 1, 2, ..., of: n}, fields of the event}

Rule: an event is split if it and its token together exceed `EVENT_SPLIT_BYTES`. Its fields except `_id` are sorted by
their size in BSON, then by name, and fill one fragment after the other. A field is never divided. So the same event
through the same pipeline always has the same fragments, and a client can resume between them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from headrace import limits
from headrace.changes.bson_elements import document_element, document_of
from headrace.changes.resume import fatal
from headrace.errors import CommandError
from headrace.values.bson import iter_elements

Fragment = tuple[str, bytes, bytes]
"""(the token's text, the token's document, the fragment)."""

CountMetric = Callable[[str], None]
"""Increments a counter of the server, given its dotted name in serverStatus's `metrics`."""

EVENTS_FAILED: Final = "changeStreams.largeEventsFailed"
EVENTS_SPLIT: Final = "changeStreams.largeEventsSplit"
"""The counters of large events that could not be sent, and that were split. An event that is read again counts
again."""

_PACK = Struct("<i").pack


def must_split(document: bytes, token: bytes, bytes_max: int = limits.EVENT_SPLIT_BYTES) -> bool:
    """Return whether this event, with this token's document, is too large to be sent whole."""
    return len(document) + len(token) > bytes_max


def fragments(
    document: bytes,
    token: Callable[[int], tuple[str, bytes]],
    count: CountMetric,
    bytes_max: int = limits.EVENT_SPLIT_BYTES,
) -> list[Fragment]:  # fmt: skip
    """Return the event in fragments. `token(n)` returns (text, document) of the token of fragment `n`, from 0.

    Raises 7182500 if a field is larger than a fragment, 7182502 if there is nothing to split. `count` is called in any
    case.
    """
    try:
        result = _split(document, token, bytes_max)
    except CommandError:
        count(EVENTS_FAILED)
        raise
    count(EVENTS_SPLIT)
    return result


def _split(document: bytes, token: Callable[[int], tuple[str, bytes]], bytes_max: int) -> list[Fragment]:
    fields = sorted(
        (end - start + len(name) + 2, name, document[start - len(name) - 2 : end])
        for _, name, start, end in iter_elements(document)
        if name != b"_id"
    )
    if not fields:
        raise CommandError(7182502, "Splitting change event failed: the event has no field but its _id")
    groups: list[list[bytes]] = [[]]
    room = size = bytes_max - len(_frame(token(0)[1], 1, 1))
    for field_bytes, _, field in fields:
        if field_bytes > room:
            groups.append([])
            room = size = bytes_max - len(_frame(token(len(groups) - 1)[1], 1, 1))
        if field_bytes > size:
            raise CommandError(
                7182500, f"Splitting change event failed: fragment size {field_bytes} is greater than {size}"
            )
        groups[-1].append(field)
        room -= field_bytes
    return [_fragment(token(index), index, len(groups), group) for index, group in enumerate(groups)]


def _frame(token: bytes, number: int, of: int, body: bytes = b"") -> bytes:
    numbers = b"".join((b"\x10fragment\0", _PACK(number), b"\x10of\0", _PACK(of)))
    split = document_element(b"splitEvent", document_of(numbers))
    return document_of(b"".join((document_element(b"_id", token), split, body)))


def _fragment(token: tuple[str, bytes], index: int, of: int, group: list[bytes]) -> Fragment:
    text, document = token
    return text, document, _frame(document, index + 1, of, b"".join(group))


def after_fragment(sent: list[Fragment], seen: int, client: str) -> list[Fragment]:
    """Return the fragments after fragment `seen` (from 0), whose token text at the client is `client`.

    Raises error 280 if the event is not split here as it was for the client.
    """
    if not sent:
        raise fatal(
            "Attempted to resume from a split event fragment, but the event in the resumed stream was not large enough "
            "to be split"
        )
    if seen >= len(sent) or sent[seen][0] != client:
        raise fatal(
            "Attempted to resume from a split event fragment, but the event in the resumed stream produced a different "
            "split. Ensure that the pipeline used to resume is the same as the original"
        )
    return sent[seen + 1 :]
