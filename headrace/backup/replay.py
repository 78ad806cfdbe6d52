"""Replay of oplog entries in a store, each at its own position: documents, catalog, pre-images and the oplog itself.

Rule: afterwards the store equals the original at the commit of the last entry. Entries keep their bytes, so that resume
tokens stay valid. A transaction that was logged as a chain has no effect before its last entry. The oplog lacks cluster
parameters, profiles, and replies stored for retryable writes; they stay as in the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.commands.server_info.parameters import first_parameters
from headrace.commands.table import commands_for
from headrace.commands.writing import apply_ops
from headrace.dispatch.context import CommandContext
from headrace.dispatch.engine import Engine
from headrace.dispatch.oplog_operations import LoggedOperation, located, operation_of
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo, Request
from headrace.errors import CommandError
from headrace.store import pre_images, standby
from headrace.store.change_log import NoLog
from headrace.store.indexes import index_builds
from headrace.store.write_transaction import StagedEntries
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.store.catalog import Collection
    from headrace.store.store import Store
    from headrace.store.write_transaction import RetryableWrite, WriteTransaction

COMMIT_COUNT: Final = 1000
"""The number of entries of one commit."""
COMMIT_BYTES: Final = 4 << 20
"""A commit also ends after this number of bytes of entries."""


class DivergedHistory(Exception):
    """An entry cannot be applied, because the store is not in the state before that entry."""


class _ReplayLog(NoLog):
    """Records no entries, only the pre-images of the operation that is being applied."""

    def __init__(self) -> None:
        self.position = 0
        self.index = 0
        self.wall_ms = 0

    def change(
        self, txn: WriteTransaction, collection: Collection, head: bytes, o: bytes, o2: bytes | None, old: bytes,
        retryable: RetryableWrite | None,
    ) -> None:  # fmt: skip
        """Store the pre-image that the original change stored."""
        if collection.images:
            pre_images.put(txn, collection, self.position, self.index, self.wall_ms, old)

    def command(
        self, txn: WriteTransaction, database: str, uuid: bytes | None, o: dict[str, Any], o2: dict[str, Any] | None,
        also: tuple[str, ...],
    ) -> int:  # fmt: skip
        """Return the position of the entry."""
        return self.position


class Replayer:
    """Applies entries to an open store that no client uses."""

    def __init__(self, store: Store) -> None:
        options = ServerOptions(dbpath=Path(store.environment.path), oplog=True)
        self._store = store
        self._engine = Engine(store, options, commands_for(options), first_parameters(options))
        self._log = _ReplayLog()
        self._client = ClientInfo(0, "restore", "restore")
        self._chain: list[tuple[int, bytes, LoggedOperation]] = []
        """The entries of a transaction whose last entry has not come yet."""

    def replay(self, entries: Iterable[tuple[int, bytes]]) -> int:
        """Apply entries, ascending and after the store's last one; return their number. Raises `DivergedHistory`.

        A chain whose last entry is missing is not applied. The next call gets the whole chain.
        """
        self._chain = []
        count = done = size = 0
        txn = self._begin()
        try:
            for position, raw in entries:
                if count >= COMMIT_COUNT or size >= COMMIT_BYTES:
                    self._store.commit(txn)
                    count = size = 0
                    txn = self._begin()
                left = len(self._chain)
                self._entry(txn, position, raw)
                count, size = count + 1, size + len(raw)
                done += 1 + left - len(self._chain)
        except BaseException:
            self._store.abandon(txn)
            raise
        self._store.commit(txn)
        return done

    def _begin(self) -> WriteTransaction:
        txn = self._store.begin()
        txn.record_with(self._log)
        return txn

    def _entry(self, txn: WriteTransaction, position: int, raw: bytes) -> None:
        body = decode(raw)
        operation = operation_of(raw)
        if body["o"].get("partialTxn") and operation.inner is not None:
            self._chain.append((position, raw, operation))
            return
        chain = [*self._chain, (position, raw, operation)]
        self._chain = []
        if operation.kind == "n" and body["o"].get("msg") == standby.PROMOTED:
            standby.add_gap(txn, txn.clock_position, position)
        staged = txn.staged
        txn.staged = StagedEntries()  # collects and discards entries that the replay itself logs
        for at, entry, item in chain:
            self._log.position, self._log.wall_ms = at, int(body["wall"])
            for index, inner in enumerate(item.inner if item.inner is not None else (item,)):
                self._log.index = index
                self._apply(txn, at, entry, inner)
        txn.staged = staged
        txn.wall_ms = self._log.wall_ms
        txn.clock_position = position
        for at, entry, _ in chain[:-1]:
            staged.add(at, entry, ())
        staged.add(position, raw, _topics([item for *_, item in chain]))

    def _apply(self, txn: WriteTransaction, position: int, raw: bytes, operation: LoggedOperation) -> None:
        context = CommandContext(self._engine, None, txn)
        context.keeps_empty_timestamps = True
        request = Request("applyOps", "admin", raw, {}, self._client, {"bypassDocumentValidation": True})
        try:
            if next(iter(operation.o), "") in _BUILD_STEPS and operation.kind == "c":
                _step_of_build(txn, operation)
            elif not apply_ops.apply(context, request, operation):
                raise CommandError(2, "its document is not there")
        except CommandError as error:
            raise DivergedHistory(
                f"the entry at {position:016x} on {operation.namespace} cannot be applied: {error.message}"
            ) from error


def _topics(operations: list[LoggedOperation]) -> tuple[str, ...]:
    """Return the namespaces under which the oplog's index has an entry, as in `change_log` and `transaction_commit`."""
    first = operations[0]
    if first.inner is not None:
        inner = [item for operation in operations for item in operation.inner or ()]
        return tuple(dict.fromkeys(item.namespace for item in inner))
    if first.kind == "n":
        return ()
    if first.is_of_view:
        return first.namespace, f"{first.database}.$cmd"
    if "renameCollection" in first.o and first.kind == "c":
        databases = (first.database, str(first.o["to"]).partition(".")[0])
        return tuple(f"{name}.$cmd" for name in dict.fromkeys(databases))
    return (first.namespace,)


# Index builds.

_BUILD_STEPS: Final = ("abortIndexBuild", "commitIndexBuild", "startIndexBuild")


def _step_of_build(txn: WriteTransaction, operation: LoggedOperation) -> None:
    """Begin, complete or abort a build. The server completes a build that the entries leave open."""
    step = next(iter(operation.o))
    uuid = bytes(operation.o["indexBuildUUID"])
    collection = located(txn.catalog, f"{operation.database}.{operation.o[step]}", operation.uuid)
    if collection is None:
        raise CommandError(26, "its collection is not there")
    build = txn.catalog.builds.get(uuid)
    if step == "startIndexBuild":
        index_builds.begin(txn, collection, operation.o["indexes"], uuid)
    elif step == "abortIndexBuild":
        if build is not None:
            index_builds.abort(txn, build, CommandError(276, "aborted"))
    else:
        if build is None:
            build = index_builds.begin(txn, collection, operation.o["indexes"], uuid)
        while index_builds.fill(txn, build):
            build = txn.catalog.builds[uuid]
        index_builds.commit(txn, txn.catalog.builds[uuid])
