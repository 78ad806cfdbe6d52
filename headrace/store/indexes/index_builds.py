"""Indexes that are built over the documents of a collection, piece by piece, while others write.

    begin    the indexes get numbers, and the build is in the catalog: from now on every change is in the indexes, too
    fill     the keys of some more documents, and how far that is, in one transaction
    commit   the indexes become the collection's
    abort    what they have is garbage

Rule: each step is in a transaction with the writes beside it. A crash between two of them loses nothing: the catalog
has the build when it is loaded, and `fill` goes on behind the last document. What a change brings that the indexes
cannot hold (a second unique key, parallel arrays) is noted as the build's failure, and does not refuse the change.

Source: MongoDB's hybrid and resumable index builds; its entries startIndexBuild, commitIndexBuild, abortIndexBuild.
"""

from __future__ import annotations

import logging
import uuid as uuids
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace import limits
from headrace.errors import CommandError, code_name
from headrace.log_lines import emit
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index, IndexBuild
from headrace.store.indexes import index_entries
from headrace.store.indexes.collated_keys import key_format
from headrace.store.indexes.index_keys import NO_TRAITS, UNBOUNDED, Traits
from headrace.turns import current_turn, tick

if TYPE_CHECKING:
    from headrace.store.store import Store
    from headrace.store.write_transaction import WriteTransaction

LOG = logging.getLogger("headrace.store")


def begin(txn: WriteTransaction, collection: Collection, specs: list[dict[str, Any]]) -> IndexBuild:
    """Begin to build indexes; all of them become the collection's at once."""
    indexes = tuple(Index(txn.catalog.new_number(txn.kv), spec, building=True) for spec in specs)
    build = txn.catalog.save_build(txn.kv, IndexBuild(uuids.uuid4().bytes, collection.number, indexes))
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


@dataclass(slots=True)
class Piece:
    """Some documents on their way into the indexes."""

    documents: list[tuple[bytes, bytes]]
    """(record, document), as they were read."""
    index_count: int = 0
    """In how many of the indexes they are,"""
    entries: list[tuple[bytes, bytes]] | None = None
    """and their entries in the next one that are not in it yet; None: they have not been made."""
    traits: Traits = NO_TRAITS
    """The traits of its documents in the next index, once the entries are made."""
    entry_count: int = 0
    """How many entries have been put, of all indexes."""

    @property
    def is_long(self) -> bool:
        """Whether to make their entries takes so long that nobody should wait for it."""
        return sum(len(document) for _, document in self.documents) > limits.DECODED_BYTES_MAX


@dataclass(slots=True)
class BuildProgress:
    """How far the builder is past `IndexBuild.after`. Not stored: to put keys again changes nothing, and the builder
    forgets it when a transaction is abandoned."""

    count_max: int = limits.VIEW_CHUNK_COUNT
    """Documents in its next piece: more as long as each has one key in each index."""
    piece: Piece | None = None
    """The documents that are in some of the indexes, or in part."""
    restart_count: int = 0
    """How often one of them was changed meanwhile."""


def _progress(store: Store, build: IndexBuild) -> BuildProgress:
    progress: BuildProgress = store.build_progress.setdefault(build.uuid, BuildProgress())
    return progress


