"""`$lookup` on Spark: each worker holds the table, and the evaluator joins documents with it.

The table is read once, when the pipeline is applied. Its documents are joined in the order of their `_id`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.query.stages.joins import parse_lookup
from headrace.spark.pipelines.program import Setting
from headrace.spark.pipelines.refusals import refused
from headrace.spark.pipelines.row_events import reader
from headrace.values import bson
from headrace.values.keystring.encoding import encode_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_READING: Final = frozenset({"$facet", "$graphLookup", "$lookup", "$unionWith"})


def check_lookup(spec: Any, setting: Setting) -> None:
    """Raise the CommandError of an invalid `$lookup`, or StageRefused if Spark cannot run it."""
    parse_lookup("$lookup", spec, setting.context(lambda database, collection, depth: ()))
    if "localField" not in spec or type(spec.get("from")) is not str:
        raise refused("$lookup", "it must say from, localField and foreignField: without them nothing can be joined")
    inner = sorted(_names(spec.get("pipeline", [])) & _READING)
    if inner:
        raise refused("$lookup", f"its pipeline has {inner[0]}")


def _names(value: Any) -> set[str]:
    """Return all names in a value, at any depth."""
    if type(value) is list:
        return set().union(*map(_names, value))
    if type(value) is not dict:
        return set()
    return set(value).union(*map(_names, value.values()))


def table_documents(table: DataFrame, column: str) -> tuple[bytes, ...]:
    """Return the documents of a table's column, in the order of their `_id`, as BSON."""
    cells = table.select(column).toArrow().column(0)
    read = reader(cells.type)
    documents = [read(cell) for cell in cells.to_pylist() if cell is not None]
    documents.sort(key=lambda document: encode_value(document.get("_id")))
    return tuple(map(bson.encode, documents))
