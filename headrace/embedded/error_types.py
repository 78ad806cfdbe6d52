"""The errors that are Headrace's own, each a subclass of the pymongo error that is caught for the same reason."""

from __future__ import annotations

from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError


class Closed(InvalidOperation):
    """The store, or the stream, is closed."""


class HistoryLost(OperationFailure):
    """Where a stream was to go on is no longer in the oplog (code 286): read the data anew, and watch from now."""


class StreamInvalidated(PyMongoError):
    """The stream has ended with an `invalidate` event: what it watched was dropped or renamed. `start_after` its token
    goes on behind that."""


class Timeout(PyMongoError, TimeoutError):
    """Nothing came within the time that the caller gave."""
