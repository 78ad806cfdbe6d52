"""The Spark session of `catalog_programs`, with Delta's or Iceberg's own jars."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from headrace.spark.session import get_session

CONF: Final = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Otherwise Delta reads its own log in 50 tasks, several times for each statement.
        "spark.databricks.delta.snapshotPartitions": "1",
        # Otherwise it asks the statistics of a handful of files, in one more query for each statement.
        "spark.databricks.delta.stats.skipping": "false",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        # For longer than a test takes: whoever reads a table that another session has changed must refresh it first,
        # and a test that forgets to fails however quick the machine is.
        "spark.sql.catalog.lake.cache.expiration-interval-ms": "3600000",
    },
}
# Each statement has a few rows: compiling code for it took a quarter of the time. Planning each of its stages anew, and
# describing its plan, gains nothing either.
TINY: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
}
SETTINGS: Final[dict[str, str]] = {}
"""The settings of this program's session. Each job names them, too."""


def start_session(kind: str, package: str, ivy: str, folder: Path) -> SparkSession:
    """Start Spark with the jars of the package, which are downloaded once into the folder `ivy`."""
    SETTINGS.update({"spark.jars.packages": package, "spark.jars.ivy": ivy} | CONF[kind] | TINY)
    SETTINGS["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    if kind == "iceberg":
        SETTINGS["spark.sql.catalog.lake.warehouse"] = str(folder / "lake")
    return get_session(quick=True, conf=SETTINGS)
