"""The fingerprint of the stream of a table's rows: the options that a reader must share to read the same events.

A table of events can be an archive only if it has every event of the reader's stream, with updates described in the
same way. So the sink that fills a table records the options that decide this, and a reader compares its own options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.spark.mongodb.source_options import SourceOptions
from headrace.spark.rows.extjson import dumps


def stream_fingerprint(options: SourceOptions, stages: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the stream of these options as JSON; `stages` are applied to its events after the source."""
    fingerprint = {
        "database": options.database,
        "collection": options.collection,
        "pipeline": dumps([*options.pipeline, *options.reader, *stages]),
        "documents": options.documents,
        "servers": len(options.servers),
    }
    return json.dumps(fingerprint | {name: options.stream[name] for name in sorted(options.stream)})


def difference(fingerprint: str, options: SourceOptions) -> str | None:
    """Return how a table with this fingerprint differs from what these options need; None if it does not.

    A reader applies its own pipeline and may represent documents differently, so neither is compared.
    """
    recorded = json.loads(fingerprint)
    needed = json.loads(stream_fingerprint(options)) | {"pipeline": "[]", "documents": "extjson", "servers": 1}
    for name in (*recorded, *needed):
        if recorded.get(name) != needed.get(name):
            return f"{name} is {_shown(recorded.get(name))} in the table, and {_shown(needed.get(name))} is needed"
    return None


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
