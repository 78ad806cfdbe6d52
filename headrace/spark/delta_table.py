"""A mirror as a Delta table, written by `deltalake`: each batch is one commit, its state in the commit's metadata.

What it does not do: remove old files. They are the table's history; `DeltaTable.vacuum` removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from headrace.spark.fold import Changes, State, Stored
from headrace.spark.tables import STATE_KEY, NotAMirror, schema, state_of, state_text, stored_rows, upserted

# So many commits add about as many small files; then they are made one.
COMPACT_COMMITS: Final = 50


class DeltaMirror:
    """See `tables.MirrorTable`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def state(self) -> State:
        if not self._exists():
            return State()
        table = DeltaTable(self._path)
        # The last commit has it, unless somebody else (an OPTIMIZE, say) has committed since.
        for depth in (1, None):
            for commit in table.history(depth):
                if STATE_KEY in commit:
                    return state_of(commit[STATE_KEY])
        raise NotAMirror(f"the Delta table {self._path} has no commit of a mirror")

    def rows(self, keys: Iterable[str]) -> dict[str, Stored]:
        wanted = pa.array(list(keys), pa.large_string())
        files = DeltaTable(self._path).file_uris() if self._exists() and len(wanted) else []
        if not files:
            return {}
        # Files written by a merge have views of strings, whose bounds Arrow cannot compare with strings yet: the
        # cast keeps it from trying.
        dataset = ds.dataset(files, schema=schema(), format="parquet")
        return stored_rows(dataset.to_table(filter=ds.field("_id").cast(pa.large_string()).isin(wanted)))

    def commit(self, changes: Changes) -> None:
        properties = _properties(changes.state)
        if changes.clear or not self._exists():
            self._path.mkdir(parents=True, exist_ok=True)
            write_deltalake(self._path, upserted(changes), mode="overwrite", commit_properties=properties)
        elif changes.upserts or changes.deletes:
            self._merge(changes, properties)
        else:
            write_deltalake(self._path, upserted(changes), mode="append", commit_properties=properties)

    def read(self) -> pa.Table:
        return DeltaTable(self._path).to_pyarrow_table().select(["_id", "document", "token"])

    def _exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self._path))

    def _merge(self, changes: Changes, properties: CommitProperties) -> None:
        table = DeltaTable(self._path)
        merging = table.merge(_source(changes), "kept._id = new._id", "new", "kept", commit_properties=properties)
        merging = merging.when_matched_delete("new.gone").when_matched_update_all("not new.gone", except_cols=["gone"])
        merging.when_not_matched_insert_all("not new.gone", except_cols=["gone"]).execute()
        if table.version() % COMPACT_COMMITS == COMPACT_COMMITS - 1:
            table.optimize.compact(commit_properties=properties)


def _source(changes: Changes) -> pa.Table:
    """The rows to merge, with a column that says which are to go."""
    new = upserted(changes)
    gone = sorted(changes.deletes)
    keys = pa.array(gone, pa.string())
    blank = pa.array([""] * len(gone), pa.string())
    old = pa.table([keys, blank, blank], schema=new.schema)
    flags = pa.array([False] * len(new) + [True] * len(gone), pa.bool_())
    return pa.concat_tables([new, old]).append_column("gone", flags)


def _properties(state: State) -> CommitProperties:
    # The transaction says the same to other writers of Delta; what this program goes by is the state.
    transactions = [Transaction(state.query, state.batch)] if state.query else None
    return CommitProperties(custom_metadata={STATE_KEY: state_text(state)}, app_transactions=transactions)
