"""`sql`: a table of a relational database equal to the collection, through SQLAlchemy; PostgreSQL is tested.

Why SQLAlchemy: rows and position must be one transaction, with upserts and deletes by key. Spark's JDBC writer only
appends, in a transaction per task. A DBAPI driver installed with pip does this from Spark's driver, without jars.
"""

from __future__ import annotations

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.connection_strings import referred
from headrace.spark.sinks.mirror_sink import MirrorSink
from headrace.spark.tables.sql.sql_mirror import SqlMirror


def sql_sink(uri: str, table: str, *, policy: str = "follow") -> MirrorSink:
    """Return the sink whose table is in the database at `uri`, an SQLAlchemy URL; the first batch creates the table."""
    try:
        return MirrorSink(SqlMirror(referred(uri), table), policy)
    except ImportError as error:
        raise OptionError(f"the sink 'sql' needs SQLAlchemy: pip install 'headrace[sql]' ({error})") from None
