"""The catalog: the existing collections, views and indexes. Every object here is immutable.

    catalog   namespace (UTF-8)            → {number, uuid, kind, options, longIds, indexes}   (BSON)
              indexes: [{number, spec, entries, format, traits}]
    topics    namespace (UTF-8)            → number, 4 bytes big-endian
    meta      "next-number"                → 4 bytes big-endian
              "build" + UUID of a build    → {collection, after, done, failure, indexes}   (BSON)
              "views" + database (UTF-8)   → UUID of the database's `system.views`, which the first view makes

A collection's *number* is the prefix of the keys of its documents and ids. It never changes: a rename moves the name,
not the documents. A *topic* is a name in the oplog's index; it outlives the collection.

A published state has one `Catalog`. A write transaction changes a draft of it (`catalog_draft.py`), in which a changed
collection is a new object. The objects that readers hold never change. The present version of a collection is found by
its number (`Catalog.current`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bson import Binary
from bson.raw_bson import RawBSONDocument

from headrace.errors import CommandError
from headrace.store.entries import crud_head
from headrace.store.indexes.field_keys import key_format
from headrace.store.indexes.index_keys import NO_TRAITS, Traits
from headrace.store.kv import Table, Transaction
from headrace.timeseries.series import PREFIX
from headrace.values.bson import MISSING, decode, encode, encode_in_order

BUILD_PREFIX: Final = b"build"
VIEWS_PREFIX: Final = b"views"
ENCRYPTED: Final = "encryptedFields"
"""The option with the fields that clients encrypt."""
_CHECKED: Final = frozenset({"capped", ENCRYPTED, "validator"})


def is_of_id(spec: dict[str, Any]) -> bool:
    """Return whether this is the index on `_id`. A clustered collection may give its index any name."""
    return spec["name"] == "_id_" or bool(spec.get("clustered"))


def can_have_entries(spec: dict[str, Any]) -> bool:
    """Return whether an index of this kind has entries. The index on `_id` uses the table `ids`; it has entries only
    with a collation, which calls other values equal."""
    key = spec["key"]
    if is_of_id(spec):
        return "collation" in spec
    if "text" in key.values() and "_fts" not in key:
        return False  # listed by a version before 0.1.0, which kept no weights
    return all(type(kind) is not str or kind in ("2d", "2dsphere", "hashed", "text") for kind in key.values())


class Index:
    """One index of a collection. `document_fields`, `fields` and `key_maker` are caches of derived values."""

    __slots__ = (
        "building",
        "document_fields",
        "fields",
        "has_entries",
        "is_clustered",
        "is_of_id",
        "key_maker",
        "name",
        "number",
        "spec",
        "traits",
        "unique",
    )

    def __init__(
        self, number: int, spec: dict[str, Any], traits: Traits = NO_TRAITS, *, has_entries: bool | None = None,
        building: bool = False,
    ) -> None:  # fmt: skip
        """`has_entries`: False for an index that is listed but has no entries; None: derived from the kind of the
        index."""
        self.number = number
        self.spec = spec
        self.name = str(spec["name"])
        self.is_of_id = is_of_id(spec)
        """Whether this is the index on `_id`, which every collection has."""
        self.is_clustered = bool(spec.get("clustered"))
        """Whether this index stands for a clustered collection itself, whose documents are in its order."""
        self.has_entries = can_have_entries(spec) if has_entries is None else has_entries
        self.building = building
        """Whether the index is being built. An entry may then belong to another document with the same key."""
        self.traits = traits
        """The traits of the documents of all entries, and possibly more."""
        self.unique = self.has_entries if self.is_of_id else bool(spec.get("unique"))
        """Whether the entries are unique."""
        self.key_maker: Any = None  # a cache of `index_entries.key_maker`
        self.document_fields: Any = MISSING  # a cache of `index_entries.fields_of`
        self.fields: Any = None  # a cache of the planner

    @property
    def refuses_duplicates(self) -> bool:
        """Whether the index refuses a second document with the same key. An index with `prepareUnique` does so, too."""
        return self.unique or bool(self.spec.get("prepareUnique"))

    def with_traits(self, traits: Traits) -> Index:
        """Return the index with more traits, or this index if it has all of them."""
        if traits <= self.traits:
            return self
        return Index(self.number, self.spec, self.traits | traits, has_entries=self.has_entries, building=self.building)

    def record(self) -> dict[str, Any]:
        """Return the index as a field of its collection's or build's record."""
        return {
            "number": self.number, "spec": self.spec, "entries": self.has_entries,
            "format": key_format(self.spec) if self.has_entries else "", "traits": sorted(self.traits),
        }  # fmt: skip


class BuildPart(NamedTuple):
    """The progress of a build within a document that has more keys than a step puts."""

    document: tuple[bytes, bytes]
    """The record and the document."""
    number: int
    """The number of the index whose entries are put now. The indexes before it have all entries of the document."""
    key: bytes
    """The last key that was put; empty if none was."""
    left: list[tuple[bytes, bytes]]
    """The entries to put, in order, if the document has not changed."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """Indexes that are being built over a collection's documents; see `indexes/index_builds.py`."""

    uuid: bytes
    collection_number: int
    indexes: tuple[Index, ...]
    after: bytes = b""
    """The record of the last document that the build has read. Keys of later changes are in the indexes, too."""
    done: int = 0
    """The number of documents up to `after`."""
    failure: CommandError | None = None
    """Why the build cannot succeed: a document changed in a way that the indexes cannot hold."""
    formats: tuple[str, ...] = ()
    """The key formats of the stored entries."""
    part: BuildPart | None = None
    """The document that the build is in the middle of. Not stored: after a restart the document begins again."""

    @property
    def key(self) -> bytes:
        """The build's key in the table `meta`."""
        return BUILD_PREFIX + self.uuid

    def record(self) -> bytes:
        """Return the build's value in the table `meta`, BSON."""
        failure = self.failure
        return encode({
            "collection": self.collection_number, "after": self.after, "done": self.done,
            "failure": None if failure is None else [failure.code, failure.message, failure.extra or {}],
            "indexes": [
                {**index.record(), "format": key_format(index.spec)} for index in self.indexes
            ],
        })  # fmt: skip


