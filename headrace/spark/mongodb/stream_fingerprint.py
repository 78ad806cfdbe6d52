"""Which stream a table's rows are of, as text beside them: what a reader's options must be to read the same one.

A table of events is only as good as an archive as it has every event of the reader's stream, told in the same way. So
who fills one keeps the options that decide which events there are and how they are told, and a reader compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.extjson import dumps


def told_of(options: SourceOptions, stages: Sequence[Mapping[str, Any]] = ()) -> str:
    """The stream of these options; `stages` are those that its events pass behind the source."""
    told = {
        "database": options.database,
        "collection": options.collection,
        "pipeline": dumps([*options.pipeline, *options.reader, *stages]),
        "documents": options.documents,
        "servers": len(options.servers),
    }
    return json.dumps(told | {name: options.stream[name] for name in sorted(options.stream)})


def difference(told: str, options: SourceOptions) -> str | None:
    """In what a table of the stream `told` is not one for readers with these options; None: it is one.

    A reader runs a pipeline of its own on the events, and tells documents as it likes.
    """
    has = json.loads(told)
    wants = json.loads(told_of(options)) | {"pipeline": "[]", "documents": "extjson", "servers": 1}
    for name in (*has, *wants):
        if has.get(name) != wants.get(name):
            return f"{name} is {_shown(has.get(name))} in the table, and {_shown(wants.get(name))} is needed"
    return None


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
