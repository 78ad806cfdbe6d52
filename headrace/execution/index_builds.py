"""Adding indexes to a collection that has documents, in turns. `store/indexes/index_builds.py` has the steps.

A build that its client interrupts (`killOp`, `maxTimeMS`) is aborted. If the client disconnects, the server stops or a
turn fails for another reason, the build stays in the catalog. The server then continues it, also after a restart.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.errors import AnsweredError, CommandError
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, IndexBuild
from headrace.store.indexes import index_builds

_LEFT: Final = frozenset({279, 11600})
"""The client has disconnected, or the server stops: the build stays in the catalog."""


def build_indexes(
    context: CommandContext, collection: Collection, specs: list[dict[str, Any]], *, is_empty: bool
) -> None:
    """Add indexes to a collection. This does not pause before the build has begun.

    Raise 11000 if a unique index meets duplicates, 276 if another client aborts the build."""
    if is_empty:
        catalog_changes.create_indexes(context.txn, collection, specs)
    else:
        _build(context, collection, specs)


def replace_index(context: CommandContext, collection: Collection, spec: dict[str, Any]) -> None:
    """Build an index with a new specification, in place of the index with the same name. Raise 11000 for duplicates."""
    _build(context, collection, [spec])


def _build(context: CommandContext, collection: Collection, specs: list[dict[str, Any]]) -> None:
    build = index_builds.begin(context.txn, context.txn.catalog.current(collection), specs)
    running = context.engine.builds_of_commands
    running.add(build.uuid)
    try:
        _run(context, build, collection)
    except AnsweredError as error:
        now = context.txn.catalog.builds.get(build.uuid)
        if now is not None and error.code not in _LEFT:
            index_builds.abort(context.txn, now, CommandError(error.code, error.message))
        raise
    finally:
        running.discard(build.uuid)


def _run(context: CommandContext, build: IndexBuild, collection: Collection) -> None:
    while True:
        build = _current(context, build, collection)
        if index_builds.fill(context.txn, build):
            context.tick()
            continue
        wait_until_unused(context, index_builds.collection_of(context.txn, build).namespace)
        build = _current(context, build, collection)
        if not index_builds.fill(context.txn, build):  # writes made during the wait are in the indexes
            index_builds.commit(context.txn, build)
            return


def _current(context: CommandContext, build: IndexBuild, collection: Collection) -> IndexBuild:
    """Return the build as it is in the catalog now. Raise 276 if it was aborted."""
    now = context.txn.catalog.builds.get(build.uuid)
    if now is None:
        cause = "the build was aborted by a command that drops its indexes or its collection"
        raise index_builds.aborted(build, collection, cause)
    return now
