"""Index builds over the documents of a collection, piece by piece, while clients write.

    begin    gives the indexes numbers and adds the build to the catalog: every later change updates the indexes, too
    fill     adds the keys of some more documents and records the progress, in one transaction
    commit   adds the indexes to the collection
    abort    turns the rows of the indexes into garbage

Rule: each step shares a transaction with other clients' writes. A crash between two steps loses nothing: the catalog
has the build when it is loaded, and `fill` continues after the last document. If a change makes a key that the indexes
cannot hold (a second unique key, parallel arrays), it is not refused; the build's failure is noted instead.

When a directory is opened, indexes whose entries an earlier version did not store, or stored otherwise, are rebuilt in
place before the directory is used (`migrate`). An index that cannot hold a stored document is listed but not used.

Source: MongoDB's hybrid and resumable index builds; its entries startIndexBuild, commitIndexBuild, abortIndexBuild.
"""

from __future__ import annotations

import logging
import uuid as uuids
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace import limits
from headrace.errors import CommandError, code_name
from headrace.log_lines import emit
from headrace.store import catalog_changes
from headrace.store.catalog import BuildPart, Collection, Index, IndexBuild, can_have_entries
from headrace.store.indexes import index_entries
from headrace.store.indexes.field_keys import key_format
from headrace.store.indexes.index_keys import UNBOUNDED

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction


LOG = logging.getLogger("headrace.store")


def begin(
    txn: WriteTransaction, collection: Collection, specs: list[dict[str, Any]], uuid: bytes | None = None
) -> IndexBuild:  # fmt: skip
    """Begin to build indexes, which the collection gets all at once. No `uuid`: make a new one."""
    indexes = tuple(Index(txn.catalog.new_number(txn.kv), spec, building=True) for spec in specs)
    build = txn.catalog.save_build(txn.kv, IndexBuild(uuid or uuids.uuid4().bytes, collection.number, indexes))
    if not _replaced(txn, build):
        catalog_changes.log_build(txn, collection, "startIndexBuild", build.uuid, specs)
    return build


def collection_of(txn: WriteTransaction, build: IndexBuild) -> Collection:
    """Return the collection of a build that has not ended."""
    return txn.catalog.by_number[build.collection_number]


def _replaced(txn: WriteTransaction, build: IndexBuild) -> dict[str, Index]:
    """Return the indexes of the collection, by name, that the indexes of the build will replace."""
    names = {index.name for index in build.indexes}
    return {index.name: index for index in collection_of(txn, build).indexes if index.name in names}


