"""Sessions and transactions of an open store, with pymongo's methods. A session runs one command at a time."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bson import Binary, Int64, Timestamp

if TYPE_CHECKING:
    from headrace.embedded.calls import Calls

Result = TypeVar("Result")
RETRY_SECONDS_MAX: Final = 120.0
"""How long `with_transaction` retries, as in the drivers' specification."""
_BACKOFF_SECONDS: Final = 0.005
_BACKOFF_SECONDS_MAX: Final = 0.5


class EmbeddedSession:
    """The session that `start_session` returns, a context manager."""

    def __init__(self, calls: Calls, default_transaction_options: Any = None, *, snapshot: bool = False) -> None:
        self._calls = calls
        self._defaults = default_transaction_options
        self._snapshot = snapshot
        self._snapshot_time: Timestamp | None = None
        self._number = 0
        self._state = "none"  # starting, in progress, committed, aborted
        self._concerns: dict[str, Any] = {}
        self.session_id: dict[str, Any] = {"id": Binary(uuid.uuid4().bytes, 4)}
        """The session's `lsid`."""
        self.has_ended = False
        self.operation_time: Timestamp | None = None
        """The cluster time of the last command."""
        self.cluster_time: MutableMapping[str, Any] | None = None
        """The newest `$clusterTime` in a reply."""

    @property
    def client(self) -> Any:
        """The open store."""
        return self._calls.owner

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, also before its first statement."""
        return self._state in ("starting", "in progress")

    def start_transaction(
        self, read_concern: Any = None, write_concern: Any = None, read_preference: Any = None,
        max_commit_time_ms: int | None = None,
    ) -> contextlib.AbstractContextManager[EmbeddedSession]:  # fmt: skip
        """Begin a transaction. A `with` on the result commits it, or aborts it on an exception."""
        self._check()
        if self._snapshot:
            raise _invalid("Transactions are not supported in snapshot sessions")
        if self.in_transaction:
            raise _invalid("Transaction already in progress")
        defaults = self._defaults
        read_concern = read_concern or (defaults and defaults.read_concern)
        write_concern = write_concern or (defaults and defaults.write_concern)
        limit_ms = max_commit_time_ms or (defaults and defaults.max_commit_time_ms)
        self._concerns = {}
        if read_concern is not None and read_concern.document:
            self._concerns["readConcern"] = read_concern.document
        if write_concern is not None and write_concern.document:
            self._concerns["writeConcern"] = write_concern.document
        if limit_ms:
            self._concerns["maxTimeMS"] = limit_ms
        self._state = "starting"
        self._number += 1
        return self._ending_transaction()

    @contextlib.contextmanager
    def _ending_transaction(self) -> Iterator[EmbeddedSession]:
        """End the transaction with the body of a `with`."""
        try:
            yield self
        except BaseException:
            if self.in_transaction:
                self.abort_transaction()
            raise
        if self.in_transaction:
            self.commit_transaction()

    def commit_transaction(self) -> None:
        """Commit the transaction. The call may be repeated, also after an error, with the same result."""
        self._check()
        if self._state == "none":
            raise _invalid("No transaction started")
        if self._state == "aborted":
            raise _invalid("Cannot call commitTransaction after calling abortTransaction")
        if self._state == "starting":
            self._state = "committed empty"
        if self._state == "committed empty":
            return
        self._state = "in progress"
        try:
            self._end("commitTransaction")
        finally:
            self._state = "committed"

    def abort_transaction(self) -> None:
        """Abort the transaction and undo its writes."""
        self._check()
        if self._state in ("none", "aborted"):
            raise _invalid("No transaction started" if self._state == "none" else "Cannot call abortTransaction twice")
        if self._state.startswith("committed"):
            raise _invalid("Cannot call abortTransaction after calling commitTransaction")
        had_statement, self._state = self._state == "in progress", "aborted"
        if had_statement:
            from pymongo.errors import PyMongoError

            with contextlib.suppress(PyMongoError):  # the transaction has ended already
                self._end("abortTransaction")

    def with_transaction(
        self, callback: Callable[[EmbeddedSession], Result], read_concern: Any = None, write_concern: Any = None,
        read_preference: Any = None, max_commit_time_ms: int | None = None,
    ) -> Result:  # fmt: skip
        """Run `callback(session)`, commit and return its result. After a conflict with another transaction, run it
        again."""
        retry = self.retries()
        while True:
            self.start_transaction(read_concern, write_concern, read_preference, max_commit_time_ms)
            try:
                result = callback(self)
                if self.in_transaction:
                    self.commit_transaction()
                return result
            except BaseException as error:
                if self.in_transaction:
                    self.abort_transaction()
                pause = retry(error)
                if pause is None:
                    raise
            time.sleep(pause)

    @staticmethod
    def retries() -> Callable[[BaseException], float | None]:
        """Return a function that takes a transaction's error and returns how many seconds to wait before a retry.

        The function returns None if there must be no retry. It counts the attempts from now on.
        """
        from pymongo.errors import PyMongoError

        ends, attempts = time.monotonic() + RETRY_SECONDS_MAX, iter(range(1, 1 << 30))

        def retry(error: BaseException) -> float | None:
            is_transient = isinstance(error, PyMongoError) and error.has_error_label("TransientTransactionError")
            if not is_transient or time.monotonic() > ends:
                return None
            return random.random() * min(_BACKOFF_SECONDS * 1.5 ** next(attempts), _BACKOFF_SECONDS_MAX)

        return retry

    def end_session(self) -> None:
        """Abort the open transaction and end the session. A second call has no effect."""
        if self.has_ended:
            return
        if self.in_transaction:
            self.abort_transaction()
        self.has_ended = True
        if self._calls.local.unusable is None:
            self._calls.run("admin", {"endSessions": [self.session_id]})

    def apply_to(self, body: MutableMapping[str, Any]) -> None:
        """Add the fields of this session and its transaction to a command."""
        self._check()
        body["lsid"] = self.session_id
        if not self.in_transaction:
            if self._state.startswith("committed") or self._state == "aborted":
                self._state = "none"
            if self._snapshot and next(iter(body)) in ("aggregate", "distinct", "find"):
                body["readConcern"] = {"level": "snapshot"}
                if self._snapshot_time is not None:
                    body["readConcern"]["atClusterTime"] = self._snapshot_time
            return
        self._add_number(body)
        if self._state == "starting":
            self._state = "in progress"
            body["startTransaction"] = True
            if "readConcern" in self._concerns:
                body["readConcern"] = self._concerns["readConcern"]

    def advance_operation_time(self, operation_time: Timestamp) -> None:
        """Advance the session's time. It changes no read, as every session sees all earlier writes."""
        if self.operation_time is None or operation_time > self.operation_time:
            self.operation_time = operation_time

    def advance_cluster_time(self, cluster_time: MutableMapping[str, Any]) -> None:
        """Advance the session's cluster time to another session's."""
        if self.cluster_time is None or cluster_time["clusterTime"] > self.cluster_time["clusterTime"]:
            self.cluster_time = cluster_time

    def advance(self, reply: MutableMapping[str, Any]) -> None:
        """Take over the times of a reply."""
        self.operation_time = reply.get("operationTime", self.operation_time)
        self.cluster_time = reply.get("$clusterTime", self.cluster_time)
        cursor = reply.get("cursor")
        if self._snapshot and self._snapshot_time is None:
            self._snapshot_time = (cursor or reply).get("atClusterTime")

    def _add_number(self, body: MutableMapping[str, Any]) -> None:
        body["txnNumber"] = Int64(self._number)
        body["autocommit"] = False

    def _end(self, command: str) -> None:
        body: dict[str, Any] = {command: 1, "lsid": self.session_id}
        self._add_number(body)
        if "writeConcern" in self._concerns:
            body["writeConcern"] = self._concerns["writeConcern"]
        if command == "commitTransaction" and "maxTimeMS" in self._concerns:
            body["maxTimeMS"] = self._concerns["maxTimeMS"]
        self.advance(self._calls.run("admin", body))

    def _check(self) -> None:
        if self.has_ended:
            raise _invalid("Cannot use ended session")

    def __enter__(self) -> EmbeddedSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_session()


def _invalid(message: str) -> Exception:
    from pymongo.errors import InvalidOperation

    return InvalidOperation(message)
