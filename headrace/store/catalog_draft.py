"""The catalog of a write transaction: the published catalog and the transaction's changes to it.

Every change is written to the tables immediately, and to the draft's own dicts, which are copied at the first change.
The store publishes the draft with the commit (`CatalogDraft.published`), or drops it with an abandoned transaction.
"""

from __future__ import annotations

import uuid as uuids
from dataclasses import replace
from typing import Any

from headrace.store.catalog import VIEWS_PREFIX, Catalog, Collection, Index, IndexBuild
from headrace.store.indexes.index_keys import Traits
from headrace.store.kv import Table, Transaction


class CatalogDraft(Catalog):
    """A catalog that one write transaction changes."""

    __slots__ = ("_base", "_copied", "_tables")

    def __init__(self, base: Catalog, tables: dict[str, Table]) -> None:
        self._base = base
        self._tables = tables
        self._copied = False
        self.collections = base.collections
        self.by_number = base.by_number
        self.topics = base.topics
        self.builds = base.builds
        self.views = base.views
        self.version = base.version
        self.changed = base.changed

    def published(self, *, has_readers: bool = True) -> Catalog:
        """Return the catalog to publish, or the base if nothing has changed. The draft must not be used afterwards.

        `has_readers`: open client transactions need to know what has changed since they began.
        """
        if not self._copied:
            return self._base
        catalog = Catalog()
        catalog.collections, catalog.by_number = self.collections, self.by_number
        catalog.topics, catalog.builds, catalog.views = self.topics, self.builds, self.views
        catalog.version, catalog.changed = self.version, self.changed
        if not has_readers:
            since = self._base.version
            catalog.changed = {name: version for name, version in self.changed.items() if version > since}
        return catalog

    def _copy(self) -> None:
        if not self._copied:
            self._copied = True
            self.collections, self.by_number = dict(self.collections), dict(self.by_number)
            self.topics, self.builds, self.changed = dict(self.topics), dict(self.builds), dict(self.changed)
            self.views = dict(self.views)

    def _put(self, collection: Collection) -> None:
        self._copy()
        self.collections[collection.namespace] = self.by_number[collection.number] = collection

    def _note(self, namespace: str) -> None:
        self.version += 1
        self.changed[namespace] = self.version

    def definition_bytes(self, txn: Transaction) -> int:
        """Return about how many bytes of BSON the long definitions have: those of more than 2 KiB."""
        sizes = txn.stat(self._tables["catalog"])
        return sizes["overflow_pages"] * sizes["psize"]

    # Collections.

    def create(
        self, txn: Transaction, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None,
        *, uuid: bytes | None = None, number: int | None = None, indexes: tuple[Index, ...] = (),
    ) -> Collection:  # fmt: skip
        """Add a collection or view. The caller has checked that the name is free. `uuid` or `number` None: make a new
        one.

        `id_index`: the specification of the index on `_id`; None: `indexes` has all indexes.
        """
        if uuid is None and kind != "view":
            uuid = uuids.uuid4().bytes
        number = self.new_number(txn) if number is None else number
        if id_index is not None:
            indexes = (Index(self.new_number(txn), id_index), *indexes)
        topic = self.topic(txn, namespace)
        collection = Collection(namespace, number, uuid, kind, options, indexes, topic=topic)
        self.save(txn, collection)
        return collection

    def save(self, txn: Transaction, collection: Collection) -> Collection:
        """Write a new or changed collection; return it."""
        self._put(collection)
        txn.put(collection.namespace.encode(), collection.record(), db=self._tables["catalog"])
        self._note(collection.namespace)
        return collection

    def remove(self, txn: Transaction, collection: Collection) -> None:
        """Remove a collection or view. The caller removes its documents and keys."""
        self._copy()
        collection = self.current(collection)
        del self.collections[collection.namespace]
        del self.by_number[collection.number]
        txn.delete(collection.namespace.encode(), db=self._tables["catalog"])
        self._note(collection.namespace)

    def rename(self, txn: Transaction, collection: Collection, namespace: str) -> Collection:
        """Give a collection another namespace, which must be free; return the renamed collection."""
        collection = self.current(collection)
        self.remove(txn, collection)
        return self.save(txn, collection.changed(namespace=namespace, topic=self.topic(txn, namespace)))

    def set_long_ids(self, txn: Transaction, collection: Collection) -> None:
        """Note that a collection has an `_id` whose key is cut."""
        collection = self.current(collection).changed(long_ids=True)
        self._put(collection)
        txn.put(collection.namespace.encode(), collection.record(), db=self._tables["catalog"])

    def add_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """Note the traits of a new document. The planner uses them from this commit on."""
        collection = self.current(collection)
        grown = collection.with_traits({index.number: traits})
        if grown is collection:
            return
        self._put(grown)
        build = self.build_of(index)
        if build is None:
            txn.put(grown.namespace.encode(), grown.record(), db=self._tables["catalog"])
            return
        numbers = {item.number for item in build.indexes}
        indexes = tuple(item for item in grown.building if item.number in numbers)
        self._write_build(txn, replace(build, indexes=indexes))

    # Views.

    def add_views(self, txn: Transaction, database: str, uuid: bytes | None = None) -> bytes:
        """Add a database's `system.views`; return its UUID. `uuid` None: make a new one."""
        self._copy()
        uuid = self.views[database] = uuid or uuids.uuid4().bytes
        txn.put(VIEWS_PREFIX + database.encode(), uuid, db=self._tables["meta"])
        return uuid

    def remove_views(self, txn: Transaction, database: str) -> bytes | None:
        """Remove a database's `system.views`; return its UUID, or None if there is none."""
        self._copy()
        txn.delete(VIEWS_PREFIX + database.encode(), db=self._tables["meta"])
        return self.views.pop(database, None)

    # Index builds.

    def save_build(self, txn: Transaction, build: IndexBuild) -> IndexBuild:
        """Write a new or advanced build; return it. Its indexes become the collection's `building`."""
        self._write_build(txn, build)
        collection = self.by_number[build.collection_number]
        building = tuple(index for other in self.builds_on(collection) for index in other.indexes)
        if building != collection.building:
            self._put(collection.changed(building=building))
        return build

    def _write_build(self, txn: Transaction, build: IndexBuild) -> None:
        self._copy()
        self.builds[build.uuid] = build
        txn.put(build.key, build.record(), db=self._tables["meta"])

    def remove_build(self, txn: Transaction, build: IndexBuild) -> Collection:
        """Remove a build that has committed or aborted; return its collection."""
        self._copy()
        self.builds.pop(build.uuid, None)
        txn.delete(build.key, db=self._tables["meta"])
        numbers = {index.number for index in build.indexes}
        collection = self.by_number[build.collection_number]
        building = tuple(index for index in collection.building if index.number not in numbers)
        collection = collection.changed(building=building)
        self._put(collection)
        return collection

    # Numbers.

    def topic(self, txn: Transaction, namespace: str) -> int:
        """Return the number of a namespace in the oplog's index. A new namespace gets a new number."""
        number = self.topics.get(namespace)
        if number is None:
            number = self.new_number(txn)
            self._copy()
            self.topics[namespace] = number
            txn.put(namespace.encode(), number.to_bytes(4, "big"), db=self._tables["topics"])
        return number

    def new_number(self, txn: Transaction) -> int:
        """Return a number that no collection, index or topic has had."""
        stored = txn.get(b"next-number", db=self._tables["meta"])
        number = int.from_bytes(stored, "big") if stored else 1
        txn.put(b"next-number", (number + 1).to_bytes(4, "big"), db=self._tables["meta"])
        return number