class CappedLimits(NamedTuple):
    """The limits of a capped collection; None: no limit."""

    count_max: int | None
    bytes_max: int | None


class Collection:
    """A collection or view. `uuid` is 16 bytes, None for a view. `plan_cache` is the planner's cache."""

    __slots__ = (
        "are_plain", "building", "capped", "checks_documents", "clustered", "database", "delete_head",
        "encoded_options", "images", "indexes", "insert_head", "is_time_series", "is_view", "kind",
        "long_ids", "maintained", "name",
        "namespace", "number", "number_key", "options", "plan_cache", "topic", "topics", "unique_indexes",
        "update_head", "uuid",
    )  # fmt: skip

    def __init__(
        self, namespace: str, number: int, uuid: bytes | None, kind: str, options: dict[str, Any],
        indexes: tuple[Index, ...], *, building: tuple[Index, ...] = (), topic: int = 0, long_ids: bool = False,
        encoded_options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`building`: the indexes that are being built. `encoded_options`: taken from another object with the same
        options."""
        self.number = number
        self.number_key = number.to_bytes(4, "big")
        self.uuid = uuid
        self.kind = kind
        self.is_view = kind == "view"
        """Whether it is a view, which has no documents."""
        self.topic = topic
        self.long_ids = long_ids
        """Whether the collection ever stored an `_id` whose key is cut, so that the keys of its ids are not in
        order."""
        self._set_options(options, encoded_options)
        self._set_indexes(indexes, building)
        self.namespace = namespace
        self.topics = (namespace,)
        """The topics of the collection's oplog entries."""
        self.database, _, self.name = namespace.partition(".")
        self.is_time_series = self.is_view and options.get("viewOn") == PREFIX + self.name
        """Whether the view shows buckets as the measurements of a time series."""
        self.insert_head = crud_head("i", namespace, uuid)
        self.update_head = crud_head("u", namespace, uuid)
        self.delete_head = crud_head("d", namespace, uuid)
        self.plan_cache: Any = None

    def _set_options(self, options: dict[str, Any], encoded_options: dict[str, Any] | None) -> None:
        self.options = options
        """The options as `listCollections` shows them."""
        self.encoded_options = encoded_options or options
        """The options as they are stored. A validator may be long, so it is encoded once for the catalog and all
        entries."""
        if encoded_options is None and isinstance(options.get("validator"), dict):
            encoded = RawBSONDocument(encode_in_order(options["validator"]))
            self.encoded_options = {**options, "validator": encoded}
        self.capped: CappedLimits | None = None
        if options.get("capped"):
            self.capped = CappedLimits(int(options.get("max", 0)) or None, int(options.get("size", 0)) or None)
        self.checks_documents = not options.keys().isdisjoint(_CHECKED)
        """Whether an insert checks the document (validator) or deletes older documents (capped)."""
        self.clustered = "clusteredIndex" in options
        """Whether the natural order is that of `_id`."""
        self.images = bool(options.get("changeStreamPreAndPostImages", {}).get("enabled"))

    def _set_indexes(self, indexes: tuple[Index, ...], building: tuple[Index, ...]) -> None:
        self.indexes = indexes
        self.building = building
        maintained = tuple(index for index in (*indexes, *building) if index.has_entries)
        self.maintained = maintained
        """The indexes that every change of a document updates."""
        self.unique_indexes = tuple(index for index in maintained if index.refuses_duplicates)
        self.are_plain = not self.unique_indexes and not building

    def changed(
        self, *, namespace: str | None = None, options: dict[str, Any] | None = None,
        indexes: tuple[Index, ...] | None = None, building: tuple[Index, ...] | None = None, topic: int | None = None,
        long_ids: bool | None = None,
    ) -> Collection:  # fmt: skip
        """Return the collection with other values; None keeps a value."""
        return Collection(
            self.namespace if namespace is None else namespace,
            self.number,
            self.uuid,
            self.kind,
            self.options if options is None else options,
            self.indexes if indexes is None else indexes,
            building=self.building if building is None else building,
            topic=self.topic if topic is None else topic,
            long_ids=self.long_ids if long_ids is None else long_ids,
            encoded_options=self.encoded_options if options is None else None,
        )

    def with_traits(self, traits: dict[int, Traits]) -> Collection:
        """Return the collection with more traits of its indexes (by index number), or this object if they have all of
        them."""
        indexes = tuple(index.with_traits(traits.get(index.number, NO_TRAITS)) for index in self.indexes)
        building = tuple(index.with_traits(traits.get(index.number, NO_TRAITS)) for index in self.building)
        if indexes == self.indexes and building == self.building:
            return self
        return self.changed(indexes=indexes, building=building)

    def record(self) -> bytes:
        """Return the collection's value in the table `catalog`, BSON."""
        return encode({
            "number": self.number,
            "uuid": None if self.uuid is None else Binary(self.uuid, 4),
            "kind": self.kind,
            "options": self.encoded_options,
            "longIds": self.long_ids,
            "indexes": [index.record() for index in self.indexes],
        })  # fmt: skip


class Catalog:
    """All collections, views, topics and index builds of one state. The catalog and its dicts are never changed."""

    __slots__ = ("builds", "by_number", "changed", "collections", "topics", "version", "views")

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}
        """Collections and views by namespace."""
        self.by_number: dict[int, Collection] = {}
        """The same collections and views by number."""
        self.topics: dict[str, int] = {}
        self.builds: dict[bytes, IndexBuild] = {}
        """The running builds, by UUID."""
        self.views: dict[str, bytes] = {}
        """The UUIDs of the collections `system.views`, by database. The first view of a database adds one."""
        self.version = 0
        """Counts the changes. A cache derived from the catalog compares it to find out that it is stale."""
        self.changed: dict[str, int] = {}
        """The version at which each namespace last changed since this process started."""

    def collection(self, namespace: str) -> Collection | None:
        """Return a collection or view by its namespace."""
        return self.collections.get(namespace)

    def current(self, collection: Collection) -> Collection:
        """Return this state's version of a collection from another state, or that object if the collection is gone."""
        return self.by_number.get(collection.number, collection)

    def build_of(self, index: Index) -> IndexBuild | None:
        """Return the build that an index is part of."""
        number = index.number
        return next(
            (build for build in self.builds.values() if any(item.number == number for item in build.indexes)), None
        )

    def builds_on(self, collection: Collection) -> list[IndexBuild]:
        """Return the builds over a collection."""
        return [build for build in self.builds.values() if build.collection_number == collection.number]

    def in_database(self, database: str) -> list[Collection]:
        """Return the database's collections and views, by name."""
        prefix = database + "."
        names = sorted(name for name in self.collections if name.startswith(prefix))
        return [self.collections[name] for name in names]

    def databases(self) -> list[str]:
        """Return the names of the databases that hold something, sorted."""
        return sorted({*self.views, *(collection.database for collection in self.collections.values())})


