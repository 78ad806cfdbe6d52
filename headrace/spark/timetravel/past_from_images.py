"""A collection at a past token, computed from its present documents and the pre-images of the events since.

If a document was changed since, the first event after the token shows what it was: nothing, if the event is an insert,
otherwise its pre-image. Other documents are unchanged. The collection is read in chunks (`snapshot.py`); with each
chunk, the events are read up to the token of its rows.

The result is exact, or PastUnknown is raised. The oplog must reach back to the token. The collection must have had
pre-images enabled (`changeStreamPreAndPostImages`) when it was changed, and must not have been dropped or renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.spark.mongodb.mongodb_stream import MongoDBStream
from headrace.spark.rows.tokens import Token
from headrace.spark.timetravel.snapshot import Snapshot, StoredDocument
from headrace.values.arrow.event_columns import EventRow
from headrace.values.bson import find_element
from headrace.values.keystring.encoding import encode_value


class PastUnknown(RuntimeError):
    """The documents at the token cannot be determined."""


class _ChangesSince:
    """The documents at a token, computed from the events after it, for keys that were not returned yet."""

    def __init__(self, mongodb: MongoDBStream, token: Token) -> None:
        self._mongodb = mongodb
        self._read_to = token
        self._taken_upto = b""
        self._before: dict[bytes, StoredDocument | None] = {}

    def read(self, end: Token) -> None:
        """Read the events up to `end`."""
        for batch in self._mongodb.read_raw(self._read_to, end):
            for event in batch:
                self._note(StoredDocument.of(event))
        self._read_to = max(self._read_to, end)

    def touched(self, key: Any) -> bool:
        """Whether an event read so far is of this `_id`."""
        return encode_value(key) in self._before

    def take(self, upto: bytes | None) -> Iterator[StoredDocument]:
        """Yield the earlier documents of changed keys up to and including `upto` (None: all); each is yielded once."""
        for key in sorted(key for key in self._before if upto is None or key <= upto):
            document = self._before.pop(key)
            if document is not None:
                yield document
        if upto is not None:
            self._taken_upto = upto

    def _note(self, event: StoredDocument) -> None:
        kind = event["operationType"]
        if "documentKey" not in event:
            raise PastUnknown(f"an event since then is of the whole collection: {kind}")
        key = encode_value(event["documentKey"]["_id"])
        if key in self._before or key <= self._taken_upto:
            return
        image = find_element(event.raw, b"fullDocumentBeforeChange")
        before = (
            None if event.get("fullDocumentBeforeChange") is None or image is None else event.raw[image[1] : image[2]]
        )
        if before is None and kind != "insert":
            raise PastUnknown(
                f"a document was changed since then ({kind}) and has no pre-image: "
                "collMod with changeStreamPreAndPostImages: {enabled: true} keeps them from now on"
            )
        self._before[key] = StoredDocument.of(before) if before else None


def documents_at(snapshot: Snapshot, token: Token) -> Iterator[EventRow]:
    """Yield the documents at `token` as rows with that token. Raise PastUnknown and PositionLost."""
    since = _ChangesSince(snapshot.stream_with({"fullDocumentBeforeChange": "whenAvailable"}), token)
    for chunk in snapshot.chunks(10_000):
        documents, _ = snapshot.consistent_read(chunk)
        since.read(snapshot.now())  # further than the chunk requires, which does no harm
        for document in documents:
            if not since.touched(document["_id"]):
                yield snapshot.row(token, document)
        for document in since.take(encode_value(chunk.last_key)):
            yield snapshot.row(token, document)
    since.read(snapshot.now())
    for document in since.take(None):
        yield snapshot.row(token, document)
