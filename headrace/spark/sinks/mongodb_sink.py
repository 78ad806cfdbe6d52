"""`mongodb`: applies the events to another MongoDB or Headrace, idempotently, so that the two servers stay equal.

With a `collection` every row goes into that collection, and a drop or a rename of the source empties it, as in
`mirror`. Without it each row goes into the collection of its own name, in the same database or in `database`. Then

- a drop drops the collection of that name, with its indexes;
- a rename renames the copy, and replaces a collection that has the new name, also in another database;
- `dropDatabase` and `invalidate` do nothing: each collection's drop came before.

A drop or a rename cannot be part of a commit. So it runs between two commits, guarded by the position: repeated, a drop
finds no collection, and a rename finds that its source is gone. With `keep` they are ignored, with `fail` the job
stops.

Not copied: indexes, options of collections, and views. If other clients write to a document of the copy, the next
change of the document in the source overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace import limits
from headrace.spark.mongodb.collection_selection import Namespace
from headrace.spark.mongodb.connection_strings import resolved
from headrace.spark.mongodb.mongodb_stream import client_of
from headrace.spark.rows.events import INVALIDATING, Row
from headrace.spark.rows.extjson import loads
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.sinks.folding_sink import MirrorSink
from headrace.spark.tables.fold import MirrorState
from headrace.spark.tables.mongodb.mongodb_mirror import MongoMirror
from headrace.spark.tables.progress import CollectionGone, TableOwner, TablePosition, check_owner, checked_policy


def mongodb_sink(
    uri: str, *, database: str | None = None, collection: str | None = None, policy: str = "follow"
) -> MirrorSink | PerCollectionSink:
    """Return the sink that writes to the server at `uri`: into one collection, or into a collection for each row's
    name."""
    uri = resolved(uri)
    if collection is None:
        return PerCollectionSink(uri, database, policy)
    if database is None:
        raise ValueError("a collection to write to needs its database")
    return MirrorSink(MongoMirror(client_of(uri), database, collection), policy, limits.SINK_ROW_COUNT_MAX)


class PerCollectionSink:
    """See `contract.Sink`. Each collection has its own position. A batch is applied when every collection has it."""

    def __init__(self, uri: str, database: str | None = None, policy: str = "follow") -> None:
        self._uri = uri
        self._renamed_database = database
        self._policy = checked_policy(policy)
        self._tables: dict[Namespace, MongoMirror] = {}
        self._last = TablePosition()
        self._committed: dict[Namespace, bool] = {}
        self.owner: TableOwner | None = None

    def position(self) -> TablePosition:
        """Return the position that this process applied last."""
        return self._last

    def forget(self, names: Iterable[Namespace]) -> None:
        """Remove the positions of these collections' copies; the documents stay."""
        for name in names:
            self.copy_of(name).forget()

    def check_rights(self, names: Iterable[Namespace]) -> None:
        """Raise MayNotWrite if the user may not write the copies of these collections. Check one collection per
        database."""
        targets = {target[0]: target for target in (self._namespace(*name) for name in names)}
        for target in targets.values():
            self._table(target).check_rights()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        rows = batch.rows_of_one_server()
        if not rows:
            return None
        count = 0
        pending: dict[Namespace, list[Row]] = {}
        for row in rows:
            if row.database and row.collection:
                name = row.database, row.collection
                self._committed[name] = row.operationType in INVALIDATING or self._committed.get(name, False)
            if row.operationType in INVALIDATING:
                count += self._flush(pending)
                pending = {}
                self._leave(row)
            elif row.database and row.collection:
                pending.setdefault(self._namespace(row.database, row.collection), []).append(row)
        count += self._flush(pending, batch)
        self._last = TablePosition(rows[-1].token, query=batch.query, batch=batch.number)
        return batch.report(count, rows[-1].token)

    def take_committed(self) -> dict[Namespace, bool]:
        """See `collections_sink.CollectionsSink.take_committed`."""
        committed, self._committed = self._committed, {}
        return committed

    def reached(self, name: Namespace) -> str:
        """Return the token up to which the target has the collection's events; empty if it has none."""
        return self.copy_of(name).position().token

    def copy_of(self, name: Namespace) -> MongoMirror:
        """Return the copy of a collection of the source."""
        return self._table(self._namespace(*name))

    def _namespace(self, database: str, collection: str) -> Namespace:
        return (self._renamed_database or database, collection)

    def _table(self, namespace: Namespace) -> MongoMirror:
        if namespace not in self._tables:
            self._tables[namespace] = MongoMirror(client_of(self._uri), *namespace)
        return self._tables[namespace]

    def _flush(self, pending: dict[Namespace, list[Row]], batch: MicroBatch | None = None) -> int:
        """Commit the pending rows. Return the number of new events.

        Only the last commit of a collection in a batch records the batch's number.
        """
        count = 0
        for namespace, rows in pending.items():
            table = self._table(namespace)
            state = table.position()
            if batch and state.has(batch.query, batch.number):
                continue
            sink = MirrorSink(table, "keep" if self._policy == "keep" else "follow", limits.SINK_ROW_COUNT_MAX)
            sink.owner = self.owner
            check_owner(state.owner, self.owner, table)
            count += sink.apply_rows(rows, batch.query if batch else "", batch.number if batch else -1)
        return count

    def _leave(self, row: Row) -> None:
        """Apply a drop or a rename; repeating it does no harm."""
        if row.operationType not in {"drop", "rename"} or not (row.database and row.collection):
            return
        table = self._table(self._namespace(row.database, row.collection))
        if row.token <= table.position().token or self._policy == "keep":
            return
        if self._policy == "fail":
            raise CollectionGone.by(row)
        name = self._namespace(row.database, row.collection)
        table.leave()
        if row.operationType == "rename":
            self._rename(name, self._target(row), row.token)
        else:
            self._drop(name)
        table.set_state(self._emptied(row.token))

    def _emptied(self, token: str) -> MirrorState:
        return MirrorState(token, owner=self.owner.text() if self.owner else "")

    def _target(self, row: Row) -> Namespace:
        to = loads(row.other or "{}")["to"]
        return self._namespace(to["db"], to["coll"])

    def _drop(self, name: Namespace) -> None:
        client_of(self._uri)[name[0]].drop_collection(name[1])

    def _rename(self, name: Namespace, to: Namespace, token: str) -> None:
        client = client_of(self._uri)
        if name[1] in client[name[0]].list_collection_names(filter={"name": name[1]}):
            command: dict[str, Any] = {"renameCollection": ".".join(name), "to": ".".join(to), "dropTarget": True}
            client.admin.command(command)
        self._table(to).set_state(self._emptied(token))
