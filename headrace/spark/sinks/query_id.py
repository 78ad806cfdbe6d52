"""The query of a batch: Spark's id of the checkpoint, which is the same as long as the checkpoint exists.

In `foreachBatch` the id is a local property of Spark's context. Through Spark Connect the function runs in a process
that gets only rows and a number. There the id is read from the checkpoint, so the caller must name it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CheckpointUnnamed(RuntimeError):
    """Spark Connect is used, and the checkpoint was not named."""


def query_id(frame: DataFrame, checkpoint: str | None) -> str:
    """Return the id of the query whose batch `frame` is. `checkpoint` is the query's checkpointLocation.

    Raise CheckpointUnnamed.
    """
    if checkpoint is not None:
        # Spark writes this file before the first batch. Spark reads it, because only Spark may reach the checkpoint's
        # storage.
        (line,) = frame.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
        identifier: str = json.loads(line.value)["id"]
        return identifier
    if "connect" in type(frame).__module__:
        raise CheckpointUnnamed(
            "Spark Connect does not tell a batch which query it is of, and a sink must know: "
            "for_each_batch(..., checkpoint=the query's checkpointLocation)"
        )
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
