"""Sinks in tables of Spark's catalogs, crashed at each step of a batch and applied again: for `catalog_programs`.

    crashes SINK...

A SINK is `mirror`, of one server, or `changes`, `history`, `mirrors`, of two; or `upkeep`, a mirror that goes on behind
its table's upkeep.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.spark.rows.events import SCHEMA, Row
from headrace.spark.session import get_session
from headrace.spark.sinks.contract import MicroBatch
from headrace.spark.sinks.folding_sink import HistorySink, mirror_sink
from headrace.spark.sinks.log_sink import changes_sink
from headrace.spark.tables.catalog.catalog_table import HISTORY_COLUMNS, MIRROR_COLUMNS, CatalogTable
from headrace.spark.upkeep.delta_upkeep import CatalogUpkeep, UpkeepOptions
from tests.spark.sinks.test_collections_sink import batch as rows_of_batch
from tests.spark.sinks.test_collections_sink import insert, row
from tests.spark.sinks.test_server_sinks import of_servers
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import GeneratedChanges, batches

STEPS = [(CatalogTable, name) for name in ("add_columns", "add_rows", "merge", "overwrite", "store")]
NAMESPACES = {"delta": "spark_catalog.default", "iceberg": "lake.crashes"}
# Of a log of several servers Headrace adds the column itself.
COLUMNS = {
    "changes": SCHEMA,
    "history": f"server STRING NOT NULL, {HISTORY_COLUMNS}",
    "mirror": MIRROR_COLUMNS,
    "mirrors": f"server STRING NOT NULL, {MIRROR_COLUMNS}",
}


def opened(sink: str, name: str) -> Any:
    if sink == "changes":
        return changes_sink("", table=name)
    return HistorySink("", table=name) if sink == "history" else mirror_sink("", table=name)


def in_folder(sink: str, path: Path) -> Any:
    """What the sink in a catalog is to be equal to."""
    if sink == "changes":
        return changes_sink(path, writers="driver")
    return HistorySink(path) if sink == "history" else mirror_sink(path, table="parquet")


def contents(sink: Any) -> list[str]:
    table = sink.table.read()
    return sorted(
        repr({name: _moment(row[name]) for name in sorted(row) if row[name] is not None}) for row in table.to_pylist()
    )


def _moment(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def joined(row_batches: list[list[Row]]) -> list[list[Row]]:
    """Batches whose rows are all of kinds that came before are one: these crash in no step, and each takes seconds."""
    result: list[list[Row]] = []
    seen: set[str | None] = set()
    crashed = False
    for rows in row_batches:
        kinds = {row.operationType for row in rows}
        if kinds <= seen and result and not crashed:
            result[-1] += rows
        else:
            result.append(list(rows))
        crashed = not kinds <= seen
        seen |= kinds
    return result


def of_one_server(query: str = "q") -> list[MicroBatch]:
    changes = GeneratedChanges(3)
    changes.writes(5)
    changes.snapshot()
    changes.snapshot()
    changes.drop()
    return batches(joined(changes.row_batches), query)


def of_two_servers(query: str = "q") -> list[MicroBatch]:
    """One collection is dropped while the other goes on; their keys and tokens are the same."""
    one, two = GeneratedChanges(1), GeneratedChanges(2)
    for changes in (one, two):
        changes.writes(5)
        changes.snapshot()
    one.drop()
    two.writes(9)
    two.stream(two.time - 9)
    rows = zip_longest(joined(one.row_batches), joined(two.row_batches))
    return [MicroBatch(query, number, of_servers(each)) for number, each in enumerate(rows)]


def in_larger_steps(given: list[MicroBatch]) -> list[MicroBatch]:
    """The same rows in batches of up to three of these."""
    groups = [given[start : start + 3] for start in range(0, len(given), 3)]
    return [
        MicroBatch(group[0].query, number, pa.concat_tables(batch.table for batch in group))
        for number, group in enumerate(groups)
    ]


def crashed(spark: SparkSession, kind: str, sink: str, folder: Path) -> None:
    name = f"{NAMESPACES[kind]}.{sink}"
    located = f"LOCATION '{folder / sink}'" if kind == "delta" else ""
    spark.sql(f"CREATE TABLE {name} ({COLUMNS[sink]}) USING {kind} {located}")
    generated = of_one_server if sink == "mirror" else of_two_servers
    reference = in_folder(sink, folder / f"reference {sink}")
    crashes = 0
    seen: set[str] = set()
    for batch in generated():
        reference.apply(batch)
        kinds = set(batch.table["operationType"].to_pylist())
        # Behind the first step that is left to do, again and again: before it, nothing is done yet.
        step = 1 if kinds - seen else -1
        seen |= kinds
        while True:
            try:
                with crashing(STEPS, step):
                    opened(sink, name).apply(batch)
                break
            except Crash:
                crashes += 1
        reopened = opened(sink, name)
        print(sink, batch.number, crashes, file=sys.stderr, flush=True)
        assert contents(reopened) == contents(reference), batch.number
        assert reopened.position() == reference.position(), batch.number
    assert crashes >= 3, crashes
    # A checkpoint that was lost: the same rows under another query's name. And somebody else's commits in between.
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('by' = 'another')")
    CatalogUpkeep(name, UpkeepOptions(), get_session).run(thorough=True)
    assert opened(sink, name).position() == reference.position() and contents(opened(sink, name)) == contents(reference)
    for batch in in_larger_steps(generated("another")):
        for each in (opened(sink, name), reference):
            each.apply(batch)
    assert contents(opened(sink, name)) == contents(reference)
    if sink != "changes":
        assert sorted(opened(sink, name).table.read_keys()) == sorted(reference.table.read_keys())


def goes_on(kind: str, folder: Path) -> None:
    """A batch changes rows in files that upkeep has joined in another session, after the sink has read the table."""
    name, reference = f"{NAMESPACES[kind]}.upkeep", in_folder("mirror", folder / "reference")
    sink = mirror_sink("", table=name, using=kind)
    each_batch = [insert("1", "a", 0), insert("2", "a", 1)], [insert("3", "a", 2)], [row("4", "delete", "a", 0)]
    for number, rows in enumerate(each_batch):
        for each in (sink, reference):
            each.apply(rows_of_batch(number, *rows))
        if number == 1:
            assert CatalogUpkeep(name, UpkeepOptions(), get_session).run(thorough=True).compacted_files >= 2
    assert contents(sink) == contents(reference)


def main(spark: SparkSession, kind: str, folder: Path, sinks: list[str]) -> None:
    for sink in sinks:
        if sink == "upkeep":
            goes_on(kind, folder)
        else:
            crashed(spark, kind, sink, folder)
