"""The existing collections that a stream of several follows, and why some of them cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pymongo.errors import OperationFailure

from headrace.spark.mongodb.collection_selection import DATABASES, Namespace, namespace_of, text_of
from headrace.spark.mongodb.mongodb_stream import client_of
from headrace.spark.mongodb.source_options import SourceOptions

KINDS: Final = {"timeseries": "a time-series collection", "view": "a view"}
"""Kinds of collections without a change stream, by the type that `listCollections` reports."""


@dataclass(frozen=True, slots=True)
class ListedCollections:
    """The selected collections, sorted, and those that cannot be read, with the reason."""

    names: tuple[str, ...]
    refused: dict[str, str]


def list_collections(options: SourceOptions) -> ListedCollections:
    """Return the collections that the options select. Raise pymongo's errors."""
    reasons = {text_of(name): refusal(one, options) for name, one in listed(options)}
    refused = {name: reason for name, reason in reasons.items() if reason}
    return ListedCollections(tuple(sorted(reasons.keys() - refused.keys())), refused)


def listed(options: SourceOptions) -> Iterator[tuple[Namespace, Mapping[str, Any]]]:
    """Yield the collections of one server that the options select or name, as `listCollections` reports them.

    Raise pymongo's errors.
    """
    client, named = client_of(options.uri), {} if options.collection is None else {"name": options.collection}
    for database in client.list_database_names() if options.database is None else [options.database]:
        if options.database is None and database in DATABASES:
            continue
        for one in client[database].list_collections(filter=named):
            if options.collection is not None or options.selection.matches((database, one["name"])):
                yield (database, one["name"]), one


def read_collections(options: SourceOptions) -> Iterator[Namespace]:
    """Yield the one collection that the options name, otherwise the collections that the user may list on each server.

    Raise pymongo's errors for servers that do not answer.
    """
    if options.database and options.collection:
        yield options.database, options.collection
        return
    for one in options.servers:
        with suppress(OperationFailure):
            yield from map(namespace_of, list_collections(one).names)


def refusal(listed: Mapping[str, Any], options: SourceOptions) -> str:
    """Return why a collection, as `listCollections` reports it, cannot be read; empty if it can."""
    kind = str(listed.get("type", ""))
    if kind in KINDS:
        return f"{KINDS[kind]}, which has no change stream"
    capped = listed.get("options", {}).get("capped") and options.capped == "skip"
    return "a capped collection: what it pushes out is in no event" if capped else ""
