"""A mirror in a table of Spark's catalogs, crashed at each step of each batch and applied again: run as a program.

    python -m tests.spark.sinks.catalog_crashes delta|iceberg PACKAGE IVY FOLDER

It starts a Spark of its own, with the jars of the package, which are downloaded once into the
folder IVY. It ends with status 0 and `right`, or with an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark.rows.events import Row
from headrace.spark.session import get_session
from headrace.spark.sinks.contract import Sink
from headrace.spark.sinks.mirror_sink import MirrorSink, mirror_sink
from headrace.spark.tables.catalog_mirror import COLUMNS, CatalogMirror
from tests.spark.support.crashes import Crash, crashing
from tests.spark.support.generated_changes import GeneratedChanges, batches

STEPS = [(CatalogMirror, name) for name in ("_merge", "_overwrite", "_set_property")]
CONF = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Else Delta reads its own log in 50 tasks, several times for each statement.
        "spark.databricks.delta.snapshotPartitions": "1",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    },
}
NAMES = {"delta": "spark_catalog.default.kept", "iceberg": "lake.shop.kept"}


def contents(sink: Sink) -> dict[str, str]:
    assert isinstance(sink, MirrorSink)
    table = sink.table.read()
    return dict(zip(table["_id"].to_pylist(), table["document"].to_pylist(), strict=True))


def joined(row_batches: list[list[Row]]) -> list[list[Row]]:
    """Batches whose rows are all of kinds that came before are one: these crash in no step, and each takes seconds."""
    result: list[list[Row]] = []
    seen: set[str] = set()
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


def main(kind: str, package: str, ivy: str, folder: Path) -> None:
    warehouse = {"spark.sql.catalog.lake.warehouse": str(folder / "lake")} if kind == "iceberg" else {}
    spark = get_session(
        quick=True, conf={"spark.jars.packages": package, "spark.jars.ivy": ivy} | CONF[kind] | warehouse
    )
    name, located = NAMES[kind], f"LOCATION '{folder / 'kept'}'" if kind == "delta" else ""
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING {kind} {located}")
    changes = GeneratedChanges(3)
    changes.writes(5)
    changes.snapshot()
    known = len(changes.row_batches)
    changes.snapshot()
    changes.drop()
    reference = mirror_sink(folder / "reference", kind="parquet")
    crashes = 0
    seen: set[str] = set()
    for batch in batches(joined(changes.row_batches)):
        reference.apply(batch)
        kinds = set(batch.table["operationType"].to_pylist())
        steps = range(0 if kinds - seen else 99, 100)
        seen |= kinds
        for step in steps:
            try:
                with crashing(STEPS, step):
                    mirror_sink("", kind=name).apply(batch)
                break
            except Crash:
                crashes += 1
        reopened = mirror_sink("", kind=name)
        print(batch.number, crashes, file=sys.stderr, flush=True)
        assert (contents(reopened), reopened.position()) == (contents(reference), reference.position()), batch.number
    assert crashes >= 10, crashes
    # A checkpoint that was lost: the same rows under another query's name. And somebody else's commits in between.
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('by' = 'another')")
    for batch in batches(joined(changes.row_batches[known:]), "another"):
        mirror_sink("", kind=name).apply(batch)
    assert contents(mirror_sink("", kind=name)) == changes.contents()
    print("right")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
