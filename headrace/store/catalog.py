"""The catalog: which collections, views and indexes exist, in memory and in the `catalog` table.

    catalog   namespace (UTF-8)            → {number, uuid, kind, options, longIds, indexes}   (BSON)
              indexes: [{number, spec, entries, format, traits}]
    topics    namespace (UTF-8)            → number, 4 bytes big-endian
    meta      "next-number"                → 4 bytes big-endian
              "build" + UUID of a build    → {collection, after, done, failure, indexes}   (BSON)

A collection's *number* begins the keys of its documents and ids and never changes; a rename moves the
name, not the documents. A *topic* is a name as the oplog's index knows it; it outlives the collection.

Rule: the tables are changed through a write transaction and the memory with them; if that transaction is
given up, the memory is read again (`load`).
"""

from __future__ import annotations

import uuid as uuids
from dataclasses import dataclass
from typing import Any, Final

from bson import Binary
from bson.raw_bson import RawBSONDocument

from headrace import limits
from headrace.errors import CommandError
from headrace.store.entries import crud_head
from headrace.store.indexes.collated_keys import key_format
from headrace.store.indexes.index_keys import NO_TRAITS, Traits
from headrace.store.kv import Table, Transaction
from headrace.values.bson import decode, encode, encode_in_order


def can_have_entries(spec: dict[str, Any]) -> bool:
    """Whether indexes like this have entries: those of a kind with an order. That of `_id` has ids, and entries only
    where a collation calls others equal than those that are."""
    key = spec["key"]
    if spec["name"] == "_id_":
        return "collation" in spec
    return all(type(kind) is not str or kind == "hashed" for kind in key.values())


class Index:
    """One index of a collection."""

    __slots__ = ("building", "fields", "has_entries", "key_maker", "number", "saved_traits", "spec", "traits")

    def __init__(self, number: int, spec: dict[str, Any]) -> None:
        self.number = number
        self.spec = spec
        self.has_entries = can_have_entries(spec)
        """Whether each document has its entries; an index without is listed, and nothing more."""
        self.building = False  # not all documents have been looked at yet: a key may be another document's
        self.key_maker: Any = None  # `KeyMaker`, made when first asked for
        self.fields: Any = None  # the planner's
        self.traits: Traits = NO_TRAITS
        """At least what the documents of all entries have, also of entries in open transactions."""
        self.saved_traits: Traits = NO_TRAITS  # those in the table

    @property
    def name(self) -> str:
        """Its name in the collection."""
        return str(self.spec["name"])

    @property
    def unique(self) -> bool:
        """Whether its entries are unique."""
        return self.has_entries if self.spec["name"] == "_id_" else bool(self.spec.get("unique"))

    @property
    def refuses_duplicates(self) -> bool:
        """Whether it refuses a second document with a key: also one that is to become unique, whose entries are not."""
        return self.unique or bool(self.spec.get("prepareUnique"))


@dataclass(slots=True)
class IndexBuild:
    """Indexes that are being built over a collection's documents; see `indexes/index_builds.py`."""

    uuid: bytes
    collection: Collection
    indexes: list[Index]
    after: bytes = b""
    """The record of the last document whose keys are in the indexes; those of later changes are, too."""
    done: int = 0
    """How many documents that are."""
    failure: CommandError | None = None
    """Why it cannot end well: a change of a document that the indexes cannot hold."""
    formats: tuple[str, ...] = ()
    """What the keys so far depend on."""
    count_max: int = limits.VIEW_CHUNK_COUNT
    """Documents in its next piece: more as long as each has one key in each index. Not stored."""
    piece: Any = None
    """`index_builds.Piece`: the documents that are in some of the indexes, or in part. Not stored: to put their keys
    again changes nothing."""
    restart_count: int = 0
    """How often one of them was changed meanwhile."""

    @property
    def key(self) -> bytes:
        """Its key in the table `meta`."""
        return BUILD_PREFIX + self.uuid

    def record(self) -> bytes:
        """Its value there."""
        failure = self.failure
        return encode({
            "collection": self.collection.number, "after": self.after, "done": self.done,
            "failure": None if failure is None else [failure.code, failure.message, failure.extra or {}],
            "indexes": [
                {
                    "number": index.number, "spec": index.spec, "format": key_format(index.spec),
                    "traits": sorted(index.traits),
                }
                for index in self.indexes
            ],
        })  # fmt: skip


