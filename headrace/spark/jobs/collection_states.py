"""The state of each of several collections, for reports: its snapshot waits, is being read, or is complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.jobs.checkpoint import Checkpoint
from headrace.spark.jobs.job_tables import tables_of
from headrace.spark.masks.mask import Mask
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.stream.collections_offset import CollectionsOffset

if TYPE_CHECKING:
    from headrace.spark.jobs.job_file import Job

STREAMING: Final = "streaming"
WAITS: Final = "waits for its snapshot"


def collections_offsets(offset: dict[str, Any] | None) -> dict[str, CollectionsOffset]:
    """Return an offset of several collections by server name (empty for the only one); {} for another source's."""
    each = (offset or {}).get("servers", {"": offset or {}})
    return {server: CollectionsOffset.of(one) for server, one in each.items() if "selection" in one}


def snapshot_states(offsets: Mapping[str, CollectionsOffset], mask: Mask | None = None) -> dict[str, str]:
    """Return the state of each collection whose snapshot is not complete, or that is skipped.

    `mask` is the job's mask; keys are shown masked.
    """
    states: dict[str, list[str]] = {}
    for server, offset in offsets.items():
        some = dict.fromkeys(offset.waiting, WAITS)
        if offset.reading:
            after = offset.reading.after
            if mask and after:
                after = dumps(mask.document(loads(after)))
            some[offset.reading.name] = f"in its snapshot, after {after or 'nothing'}"
        for name, text in (some | dict.fromkeys(offset.skipped, "left out: a capped collection")).items():
            states.setdefault(name, []).append(f"{server}: {text}" if server else text)
    return {name: "; ".join(texts) for name, texts in states.items()}


def collection_states(job: Job, checkpoint: Checkpoint) -> dict[str, str]:
    """Return the state of each collection that has a table, whose snapshot is not complete, or that is skipped."""
    offsets = collections_offsets(checkpoint.offset)
    if not offsets:
        return {}
    there = {table.collection for table in tables_of(job) if table.collection}
    states = dict.fromkeys(there, STREAMING) | snapshot_states(offsets, job.options.mask)
    return dict(sorted(states.items()))
