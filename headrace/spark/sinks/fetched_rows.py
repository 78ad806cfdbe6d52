"""Whether Spark already has the rows of a batch: the source reads a small batch while it plans it.

See `source/prefetch.py`. Collecting such rows starts no Python worker; writing them in tasks would. The check uses
internal names of Spark. If these differ, the answer is no, and tasks write the batch.
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
    """Whether all rows of a micro-batch's frame were read while the batch was planned."""
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
