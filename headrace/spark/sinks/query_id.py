"""Which query a batch is of: Spark's id of the checkpoint, the same for as long as the checkpoint is.

In `foreachBatch` it is a local property of Spark's context, except through Spark Connect, where the function runs in a
process that is given rows and a number only. There it is read from the checkpoint, which must then be named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class CheckpointUnnamed(RuntimeError):
    """Through Spark Connect, and the checkpoint was not named."""


def query_id(frame: DataFrame, checkpoint: str | None) -> str:
    """The id of the query whose batch the frame is; `checkpoint` is the query's, wherever Spark can read it.

    Raises CheckpointUnnamed.
    """
    if checkpoint is not None:
        # Written before the first batch, and read by Spark, which can read wherever it can write checkpoints.
        (line,) = frame.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
        identifier: str = json.loads(line.value)["id"]
        return identifier
    if "connect" in type(frame).__module__:
        raise CheckpointUnnamed(
            "Spark Connect does not tell a batch which query it is of, and a sink must know: "
            "for_each_batch(..., checkpoint=the query's checkpointLocation)"
        )
    return frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
