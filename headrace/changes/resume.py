"""From a client's token to the event after it: which events a resumed stream skips and which it returns.

Rule: a stream that resumes from an event must read that event again. Events before it are skipped, and so is the
event itself, which the client has; everything after it is returned. If a later one comes first, the event is not in
this stream, and going on could skip something: error 280. A high-water mark is no event and need not be seen.

    SEEKING  --equal-->  MATCHED  --past the token's (clusterTime, txnOpIndex)-->  SETTLED
       |--later: error 280

Until a stream is settled its events are built for it alone; from then on it shares those built for all streams of its
kind. A version 1 token is answered with version 1 tokens until its (clusterTime, txnOpIndex) is passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.changes.stream import StreamSpec
from headrace.errors import CommandError
from headrace.values.bson.to_string import to_compact_string
from headrace.values.position import Position

if TYPE_CHECKING:
    from headrace.changes.draft import Draft
    from headrace.values.token import ResumeToken

NON_RESUMABLE: Final = ("NonResumableChangeStreamError",)
TOKEN_VERSION: Final = 2
"""The version of the tokens of all streams but those resumed from an older one."""


class ResumeGuard:
    """A filter over the first drafts of one stream; `settled` once it has nothing more to decide."""

    __slots__ = (
        "_client", "_matched", "_needed", "_resume_point", "_spec", "_version", "client_token", "fragment", "settled",
    )  # fmt: skip

    def __init__(self, spec: StreamSpec) -> None:
        token = spec.resume
        self._spec = spec
        self._version = TOKEN_VERSION if token is None else max(token.version, 1)
        self._client = "" if token is None else token.text(fragment=False, version=self._version)
        self.client_token = "" if token is None else token.text()
        """The client's token as text, in its canonical form."""
        self._needed = token is not None and not token.is_high_water_mark
        self._resume_point = (0, 0) if token is None else (token.cluster_time, token.txn_op_index)
        self._matched = not self._needed
        self.fragment: int | None = None if token is None else token.fragment
        """Which fragment of the event, split, the client has seen last."""
        self.settled = self._matched and (token is None or self._version == TOKEN_VERSION)

    def version_at(self, cluster_time: Position, txn_op_index: int) -> int:
        """The version of the tokens of an operation; settles the guard once the operation is past the resume point."""
        if (cluster_time, txn_op_index) <= self._resume_point:
            return self._version
        if self._matched:
            self.settled = True
        return TOKEN_VERSION

    def filter(self, drafts: Iterable[Draft]) -> Iterator[tuple[Draft, int | None]]:
        """The drafts after the client's token, each with None; drafts come in the order of their tokens, each once.

        The draft of the client's own event, if the client has seen only some fragments of it, comes with the number
        (from 0) of the last of those. Raises error 280 when a draft comes after the client's token and the token itself
        was not seen.
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
        """The client's own event is here; raises 280 where it was split and this stream does not split."""
        if self.fragment is not None and not self._spec.split:
            raise fatal(
                "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent "
                "stage"
            )
        self._matched = True
        self.settled = self._version == TOKEN_VERSION


def not_found(token: ResumeToken) -> CommandError:
    """Error 280 for a token whose event is not in the stream."""
    return fatal(f"cannot resume stream; the resume token was not found. {to_compact_string(token.document())}")


def fatal(message: str) -> CommandError:
    """Error 280: the stream cannot go on, and resuming it would not help."""
    return CommandError(280, message, labels=NON_RESUMABLE)
