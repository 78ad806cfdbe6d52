"""A mirror as a Delta or Iceberg table of Spark's own catalogs, by the jars that the user's session has.

The rows are folded here, as for every mirror; Spark merges them: one MERGE, or for a clearing one overwrite, is one
commit of the table. The state must be in that same commit, and both formats let a session say what a commit's own
metadata is to have: Delta as `userMetadata`, Iceberg as a property of the snapshot. Other formats are refused. So:

- a crash before the commit leaves rows and state as they were; behind it both are new; there is no moment in between;
- a batch that changes no row makes no commit: then the state is set as a property of the table, by itself;
- each state has a number, and the one with the highest counts, wherever it is.

Why not a row of the table: whoever reads the table would see it. Why not a table of positions, committed behind: an
update folded a second time needs the document of before, which a delete of the same batch may have taken away.

What it does not survive: that every commit of ours is expired from the table's history while the rows stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.rows.events import SERVER
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import (
    STATE_KEY,
    NotAMirror,
    id_texts,
    merged_rows,
    names_of,
    same_key,
    schema,
    stale_condition,
    state_fields,
    state_of,
    stored_rows_of,
    upserted,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MERGE: Final = """
MERGE INTO {name} AS target USING headrace_changes AS new ON {same}
WHEN MATCHED AND new.gone THEN DELETE
WHEN MATCHED THEN UPDATE SET document = new.document, token = new.token
WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({columns}) VALUES ({values})
"""
_STALE: Final = "WHEN NOT MATCHED BY SOURCE AND ({stale}) THEN DELETE"


@dataclass(frozen=True, slots=True)
class _TableFormat:
    """How a format stores a text with a commit: the session's setting for it, and a query for them, newest first."""

    setting: str
    history: str


_FORMATS: Final = {
    "delta": _TableFormat(
        "spark.databricks.delta.commitInfo.userMetadata",
        "DESCRIBE HISTORY {name}",
    ),
    "iceberg": _TableFormat(
        f"spark.sql.iceberg.snapshot-property.{STATE_KEY}",
        f"SELECT summary['{STATE_KEY}'] AS userMetadata FROM {{name}}.snapshots ORDER BY committed_at DESC",
    ),
}
COLUMNS: Final = "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL"


class CatalogMirror:
    """See `mirror_table.MirrorTable`. The table is made by the user: its location and properties are up to them."""

    def __init__(self, name: str, get_session: Callable[[], SparkSession]) -> None:
        self._name = ".".join(f"`{part}`" for part in name.replace("`", "").split("."))
        self._get_session = get_session
        self._private_session: SparkSession | None = None
        self._number = 0
        self._format = _FORMATS["delta"]

    def __str__(self) -> str:
        return self._name

    def state(self) -> MirrorState:
        self._number, text = max(self._states(), default=(0, ""))
        if not text and self._session().table(self._name).limit(1).count():
            raise NotAMirror(f"the table {self._name} has rows, and none of its commits says that they are a mirror's")
        return state_of(text) if text else MirrorState()

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        import pyarrow as pa

        wanted = list(keys)
        if not wanted:
            return {}
        session = self._session()
        session.createDataFrame(pa.table({"_id": id_texts(wanted)})).createOrReplaceTempView("headrace_keys")
        rows = session.sql(f"SELECT * FROM {self._name} WHERE _id IN (SELECT _id FROM headrace_keys)")
        return stored_rows_of(rows.toArrow(), wanted)

    def commit(self, changes: MirrorChanges) -> None:
        self._number += 1
        text = json.dumps({"number": self._number, **state_fields(changes.state)})
        if changes.state.servers:
            self._check_server_column()
        with self._commit_metadata(text):
            if changes.clear:
                self._overwrite(changes)
            elif changes.upserts or changes.deletes or stale_condition(changes):
                self._merge(changes)
        if not (changes.upserts or changes.deletes):
            # There may have been nothing to do, and so no commit; if there was one, this says the same again.
            self._set_property(text)

    def read(self) -> pa.Table:
        rows = self._session().table(self._name)
        return rows.select(*names_of(rows.columns)).toArrow()

    def _overwrite(self, changes: MirrorChanges) -> None:
        from pyspark.sql.functions import lit

        self._session().createDataFrame(upserted(changes)).writeTo(self._name).overwrite(lit(True))

    def _merge(self, changes: MirrorChanges) -> None:
        session = self._session()
        session.createDataFrame(merged_rows(changes)).createOrReplaceTempView("headrace_changes")
        stale = stale_condition(changes)
        names = schema(servers=bool(changes.state.servers)).names
        merge = _MERGE.format(
            name=self._name, same=same_key(changes), columns=", ".join(names),
            values=", ".join(f"new.{name}" for name in names),
        )  # fmt: skip
        session.sql(merge + (_STALE.format(stale=stale) if stale else ""))

    def _set_property(self, text: str) -> None:
        # As hexadecimal digits: Spark shows no property with the word `token` in it.
        text = text.encode().hex()
        self._session().sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{STATE_KEY}' = '{text}')")

    def _states(self) -> Iterator[tuple[int, str]]:
        """The states that there are, each with its number."""
        session = self._session()
        texts = self._in_commits(session)
        properties = session.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        texts += [bytes.fromhex(row.value).decode() for row in properties if row.key == STATE_KEY]
        for text in texts:
            state = _state_in(text)
            if state is not None:
                yield int(state.pop("number")), json.dumps(state)

    def _in_commits(self, session: SparkSession) -> list[str]:
        # One of the last commits is ours, unless others (an OPTIMIZE, say) have committed many since.
        for limit in (" LIMIT 5", ""):
            text = session.sql(self._format.history.format(name=self._name) + limit).collect()
            texts = [row.userMetadata for row in text if _state_in(row.userMetadata or "")]
            if texts:
                return texts
        return []

    @contextmanager
    def _commit_metadata(self, text: str) -> Iterator[None]:
        """Commits made inside carry the text."""
        conf = self._session().conf
        conf.set(self._format.setting, text)
        try:
            yield
        finally:
            conf.unset(self._format.setting)

    def _session(self) -> SparkSession:
        """A session of this table's own, so that what it sets is in no other's commits."""
        if self._private_session is None:
            session = self._get_session().newSession()
            self._check(session)
            self._private_session = session
        return self._private_session

    def _check_server_column(self) -> None:
        """Raises NotAMirror if the table cannot have the rows of several servers."""
        if SERVER not in self._session().table(self._name).columns:
            raise NotAMirror(
                f"the table {self._name} has no column `{SERVER}`, and the job reads several servers: make it with "
                f"({SERVER} STRING NOT NULL, {COLUMNS})"
            )

    def _check(self, session: SparkSession) -> None:
        """Raises NotAMirror if there is no such table, or it cannot keep a position."""
        if not session.catalog.tableExists(self._name):
            statement = f"CREATE TABLE {self._name} ({COLUMNS}) USING delta (or iceberg)"
            raise NotAMirror(f"there is no table {self._name}; make it: {statement}")
        described = session.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        provider = next((row.data_type for row in described if row.col_name == "Provider"), "")
        if provider not in _FORMATS:
            known = " or ".join(_FORMATS)
            raise NotAMirror(f"the table {self._name} is of {provider or 'no known format'}: a mirror's is of {known}")
        self._format = _FORMATS[provider]


def _state_in(text: str) -> dict[str, Any] | None:
    """What one of our commits says; None for what somebody else wrote there."""
    try:
        text = json.loads(text)
    except ValueError:
        return None
    return text if isinstance(text, dict) and {"number", "token"} <= text.keys() else None
