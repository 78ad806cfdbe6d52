"""A collection of an open store, with pymongo's methods for reads, indexes and the collection itself.

`writing.py` has the methods that write documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace.embedded.calls import CallOptions, Calls, collection_name, is_type, key_document, options_of, pipeline_of
from headrace.embedded.cursor import EmbeddedCommandCursor, EmbeddedCursor
from headrace.embedded.writing import WritingCollection
from headrace.keywords import check_keywords, keywords_of

if TYPE_CHECKING:
    from headrace.embedded.change_stream import EmbeddedChangeStream
    from headrace.embedded.database import EmbeddedDatabase
    from headrace.embedded.session import EmbeddedSession


class EmbeddedCollection(CallOptions, WritingCollection):
    """A collection: `store["shop"]["orders"]`. Cheap to make and safe from many threads."""

    def __init__(self, database: EmbeddedDatabase, name: str, calls: Calls) -> None:
        self.database = database
        self.name = collection_name(name)
        self._calls = calls
        self._db = database.name
        self._namespace = f"{database.name}.{name}"

    @property
    def full_name(self) -> str:
        """`database.collection`."""
        return self._namespace

    def with_options(
        self, codec_options: Any = None, read_preference: Any = None, write_concern: Any = None,
        read_concern: Any = None,
    ) -> EmbeddedCollection:  # fmt: skip
        """Return the collection with other options. A read preference has no effect, as there is one member."""
        calls = self._calls.changed(codec_options, read_concern, write_concern)
        return EmbeddedCollection(self.database, self.name, calls)

    def __getitem__(self, name: str) -> EmbeddedCollection:
        return EmbeddedCollection(self.database, f"{self.name}.{name}", self._calls)

    def __getattr__(self, name: str) -> EmbeddedCollection:
        if name.startswith("_") or name in NOT_THERE:
            raise AttributeError(f"an embedded collection has no {name!r}; see docs/embedding.md")
        return self[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmbeddedCollection) and (self.database, self.name) == (other.database, other.name)

    def __hash__(self) -> int:
        return hash((self.database, self.name))

    def __repr__(self) -> str:
        return f"EmbeddedCollection({self.full_name!r})"

    def __bool__(self) -> bool:
        raise NotImplementedError("a collection has no truth value: compare it with None")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"there is no method {self.name.rpartition('.')[2]!r}; a collection cannot be called")

    __iter__ = None  # otherwise a loop would read the collections 0, 1, ...

    # Reading.

    def find(self, *args: Any, **kwargs: Any) -> EmbeddedCursor:
        """Return a cursor on the documents that match, with pymongo's arguments, `filter` and `projection` first."""
        if kwargs:
            check_keywords("find", kwargs, FIND_KEYWORDS)
        return EmbeddedCursor(self, self._calls, *args, **kwargs)

    def find_one(self, filter: Any = None, *args: Any, **kwargs: Any) -> Any | None:
        """Return the first document that matches, or None. `filter` may also be an `_id`."""
        if filter is not None and not isinstance(filter, Mapping):
            filter = {"_id": filter}
        if not args and not kwargs and self._calls.read_concern is None:
            body = {"find": self.name, "filter": filter or {}, "limit": 1, "singleBatch": True}
            reply = self._calls.documents(self._calls.reply(self._db, body))
            batch = reply["cursor"]["firstBatch"]
            return batch[0] if batch else None
        for document in self.find(filter, *args, **kwargs).limit(-1):
            return document
        return None

    def count_documents(
        self, filter: Mapping[str, Any], session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> int:
        """Return the number of documents that match."""
        pipeline: list[dict[str, Any]] = [{"$match": filter}]
        pipeline += [{f"${name}": kwargs.pop(name)} for name in ("skip", "limit") if name in kwargs]
        pipeline.append({"$group": {"_id": 1, "n": {"$sum": 1}}})
        counted = list(self.aggregate(pipeline, session, comment=comment, **options_of(**kwargs)))
        return int(counted[0]["n"]) if counted else 0

    def estimated_document_count(self, comment: Any = None, **kwargs: Any) -> int:
        """Return the number of documents in the collection."""
        body = {"count": self.name, **options_of(comment=comment, **kwargs)}
        return int(self._calls.run(self._db, body)["n"])

    def distinct(
        self, key: str, filter: Mapping[str, Any] | None = None, session: EmbeddedSession | None = None,
        comment: Any = None, hint: Any = None, **kwargs: Any,
    ) -> list[Any]:  # fmt: skip
        """Return the distinct values of a field in the documents that match."""
        if not isinstance(key, str):
            raise TypeError(f"key must be an instance of str, not {type(key).__name__}")
        body = {"distinct": self.name, "key": key, **options_of(query=filter, comment=comment, hint=hint, **kwargs)}
        self._calls.add_read_concern(body, session)
        return list(self._calls.run(self._db, body, session)["values"])

    def aggregate(
        self, pipeline: Sequence[Mapping[str, Any]], session: EmbeddedSession | None = None,
        let: Mapping[str, Any] | None = None, comment: Any = None, **kwargs: Any,
    ) -> EmbeddedCommandCursor:  # fmt: skip
        """Run a pipeline and return a cursor on its results; options are the command's, such as `allowDiskUse`."""
        return run_aggregate(self._calls, self._db, self.name, pipeline, session, let=let, comment=comment, **kwargs)

    def watch(
        self, pipeline: Sequence[Mapping[str, Any]] | None = None, full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> EmbeddedChangeStream:  # fmt: skip
        """Open a change stream on the collection; `EmbeddedChangeStream` documents the arguments."""
        from headrace.embedded.change_stream import STREAM_KEYWORDS, EmbeddedChangeStream

        check_keywords("watch", kwargs, STREAM_KEYWORDS)
        return EmbeddedChangeStream(
            self._calls, self._db, self.name, pipeline, full_document=full_document, resume_after=resume_after, **kwargs
        )

    # The collection and its indexes.

    def drop(self, session: EmbeddedSession | None = None, comment: Any = None) -> None:
        """Drop the collection. It is no error if it does not exist."""
        self.database.drop_collection(self, session, comment)

    def rename(
        self, new_name: str, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Rename the collection within its database. With `dropTarget`, drop a collection with the new name."""
        to = f"{self._db}.{collection_name(new_name, 'new_name')}"
        body = {"renameCollection": self.full_name, "to": to, **options_of(comment=comment)}
        return self._calls.write("admin", body | kwargs, session)

    def options(self, session: EmbeddedSession | None = None, comment: Any = None) -> dict[str, Any]:
        """Return the options with which the collection was created."""
        for collection in self.database.list_collections(session, {"name": self.name}, comment):
            return {key: value for key, value in collection["options"].items() if key != "create"}
        return {}

    def create_index(
        self, keys: Any, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> str:
        """Create an index and return its name; options are the command's, such as `unique`."""
        commands: dict[str, Any] = {name: kwargs.pop(name) for name in ("maxTimeMS", "commitQuorum") if name in kwargs}
        return self._create_indexes([index_document(keys, kwargs)], session, comment, commands)[0]

    def create_indexes(
        self, indexes: Sequence[Any], session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> list[str]:
        """Create indexes from pymongo's `IndexModel`s and return their names."""
        from pymongo import IndexModel

        is_type(indexes, list, "indexes")
        for model in indexes:
            is_type(model, IndexModel, "an index")
        return self._create_indexes([dict(model.document) for model in indexes], session, comment, kwargs)

    def _create_indexes(
        self, indexes: list[dict[str, Any]], session: EmbeddedSession | None, comment: Any, options: dict[str, Any]
    ) -> list[str]:
        body = {"createIndexes": self.name, "indexes": indexes, **options_of(comment=comment), **options}
        self._calls.write(self._db, body, session)
        return [str(index["name"]) for index in indexes]

    def drop_index(
        self, index_or_name: Any, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> None:
        """Drop an index by its name or keys."""
        name = index_or_name if isinstance(index_or_name, str) else index_name(key_document(index_or_name))
        body = {"dropIndexes": self.name, "index": name, **options_of(comment=comment), **kwargs}
        ignoring_missing(self._calls.write, self._db, body, session)

    def drop_indexes(self, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any) -> None:
        """Drop all indexes except the one on `_id`."""
        self.drop_index("*", session, comment, **kwargs)

    def list_indexes(self, session: EmbeddedSession | None = None, comment: Any = None) -> EmbeddedCommandCursor:
        """Return a cursor on the descriptions of the indexes; it is empty if the collection does not exist."""
        body = {"listIndexes": self.name, "cursor": {}, **options_of(comment=comment)}
        cursor = EmbeddedCommandCursor(self._calls, self._db, body, session)
        if ignoring_missing(cursor._fetch) is None and cursor.cursor_id is None:
            cursor.cursor_id = 0
        return cursor

    def index_information(self, session: EmbeddedSession | None = None, comment: Any = None) -> dict[str, Any]:
        """Return the indexes by name, each with its options and its `key` as a list of pairs."""
        described = {}
        for index in self.list_indexes(session, comment):
            rest = {key: value for key, value in index.items() if key not in ("name", "ns")}
            described[index["name"]] = rest | {"key": list(index["key"].items())}
        return described


for _method in vars(WritingCollection).values():
    if isinstance(_method, FunctionType):  # Python names the method in errors about its arguments
        _method.__qualname__ = f"EmbeddedCollection.{_method.__name__}"

FIND_KEYWORDS: Final = keywords_of(EmbeddedCursor.__init__) - {"self", "collection", "calls"}

NOT_THERE = frozenset({
    "aggregate_raw_batches", "create_search_index", "create_search_indexes", "drop_search_index", "find_raw_batches",
    "list_search_indexes", "read_preference", "update_search_index",
})  # fmt: skip
"""Attributes of pymongo's collections that an `EmbeddedCollection` does not have."""


def run_aggregate(
    calls: Calls, database: str, target: str | int, pipeline: Any, session: EmbeddedSession | None,
    batchSize: int | None = None, **options: Any,
) -> EmbeddedCommandCursor:  # fmt: skip
    """Run an aggregation and return its cursor, which has the first batch."""
    if "explain" in options:
        from pymongo.errors import ConfigurationError

        raise ConfigurationError("The explain option is not supported. Use Database.command instead.")
    stages = pipeline_of(pipeline)
    body = {"aggregate": target, "pipeline": stages, "cursor": options_of(batchSize=batchSize), **options_of(**options)}
    calls.add_read_concern(body, session)
    if stages and isinstance(stages[-1], Mapping) and ("$out" in stages[-1] or "$merge" in stages[-1]):
        body["cursor"] = {}
        calls.add_write_concern(body, session)
    cursor = EmbeddedCommandCursor(calls, database, body, session, batchSize)
    cursor._fetch()
    return cursor


def ignoring_missing(call: Any, *args: Any) -> Any:
    """Return the result of `call`; None if the collection does not exist."""
    from pymongo.errors import OperationFailure

    try:
        return call(*args)
    except OperationFailure as error:
        if error.code != 26:
            raise
        return None


def index_document(keys: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index in the form that `createIndexes` takes."""
    key = key_document(keys)
    document = {"name": index_name(key), "key": key, **options_of(**options)}
    if "bucket_size" in document:
        document["bucketSize"] = document.pop("bucket_size")
    return document


def index_name(key: Mapping[str, Any]) -> str:
    """Return the default name of an index."""
    return "_".join(f"{field}_{direction}" for field, direction in key.items())