BUILD_PREFIX: Final = b"build"


@dataclass(slots=True)
class CappedSize:
    """What a capped collection may hold, and holds. `count` and `size` are those of the documents up to the record
    `through`, until `measured`: then of all."""

    count_max: int | None
    bytes_max: int | None
    count: int = 0
    size: int = 0
    through: bytes = b""
    measured: bool = False


_CHECKED: Final = frozenset({"capped", "validator"})


class Collection:
    """A collection or view in memory. `uuid` is 16 bytes, None for a view."""

    __slots__ = (
        "are_plain", "capped", "checks_documents", "counted", "counted_through", "database", "delete_head",
        "document_count", "encoded_options", "images", "index_keys_pause", "indexes", "insert_head", "kind",
        "long_ids", "maintained", "name", "namespace", "next_record", "number", "number_key", "options",
        "plan_cache", "topic", "topics", "unique_indexes", "update_head", "uuid",
    )  # fmt: skip

    def __init__(
        self, namespace: str, number: int, uuid: bytes | None, kind: str, options: dict[str, Any], indexes: list[Index]
    ) -> None:
        self.number = number
        self.number_key = number.to_bytes(4, "big")
        self.uuid = uuid
        self.kind = kind
        self.indexes = indexes
        self.next_record: int | None = None  # read from the table at the first insert
        self.document_count: int | None = None  # counted when first asked for
        self.counted = 0  # documents up to the record `counted_through`, until all of them are counted
        self.counted_through = b""
        self.topic = 0
        self.long_ids = False  # whether an `_id` was ever stored whose key is cut, so that the ids are not in order
        self.capped: CappedSize | None
        self.maintained: list[Index] = []
        self.set_options(options)
        self.set_indexes(indexes)
        self.set_namespace(namespace)

    def set_namespace(self, namespace: str) -> None:
        """Set the name, and what is derived from it."""
        self.namespace = namespace
        self.topics = (namespace,)  # under which its entries are indexed
        self.database, _, self.name = namespace.partition(".")
        self.insert_head = crud_head("i", namespace, self.uuid)
        self.update_head = crud_head("u", namespace, self.uuid)
        self.delete_head = crud_head("d", namespace, self.uuid)

    def set_options(self, options: dict[str, Any]) -> None:
        """Set the options, as `listCollections` shows them."""
        self.options = options
        validator = options.get("validator")
        self.encoded_options = options
        """As they are stored; a validator may be long, and is encoded once for the catalog and all entries."""
        if isinstance(validator, dict):
            self.encoded_options = {**options, "validator": RawBSONDocument(encode_in_order(validator))}
        self.capped = None
        if options.get("capped"):
            self.capped = CappedSize(int(options.get("max", 0)) or None, int(options.get("size", 0)) or None)
        self.checks_documents = not options.keys().isdisjoint(_CHECKED)
        """Whether a document that is inserted is looked at, or others for it."""
        self.images = bool(options.get("changeStreamPreAndPostImages", {}).get("enabled"))

    def set_indexes(self, indexes: list[Index]) -> None:
        """Set all indexes, that of `_id` among them. Those that are being built go on."""
        self.indexes = indexes
        self.plan_cache: Any = None  # the planner's
        building = [index for index in self.maintained if index.building and index not in indexes]
        self._maintain([*(index for index in indexes if index.has_entries), *building])

    def begin_index(self, index: Index) -> None:
        """From now on every change of a document is in this index, too, which is being built."""
        index.building = True
        self._maintain([*self.maintained, index])

    def end_index(self, index: Index) -> None:
        """Undo `begin_index`."""
        index.building = False
        self._maintain([item for item in self.maintained if item is not index])

    def _maintain(self, indexes: list[Index]) -> None:
        self.maintained = indexes
        self.unique_indexes = [index for index in indexes if index.refuses_duplicates]
        self.are_plain = not self.unique_indexes and not any(index.building for index in indexes)
        self.index_keys_pause = any("partialFilterExpression" in index.spec for index in indexes)

    @property
    def is_view(self) -> bool:
        """Whether it is a view, which has no documents."""
        return self.kind == "view"

    def record(self) -> bytes:
        """Its value in the `catalog` table, BSON."""
        for index in self.indexes:
            index.saved_traits = index.traits
        return encode({
            "number": self.number,
            "uuid": None if self.uuid is None else Binary(self.uuid, 4),
            "kind": self.kind,
            "options": self.encoded_options,
            "longIds": self.long_ids,
            "indexes": [
                {
                    "number": index.number, "spec": index.spec, "entries": index.has_entries,
                    "format": key_format(index.spec) if index.has_entries else "", "traits": sorted(index.traits),
                }
                for index in self.indexes
            ],
        })  # fmt: skip


