"""A collection as it was at a token: what is there now, and what the events since then say was there before.

How: of a document that was touched since, the first event after the token tells what it was: nothing, if that is an
insert; else its image before the change. An untouched one is as it is now. The collection is read in chunks of a
snapshot (`snapshot.py`); with each chunk the events are read on to where its rows are true.

Exact or refused (PastUnknown): the events must reach back to the token, the collection must keep images of documents
before their changes (`changeStreamPreAndPostImages`) of those that changed, and must not have been dropped or renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Snapshot
from headrace.values.arrow import EventRow
from headrace.values.keystring import encode_value


class PastUnknown(RuntimeError):
    """What was there at the token cannot be known."""


class _Since:
    """What the events after a token say of the documents at it, for keys that are not settled yet."""

    def __init__(self, mongodb: MongoDBStream, token: Token) -> None:
        self._mongodb = mongodb
        self._read_to = token
        self._settled = b""
        self._before: dict[bytes, dict[str, Any] | None] = {}

    def read(self, end: Token) -> None:
        """Goes on with the events up to `end`."""
        for event in self._mongodb.read(self._read_to, end):
            self._note(event)
        self._read_to = max(self._read_to, end)

    def touched(self, key: Any) -> bool:
        return encode_value(key) in self._before

    def settle(self, upto: bytes | None) -> Iterator[dict[str, Any]]:
        """The documents that were there, of the touched keys up to and including `upto`, all without; once each."""
        for key in sorted(key for key in self._before if upto is None or key <= upto):
            document = self._before.pop(key)
            if document is not None:
                yield document
        if upto is not None:
            self._settled = upto

    def _note(self, event: dict[str, Any]) -> None:
        kind = event["operationType"]
        if "documentKey" not in event:
            raise PastUnknown(f"the collection was changed as a whole since then: {kind}")
        key = encode_value(event["documentKey"]["_id"])
        if key in self._before or key <= self._settled:
            return
        before = event.get("fullDocumentBeforeChange")
        if before is None and kind != "insert":
            raise PastUnknown(
                f"a document was changed since then ({kind}) and its image from before was not kept: "
                "collMod with changeStreamPreAndPostImages: {enabled: true} keeps them from now on"
            )
        self._before[key] = before


def documents_at(snapshot: Snapshot, token: Token) -> Iterator[EventRow]:
    """The documents at `token` as rows, each carrying it. Raises PastUnknown and PositionLost."""
    since = _Since(snapshot.stream_with({"fullDocumentBeforeChange": "whenAvailable"}), token)
    after = ""
    while chunk := snapshot.next_chunk(after, 10_000):
        documents, _ = snapshot.consistent_read(chunk)
        since.read(snapshot.now())  # further than the chunk is true, which does no harm
        for document in documents:
            if not since.touched(document["_id"]):
                yield snapshot.row(token, document)
        for document in since.settle(encode_value(chunk.last_key)):
            yield snapshot.row(token, document)
        after = chunk.upto
    since.read(snapshot.now())
    for document in since.settle(None):
        yield snapshot.row(token, document)