def fill(txn: WriteTransaction, build: IndexBuild, count_max: int = limits.BUILD_COUNT) -> bool:
    """Add the keys of some more documents, or of a part of one; return False if there are none left.

    Raises the error of a document that the indexes cannot hold: 11000, 171, 201, 16746, 16766, 7246301. The caller then
    aborts the build.
    """
    if build.failure is not None:
        raise build.failure
    build = _with_formats(txn, build)
    collection, index_count = collection_of(txn, build), len(build.indexes)
    count_max = 1 if build.part is not None else max(1, min(count_max, limits.BUILD_COUNT // index_count))
    documents = txn.scan_chunk(
        collection, after=build.after or None, count_max=count_max, bytes_max=limits.BUILD_BYTES // index_count
    )
    if not documents:
        return False
    key_count_max = UNBOUNDED  # for a rebuilt index: the keys were stored before
    if not _replaced(txn, build):
        key_count_max = txn.store.index_key_count_max
        index_entries.check_totals(collection.maintained, documents, key_count_max)
    part = build.part
    if part is not None and part.document[0] != documents[0][0]:
        part = None  # the document was deleted
    for index in build.indexes:
        if part is not None and index.number < part.number:
            continue
        begun = part if part is not None and part.number == index.number else None
        if begun is not None and begun.document == documents[0]:
            entries = begun.left
        else:
            entries, traits = index_entries.stored_entries_of_many(index, documents, key_count_max)
            if traits:
                txn.catalog.add_traits(txn.kv, collection_of(txn, build), index, traits)
            entries.sort()
            if begun is not None:
                entries = entries[bisect_right(entries, begun.key, key=itemgetter(0)) :]
        count = len(entries)
        if len(documents) == 1 and count > limits.BUILD_ENTRY_COUNT:
            count = limits.BUILD_ENTRY_COUNT if begun is not None else 0  # making many entries is a step of its own
        entries, left = entries[:count], entries[count:]
        index_entries.put_new(txn, collection_of(txn, build), index, entries, documents)
        if left:
            part = BuildPart(documents[0], index.number, entries[-1][0] if entries else b"", left)
            txn.catalog.save_build(txn.kv, replace(txn.catalog.builds[build.uuid], part=part))
            return True
    build = txn.catalog.builds[build.uuid]  # its indexes may have new traits
    txn.catalog.save_build(txn.kv, replace(build, after=documents[-1][0], done=build.done + len(documents), part=None))
    return True


def _with_formats(txn: WriteTransaction, build: IndexBuild) -> IndexBuild:
    """Return the build. It starts again if its keys were made with another version of ICU."""
    formats = tuple(key_format(index.spec) for index in build.indexes)
    if build.formats == formats:
        return build
    if build.formats:
        for index in build.indexes:
            catalog_changes.discard_index(txn, index)
        indexes = tuple(Index(txn.catalog.new_number(txn.kv), index.spec, building=True) for index in build.indexes)
        build = replace(build, indexes=indexes, after=b"", done=0)
    return txn.catalog.save_build(txn.kv, replace(build, formats=formats))


def commit(txn: WriteTransaction, build: IndexBuild) -> None:
    """Add the filled indexes to the collection. Raises the build's failure."""
    if build.failure is not None:
        raise build.failure
    replaced = _replaced(txn, build)
    build = txn.catalog.builds[build.uuid]  # its indexes have all traits
    collection = txn.catalog.remove_build(txn.kv, build)
    put(txn, collection, [Index(index.number, index.spec, index.traits) for index in build.indexes])
    if replaced:
        return
    catalog_changes.log_build(
        txn, collection, "commitIndexBuild", build.uuid, [index.spec for index in build.indexes]
    )  # fmt: skip


def put(txn: WriteTransaction, collection: Collection, made: list[Index]) -> None:
    """Add filled indexes to the collection. An index replaces the present one with the same name."""
    by_name = {index.name: index for index in made}
    for index in collection.indexes:
        if index.name in by_name:
            catalog_changes.discard_index(txn, index)
    present = [by_name.pop(index.name, index) for index in collection.indexes]
    txn.catalog.save(txn.kv, collection.changed(indexes=(*present, *by_name.values())))


def abort(txn: WriteTransaction, build: IndexBuild, cause: CommandError) -> None:
    """End a build and discard its indexes."""
    replaced = _replaced(txn, build)
    collection = txn.catalog.remove_build(txn.kv, build)
    for index in build.indexes:
        catalog_changes.discard_index(txn, index)
    if replaced:
        return
    specs = [index.spec for index in build.indexes]
    shown = {"ok": False, "code": cause.code, "codeName": code_name(cause.code), "errmsg": cause.message}
    catalog_changes.log_build(txn, collection, "abortIndexBuild", build.uuid, specs, cause=shown)


def aborted(build: IndexBuild, collection: Collection, cause: str) -> CommandError:
    """Return the error for a client whose build another command has ended."""
    return CommandError(
        276, f"Index build failed: {uuids.UUID(bytes=build.uuid)}: Collection {collection.namespace} "
        f"( {uuids.UUID(bytes=collection.uuid or bytes(16))} ) :: caused by :: {cause}"
    )  # fmt: skip


def resume(txn: WriteTransaction, uuid: bytes) -> bool:
    """Run the next piece of a build that no client waits for. Return False if it has ended or waits for a transaction.

    A build that fails is aborted.
    """
    build = txn.catalog.builds.get(uuid)
    if build is None:
        return False
    namespace = collection_of(txn, build).namespace
    try:
        if fill(txn, build, limits.BUILD_COUNT):
            return True
        if txn.store.transactions.holder_of(namespace, txn) is None:
            commit(txn, txn.catalog.builds[uuid])
            emit(
                LOG, logging.INFO, "the indexes %s of %s are built: %d documents", _names(build), namespace, build.done
            )
    except CommandError as error:
        abort(txn, build, error)
        emit(LOG, logging.WARNING, "the indexes %s of %s are not built: %s", _names(build), namespace, error.message)
    return False


def _names(build: IndexBuild) -> str:
    return ", ".join(index.name for index in build.indexes)


_PIECE_COUNT: Final = 100
"""The number of build pieces in one transaction. No client waits meanwhile."""
Result = TypeVar("Result")


def migrate(store: Store) -> None:
    """Build the entries of every index that has none yet. Log each rebuild, and each index of an unsupported kind."""
    for collection in list(store.catalog.collections.values()):
        for index in collection.indexes:
            if index.has_entries:
                continue
            if can_have_entries(index.spec):
                _rebuild(store, collection, index)
            elif not index.is_of_id:
                LOG.warning(
                    "the index %s of %s is of a kind that is not supported: it is not used",
                    index.name,
                    collection.namespace,
                )


def _rebuild(store: Store, collection: Collection, index: Index) -> None:
    LOG.warning(
        "the index %s of %s is built: an earlier version did not store its keys, or stored others",
        index.name,
        collection.namespace,
    )
    begun = [build.uuid for build in store.catalog.builds_on(collection) if build.indexes[0].name == index.name]
    if not begun:
        begun = [_committed(store, lambda txn: begin(txn, collection, [index.spec])).uuid]
    while _committed(store, lambda txn: all(resume(txn, begun[0]) for _ in range(_PIECE_COUNT))):
        pass


def _committed(store: Store, change: Callable[[WriteTransaction], Result]) -> Result:
    """Run a change in a transaction of its own; return its result."""
    txn = store.begin()
    try:
        result = change(txn)
    except BaseException:
        store.abandon(txn)
        raise
    store.commit(txn)
    return result
