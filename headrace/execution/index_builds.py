"""Indexes added to a collection that has documents, in turns: `store/indexes/index_builds.py` has the steps.

A build that is interrupted by its client (`killOp`, `maxTimeMS`) is aborted. One whose client or server goes, or whose
turn fails for another reason, stays in the catalog, and the server goes on with it by itself, also after a restart.
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
"""The client has gone, the server ends: the build goes on."""


def build_indexes(
    context: CommandContext, collection: Collection, specs: list[dict[str, Any]], *, is_empty: bool
) -> None:
    """Add indexes to a collection as it is now. It does not pause before the build has begun.

    Raises 11000 for a unique one over duplicates, 276 where another client ends the build."""
    if is_empty:
        catalog_changes.create_indexes(context.txn, collection, specs)
    else:
        _build(context, collection, specs)


def replace_index(context: CommandContext, collection: Collection, spec: dict[str, Any]) -> None:
    """Rebuild an index with another specification, in the place of the one that has its name. Raises 11000."""
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
        if not index_builds.fill(context.txn, build):  # what was written while it waited is in the indexes
            index_builds.commit(context.txn, build)
            return


def _current(context: CommandContext, build: IndexBuild, collection: Collection) -> IndexBuild:
    """Return the build as the catalog has it now. Raises 276 where it has been ended."""
    now = context.txn.catalog.builds.get(build.uuid)
    if now is None:
        cause = "the build was aborted by a command that drops its indexes or its collection"
        raise index_builds.aborted(build, collection, cause)
    return now
