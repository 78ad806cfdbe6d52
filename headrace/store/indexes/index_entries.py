"""The entries of indexes: written with their documents, in the same transaction; unique indexes refuse a second key.

    indexes   index number (4) + key of the values                → record (8)     unique
              index number (4) + key of the values + record (8)   → empty          not unique

Rule: all keys of a document are checked before the first is put, so that a refused write changes nothing. A change does
not pause: a document has at most `Store.index_key_count_max` keys in all indexes. Source: MongoDB's rules for unique,
sparse, partial and multikey indexes; error 11000 with `keyPattern` and `keyValue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace import limits
from headrace.errors import CommandError
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.geo_keys import GeoKeyMaker, flat_path, geo_paths
from headrace.store.indexes.index_keys import CUT_BYTES, NO_TRAITS, UNBOUNDED, KeyMaker, Traits
from headrace.store.indexes.text_keys import TextKeyMaker, is_text
from headrace.store.indexes.wildcard_keys import WildcardKeyMaker, wildcard_of
from headrace.values.bson import MISSING, decode, to_string

if TYPE_CHECKING:
    from headrace.query.collation import Collation
    from headrace.query.match import Predicate
    from headrace.store.write_transaction import WriteTransaction

Entry = tuple[bytes, bool]
"""A key, without the record, and whether it is unique."""


def duplicate_id(collection: Collection, key_document: bytes) -> CommandError:
    """Return error 11000 for a second document with this `_id`. `key_document` is the raw `{_id}`."""
    spec = collection.indexes[0].spec if collection.indexes else {"key": {"_id": 1}, "name": "_id_"}
    return _duplicate(collection, spec, decode(key_document))


def _duplicate(collection: Collection, spec: dict[str, Any], value: dict[str, Any]) -> CommandError:
    collation = {"collation": spec["collation"]} if "collation" in spec else {}
    shown = f" collation: {to_string(spec['collation'])}" if collation else ""
    message = (
        f"E11000 duplicate key error collection: {collection.namespace} index: {spec['name']}{shown} "
        f"dup key: {to_string(value)}"
    )
    return CommandError(11000, message, extra={"keyPattern": spec["key"], "keyValue": value, **collation})


def key_maker(index: Index) -> KeyMaker | WildcardKeyMaker | GeoKeyMaker | TextKeyMaker:
    """Return the maker of an index's keys."""
    maker: KeyMaker | WildcardKeyMaker | GeoKeyMaker | TextKeyMaker | None = index.key_maker
    if maker is None:
        collation = collation_of_index(index)
        sort_key = None if collation is None else collation.key
        covers = _filter_of(index, collation)
        if is_text(index.spec["key"]):
            maker = TextKeyMaker(index.number, index.spec, covers)
        elif wildcard_of(index.spec["key"]) is not None:
            maker = WildcardKeyMaker(index.number, index.spec, covers, sort_key, lambda: index.traits)
        elif geo_paths(index.spec["key"]) or flat_path(index.spec["key"]) is not None:
            maker = GeoKeyMaker(index.number, index.spec, covers, sort_key)
        else:
            maker = KeyMaker(index.number, index.spec, covers, sort_key, unique=index.unique)
        index.key_maker = maker
    return maker


def collation_of_index(index: Index) -> Collation | None:
    """Return the collation of an index; None for the simple collation."""
    spec = index.spec.get("collation")
    if spec is None:
        return None
    from headrace.query.collation import parse_collation

    return parse_collation(spec)


def _filter_of(index: Index, collation: Collation | None) -> Predicate | None:
    """Return the filter of a partial index; None for other indexes."""
    spec = index.spec.get("partialFilterExpression")
    if spec is None:
        return None
    from headrace.query.match import parse_filter

    return parse_filter(spec, collation=collation)


def stored_entries(index: Index, record: bytes, document: bytes) -> dict[bytes, bytes]:
    """Return the entries of a document as they are in the table. Raises 171, 16746."""
    keys, _ = key_maker(index).keys(document)
    return dict.fromkeys(keys, record) if index.unique else {key + record: b"" for key in keys}


