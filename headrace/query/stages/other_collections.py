"""The collections that the stages of a pipeline read besides its source, found without parsing the pipeline.

Rule: an invalid pipeline yields the collections of its valid part. The parser refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

READING: Final = frozenset({"$graphLookup", "$lookup", "$unionWith"})
"""The stages that read another collection."""


def other_collections(pipeline: Any, database: str) -> Iterator[str]:
    """Yield the namespaces that a pipeline and the pipelines inside it read. `database` is that of the pipeline."""
    for namespace, _ in joined_collections(pipeline, database):
        yield namespace


def joined_collections(pipeline: Any, database: str) -> Iterator[tuple[str, Any]]:
    """Yield the same namespaces, each with the pipeline that runs over the collection, or None."""
    for stage in pipeline if type(pipeline) is list else ():
        for name, spec in stage.items() if type(stage) is dict else ():
            if name == "$facet" and type(spec) is dict:
                for inner in spec.values():
                    yield from joined_collections(inner, database)
            elif name in READING:
                yield from _joined(name, spec, database)


def _joined(name: str, spec: Any, database: str) -> Iterator[tuple[str, Any]]:
    """Yield the collection that a stage names, and the collections that its own pipeline reads."""
    options = {"coll": spec} if type(spec) is str else spec if type(spec) is dict else {}
    collection = options.get("coll" if name == "$unionWith" else "from")
    pipeline = options.get("pipeline")
    if type(collection) is dict:
        yield f"{collection.get('db', database)}.{collection.get('coll')}", pipeline
    elif type(collection) is str:
        yield f"{database}.{collection}", pipeline
    yield from joined_collections(pipeline, database)
