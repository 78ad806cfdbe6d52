"""Writes of one document whose client has sent the same command before: see `Command.again`.

    again("insert", INSERT, "documents", write)   → a `Command.again` that calls `write` for the document or statement

`write` does the same as the command without options, but without a context, a filter or a turn. It returns the elements
of the reply. If it returns None, it has done nothing and the command must run instead.

Rule: the command itself would have the same effects and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Final

from bson.errors import BSONError

from headrace import limits
from headrace.clock import monotonic
from headrace.dispatch.namespaces import check_writable, target
from headrace.dispatch.reply import written
from headrace.dispatch.request import Request
from headrace.dispatch.retryable_writes import begin_plain, put_reply
from headrace.dispatch.sessions import raw_lsid
from headrace.errors import CommandError
from headrace.execution.writes.updates import HARMLESS
from headrace.store.catalog import Collection
from headrace.store.view import bounded_key
from headrace.store.write_transaction import RetryableWrite, WriteTransaction
from headrace.values.bson import value_size
from headrace.values.keystring.encoding import encode_element

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

Write = Callable[["Engine", WriteTransaction, Collection, bytes, RetryableWrite | None], bytes | None]

_PLAIN: Final = frozenset({"ordered", "lsid", "txnNumber", "$db", "$clusterTime", "comment"})
"""The fields of a write that do not affect how one document is written."""
_ONE_ID: Final = frozenset({0x02, 0x07, 0x10, 0x12})  # strings, ObjectIds, integers
_SIZE = Struct("<i").unpack_from


def again(
    name: str, usage: int, sequence: str, write: Write, *, checks: bool = False
) -> Callable[[Engine, Request, WriteTransaction | None], bytes | None]:
    """Return the `Command.again` of a writing command. `usage`: the kind under which it is counted.
    `checks`: the statement is a document that is checked first."""
    plain, total = _PLAIN | {name}, f"commands.{name}.total"

    def facts_of(request: Request) -> Any:
        """Return (namespace, usage key) for a command that has only plain fields; otherwise False."""
        if request.body.keys() <= plain:
            with suppress(CommandError):
                namespace = target(request)
                check_writable(namespace)
                return namespace, (usage, request.db, request.body[name])
        return False

    def run(engine: Engine, request: Request, txn: WriteTransaction | None) -> bytes | None:
        repeated, statements = request.repeated, request.sequences.get(sequence)
        if repeated is None or txn is None or statements is None or len(statements) != 1:
            return None
        if repeated.facts is None:
            repeated.facts = facts_of(request)
        if not repeated.facts or len(statements[0]) > limits.KEYS_BYTES or not engine.store.oplog_enabled:
            return None  # the command may need a turn, or its reply differs
        began = monotonic()
        namespace, key = repeated.facts
        collection = plain_collection(engine, txn, namespace)
        if collection is None:
            return None
        retryable = None
        if repeated.number_at:
            begun = begin_plain(engine, request, txn)
            if begun is None:
                return None
            session, number = begun
            retryable = RetryableWrite(raw_lsid(session), number)
        try:
            if checks:
                repeated.layout.check(statements[0])
            elements = write(engine, txn, collection, statements[0], retryable)
        except (CommandError, BSONError, UnicodeDecodeError):
            return None  # the command raises the error again
        if elements is None:
            return None
        if retryable is not None:
            put_reply(txn, session, number, elements)
        engine.metrics[total] += 1
        engine.usage.note_key(key, monotonic() - began)
        return written(elements, txn.clock_position)

    return run


def plain_collection(engine: Engine, txn: WriteTransaction, namespace: str) -> Collection | None:
    """Return the collection if a document can be written to it without any other check; otherwise None."""
    collection = txn.catalog.collections.get(namespace)
    transactions = engine.store.transactions
    if (
        collection is None or collection.checks_documents or collection.is_view or transactions.open
        or transactions.locks or engine.fail_points.active or engine.profiler.active or engine.write_lock.count
        or txn.cluster_parameters
    ):  # fmt: skip
        return None
    return collection


def one_id(statement: bytes) -> tuple[bytes, int] | None:
    """Return (key of the `_id`, end of the filter) for a statement `{q: {_id: value}, ...}` with a value of a common
    type; None for any other."""
    try:
        kind = statement[11]
        if statement[4:7] != b"\x03q\x00" or kind not in _ONE_ID or statement[12:16] != b"_id\x00":
            return None
        end = 7 + _SIZE(statement, 7)[0]
        if 16 + value_size(kind, statement, 16) != end - 1 or statement[end - 1]:
            return None
        return encode_element(kind, statement[16 : end - 1]), end
    except (BSONError, IndexError, UnicodeDecodeError, error):
        return None


def found(txn: WriteTransaction, collection: Collection, key: bytes) -> tuple[bytes, bytes] | None:
    """Return (record, document) for an `_id`, as a filter on `_id` alone finds it; None also for a long document."""
    if collection.options and not collection.options.keys() <= HARMLESS:
        return None
    get, prefix = txn.kv.get, collection.number_key
    record = get(
        prefix + key if len(key) <= limits.KEY_BYTES_MAX else bounded_key(prefix, key), db=txn.tables["ids"]
    )  # fmt: skip
    if record is None:
        return None
    document = get(prefix + record, db=txn.tables["documents"])
    return None if document is None or len(document) > limits.KEYS_BYTES else (record, document)