class CatalogRows(NamedTuple):
    """The catalog as it is stored. Equal rows are equal catalogs."""

    topics: list[tuple[bytes, bytes]]
    collections: list[tuple[bytes, bytes]]
    builds: list[tuple[bytes, bytes]]
    views: list[tuple[bytes, bytes]]


def rows_of(txn: Transaction, tables: dict[str, Table]) -> CatalogRows:
    """Read the rows of a directory's catalog."""
    topics, collections = (list(txn.cursor(tables[name]).iternext()) for name in ("topics", "catalog"))
    builds, views = (list(_rows_of(txn, tables, prefix)) for prefix in (BUILD_PREFIX, VIEWS_PREFIX))
    return CatalogRows(topics, collections, builds, views)


def load(rows: CatalogRows) -> Catalog:
    """Build a catalog from its rows."""
    catalog = Catalog()
    catalog.topics = {key.decode(): int.from_bytes(value, "big") for key, value in rows.topics}
    for key, value in rows.collections:
        collection = _collection(key.decode(), decode(value), catalog.topics)
        catalog.collections[collection.namespace] = collection
        catalog.by_number[collection.number] = collection
    for key, value in rows.builds:
        build = _build(key, decode(value))
        catalog.builds[build.uuid] = build
        collection = catalog.by_number[build.collection_number]
        collection = collection.changed(building=(*collection.building, *build.indexes))
        catalog.collections[collection.namespace] = catalog.by_number[collection.number] = collection
    catalog.views = {database.decode(): uuid for database, uuid in rows.views}
    return catalog


