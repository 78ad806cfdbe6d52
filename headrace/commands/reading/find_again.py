"""A find by `_id` whose client has sent the same command before, maybe with another `_id`: see `Command.again`."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.changes.scope import INTERNAL_DATABASES
from headrace.clock import monotonic
from headrace.dispatch.namespaces import target
from headrace.dispatch.profiling.usage import QUERIES, Key
from headrace.dispatch.reply import closing
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.store.lmdb import LmdbError
from headrace.values.keystring import encode_element

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine
    from headrace.store.write_transaction import WriteTransaction

_INT32 = Struct("<i").pack
_PLAIN: Final = frozenset({"find", "filter", "limit", "singleBatch", "lsid", "$db", "$clusterTime", "comment"})
"""The fields of a find that do not affect how one document is found by `_id`."""
_BEFORE_CURSOR: Final = 4 + len(b"\x03cursor\x00")
_BEFORE_BATCH: Final = b"\x04firstBatch\x00"
_AROUND_BATCH: Final = 4 + len(_BEFORE_BATCH) + 8
_TOTAL: Final = "commands.find.total"


class _Facts(NamedTuple):
    """The facts that all finds of the same body share."""

    namespace: str
    usage: Key
    after_batch: bytes
    """The end of the element `cursor` in the reply."""


def again(engine: Engine, request: Request, txn: WriteTransaction | None) -> bytes | None:
    """Find one document by `_id` and return the reply; None if it does not exist or anything is special."""
    repeated, store = request.repeated, engine.store
    if repeated is None or not repeated.id_at or engine.fail_points.active or not store.oplog_enabled:
        return None
    if repeated.facts is None:
        repeated.facts = _facts_of(request)
    facts = repeated.facts
    state = store.state
    collection = state.catalog.collections.get(facts.namespace) if facts else None
    if collection is None or collection.is_view or "collation" in collection.options:
        return None
    began, at, tables = monotonic(), repeated.id_at, store.tables
    key = encode_element(repeated.id_type, request.raw[at : at + repeated.id_size])
    try:
        kv = store.published_kv()
        record = kv.get(collection.number_key + key, db=tables["ids"])
        document = None if record is None else kv.get(collection.number_key + record, db=tables["documents"])
    except (CommandError, LmdbError):
        return None  # the command raises the error again
    if document is None:
        return None  # missing or damaged
    engine.metrics[_TOTAL] += 1
    store.uses.ids[collection.number] += 1
    after, end, size = facts.after_batch, closing(state.last_position), len(document)
    cursor_size = _AROUND_BATCH + size + len(after)
    answer = b"".join((
        _INT32(_BEFORE_CURSOR + cursor_size + len(end)), b"\x03cursor\x00", _INT32(cursor_size), _BEFORE_BATCH,
        _INT32(size + 8), b"\x030\x00", document, b"\x00", after, end,
    ))  # fmt: skip
    engine.usage.note_key(facts.usage, monotonic() - began)
    return answer


def _facts_of(request: Request) -> Any:
    """Return the facts of a find that has only plain fields; otherwise False."""
    body = request.body
    if not body.keys() <= _PLAIN or request.db in INTERNAL_DATABASES:  # these have virtual collections
        return False
    try:
        namespace = target(request)
    except CommandError:
        return False
    name = namespace.encode()
    after = b"".join((b"\x12id\x00", bytes(8), b"\x02ns\x00", _INT32(len(name) + 1), name, b"\x00\x00"))
    return _Facts(namespace, (QUERIES, request.db, body["find"]), after)
