"""The errors that are Headrace's own, each a subclass of the pymongo error that is caught for the same reason."""

from __future__ import annotations

from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError


class Closed(InvalidOperation):
    """The store, or the stream, is closed."""


class HistoryLost(OperationFailure):
    """The position of a stream is no longer in the oplog (code 286): read the data again, and watch from now."""


class StreamInvalidated(PyMongoError):
    """The stream has ended with an `invalidate` event: what it watched was dropped or renamed. A stream with
    `start_after` its token begins after that."""


class Timeout(PyMongoError, TimeoutError):
    """No event or result came within the time that the caller gave."""
