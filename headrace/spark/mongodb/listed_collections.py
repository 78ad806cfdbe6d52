"""Which collections are there, of several that a stream follows, and why some of them cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.spark.mongodb.collection_selection import text_of
from headrace.spark.mongodb.mongodb_stream import client_of
from headrace.spark.mongodb.source_options import SourceOptions

_KINDS: Final = {"timeseries": "a time-series collection", "view": "a view"}


@dataclass(frozen=True, slots=True)
class ListedCollections:
    """The selected collections in order, and those that cannot be read with the reason."""

    names: tuple[str, ...]
    refused: dict[str, str]


def list_collections(options: SourceOptions) -> ListedCollections:
    """The collections that the options select. Raises pymongo's errors."""
    client, selection = client_of(options.uri), options.selection
    databases = client.list_database_names() if options.database is None else [options.database]
    names, refused = [], {}
    for database in databases:
        if database in {"admin", "config", "local"}:
            continue
        for one in client[database].list_collections():
            if selection.matches((database, one["name"])):
                name = text_of((database, one["name"]))
                names.append(name)
                if reason := refusal(one, options):
                    refused[name] = reason
    return ListedCollections(tuple(sorted(name for name in names if name not in refused)), refused)


def refusal(listed: Mapping[str, Any], options: SourceOptions) -> str:
    """Why a collection, as `listCollections` has it, cannot be read; empty if it can."""
    kind = str(listed.get("type", ""))
    if kind in _KINDS:
        return f"{_KINDS[kind]}, which has no change stream"
    capped = listed.get("options", {}).get("capped") and options.capped == "skip"
    return "a capped collection: what it pushes out is in no event" if capped else ""
