"""Headrace's own errors. Each is a subclass of the pymongo error that programs catch for the same reason."""

from __future__ import annotations

from pymongo.errors import InvalidOperation, OperationFailure, PyMongoError


class Closed(InvalidOperation):
    """The store or the stream is closed."""


class HistoryLost(OperationFailure):
    """The oplog no longer has the position of a stream (code 286). Read the data again, and watch from now."""


class StreamInvalidated(PyMongoError):
    """The stream has ended with an `invalidate` event, because what it watched was dropped or renamed.

    A new stream with `start_after` and the event's token begins after it.
    """


class Timeout(PyMongoError, TimeoutError):
    """No event or result came within the time that the caller gave."""
