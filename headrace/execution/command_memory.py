"""The memory of one command's stages: its limits, temporary files and metrics."""

from __future__ import annotations

from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import boolean
from headrace.dispatch.context import CommandContext
from headrace.query.operation_memory import OperationMemory

ALLOW_DISK_USE: Final = boolean("allowDiskUse")

_PARAMETERS: Final = {
    "$bucketAuto": "internalDocumentSourceBucketAutoMaxMemoryBytes",
    "$group": "internalDocumentSourceGroupMaxMemoryBytes",
    "$setWindowFields": "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
    "$sort": "internalQueryMaxBlockingSortMemoryUsageBytes",
}
"""The parameters that limit the memory of these stages."""


def memory_of(context: CommandContext, body: dict[str, Any]) -> OperationMemory:
    """Return the command's memory, made at the first call. `body` has the `allowDiskUse`."""
    if context.memory is not None:
        return context.memory
    engine = context.engine
    allowed = body.get("allowDiskUse")
    context.memory = OperationMemory(
        lambda stage: engine.parameters.get(_PARAMETERS.get(stage, ""), limits.STAGE_BYTES_MAX),
        account=engine.memory.account("operation"),
        open_file=engine.store.spill_folder.open_file,
        may_spill=bool(engine.parameters["allowDiskUseByDefault"] if allowed is None else allowed),
        metrics=context.metrics,
    )
    return context.memory