def to_add(
    txn: WriteTransaction, collection: Collection, document: bytes, record: bytes | None,
    indexes: Sequence[Index] | None = None,
) -> list[Entry]:  # fmt: skip
    """Return the entries of a new document in all indexes, or in `indexes`. Raises 11000 if another document has a
    unique key, and 171, 201, 16746."""
    entries: list[Entry] = []
    if indexes is None:
        indexes = collection.maintained
    left, decoded = txn.store.index_key_count_max, _shared(indexes, document)
    for index in indexes:
        if index.building:
            keys = _keys_for_building(txn, collection, index, document, record, left)
        else:
            keys = _keys(txn, collection, index, document, left, decoded)
        left -= key_maker(index).made_count
        if index.refuses_duplicates and not index.building:
            for key in keys:
                refuse_duplicate(txn, collection, index, document, key, record)
        entries += [(key, index.unique) for key in keys]
    return entries


def _shared(indexes: Sequence[Index], document: bytes) -> dict[str, Any] | None:
    """Return the decoded document if several indexes share it, otherwise None."""
    return decode(document) if len(indexes) > 1 else None


def _keys(
    txn: WriteTransaction, collection: Collection, index: Index, document: bytes, count_max: int,
    decoded: dict[str, Any] | None,
) -> list[bytes]:  # fmt: skip
    """Return the keys of a document in a complete index, and note its traits."""
    maker = index.key_maker
    keys: list[bytes]
    keys, traits = (key_maker(index) if maker is None else maker).keys(document, count_max, decoded)
    if traits and not traits <= index.traits:
        note_traits(txn, collection, index, traits)
    return keys


def refuse_duplicate(
    txn: WriteTransaction, collection: Collection, index: Index, document: bytes, key: bytes, record: bytes | None
) -> None:  # fmt: skip
    """Raise 11000 if another record has this key, in an index that refuses duplicates."""
    if not index.unique:
        _take(txn, collection, index, document, key, record)
        return
    holder = txn.kv.get(key, db=txn.tables["indexes"])
    if holder is not None and holder != record:
        raise _duplicate_in(collection, index, document, key)


def _take(
    txn: WriteTransaction, collection: Collection, index: Index, document: bytes, key: bytes, record: bytes | None
) -> None:  # fmt: skip
    """Raise 11000 if another record has an entry with this key, in an index whose entries are not unique. A cut key is
    not checked.

    The entries of two records have different keys. So the key without a record is written and removed again: a client's
    transaction thereby locks it, or conflicts with a later write that added it.
    """
    table = txn.tables["indexes"]
    if len(key) >= CUT_BYTES + 4 or (record is not None and txn.kv.get(key + record, db=table) is not None):
        return  # a record may keep its own key
    if _is_held(txn, key, record):
        raise _duplicate_in(collection, index, document, key)
    txn.kv.put(key, b"", db=table)
    txn.kv.delete(key, db=table)


def _is_held(txn: WriteTransaction, key: bytes, record: bytes | None) -> bool:
    table = txn.tables["indexes"]
    with txn.kv.cursor(table) as cursor:
        moved = cursor.set_range(key)
        while moved and (entry := cursor.key()).startswith(key):
            if len(entry) == len(key) + len(_RECORD) and entry[-len(_RECORD) :] != record:
                return True
            moved = cursor.next()
    return False


_RECORD: Final = bytes(8)


def _keys_for_building(
    txn: WriteTransaction, collection: Collection, index: Index, document: bytes, record: bytes | None, count_max: int
) -> list[bytes]:
    """Return keys as `_keys` does. A key that the index cannot hold ends the build instead of the write.

    In a client's transaction the write is refused, because it is not known whether it will be committed.
    """
    try:
        keys = _keys(txn, collection, index, document, count_max, None)
        for key in keys if index.unique else ():
            refuse_duplicate(txn, collection, index, document, key, record)
        return keys
    except CommandError as error:
        if txn.is_trial:
            return []  # only a trial: the write itself follows, and may wait for locks
        build = txn.catalog.build_of(index)
        if build is None:
            raise
        if build.failure is None:
            txn.catalog.save_build(txn.kv, replace(build, failure=error))
        return []


