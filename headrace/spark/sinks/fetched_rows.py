"""Whether Spark has a batch's rows already: the source reads a small batch where it plans it (`source/prefetch.py`).

Its rows are then a few of Spark's own, and collecting them starts no Python worker, which a task that writes them does.
Asked by internal names of Spark's; where they differ, no batch is such a one, and tasks write it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG: Final = logging.getLogger(__name__)
_SOURCE: Final = "DataSourceRDD"
_DEPTH_MAX: Final = 8


def were_fetched(frame: DataFrame) -> bool:
    """Whether the frame of a micro-batch has rows that were read as it was planned, and no others."""
    from py4j.protocol import Py4JError

    try:
        rdd: Any = frame._jdf.queryExecution().logical().rdd()
        for _ in range(_DEPTH_MAX):
            if rdd.getClass().getSimpleName() == _SOURCE:
                partitions = rdd.partitions()
                return len(partitions) == 1 and bool(partitions[0].inputPartition().get().blockId().isDefined())
            parents = rdd.dependencies()
            if parents.size() != 1:
                return False
            rdd = parents.head().rdd()
    except (AttributeError, Py4JError, TypeError) as error:
        _LOG.debug("Spark does not say whether a batch was fetched: %s", error)
    return False
