"""A mirror as a table of a relational database, through SQLAlchemy: any database with a dialect and a Python driver.

    <table>              _key       SHA-256 of the key's text, in hexadecimal digits: the primary key
                         _id        the key, canonical Extended JSON
                         document   the document, canonical Extended JSON
                         token      the token at which the row is true
    headrace_positions   target, state: the mirror's state, in the same database

Why `_key`: an `_id` may be longer than a database can index. PostgreSQL also gets a hash index on `_id`, which has no
such limit.

Rule: rows and state change in one transaction. It first compares the stored state with the state from which the changes
were computed. So a crash leaves both or neither, and of two writers one fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from headrace import limits
from headrace.spark.errors import redacted
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.progress import NotAMirror

_POSITIONS: Final = "headrace_positions"
_CONNECT_TIMEOUT: Final = frozenset({"mysqldb", "psycopg", "psycopg2", "pymysql"})
"""The drivers that take a `connect_timeout`, in whole seconds."""
_COLUMNS: Final = ("_key", "_id", "document", "token")


class DatabaseError(RuntimeError):
    """The database does not answer, or refuses. The message has no credentials."""


class OtherWriter(RuntimeError):
    """The table's position is not the one that this writer stored: another process writes the table."""


class SqlMirror:
    """See `mirror_table.MirrorTable`. `table` may name its schema: `shop.orders`."""

    def __init__(self, url: str, table: str) -> None:
        import sqlalchemy as sql

        schema, _, name = table.rpartition(".")
        self._name = table
        self._read_text: str | None = None
        """The state that was last read or committed."""
        try:
            self._engine = sql.create_engine(url, pool_size=1, connect_args=_connect_args(sql.make_url(url)))
        except (ImportError, sql.exc.ArgumentError) as error:
            raise DatabaseError(f"no connection can be made for the table {table}: {redacted(str(error))}") from None
        metadata = sql.MetaData()
        long_text = sql.Text().with_variant(_mysql_text(), "mysql", "mariadb")
        self._table = sql.Table(
            name,
            metadata,
            sql.Column("_key", sql.String(64), primary_key=True),
            sql.Column("_id", long_text, nullable=False),
            sql.Column("document", long_text, nullable=False),
            sql.Column("token", sql.String(255), nullable=False),
            schema=schema or None,
        )
        self._positions = sql.Table(
            _POSITIONS,
            metadata,
            sql.Column("target", sql.String(255), primary_key=True),
            sql.Column("state", sql.Text, nullable=False),
            schema=schema or None,
        )
        if self._engine.dialect.name == "postgresql":
            sql.Index(f"{name}_id", self._table.c["_id"], postgresql_using="hash")

    def __str__(self) -> str:
        return self._name

    def position(self) -> MirrorState:
        with self._transaction() as connection:
            there = self._has(connection, self._positions)
            text = self._state_text(connection) if there else None
            has_table = self._has(connection, self._table)
            if (text is not None and not has_table) or (text is None and self._read_text is not None):
                known = f"{_POSITIONS} says" if text is not None else "this job knows"
                raise TableGone(
                    f"the table {self._name} is gone, while {known} how far it was: put it back, or begin again with "
                    "`headrace pipeline reset --data`"
                )
            if text is None and has_table:
                first = connection.execute(self._table.select().limit(1)).first()
                if first is not None:
                    raise NotAMirror(f"the table {self._name} has rows, and {_POSITIONS} does not say whose they are")
        self._read_text = text
        return MirrorState.of(text or "")

    def rows(self, keys: Iterable[str]) -> dict[str, MirrorRow]:
        wanted = [_key_of(key) for key in keys]
        with self._transaction() as connection:
            if not wanted or not self._has(connection, self._table):
                return {}
            there = {}
            for some in _pieces(wanted):
                selected = self._table.select().where(self._table.c["_key"].in_(some))
                for row in connection.execute(selected):
                    there[row[1]] = MirrorRow(row[2], row[3])
        return there

    def read_keys(self) -> Iterator[str]:
        import sqlalchemy as sql

        with self._transaction() as connection:
            if self._has(connection, self._table):
                some = connection.execution_options(yield_per=limits.SQL_ROW_COUNT_MAX)
                yield from some.execute(sql.select(self._table.c["_id"])).scalars()

    def commit(self, changes: MirrorChanges) -> None:
        with self._transaction() as connection:
            self._table.metadata.create_all(connection)
            self._advance(connection, changes.state)
            if changes.clear:
                connection.execute(self._table.delete())
            elif changes.stale_before:
                connection.execute(self._table.delete().where(self._table.c["token"] < changes.stale_before))
            for some in _pieces([_key_of(key) for key in changes.deletes]):
                connection.execute(self._table.delete().where(self._table.c["_key"].in_(some)))
            rows = [
                {"_key": _key_of(key), "_id": key, "document": row.document, "token": row.token}
                for key, row in changes.upserts.items()
            ]
            for values in _pieces(rows):
                self._upsert(connection, values)
        self._read_text = changes.state.text()

    def read(self) -> pa.Table:
        with self._transaction() as connection:
            rows = list(connection.execute(self._table.select())) if self._has(connection, self._table) else []
        columns = list(zip(*rows, strict=True)) or [()] * len(_COLUMNS)
        arrays = [pa.array(list(column), pa.string()) for column in columns[1:]]
        return pa.table(dict(zip(_COLUMNS[1:], arrays, strict=True)))

    def forget(self) -> None:
        """Remove the position; the rows stay."""
        with self._transaction() as connection:
            if self._has(connection, self._positions):
                connection.execute(self._positions.delete().where(self._positions.c.target == self._target))
        self._read_text = None

    @property
    def _target(self) -> str:
        return str(self._table.name)

    def _has(self, connection: Any, table: Any) -> bool:
        there: bool = self._engine.dialect.has_table(connection, table.name, schema=table.schema)
        return there

    def _state_text(self, connection: Any, *, locked: bool = False) -> str | None:
        selected = self._positions.select().where(self._positions.c.target == self._target)
        row = connection.execute(selected.with_for_update() if locked else selected).first()
        return None if row is None else str(row[1])

    def _advance(self, connection: Any, state: MirrorState) -> None:
        """Replace the stored state if it is the one that this writer read last. Raise OtherWriter."""
        text = state.text()
        before = self._state_text(connection, locked=True)
        if before != self._read_text:
            raise OtherWriter(f"the position of {self._name} has changed since it was read: two jobs write the table")
        if before is None:
            connection.execute(self._positions.insert().values(target=self._target, state=text))
        else:
            mine = self._positions.c.target == self._target
            connection.execute(self._positions.update().where(mine).values(state=text))

    def _upsert(self, connection: Any, rows: list[dict[str, str]]) -> None:
        """Insert rows or replace rows with the same keys: by the dialect's statement, or by delete and insert."""
        dialect = self._engine.dialect.name
        if dialect in _ON_CONFLICT:
            connection.execute(_ON_CONFLICT[dialect](self._table), rows)
            return
        keys = [row["_key"] for row in rows]
        connection.execute(self._table.delete().where(self._table.c["_key"].in_(keys)))
        connection.execute(self._table.insert(), rows)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import sqlalchemy as sql

        try:
            with self._engine.begin() as connection:
                yield connection
        except sql.exc.DBAPIError as error:
            raise DatabaseError(f"the table {self._name}: {redacted(str(error.orig).strip())}") from None


