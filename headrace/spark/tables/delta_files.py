"""Files that tasks wrote into a Delta table's folder, added to the table by one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from headrace.clock import SystemClock
from headrace.spark.rows.tokens import TIME_END
from headrace.spark.tables.open_table import OpenDeltaTable
from headrace.spark.tables.staged_files import StagedFile

# Properties of tables that need a writer which supports them.
_STRANGE: Final = ("delta.columnMapping.mode", "delta.constraints")


def fits(table: DeltaTable, schema: pa.Schema) -> bool:
    """Whether a file with these columns can be added to the table as it is."""
    if table.metadata().partition_columns or not is_plain(table):
        return False
    there = {field.name: field.type for field in table.schema().fields}
    return all(there.get(field.name) == field.type for field in Schema.from_arrow(schema).fields)


def is_plain(table: DeltaTable) -> bool:
    """Whether the table has no properties that need another writer than this."""
    return not any(name.startswith(_STRANGE) for name in table.metadata().configuration)


def files_between(table: DeltaTable, after: str, upto: str | None) -> list[str]:
    """URIs of files that may have tokens after `after`, up to and including `upto`, by the log's statistics."""
    paths = [action["path"] for action in _bounds(table) if _overlaps(action, after, upto)]
    names = {path.rpartition("/")[2] for path in paths}
    return [uri for uri in table.file_uris() if uri.rpartition("/")[2] in names]


def _bounds(table: DeltaTable) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return actions


def _overlaps(action: dict[str, Any], after: str, upto: str | None) -> bool:
    least, most = action.get("min.token"), action.get("max.token")
    if not least or not most:
        return True
    soon_enough = upto is None or least[:TIME_END] <= upto[:TIME_END]
    return bool(soon_enough and most[:TIME_END] >= after[:TIME_END])


def add_files(
    open_table: OpenDeltaTable, files: Sequence[StagedFile], schema: pa.Schema, properties: CommitProperties
) -> None:
    """Adds the files in one commit with these properties, which creates the table if there is none."""
    now = SystemClock().now_ms()
    added = [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]
    table = open_table.now()
    if table is not None:
        table.create_write_transaction([*added], "append", table.schema(), [], commit_properties=properties)
    else:
        create_table_with_add_actions(
            open_table.location.url, Schema.from_arrow(schema), added, commit_properties=properties
        )