def _duplicate_in(collection: Collection, index: Index, document: bytes, key: bytes) -> CommandError:
    pattern = index.spec["key"]
    return _duplicate(collection, index.spec, dict(zip(pattern, key_maker(index).rows(document)[key])))


def note_traits(txn: WriteTransaction, collection: Collection, index: Index, traits: Traits) -> None:
    """Note the traits of a new document. Plans that use the index know them from the commit on."""
    txn.catalog.add_traits(txn.kv, collection, index, traits)


def put(txn: WriteTransaction, entries: list[Entry], record: bytes) -> None:
    """Put entries of a record."""
    table = txn.tables["indexes"]
    if len(entries) > _FEW_COUNT:
        items = sorted([(key, record) if unique else (key + record, b"") for key, unique in entries])
        with txn.kv.cursor(table) as cursor:
            cursor.put_many(*zip(*items))
        return
    kv_put = txn.kv.put
    for key, unique in entries:
        if unique:
            kv_put(key, record, db=table)
        else:
            kv_put(key + record, b"", db=table)


_FEW_COUNT: Final = 8  # up to this number of entries are put one by one


def put_many(txn: WriteTransaction, keys: list[bytes]) -> None:
    """Put the entries that `of_many` has made."""
    with txn.kv.cursor(txn.tables["indexes"]) as cursor:
        cursor.put_many(keys, [b""] * len(keys))


class TooManyEntries(Exception):
    """The documents must be written in smaller numbers."""


def of_many(txn: WriteTransaction, collection: Collection, documents: list[bytes], records: list[bytes]) -> list[bytes]:
    """Return the entries of new documents in indexes that are not unique, as they are stored. Raises 171, 201, 16746,
    and `TooManyEntries` if putting them would block other clients for too long."""
    items: list[bytes] = []
    others: Iterable[int] = range(len(documents))
    if collection.are_plain and len(collection.maintained) <= txn.store.index_key_count_max:
        columns = [_plain_keys(index, documents) for index in collection.maintained]
        others = sorted({at for column in columns if None in column for at, key in enumerate(column) if key is None})
        for column in columns:
            for at in others:
                column[at] = None
            items += [key + record for key, record in zip(column, records) if key]
    for at in others:
        if len(items) > limits.BATCH_ENTRY_COUNT_MAX:
            raise TooManyEntries
        items += [key + records[at] for key, _ in to_add(txn, collection, documents[at], None)]
    items.sort()
    return items


def _plain_keys(index: Index, documents: Sequence[bytes]) -> list[bytes | None]:
    """Return the only key of each document, as `plain_keys` does; all None for an index that has other keys."""
    from headrace.store.indexes.keys_of_many import plain_keys

    maker = key_maker(index)
    return plain_keys(maker, documents) if isinstance(maker, KeyMaker) else [None] * len(documents)


def affected(
    txn: WriteTransaction, collection: Collection, size: int, fields: frozenset[str] | None
) -> Sequence[Index]:  # fmt: skip
    """Return the indexes whose entries may change if these top-level fields change; None: any field.

    `size`: the size of the new document in bytes. A document that may have too many keys is checked in all indexes.
    """
    indexes = collection.maintained
    if fields is None or size // _KEY_BYTES_MIN * len(indexes) > txn.store.index_key_count_max:
        return indexes
    return [index for index in indexes if (read := fields_of(index)) is None or not fields.isdisjoint(read)]


def fields_of(index: Index) -> frozenset[str] | None:
    """Return the top-level fields that determine a document's entries in an index; None: possibly any field."""
    if index.document_fields is MISSING:
        is_of_paths = isinstance(key_maker(index), KeyMaker | GeoKeyMaker)
        covers = _filter_of(index, None)
        covered = set() if covers is None else covers.fields()
        read = {path.partition(".")[0] for path in index.spec["key"]}
        index.document_fields = frozenset(read | covered) if is_of_paths and covered is not None else None
    return index.document_fields  # type: ignore[no-any-return]