def _index(item: dict[str, Any]) -> Index:
    """An index as it is in a collection's record."""
    index = Index(item["number"], item["spec"])
    index.has_entries = item.get("entries", False) and item.get("format", "") == key_format(item["spec"])
    index.traits = index.saved_traits = frozenset(item.get("traits", ()))
    return index


class Catalog:
    """All collections by namespace, and all topics."""

    def __init__(self, tables: dict[str, Table]) -> None:
        self._tables = tables
        self.collections: dict[str, Collection] = {}
        self.topics: dict[str, int] = {}
        self.builds: dict[bytes, IndexBuild] = {}
        """The builds that have begun and not ended, by UUID."""
        self.version = 0  # counts changes, so that what is derived from the catalog knows when it is stale
        self.changed: dict[str, int] = {}  # namespace → version of its last change in this process's life

    def load(self, txn: Transaction) -> None:
        """Read everything again, at open and after a write transaction was given up."""
        self.topics = {
            key.decode(): int.from_bytes(value, "big") for key, value in txn.cursor(self._tables["topics"]).iternext()
        }
        self.collections = {}
        for key, value in txn.cursor(self._tables["catalog"]).iternext():
            record = decode(value)
            namespace = key.decode()
            indexes = [_index(item) for item in record["indexes"]]
            uuid = None if record["uuid"] is None else bytes(record["uuid"])
            collection = Collection(namespace, record["number"], uuid, record["kind"], record["options"], indexes)
            collection.topic = self.topics.get(namespace, 0)
            collection.long_ids = record.get("longIds", False)
            self.collections[namespace] = collection
        self._load_builds(txn)
        self.version += 1

    def _load_builds(self, txn: Transaction) -> None:
        self.builds = {}
        by_number = {collection.number: collection for collection in self.collections.values()}
        with txn.cursor(self._tables["meta"]) as cursor:
            moved = cursor.set_range(BUILD_PREFIX)
            while moved and cursor.key().startswith(BUILD_PREFIX):
                key, value = cursor.item()
                build = self._build(key[len(BUILD_PREFIX) :], decode(value), by_number)
                self.builds[build.uuid] = build
                moved = cursor.next()

    @staticmethod
    def _build(uuid: bytes, record: dict[str, Any], collections: dict[int, Collection]) -> IndexBuild:
        build = IndexBuild(uuid, collections[record["collection"]], [], bytes(record["after"]), record["done"])
        if record["failure"] is not None:
            code, message, extra = record["failure"]
            build.failure = CommandError(code, message, extra=extra)
        build.formats = tuple(item["format"] for item in record["indexes"])
        for item in record["indexes"]:
            index = Index(item["number"], item["spec"])
            index.traits = index.saved_traits = frozenset(item["traits"])
            build.indexes.append(index)
            build.collection.begin_index(index)
        return build

    def save_build(self, txn: Transaction, build: IndexBuild) -> None:
        """Write a build that has begun or come further."""
        for index in build.indexes:
            index.saved_traits = index.traits
        self.builds[build.uuid] = build
        txn.put(build.key, build.record(), db=self._tables["meta"])

    def remove_build(self, txn: Transaction, build: IndexBuild) -> None:
        """Remove a build that has ended, one way or the other."""
        self.builds.pop(build.uuid, None)
        txn.delete(build.key, db=self._tables["meta"])
        for index in build.indexes:
            build.collection.end_index(index)

    def build_of(self, index: Index) -> IndexBuild | None:
        """The build that an index is part of."""
        return next((build for build in self.builds.values() if index in build.indexes), None)

    def builds_on(self, collection: Collection) -> list[IndexBuild]:
        """The builds over a collection."""
        return [build for build in self.builds.values() if build.collection is collection]

    def collection(self, namespace: str) -> Collection | None:
        """A collection or view by its namespace."""
        return self.collections.get(namespace)

    def create(
        self, txn: Transaction, namespace: str, kind: str, options: dict[str, Any], id_index: dict[str, Any] | None,
        *, uuid: bytes | None = None, number: int | None = None,
    ) -> Collection:  # fmt: skip
        """Add a collection or view; the caller has checked that the name is free. `uuid`, `number` None: a new one."""
        if uuid is None and kind != "view":
            uuid = uuids.uuid4().bytes
        number = self.new_number(txn) if number is None else number
        collection = Collection(namespace, number, uuid, kind, options, [])
        if id_index is not None:
            collection.set_indexes([Index(self.new_number(txn), id_index)])
        collection.topic = self.topic(txn, namespace)
        collection.document_count = 0
        collection.next_record = 1
        self.collections[namespace] = collection
        self.save(txn, collection)
        return collection

    def save(self, txn: Transaction, collection: Collection) -> None:
        """Write a collection that has changed."""
        txn.put(collection.namespace.encode(), collection.record(), db=self._tables["catalog"])
        self._note(collection.namespace)

    def save_traits(self, txn: Transaction, collection: Collection, index: Index, traits: Traits) -> None:
        """Write the traits that an index has gained."""
        txn.put(collection.namespace.encode(), collection.record(), db=self._tables["catalog"])

    def remove(self, txn: Transaction, collection: Collection) -> None:
        """Remove a collection or view from the catalog; its documents and keys are the caller's."""
        del self.collections[collection.namespace]
        txn.delete(collection.namespace.encode(), db=self._tables["catalog"])
        self._note(collection.namespace)

    def _note(self, namespace: str) -> None:
        self.version += 1
        self.changed[namespace] = self.version

    def rename(self, txn: Transaction, collection: Collection, namespace: str) -> None:
        """Give a collection another namespace, which is free."""
        self.remove(txn, collection)
        collection.set_namespace(namespace)
        collection.topic = self.topic(txn, namespace)
        self.collections[namespace] = collection
        self.save(txn, collection)

    def topic(self, txn: Transaction, namespace: str) -> int:
        """The number of a namespace in the oplog's index, made when it is new."""
        number = self.topics.get(namespace)
        if number is None:
            number = self.new_number(txn)
            self.topics[namespace] = number
            txn.put(namespace.encode(), number.to_bytes(4, "big"), db=self._tables["topics"])
        return number

    def new_number(self, txn: Transaction) -> int:
        """A number that no collection, index or topic has had."""
        stored = txn.get(b"next-number", db=self._tables["meta"])
        number = int.from_bytes(stored, "big") if stored else 1
        txn.put(b"next-number", (number + 1).to_bytes(4, "big"), db=self._tables["meta"])
        return number

    def in_database(self, database: str) -> list[Collection]:
        """The database's collections and views, by name."""
        prefix = database + "."
        names = sorted(name for name in self.collections if name.startswith(prefix))
        return [self.collections[name] for name in names]

    def databases(self) -> list[str]:
        """Names of the databases that hold something, sorted."""
        return sorted({collection.database for collection in self.collections.values()})