def fill(txn: WriteTransaction, build: IndexBuild, count_max: int = limits.BUILD_COUNT) -> bool:
    """Add the keys of some more documents, or where they are many some of them; False if there are none.

    In a turn, the entries of long documents are left to `make_entries`. Raises what the indexes cannot hold: 11000,
    171, 201, 16746, 16766, 7246301; then the build is to be aborted.
    """
    if build.failure is not None:
        raise build.failure
    build = _with_formats(txn, build)
    progress = _progress(txn.store, build)
    count_max = max(1, min(count_max, progress.count_max, limits.BUILD_ENTRY_COUNT // len(build.indexes)))
    piece = progress.piece = _piece(txn, build, progress, count_max)
    with index_entries.in_change(txn):
        if not _put(txn, build, progress, piece):
            return True
    progress.piece, progress.restart_count = None, 0
    # Documents with many keys take longer.
    is_plain = piece.entry_count <= len(piece.documents) * len(build.indexes)
    progress.count_max = min(2 * progress.count_max, limits.BUILD_COUNT) if is_plain else limits.VIEW_CHUNK_COUNT
    if piece.documents:
        build = txn.catalog.builds[build.uuid]  # whose indexes may have more traits
        done = build.done + len(piece.documents)
        txn.catalog.save_build(txn.kv, replace(build, after=piece.documents[-1][0], done=done))
    return bool(piece.documents)


def _piece(txn: WriteTransaction, build: IndexBuild, progress: BuildProgress, count_max: int) -> Piece:
    """The next documents, and how far they are. They are read again for each part of their entries: where one of them
    has been changed meanwhile, they begin anew."""
    begun = progress.piece
    if begun is not None:
        count_max = max(count_max, len(begun.documents))
    documents = txn.scan_chunk(collection_of(txn, build), after=build.after or None, count_max=count_max)
    if begun is not None:
        if documents[: len(begun.documents)] == begun.documents:
            return begun
        progress.restart_count += 1
    return Piece(documents)


def _put(txn: WriteTransaction, build: IndexBuild, progress: BuildProgress, piece: Piece) -> bool:
    """Put some entries of a piece; whether all are in. One that is changed again and again is put at once."""
    is_cut = progress.restart_count < limits.BUILD_RESTART_COUNT_MAX
    put_count = 0
    while piece.index_count < len(build.indexes) and piece.documents:
        if put_count >= limits.BUILD_COUNT and is_cut:
            return False
        index = build.indexes[piece.index_count]
        if piece.entries is None:
            if is_cut and piece.is_long and current_turn() is not None:
                return False
            piece.entries, piece.traits = _entries(txn, build, index, piece)
        if piece.traits:
            txn.catalog.add_traits(txn.kv, collection_of(txn, build), index, piece.traits)
        some = piece.entries[-limits.BUILD_KEY_COUNT :]
        index_entries.put_new(txn, collection_of(txn, build), index, some, piece.documents)
        del piece.entries[-limits.BUILD_KEY_COUNT :]
        put_count += len(some)
        piece.entry_count += len(some)
        if not piece.entries:
            piece.entries = None
            piece.index_count += 1
        tick()
    return True


def make_entries(txn: WriteTransaction, build: IndexBuild) -> None:
    """Make the entries that `fill` has left, with ticks; `txn` is not used after the first."""
    piece = _progress(txn.store, build).piece
    if piece is not None and piece.entries is None and piece.is_long:
        piece.entries, piece.traits = _entries(txn, build, build.indexes[piece.index_count], piece)


def _entries(
    txn: WriteTransaction, build: IndexBuild, index: Index, piece: Piece
) -> tuple[list[tuple[bytes, bytes]], Traits]:
    """Of an index that is built anew, too many keys of a document are no error: they were stored."""
    count_max = UNBOUNDED if _replaced(txn, build) else txn.store.index_key_count_max
    if not piece.index_count and count_max != UNBOUNDED:
        index_entries.check_totals(collection_of(txn, build).maintained, piece.documents, count_max)
    return index_entries.stored_entries_of_many(index, piece.documents, count_max)


def _with_formats(txn: WriteTransaction, build: IndexBuild) -> IndexBuild:
    """Return the build, from the start where the keys so far are of another version of ICU."""
    formats = tuple(key_format(index.spec) for index in build.indexes)
    if build.formats == formats:
        return build
    if build.formats:
        for index in build.indexes:
            catalog_changes.discard_index(txn, index)
        indexes = tuple(Index(txn.catalog.new_number(txn.kv), index.spec, building=True) for index in build.indexes)
        build = replace(build, indexes=indexes, after=b"", done=0)
        txn.store.build_progress.pop(build.uuid, None)
    return txn.catalog.save_build(txn.kv, replace(build, formats=formats))


def commit(txn: WriteTransaction, build: IndexBuild) -> None:
    """Make the indexes, which are filled, those of the collection. Raises the build's failure."""
    if build.failure is not None:
        raise build.failure
    replaced = _replaced(txn, build)
    build = txn.catalog.builds[build.uuid]  # whose indexes have all traits
    collection = txn.catalog.remove_build(txn.kv, build)
    put(txn, collection, [Index(index.number, index.spec, index.traits) for index in build.indexes])
    if replaced:
        return
    catalog_changes.log_build(
        txn, collection, "commitIndexBuild", build.uuid, [index.spec for index in build.indexes]
    )  # fmt: skip


def put(txn: WriteTransaction, collection: Collection, made: list[Index]) -> None:
    """Give the collection indexes that are filled, each in the place of one with its name if there is one."""
    by_name = {index.name: index for index in made}
    for index in collection.indexes:
        if index.name in by_name:
            catalog_changes.discard_index(txn, index)
    present = [by_name.pop(index.name, index) for index in collection.indexes]
    txn.catalog.save(txn.kv, collection.changed(indexes=(*present, *by_name.values())))


def abort(txn: WriteTransaction, build: IndexBuild, cause: CommandError) -> None:
    """End a build without its indexes."""
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
    """Return the error for the client whose build another command has ended."""
    return CommandError(
        276, f"Index build failed: {uuids.UUID(bytes=build.uuid)}: Collection {collection.namespace} "
        f"( {uuids.UUID(bytes=collection.uuid or bytes(16))} ) :: caused by :: {cause}"
    )  # fmt: skip


def resume(txn: WriteTransaction, uuid: bytes) -> bool:
    """Do a further piece of a build that nobody waits for; False once it has ended, or must wait for a transaction.

    One that cannot end well is aborted.
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