def _connect_args(url: Any) -> dict[str, Any]:
    """Return the driver's connect timeout, unless the URL has one: by default some drivers wait for minutes."""
    known = url.get_driver_name() in _CONNECT_TIMEOUT and "connect_timeout" not in url.query
    return {"connect_timeout": math.ceil(limits.START_CHECK_SECONDS_MAX)} if known else {}


def _mysql_text() -> Any:
    from sqlalchemy.dialects.mysql import LONGTEXT

    return LONGTEXT()


def _conflict_update(insert: Any) -> Any:
    new = {name: insert.excluded[name] for name in _COLUMNS[1:]}
    return insert.on_conflict_do_update(index_elements=["_key"], set_=new)


def _postgresql(table: Any) -> Any:
    from sqlalchemy.dialects.postgresql import insert

    return _conflict_update(insert(table))


def _sqlite(table: Any) -> Any:
    from sqlalchemy.dialects.sqlite import insert

    return _conflict_update(insert(table))


_ON_CONFLICT: Final = {"postgresql": _postgresql, "sqlite": _sqlite}


def _key_of(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _pieces(values: Sequence[Any]) -> Iterator[Any]:
    for start in range(0, len(values), limits.SQL_ROW_COUNT_MAX):
        yield values[start : start + limits.SQL_ROW_COUNT_MAX]
