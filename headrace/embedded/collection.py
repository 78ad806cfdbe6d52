"""A collection of an open store, with the methods of pymongo's: what reads, its indexes, and what it is made of.

What writes documents is `writing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace.embedded.calls import CallOptions, Calls, key_document, options_of, pipeline_of
from headrace.embedded.checks import collection_name, is_type
from headrace.embedded.cursor import EmbeddedCommandCursor, EmbeddedCursor
from headrace.embedded.writing import WritingCollection
from headrace.keywords import check_keywords, keywords_of

if TYPE_CHECKING:
    from headrace.embedded.change_stream import EmbeddedChangeStream
    from headrace.embedded.database import EmbeddedDatabase
    from headrace.embedded.session import EmbeddedSession


class EmbeddedCollection(CallOptions, WritingCollection):
    """`store["shop"]["orders"]`. Cheap to make; may be used from many threads."""

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
        """The same collection with other options. There is one member, so that a read preference changes nothing."""
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
        """A cursor on the documents that match; arguments as in pymongo, from `filter` and `projection` on."""
        if kwargs:
            check_keywords("find", kwargs, FIND_KEYWORDS)
        return EmbeddedCursor(self, self._calls, *args, **kwargs)

    def find_one(self, filter: Any = None, *args: Any, **kwargs: Any) -> Any | None:
        """The first document that matches, or None. `filter` may also be an `_id`."""
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
        """How many documents match."""
        pipeline: list[dict[str, Any]] = [{"$match": filter}]
        pipeline += [{f"${name}": kwargs.pop(name)} for name in ("skip", "limit") if name in kwargs]
        pipeline.append({"$group": {"_id": 1, "n": {"$sum": 1}}})
        counted = list(self.aggregate(pipeline, session, comment=comment, **options_of(**kwargs)))
        return int(counted[0]["n"]) if counted else 0

    def estimated_document_count(self, comment: Any = None, **kwargs: Any) -> int:
        """How many documents there are."""
        body = {"count": self.name, **options_of(comment=comment, **kwargs)}
        return int(self._calls.run(self._db, body)["n"])

    def distinct(
        self, key: str, filter: Mapping[str, Any] | None = None, session: EmbeddedSession | None = None,
        comment: Any = None, hint: Any = None, **kwargs: Any,
    ) -> list[Any]:  # fmt: skip
        """The distinct values of a field among the documents that match."""
        if not isinstance(key, str):
            raise TypeError(f"key must be an instance of str, not {type(key).__name__}")
        body = {"distinct": self.name, "key": key, **options_of(query=filter, comment=comment, hint=hint, **kwargs)}
        self._calls.add_read_concern(body, session)
        return list(self._calls.run(self._db, body, session)["values"])

    def aggregate(
        self, pipeline: Sequence[Mapping[str, Any]], session: EmbeddedSession | None = None,
        let: Mapping[str, Any] | None = None, comment: Any = None, **kwargs: Any,
    ) -> EmbeddedCommandCursor:  # fmt: skip
        """A cursor on the results of a pipeline; options as the command has them (`allowDiskUse`, `maxTimeMS`)."""
        return run_aggregate(self._calls, self._db, self.name, pipeline, session, let=let, comment=comment, **kwargs)

    def watch(
        self, pipeline: Sequence[Mapping[str, Any]] | None = None, full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> EmbeddedChangeStream:  # fmt: skip
        """A change stream on the collection; see `EmbeddedChangeStream` for its arguments."""
        from headrace.embedded.change_stream import STREAM_KEYWORDS, EmbeddedChangeStream

        check_keywords("watch", kwargs, STREAM_KEYWORDS)
        return EmbeddedChangeStream(
            self._calls, self._db, self.name, pipeline, full_document=full_document, resume_after=resume_after, **kwargs
        )

    # The collection and its indexes.

    def drop(self, session: EmbeddedSession | None = None, comment: Any = None) -> None:
        """Drop it; no error if it does not exist."""
        self.database.drop_collection(self, session, comment)

    def rename(
        self, new_name: str, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Give it another name in its database. `dropTarget`: one of that name is dropped."""
        to = f"{self._db}.{collection_name(new_name, 'new_name')}"
        body = {"renameCollection": self.full_name, "to": to, **options_of(comment=comment)}
        return self._calls.write("admin", body | kwargs, session)

    def options(self, session: EmbeddedSession | None = None, comment: Any = None) -> dict[str, Any]:
        """The options that it was created with."""
        for collection in self.database.list_collections(session, {"name": self.name}, comment):
            return {key: value for key, value in collection["options"].items() if key != "create"}
        return {}

    def create_index(
        self, keys: Any, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> str:
        """Create an index, and return its name; options as the command has them (`unique`, `expireAfterSeconds`)."""
        commands: dict[str, Any] = {name: kwargs.pop(name) for name in ("maxTimeMS", "commitQuorum") if name in kwargs}
        return self._create_indexes([index_document(keys, kwargs)], session, comment, commands)[0]

    def create_indexes(
        self, indexes: Sequence[Any], session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any
    ) -> list[str]:
        """Create indexes, pymongo's `IndexModel`s, and return their names."""
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
        """Drop one by its name or keys."""
        name = index_or_name if isinstance(index_or_name, str) else index_name(key_document(index_or_name))
        body = {"dropIndexes": self.name, "index": name, **options_of(comment=comment), **kwargs}
        ignoring_missing(self._calls.write, self._db, body, session)

    def drop_indexes(self, session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any) -> None:
        """Drop all but the one on `_id`."""
        self.drop_index("*", session, comment, **kwargs)

    def list_indexes(self, session: EmbeddedSession | None = None, comment: Any = None) -> EmbeddedCommandCursor:
        """A cursor on the descriptions of its indexes; empty if the collection does not exist."""
        body = {"listIndexes": self.name, "cursor": {}, **options_of(comment=comment)}
        cursor = EmbeddedCommandCursor(self._calls, self._db, body, session)
        if ignoring_missing(cursor._fetch) is None and cursor.cursor_id is None:
            cursor.cursor_id = 0
        return cursor

    def index_information(self, session: EmbeddedSession | None = None, comment: Any = None) -> dict[str, Any]:
        """Its indexes by name: `key`, as a list of pairs, and options."""
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
"""The attributes of pymongo's collections that these do not have."""


def run_aggregate(
    calls: Calls, database: str, target: str | int, pipeline: Any, session: EmbeddedSession | None,
    batchSize: int | None = None, **options: Any,
) -> EmbeddedCommandCursor:  # fmt: skip
    """The cursor of an aggregation, which has run: its first batch is there."""
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
    """An index as `createIndexes` takes it."""
    key = key_document(keys)
    document = {"name": index_name(key), "key": key, **options_of(**options)}
    if "bucket_size" in document:
        document["bucketSize"] = document.pop("bucket_size")
    return document


def index_name(key: Mapping[str, Any]) -> str:
    """The name of an index that was given none."""
    return "_".join(f"{field}_{direction}" for field, direction in key.items())
