"""A client's transaction: its writes in memory, its snapshot, and the view through which its statements run.

    IN_PROGRESS ── commit is on disk ──▶ COMMITTED
         └──────── abort, conflict, error, time ──▶ ABORTED

Statements run like reads: nothing of them is in the tables before the commit, which is one write (`transaction_commit`)
and writes one oplog entry. Source: MongoDB's multi-document transactions, read concern snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from bson import Binary

from headrace import limits
from headrace.errors import CommandError
from headrace.store import entries
from headrace.store.buffered import BufferedView, Overlay, Place
from headrace.store.catalog import Collection
from headrace.store.locks import Conflict, write_conflict
from headrace.store.view import View
from headrace.store.writes import RetryableWrite, WriteTransaction
from headrace.values.bson import encode

if TYPE_CHECKING:
    from headrace.store.store import Store


class State(Enum):
    IN_PROGRESS = "in progress"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Operation:
    """One change: an element of `applyOps`, raw; the namespace under which it is found; its pre-image if kept."""

    item: bytes
    topic: str
    image: tuple[Collection, bytes] | None = None


class ClientTransaction:
    """One transaction of one session."""

    __slots__ = (
        "bytes", "catalog_version", "claims", "committing", "created", "cursors", "ended_ms", "key", "number",
        "operations", "overlay", "session", "snapshot", "started_ms", "state", "touched",
    )  # fmt: skip

    def __init__(self, store: Store, session: bytes, number: int, now_ms: float) -> None:
        self.session = session
        self.number = number
        self.state = State.IN_PROGRESS
        self.started_ms = now_ms
        self.ended_ms = now_ms
        self.key = f"\x00transaction {session.hex()} {number}"
        """What those wait for who wait for its end."""
        self.committing: WriteTransaction | None = None
        """The write transaction that holds its writes; they count once that one is published."""
        self.snapshot = store.transactions.history.sequence
        self.catalog_version = store.catalog.version
        self.cursors: set[int] = set()
        self.empty(store)

    def empty(self, store: Store) -> None:
        """Forget all it did."""
        self.overlay = Overlay(store.tables)
        self.operations: list[Operation] = []
        self.bytes = 0
        self.claims: list[Place] = []
        self.created: dict[str, Collection] = {}
        self.touched: dict[str, bytes] = {}  # namespace → number key, of all it looked at

    @property
    def has_ended(self) -> bool:
        return self.state is not State.IN_PROGRESS

    def over(self) -> bool:
        return self.has_ended


class TransactionView(BufferedView):
    """What a statement of a transaction reads and writes. As short-lived as any view; what it did stays."""

    __slots__ = ("_transaction",)

    def __init__(self, base: View, transaction: ClientTransaction) -> None:
        history = base.store.transactions.history
        super().__init__(base, transaction.overlay, history, transaction.snapshot)
        self.created = transaction.created
        self._transaction = transaction

    def collection(self, namespace: str) -> Collection | None:
        """A collection or view as it was at the start; raises `Conflict` 246 where it has changed since."""
        transaction = self._transaction
        made = transaction.created.get(namespace)
        if made is not None:
            return made
        catalog = self.store.catalog
        if catalog.changed.get(namespace, 0) > transaction.catalog_version:
            raise Conflict(
                246,
                "Unable to read from a snapshot due to pending collection catalog changes to collection "
                f"'{namespace}'; please retry the operation.",
            )
        found = catalog.collections.get(namespace)
        if found is not None:
            transaction.touched[namespace] = found.number_key
        return found

    def claim(self, place: Place) -> None:
        """Lock a key; raises `Conflict` 112 where somebody else holds it, or has changed it since the start."""
        transaction, transactions = self._transaction, self.store.transactions
        holder = transactions.locks.get(place)
        if holder is transaction:
            return
        if holder is not None or transactions.history.before(place, transaction.snapshot) is not None:
            raise write_conflict()
        transactions.locks[place] = transaction
        transaction.claims.append(place)

    def log_command(
        self, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None = None,
        *, also: tuple[str, ...] = (),
    ) -> int:  # fmt: skip
        item: dict[str, Any] = {"op": "c", "ns": f"{database}.$cmd"}
        if uuid is not None:
            item["ui"] = Binary(uuid, 4)
        self._keep(Operation(encode({**item, "o": o}), f"{database}.$cmd"))
        return 0

    def _log_insert(
        self, collection: Collection, document: bytes, key: bytes, position: int, retryable: RetryableWrite | None
    ) -> None:  # fmt: skip
        self._keep(Operation(entries.operation(collection.insert_head, document, None), collection.namespace))

    def _log_change(
        self, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        image = (collection, old) if collection.images else None
        self._keep(Operation(entries.operation(head, o, o2), collection.namespace, image))

    def _keep(self, operation: Operation) -> None:
        transaction = self._transaction
        transaction.bytes += len(operation.item)
        if transaction.bytes > limits.TRANSACTION_BYTES_MAX:
            raise CommandError(
                257, f"Total size of all transaction operations must be less than {limits.TRANSACTION_BYTES_MAX}"
            )
        transaction.operations.append(operation)