def change(
    txn: WriteTransaction, collection: Collection, record: bytes, old: bytes, new: bytes | None,
    indexes: Sequence[Index] | None = None,
) -> None:  # fmt: skip
    """Change the entries of a record from document `old` to `new` (None: deleted) in all indexes, or in `indexes`.
    Unchanged entries are not written again."""
    if indexes is None:
        indexes = collection.maintained
    added = dict.fromkeys(to_add(txn, collection, new, record, indexes) if new is not None else ())
    table, kv, decoded = txn.tables["indexes"], txn.kv, _shared(indexes, old)
    for index in indexes:
        unique = index.unique
        for key in keys_before(index, old, decoded):
            if (key, unique) in added and not index.building:
                del added[key, unique]
            elif not unique:
                kv.delete(key + record, db=table)
            elif not index.building or kv.get(key, db=table) == record:
                kv.delete(key, db=table)
    put(txn, list(added), record)


def keys_before(index: Index, old: bytes, decoded: dict[str, Any] | None = None) -> list[bytes]:
    """Return the keys of a stored document, or none if it makes an index build fail."""
    try:
        return key_maker(index).keys(old, UNBOUNDED, decoded)[0]
    except CommandError:
        return []


_KEY_BYTES_MIN: Final = 3
"""The smallest size in bytes of an array's element, which may be a key."""


def check_totals(indexes: Sequence[Index], documents: list[tuple[bytes, bytes]], count_max: int) -> None:
    """Raise 201 if one of some (record, document) has more than `count_max` keys in these indexes together."""
    for _, document in documents:
        if len(indexes) > 1 and len(document) // _KEY_BYTES_MIN * len(indexes) > count_max:
            left = count_max
            for index in indexes:
                try:
                    key_maker(index).keys(document, left)
                    left -= key_maker(index).made_count
                except CommandError as error:  # the build reports other errors
                    if error.code == 201:
                        raise


def stored_entries_of_many(
    index: Index, documents: list[tuple[bytes, bytes]], count_max: int = UNBOUNDED
) -> tuple[list[tuple[bytes, bytes]], Traits]:
    """Return the entries of some (record, document) as they are in the table, and their traits.

    Raises 171, 16746, and 201 if a document has more than `count_max`.
    """
    from headrace.store.indexes.keys_of_many import NO_KEY

    maker, unique = key_maker(index), index.unique
    plain = _plain_keys(index, [document for _, document in documents])
    items: list[tuple[bytes, bytes]] = []
    all_traits = NO_TRAITS
    for (record, document), key in zip(documents, plain):
        if key is None:
            keys, traits = maker.keys(document, count_max)
            all_traits |= traits
            items += [(key, record) if unique else (key + record, b"") for key in keys]
        elif key is not NO_KEY:
            items.append((key, record) if unique else (key + record, b""))
    return items, all_traits


def put_new(
    txn: WriteTransaction, collection: Collection, index: Index, items: list[tuple[bytes, bytes]],
    documents: list[tuple[bytes, bytes]],
) -> None:  # fmt: skip
    """Put sorted entries that `stored_entries_of_many` has made. Raises 11000."""
    if not items:
        return
    with txn.kv.cursor(txn.tables["indexes"]) as cursor:
        added = cursor.put_many(*zip(*items), overwrite=False)
    if added != len(items):
        _put_each(txn, collection, index, items, dict(documents))


def _put_each(
    txn: WriteTransaction, collection: Collection, index: Index, items: list[tuple[bytes, bytes]],
    documents: dict[bytes, bytes],
) -> None:  # fmt: skip
    """Put the missing entries one by one, because a write during the build has already put some. Raises 11000."""
    table = txn.tables["indexes"]
    for key, value in items:
        holder = txn.kv.get(key, db=table)
        if holder is None:
            txn.kv.put(key, value, db=table)
        elif holder != value:
            raise _duplicate_in(collection, index, documents[value], key)
