"""The pipeline: change events as a Spark source, and tables that follow a collection; a client of the server.

    headrace.spark.pipeline(df, [{"$match": ...}, ...])     MongoDB's stages over a DataFrame
    headrace.spark.explain([...], source_options)           which stage runs where
    headrace.spark.Window, headrace.spark.StageRefused

Its rooms, each importing only those below it (`pyproject.toml`): `mirror`, `jobs`, `verify`, `sinks`, `session`,
`source`, `stream`, `timetravel`, `mongodb`, `pipelines`, `upkeep`, `tables`, `masks`, `columns`, `rows`.

- An offset is a token. The driver reads tokens ahead of Spark, without events, to find the end of each micro-batch and
  to divide it into partitions. A transaction is never split.
- A snapshot is read in chunks of `_id`s while writers write. Each row has the token at which it is valid; an event
  applies to it if the event's token is greater. `tables/fold.py` folds both.
- A stream of several collections reads their snapshots one after the other while events continue
  (`stream/server_stream.py`); of several servers each has such a stream (`stream/planner.py`).
- A position is valid in one history (`mongodb/server_history.py`). A checkpoint has a record and a table an owner;
  they are compared before Spark starts.
- A mask works on rows as a worker reads them, so it precedes every sink, archive and stage.
- A sink refuses a row (`RowRefused`) before it has written anything; the row goes to the dead letters.

Importing this package does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["StageRefused", "Window", "explain", "pipeline"]

if TYPE_CHECKING:
    from headrace.spark.pipelines.plan import explain
    from headrace.spark.pipelines.refusals import StageRefused
    from headrace.spark.pipelines.run import pipeline
    from headrace.spark.pipelines.windows import Window

_MODULES = {"StageRefused": "refusals", "Window": "windows", "explain": "plan", "pipeline": "run"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.spark.pipelines.{_MODULES[name]}"), name)
