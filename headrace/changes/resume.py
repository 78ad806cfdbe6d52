"""The start of a resumed stream: the events that it skips after the client's token, and those that it returns.

Rule: a stream that resumes from an event must read that event again. Earlier events and the event itself, which the
client has, are skipped; all later events are returned. If a later event comes first, the token's event is not in this
stream, and continuing could skip events: error 280. A high-water mark is not an event and need not be seen.

    SEEKING  --equal-->  MATCHED  --past the token's (clusterTime, txnOpIndex)-->  SETTLED
       |--later: error 280

Until a stream is settled its events are built for it alone. Afterwards it shares events with all streams of its share
key. A version 1 token is answered with version 1 tokens until its (clusterTime, txnOpIndex) is passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.changes.stream import StreamSpec
from headrace.errors import CommandError
from headrace.values.bson import to_compact_string
from headrace.values.position import Position

if TYPE_CHECKING:
    from headrace.changes.draft import Draft
    from headrace.values.token import ResumeToken

NON_RESUMABLE: Final = ("NonResumableChangeStreamError",)
TOKEN_VERSION: Final = 2
"""The token version of all streams, except those resumed from an older token."""


class ResumeGuard:
    """A filter over the first drafts of one stream. It is `settled` when it has nothing more to decide."""

    __slots__ = (
        "_client", "_matched", "_needed", "_resume_point", "_spec", "_version", "client_token", "fragment", "settled",
    )  # fmt: skip

    def __init__(self, spec: StreamSpec) -> None:
        token = spec.resume
        self._spec = spec
        self._version = TOKEN_VERSION if token is None else max(token.version, 1)
        self._client = "" if token is None else token.text(fragment=False, version=self._version)
        self.client_token = "" if token is None else token.text()
        """The canonical text of the client's token."""
        self._needed = token is not None and not token.is_high_water_mark
        self._resume_point = (0, 0) if token is None else (token.cluster_time, token.txn_op_index)
        self._matched = not self._needed
        self.fragment: int | None = None if token is None else token.fragment
        """The fragment of the split event that the client has seen last."""
        self.settled = self._matched and (token is None or self._version == TOKEN_VERSION)

    def version_at(self, cluster_time: Position, txn_op_index: int) -> int:
        """Return the token version of an operation. Settle the guard if the operation is past the resume point."""
        if (cluster_time, txn_op_index) <= self._resume_point:
            return self._version
        if self._matched:
            self.settled = True
        return TOKEN_VERSION

    def filter(self, drafts: Iterable[Draft]) -> Iterator[tuple[Draft, int | None]]:
        """Yield the drafts after the client's token, each with None. `drafts` are in the order of their tokens, each
        once.

        If the client has seen only some fragments of its event, that draft is yielded with the number (from 0) of the
        last one seen. Raises error 280 if a draft after the client's token comes before the token itself.
        """
        for draft in drafts:
            token = draft.token
            if token < self._client:
                continue
            if token == self._client and self._needed:
                self._match()
                if self.fragment is not None:
                    yield draft, self.fragment
            elif self._matched:
                yield draft, None
            else:
                assert self._spec.resume is not None
                raise not_found(self._spec.resume)

    def _match(self) -> None:
        """Note the client's own event. Raises 280 if it was split and this stream does not split."""
        if self.fragment is not None and not self._spec.split:
            raise fatal(
                "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent "
                "stage"
            )
        self._matched = True
        self.settled = self._version == TOKEN_VERSION


def not_found(token: ResumeToken) -> CommandError:
    """Return error 280 for a token whose event is not in the stream."""
    return fatal(f"cannot resume stream; the resume token was not found. {to_compact_string(token.document())}")


def fatal(message: str) -> CommandError:
    """Return error 280: the stream cannot continue, and resuming it would not help."""
    return CommandError(280, message, labels=NON_RESUMABLE)
