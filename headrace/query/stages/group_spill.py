"""A group that exceeds its memory: the groups so far and the documents left are sorted by key, on disk if necessary.

The sort is stable, and the groups so far come first. So each group sees its documents in order, one group after the
other. The states of accumulators are pickled: the file has no name, and only this process reads it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.query.expressions import Env
from headrace.query.operation_memory import StageMemory, encoded_between
from headrace.query.sort import Sorter
from headrace.query.stages.group import WATCH_COUNT, Groups, new_states
from headrace.values.bson import decode, encode
from headrace.values.order import sort_key

if TYPE_CHECKING:
    from headrace.query.stages.group import Group
    from headrace.query.stages.stage import Document


def spilled_results(
    group: Group, groups: Groups, documents: Iterator[Document], memory: StageMemory
) -> Iterator[Document]:
    """The documents of all groups, by key: of `groups`, which are removed there, and of the `documents` left. Raises
    292."""
    collation = group.context.collation
    memory.spill_stream()  # raises 292 even if the records need less memory than the groups
    memory.add(-memory.used)
    sorter = Sorter(memory, lambda record: (sort_key(decode(record)["k"], collation),))
    for hashed in group.context.paced(list(groups)):
        value, states = groups.pop(hashed)
        sorter.add((sort_key(value, collation),), encode({"k": value, "s": _pickled(states, collation)}))
    for document in documents:
        value = group.key(document)
        sorter.add((sort_key(value, collation),), encoded_between({"k": value, "d": document}))
    last, value, states, count = None, None, [], 0
    for record in sorter.sorted():
        item = decode(record)
        key = sort_key(item["k"], collation)
        if key != last:
            if last is not None:
                yield group.result(value, states)
            last, value, states, count = key, item["k"], new_states(group.fields, item["k"], group.context.bound), 0
        if "s" in item:
            states = _Unpickler(io.BytesIO(item["s"]), collation).load()
            continue
        env = Env(item["d"], group.context.bound)
        for (_, accumulator), state in zip(group.fields, states):
            accumulator.add(state, env)
        count += 1
        if count % WATCH_COUNT == 0:
            group.size(value, states)  # raises 146 if a state is too large
    if last is not None:
        yield group.result(value, states)


def _pickled(states: list[Any], collation: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, collation).dump(states)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Leaves out the collation, to which states refer."""

    def __init__(self, file: io.BytesIO, collation: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._collation = collation

    def persistent_id(self, obj: Any) -> str | None:
        return "collation" if obj is self._collation and obj is not None else None


class _Unpickler(pickle.Unpickler):
    """Restores the collation."""

    def __init__(self, file: io.BytesIO, collation: Any) -> None:
        super().__init__(file)
        self._collation = collation

    def persistent_load(self, pid: str) -> Any:
        return self._collation