def _rows_of(txn: Transaction, tables: dict[str, Table], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of `meta` whose keys begin with `prefix`, which is cut off the keys."""
    with txn.cursor(tables["meta"]) as cursor:
        moved = cursor.set_range(prefix)
        while moved and cursor.key().startswith(prefix):
            key, value = cursor.item()
            yield bytes(key[len(prefix) :]), bytes(value)
            moved = cursor.next()


def _collection(namespace: str, record: dict[str, Any], topics: dict[str, int]) -> Collection:
    uuid = None if record["uuid"] is None else bytes(record["uuid"])
    return Collection(
        namespace, record["number"], uuid, record["kind"], record["options"], tuple(map(_index, record["indexes"])),
        topic=topics.get(namespace, 0), long_ids=record.get("longIds", False),
    )  # fmt: skip


def _index(item: dict[str, Any]) -> Index:
    has_entries = item.get("entries", False) and item.get("format", "") == key_format(item["spec"])
    return Index(item["number"], item["spec"], frozenset(item.get("traits", ())), has_entries=has_entries)


def _build(uuid: bytes, record: dict[str, Any]) -> IndexBuild:
    failure = None
    if record["failure"] is not None:
        code, message, extra = record["failure"]
        failure = CommandError(code, message, extra=extra)
    return IndexBuild(
        uuid,
        record["collection"],
        tuple(
            Index(item["number"], item["spec"], frozenset(item["traits"]), building=True) for item in record["indexes"]
        ),
        bytes(record["after"]),
        record["done"],
        failure,
        tuple(item["format"] for item in record["indexes"]),
    )
