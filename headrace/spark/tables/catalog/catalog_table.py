"""A Delta or Iceberg table of Spark's own catalogs, by the jars that the user's session has, and a sink's state in it.

What to write is computed here, as for every table of ours; Spark writes it: one append, one overwrite or one MERGE is
one commit of the table. The state must be in that same commit, and both formats let a session say what a commit's own
metadata is to have: Delta as `userMetadata`, Iceberg as a property of the snapshot. Other formats are refused. So:

- a crash before the commit leaves rows and state as they were; behind it both are new; there is no moment in between;
- a batch that changes no row makes no commit: then the state is set as a property of the table, by itself;
- each state has a number, and the one with the highest counts, wherever it is.

Why not a row of the table: whoever reads the table would see it. Why not a table of positions, committed behind: an
update folded a second time needs the document of before, which a delete of the same batch may have taken away, and an
append would be made a second time.

What it does not survive: that every commit of ours is expired from the table's history while the rows stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.tables.mirror_table import STATE_KEY, NotAMirror, id_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHANGES: Final = "headrace_changes"
"""The temporary view of the rows that a MERGE of `CatalogTable.merge` takes."""
_KEYS: Final = "headrace_keys"


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


class TableMissing(NotAMirror):
    """There is no such table, and the sink is not to make it."""


class CatalogTable:
    """Its rows, its state as a text, and the commits of both. One writer at a time, who asks for the state first.

    The table is made by the user, whose affair its location and properties are; or, `using` a format, when its rows are
    first read or written. `columns` are those that it must have, as DDL.
    """

    def __init__(self, name: str, columns: str, get_session: Callable[[], SparkSession], using: str = "") -> None:
        self.name = ".".join(f"`{part}`" for part in name.replace("`", "").split("."))
        self._columns, self._using = columns, using
        self._get_session = get_session
        self._session: SparkSession | None = None
        self._checked = False
        self._number = 0
        self._format = _FORMATS["delta"]

    def state_text(self) -> str:
        """The state last committed; empty if there is none, or no table that the sink is to make.

        Raises NotAMirror for rows without one, TableMissing.
        """
        if self._using and not self._checked and not self.exists():
            self._number = 0
            return ""
        self._refresh()
        self._number, text = max(self._states(), default=(0, ""))
        if not text and self.session().table(self.name).limit(1).count():
            raise NotAMirror(f"the table {self.name} has rows, and none of its commits says which sink's they are")
        return text

    def next_text(self, state: Mapping[str, Any]) -> str:
        """The text of the next commit: the state, and its number."""
        self._number += 1
        return json.dumps({"number": self._number, **state})

    def append(self, rows: pa.Table, text: str) -> None:
        """Adds the rows, in one commit that has the text."""
        frame = self.session().createDataFrame(rows)
        with self._commit_metadata(text):
            frame.writeTo(self.name).append()

    def overwrite(self, rows: pa.Table, text: str) -> None:
        """Puts the rows in place of all others, in one commit that has the text."""
        from pyspark.sql.functions import lit

        frame = self.session().createDataFrame(rows)
        with self._commit_metadata(text):
            frame.writeTo(self.name).overwrite(lit(True))

    def merge(self, statement: str, rows: pa.Table, text: str) -> None:
        """Runs the MERGE with the rows, the view `CHANGES`, in one commit that has the text, or none."""
        session = self.session()
        session.createDataFrame(rows).createOrReplaceTempView(CHANGES)
        with self._commit_metadata(text):
            session.sql(statement)

    def store(self, text: str) -> None:
        """Sets the text as a property of the table, in a commit of its own."""
        # As hexadecimal digits: Spark shows no property with the word `token` in it.
        text = text.encode().hex()
        self.session().sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{STATE_KEY}' = '{text}')")

    def join_files(self, target_bytes: int, least: int | None = None) -> int:
        """Joins small files, and returns how many there were; Iceberg's only if there are `least`, five by default."""
        session = self.session()
        if self._format is _FORMATS["delta"]:
            # A file of nearly that size is left as it is; else each time would write it anew.
            for name, size in (("min", target_bytes * 3 // 4), ("max", target_bytes)):
                session.conf.set(f"spark.databricks.delta.optimize.{name}FileSize", str(size))
            (row,) = session.sql(f"OPTIMIZE {self.name}").collect()
            return int(row.metrics.numFilesRemoved)
        names = self.name.replace("`", "").split(".")
        catalog = names.pop(0) if len(names) > 2 else session.catalog.currentCatalog()
        options = f"'target-file-size-bytes', '{target_bytes}', 'min-input-files', '{least or 5}'"
        call = f"CALL `{catalog}`.system.rewrite_data_files(table => '{'.'.join(names)}', options => map({options}))"
        (row,) = session.sql(call).collect()
        return int(row.rewritten_data_files_count)

    def select(self, columns: Iterable[str], condition: str = "", keys: Iterable[str] | None = None) -> pa.Table:
        """The columns of the rows for which the SQL condition is true and, if there are `keys`, that have their `_id`s.

        Of several servers there may be rows of other servers besides.
        """
        import pyarrow as pa

        session, conditions = self.session(), [condition] if condition else []
        if keys is not None:
            session.createDataFrame(pa.table({"_id": id_texts(keys)})).createOrReplaceTempView(_KEYS)
            conditions.append(f"_id IN (SELECT _id FROM {_KEYS})")
        selected = f"SELECT {quoted(columns)} FROM {self.name}"
        return session.sql(selected + (f" WHERE {' AND '.join(conditions)}" if conditions else "")).toArrow()

    def add_columns(self, columns: str) -> None:
        """Adds the columns, given as DDL, in a commit of its own."""
        self.session().sql(f"ALTER TABLE {self.name} ADD COLUMNS ({columns})")

    @property
    def columns(self) -> dict[str, bool]:
        """The names of its columns, and whether each may be null."""
        return {field.name: field.nullable for field in self.session().table(self.name).schema}

    def need_column(self, name: str, why: str, columns: str) -> None:
        """Adds the column to a table that the sink is to make, in a commit of its own.

        Raises NotAMirror if the user's table has none; says `why` it must, and to make it with `columns`.
        """
        if name in self.columns:
            return
        if not self._using:
            raise NotAMirror(f"the table {self.name} has no column `{name}`{why}: make it with ({columns})")
        self.add_columns(f"{name} STRING")

    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._private().catalog.tableExists(self.name)

    def create(self, session: SparkSession) -> None:
        """Makes the table, without rows, and its schema, if they are not there."""
        schema = self.name.rpartition(".")[0]
        if not session.catalog.databaseExists(schema):
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {schema}")
        session.sql(f"CREATE TABLE IF NOT EXISTS {self.name} ({self._columns}) USING {self._using}")

    def _states(self) -> Iterator[tuple[int, str]]:
        """The states that there are, each with its number."""
        session = self.session()
        texts = self._in_commits(session)
        properties = session.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        texts += [bytes.fromhex(row.value).decode() for row in properties if row.key == STATE_KEY]
        for text in texts:
            state = _state_in(text)
            if state is not None:
                yield int(state.pop("number")), json.dumps(state)

    def _refresh(self) -> None:
        """Forgets what Iceberg's catalog has cached in this session: others, upkeep among them, commit in theirs."""
        session = self.session()
        if self._format is _FORMATS["iceberg"]:
            session.sql(f"REFRESH TABLE {self.name}")

    def _in_commits(self, session: SparkSession) -> list[str]:
        # One of the last commits is ours, unless others (an OPTIMIZE, say) have committed many since.
        for limit in (" LIMIT 5", ""):
            text = session.sql(self._format.history.format(name=self.name) + limit).collect()
            texts = [row.userMetadata for row in text if _state_in(row.userMetadata or "")]
            if texts:
                return texts
        return []

    @contextmanager
    def _commit_metadata(self, text: str) -> Iterator[None]:
        """Commits made inside carry the text."""
        conf = self.session().conf
        conf.set(self._format.setting, text)
        try:
            yield
        finally:
            conf.unset(self._format.setting)

    def session(self) -> SparkSession:
        """A session of this table's own, so that what it sets is in no other's commits. Raises NotAMirror.

        Makes the table if it is not there and the sink is to.
        """
        session = self._private()
        if not self._checked:
            if self._using and not self.exists():
                self.create(session)
            self._check(session)
            self._checked = True
        return session

    def _private(self) -> SparkSession:
        if self._session is None:
            self._session = self._get_session().newSession()
        return self._session

    def _check(self, session: SparkSession) -> None:
        """Raises NotAMirror if there is no such table, or it cannot keep a position, or lacks columns."""
        if not session.catalog.tableExists(self.name):
            statement = f"CREATE TABLE {self.name} ({self._columns}) USING delta (or iceberg)"
            raise TableMissing(f"there is no table {self.name}; make it, or set `using`: {statement}")
        described = session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        provider = next((row.data_type for row in described if row.col_name == "Provider"), "")
        if provider not in _FORMATS:
            known = " or ".join(_FORMATS)
            raise NotAMirror(f"the table {self.name} is of {provider or 'no known format'}: a sink's is of {known}")
        names = {field.name for field in session.table(self.name).schema}
        missing = [column.split()[0] for column in self._columns.split(", ") if column.split()[0] not in names]
        if missing:
            raise NotAMirror(
                f"the table {self.name} has no column {', '.join(f'`{name}`' for name in missing)}: make it with "
                f"({self._columns})"
            )
        self._format = _FORMATS[provider]


def quoted(names: Iterable[str]) -> str:
    """The columns' names as a list of SQL."""
    return ", ".join(f"`{name}`" for name in names)


def _state_in(text: str) -> dict[str, Any] | None:
    """Return what one of our commits says; None for what somebody else wrote there."""
    try:
        text = json.loads(text)
    except ValueError:
        return None
    return text if isinstance(text, dict) and {"number", "token"} <= text.keys() else None
