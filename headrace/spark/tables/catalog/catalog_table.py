"""A Delta or Iceberg table of Spark's catalogs and the sink's state in it, through the jars of the user's session.

This program computes what to write, and Spark writes it: an append, an overwrite or a MERGE is one commit of the table.
The state must be in the same commit. Both formats let a session set metadata of a commit: Delta as `userMetadata`,
Iceberg as a property of the snapshot. Other formats are refused. So:

- a crash before the commit leaves rows and state unchanged, and after the commit both are new;
- a batch that changes no row makes no commit: then the state is stored as a property of the table;
- each state has a number, and the state with the highest number counts, wherever it is stored.

Why not a row of the table: every reader of the table would see it. Why not a second table of positions, committed after
the rows: after a crash in between, an append would be made twice. And folding an update again needs the document before
it, which a delete of the same batch may have removed.

Limit: if all commits of this program expire from the table's history while the rows stay, the state is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

import pyarrow as pa

from headrace.spark.rows.events import SCHEMA, SERVER, SNAPSHOT_KINDS
from headrace.spark.tables.document_table import Position, TableChanges, TableKind
from headrace.spark.tables.event_log import EventLog, NewRows
from headrace.spark.tables.mirror_table import id_texts, key_texts
from headrace.spark.tables.progress import IDENTITY, STATE_KEY, NotAMirror, Progress, RowIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES: Final = "headrace_changes"
"""The temporary view of the rows that a MERGE of `CatalogTable.merge` reads."""
_KEYS: Final = "headrace_keys"


@dataclass(frozen=True, slots=True)
class _TableFormat:
    """How a format stores a text with a commit: a setting of the session, and a query of these texts, newest first."""

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
    """The table does not exist, and the sink may not create it."""


class CatalogTable(Generic[Position]):
    """The table's rows, its position of the type `kept`, and the commits of both. It has one writer, which must read
    the position first.

    The user creates the table, and decides its location and properties. If `using` names a format, the sink creates it
    when rows are first read or written. `required` are the required columns, as DDL.
    """

    required: str = "token STRING"
    kept: type[Position]
    valid: str = ""
    """The SQL condition for the rows whose keys `read_keys` yields; empty for all."""

    def __init__(self, name: str, get_session: Callable[[], SparkSession], using: str = "") -> None:
        self.name = ".".join(f"`{part}`" for part in name.replace("`", "").split("."))
        self._using = using
        self._get_session = get_session
        self._session: SparkSession | None = None
        self._checked = False
        self._number = 0
        self._format = _FORMATS["delta"]

    def __str__(self) -> str:
        return self.name

    def position(self) -> Position:
        """Return the last committed position; the first one if there is none. Raise as `state_text` does."""
        return self.kept.of(self.state_text())

    def read(self) -> pa.Table:
        """Return all rows, in any order."""
        return self.select(self.columns)

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of the valid rows."""
        return key_texts(self.select([name for name in (SERVER, "_id") if name in self.columns], self.valid))

    def state_text(self) -> str:
        """Return the last committed state; empty if there is none, or if the sink has yet to create the table.

        Raise NotAMirror for rows without a state, or TableMissing.
        """
        if self._using and not self._checked and not self.exists():
            self._number = 0
            return ""
        self._refresh()
        self._number, text = max(self._states(), default=(0, ""))
        if not text and self.session().table(self.name).limit(1).count():
            raise NotAMirror(f"the table {self.name} has rows, and none of its commits says which sink's they are")
        return text

    def next_text(self, position: Position) -> str:
        """Return the text of the next commit: the position and its number."""
        self._number += 1
        return json.dumps({"number": self._number, **asdict(position)})

    def add_rows(self, rows: pa.Table, text: str) -> None:
        """Append the rows, in one commit with the text."""
        frame = self.session().createDataFrame(rows)
        with self._commit_metadata(text):
            frame.writeTo(self.name).append()

    def overwrite(self, rows: pa.Table, text: str) -> None:
        """Replace all rows, in one commit with the text."""
        from pyspark.sql.functions import lit

        frame = self.session().createDataFrame(rows)
        with self._commit_metadata(text):
            frame.writeTo(self.name).overwrite(lit(True))

    def merge(self, statement: str, rows: pa.Table, text: str) -> None:
        """Run the MERGE with the rows as the view `CHANGES`, in one commit with the text, or none if no row changes."""
        session = self.session()
        session.createDataFrame(rows).createOrReplaceTempView(CHANGES)
        with self._commit_metadata(text):
            session.sql(statement)

    def store(self, text: str) -> None:
        """Store the text as a property of the table, in a separate commit."""
        # Spark redacts a property whose value has the word `token`, so the text is stored in hexadecimal.
        text = text.encode().hex()
        self.session().sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{STATE_KEY}' = '{text}')")

    def join_files(self, target_bytes: int, least: int | None = None) -> int:
        """Join small files and return how many there were; with Iceberg only if there are `least` (default: five)."""
        session = self.session()
        if self._format is _FORMATS["delta"]:
            # A file of nearly the target size stays; otherwise each run would rewrite it.
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
        """Return the columns of the rows for which the SQL condition is true and whose `_id` is among the `keys`, if
        given.

        In a table of several servers, rows of other servers with the same `_id` are included.
        """
        session, conditions = self.session(), [condition] if condition else []
        if keys is not None:
            session.createDataFrame(pa.table({"_id": id_texts(keys)})).createOrReplaceTempView(_KEYS)
            conditions.append(f"_id IN (SELECT _id FROM {_KEYS})")
        selected = f"SELECT {quoted(columns)} FROM {self.name}"
        return session.sql(selected + (f" WHERE {' AND '.join(conditions)}" if conditions else "")).toArrow()

    def add_columns(self, columns: str) -> None:
        """Add the columns, given as DDL, in a separate commit."""
        self.session().sql(f"ALTER TABLE {self.name} ADD COLUMNS ({columns})")

    @property
    def columns(self) -> dict[str, bool]:
        """The names of the table's columns, and whether each may be null."""
        return {field.name: field.nullable for field in self.session().table(self.name).schema}

    def fit_servers(self, position: Position) -> None:
        """Add the column of the servers if there are several, in a separate commit.

        Raise NotAMirror if the table lacks the column and the user creates the table.
        """
        if not position.servers or SERVER in self.columns:
            return
        if not self._using:
            raise NotAMirror(
                f"the table {self.name} has no column `{SERVER}`, and the job reads several servers: make it with "
                f"({SERVER} STRING NOT NULL, {self.required})"
            )
        self.add_columns(f"{SERVER} STRING")

    def exists(self) -> bool:
        """Whether the table exists."""
        return self._private().catalog.tableExists(self.name)

    def create(self, session: SparkSession) -> None:
        """Create the table, without rows, and its schema, if they do not exist."""
        schema = self.name.rpartition(".")[0]
        if not session.catalog.databaseExists(schema):
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {schema}")
        session.sql(f"CREATE TABLE IF NOT EXISTS {self.name} ({self.required}) USING {self._using}")

    def _states(self) -> Iterator[tuple[int, str]]:
        """Yield the stored states, each with its number."""
        session = self.session()
        texts = self._in_commits(session)
        properties = session.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        texts += [bytes.fromhex(row.value).decode() for row in properties if row.key == STATE_KEY]
        for text in texts:
            state = _state_in(text)
            if state is not None:
                yield int(state.pop("number")), json.dumps(state)

    def _refresh(self) -> None:
        """Clear Iceberg's cache of this table in the session: other sessions, such as upkeep's, commit to the table."""
        session = self.session()
        if self._format is _FORMATS["iceberg"]:
            session.sql(f"REFRESH TABLE {self.name}")

    def _in_commits(self, session: SparkSession) -> list[str]:
        # One of the last commits is of this program, unless others (such as OPTIMIZE) have made many since.
        for limit in (" LIMIT 5", ""):
            text = session.sql(self._format.history.format(name=self.name) + limit).collect()
            texts = [row.userMetadata for row in text if _state_in(row.userMetadata or "")]
            if texts:
                return texts
        return []

    @contextmanager
    def _commit_metadata(self, text: str) -> Iterator[None]:
        """Store the text with each commit made in this context."""
        conf = self.session().conf
        conf.set(self._format.setting, text)
        try:
            yield
        finally:
            conf.unset(self._format.setting)

    def session(self) -> SparkSession:
        """Return this table's own session, so that its settings affect no other table's commits. Raise NotAMirror.

        Create the table if it is missing and the sink may create it.
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
        """Raise NotAMirror if the table is missing, lacks columns, or has a format that cannot store a position."""
        if not session.catalog.tableExists(self.name):
            statement = f"CREATE TABLE {self.name} ({self.required}) USING delta (or iceberg)"
            raise TableMissing(f"there is no table {self.name}; make it, or set `using`: {statement}")
        described = session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        provider = next((row.data_type for row in described if row.col_name == "Provider"), "")
        if provider not in _FORMATS:
            known = " or ".join(_FORMATS)
            raise NotAMirror(f"the table {self.name} is of {provider or 'no known format'}: a sink's is of {known}")
        names = {field.name for field in session.table(self.name).schema}
        missing = [column.split()[0] for column in self.required.split(", ") if column.split()[0] not in names]
        if missing:
            raise NotAMirror(
                f"the table {self.name} has no column {', '.join(f'`{name}`' for name in missing)}: make it with "
                f"({self.required})"
            )
        self._format = _FORMATS[provider]


def quoted(names: Iterable[str]) -> str:
    """Return the column names as a list in SQL."""
    return ", ".join(f"`{name}`" for name in names)


def _state_in(text: str) -> dict[str, Any] | None:
    """Return the state in a commit of this program; None for a text written by another program."""
    try:
        text = json.loads(text)
    except ValueError:
        return None
    return text if isinstance(text, dict) and {"number", "token"} <= text.keys() else None


_MERGE: Final = f"""
MERGE INTO {{name}} AS target USING {CHANGES} AS new ON {{same}}
WHEN MATCHED AND new.gone THEN DELETE
WHEN MATCHED THEN UPDATE SET {{sets}}
WHEN NOT MATCHED AND NOT new.gone THEN INSERT ({{columns}}) VALUES ({{values}})
"""
_STALE: Final = "WHEN NOT MATCHED BY SOURCE AND ({stale}) THEN DELETE"
MIRROR_COLUMNS: Final = "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL"
HISTORY_COLUMNS: Final = (
    "_id STRING NOT NULL, document STRING NOT NULL, token STRING NOT NULL, until STRING, since TIMESTAMP, "
    "ended TIMESTAMP, operationType STRING, endedBy STRING, confirmed STRING, current BOOLEAN NOT NULL"
)
_COLUMNS: Final = {"history": HISTORY_COLUMNS, "mirror": MIRROR_COLUMNS}


class CatalogDocumentTable(CatalogTable[Position]):
    """See `document_table.DocumentTable`: a table of this kind."""

    def __init__(
        self, kind: TableKind[Position], name: str, get_session: Callable[[], SparkSession], using: str = ""
    ) -> None:
        super().__init__(name, get_session, using)
        self._kind, self.kept, self.required = kind, kind.position, _COLUMNS[kind.name]
        self.valid = f"`{kind.current}`" if kind.current else ""

    def rows(self, keys: Iterable[str] | None = None, confirmed_before: str = "") -> dict[str, Any]:
        """Return the valid rows by key: all, or those of `keys`, or those last confirmed before a token."""
        wanted = None if keys is None else set(keys)
        if wanted == set():
            return {}
        names = [*([SERVER] if SERVER in self.columns else []), *self._kind.valid]
        confirmed = f"confirmed < '{confirmed_before}'" if confirmed_before else ""
        condition = " AND ".join(filter(None, (self.valid, confirmed)))
        return self._kind.parsed(self.select(names, condition, wanted), wanted)

    def read(self) -> pa.Table:
        columns = self.columns
        names = self._kind.schema(servers=SERVER in columns).names
        return self.select(name for name in names if name in columns)

    def commit(self, changes: TableChanges) -> None:
        self.fit_servers(changes.state)
        text, new, gone = self.next_text(changes.state), changes.rows(), changes.deleted()
        if changes.clear:
            self.overwrite(new, text)
        elif changes.has_rows:
            self._merge(changes, new, gone, text)
        if not (new.num_rows or gone.num_rows):
            # The merge may have had nothing to do and made no commit. If it made one, this stores the same state again.
            self.store(text)

    def _merge(self, changes: TableChanges, new: pa.Table, gone: pa.Table, text: str) -> None:
        flags = pa.array([False] * len(new) + [True] * len(gone), pa.bool_())
        rows = pa.concat_tables([new, gone]).append_column("gone", flags)
        identity = [*self._kind.identity, *([SERVER] if changes.state.servers else [])]
        same = [
            *([f"target.{self.valid}"] if self.valid else []),
            *(f"target.{name} = new.{name}" for name in identity),
        ]
        names = new.column_names
        statement = _MERGE.format(
            name=self.name, same=" AND ".join(same), columns=quoted(names),
            sets=", ".join(f"`{name}` = new.`{name}`" for name in names),
            values=", ".join(f"new.`{name}`" for name in names),
        )  # fmt: skip
        stale = " OR ".join(
            f"(target.token < '{before}'" + (f" AND target.{SERVER} = '{server}')" if server else ")")
            for server, before in changes.stale.items()
        )
        self.merge(statement + (_STALE.format(stale=stale) if stale else ""), rows, text)


class CatalogLog(CatalogTable[Progress], EventLog):
    """See `event_log.EventLog`; only the driver writes it."""

    required = SCHEMA
    kept = Progress

    def commit(self, changes: NewRows) -> None:
        if changes.table is None or not changes.table.num_rows:
            self.store(self.next_text(changes.state))
            return
        # Add missing columns before the rows: the commit that adds them must not say that the rows are stored.
        rows = self._fitted(changes.table)
        self.add_rows(rows, self.next_text(changes.state))

    def snapshot_rows(self, since: str) -> Collection[RowIdentity]:
        columns = self.columns
        names = [name for name in IDENTITY if name in columns]
        rows = self.select(names, f"token >= '{since}' AND operationType IN {SNAPSHOT_KINDS}")
        values = [rows.column(name).to_pylist() if name in names else [None] * rows.num_rows for name in IDENTITY]
        return set(zip(*values, strict=True))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        """Return the rows with fields as nullable as the table's. Add the column `SERVER` to the table if it is
        missing."""
        if SERVER in rows.column_names and SERVER not in self.columns:
            self.add_columns(f"{SERVER} STRING")
        columns = self.columns
        fields = [field.with_nullable(columns.get(field.name, True)) for field in rows.schema]
        return rows.cast(pa.schema(fields))
