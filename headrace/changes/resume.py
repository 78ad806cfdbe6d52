"""From a client's token to the event after it: what a resumed stream swallows, hands out, or cannot find.

Rule: a stream that resumes from an event must meet that event again. Everything before it is passed over, it is
swallowed itself, and everything after it is handed out. If something later comes first, the event is not in this
stream, and going on could have skipped something: error 280. A high-water mark is no event and need not be met.

    SEEKING  --equal-->  FOUND  --past the token's place-->  SETTLED
       |--later: error 280

Until a stream is settled it builds its own events; from then on it hears those that are built for all streams of
its kind. A version 1 token is answered with version 1 tokens until its place (clusterTime, txnOpIndex) is passed.
"""

from __future__ import annotations

from enum import Enum

from headrace.changes.stream import StreamSpec
from headrace.errors import CommandError
from headrace.values.bson.to_string import shown_tight
from headrace.values.position import Position

NON_RESUMABLE = ("NonResumableChangeStreamError",)
VERSION = 2


class Verdict(Enum):
    PASS = "pass"
    """Hand it out."""
    SKIP = "skip"
    """It lies before the client's token."""
    SWALLOW = "swallow"
    """It is the client's token: the client has it already, and what it closes is closed no more."""


class ResumeGuard:
    """Stands at the beginning of one stream; `settled` once it has nothing more to decide. One for each stream."""

    __slots__ = ("_client", "_found", "_needed", "_place", "_spec", "_version", "client_token", "fragment", "settled")

    def __init__(self, spec: StreamSpec) -> None:
        token = spec.resume
        self._spec = spec
        self._version = VERSION if token is None else max(token.version, 1)
        self._client = "" if token is None else token.text(fragment=False, version=self._version)
        self.client_token = "" if token is None else token.text()
        """The client's token as text, in its canonical form."""
        self._needed = token is not None and not token.is_high_water_mark
        self._place = (0, 0) if token is None else (token.cluster_time, token.txn_op_index)
        self._found = not self._needed
        self.fragment: int | None = None if token is None else token.fragment
        """Which fragment of the event, split, the client has seen last."""
        self.settled = self._found and (token is None or self._version == VERSION)

    def version_at(self, cluster_time: Position, txn_op_index: int) -> int:
        """The version of tokens for an operation at this place; settles the guard once the place is passed."""
        if (cluster_time, txn_op_index) <= self._place:
            return self._version
        if self._found:
            self.settled = True
        return VERSION

    def admit(self, token: str) -> Verdict:
        """What to do with the event of this token; events are asked for in order, each once.

        Raises error 280 when it lies behind the client's token and that was not met.
        """
        if token < self._client:
            return Verdict.SKIP
        if token == self._client and self._needed:
            self._meet()
            return Verdict.SWALLOW
        if self._found:
            return Verdict.PASS
        raise self._not_found()

    def _meet(self) -> None:
        if self.fragment is not None and not self._spec.split:
            raise fatal(
                "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent "
                "stage"
            )
        self._found = True
        self.settled = self._version == VERSION

    def _not_found(self) -> CommandError:
        token = self._spec.resume
        assert token is not None
        return fatal(f"cannot resume stream; the resume token was not found. {shown_tight(token.document())}")


def fatal(message: str) -> CommandError:
    """Error 280: the stream cannot go on, and resuming it would not help."""
    return CommandError(280, message, labels=NON_RESUMABLE)
