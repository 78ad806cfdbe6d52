"""A database of an open store, with pymongo's methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bson.codec_options import DEFAULT_CODEC_OPTIONS

from headrace.embedded.calls import CallOptions, Calls, collection_name, database_name, options_of
from headrace.embedded.collection import EmbeddedCollection, ignoring_missing, run_aggregate
from headrace.embedded.cursor import EmbeddedCommandCursor
from headrace.keywords import check_keywords

if TYPE_CHECKING:
    from headrace.embedded.change_stream import EmbeddedChangeStream
    from headrace.embedded.open_store import EmbeddedStore
    from headrace.embedded.session import EmbeddedSession


class EmbeddedDatabase(CallOptions):
    """A database: `store["shop"]`. Cheap to make and safe from many threads."""

    def __init__(self, client: EmbeddedStore, name: str, calls: Calls) -> None:
        self.client = client
        """The open store."""
        self.name = database_name(name)
        self._calls = calls

    def with_options(
        self, codec_options: Any = None, read_preference: Any = None, write_concern: Any = None,
        read_concern: Any = None,
    ) -> EmbeddedDatabase:  # fmt: skip
        """Return the database with other options."""
        return EmbeddedDatabase(self.client, self.name, self._calls.changed(codec_options, read_concern, write_concern))

    def get_collection(
        self, name: str, codec_options: Any = None, read_preference: Any = None, write_concern: Any = None,
        read_concern: Any = None,
    ) -> EmbeddedCollection:  # fmt: skip
        """Return a collection with its own options."""
        calls = self._calls.changed(codec_options, read_concern, write_concern)
        return EmbeddedCollection(self, name, calls)

    def __getitem__(self, name: str) -> EmbeddedCollection:
        return EmbeddedCollection(self, name, self._calls)

    def __getattr__(self, name: str) -> EmbeddedCollection:
        if name.startswith("_") or name in NOT_THERE:
            raise AttributeError(f"an embedded database has no {name!r}; see docs/embedding.md")
        return self[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmbeddedDatabase) and (self.client, self.name) == (other.client, other.name)

    def __hash__(self) -> int:
        return hash((self.client, self.name))

    def __repr__(self) -> str:
        return f"EmbeddedDatabase({self.name!r})"

    def __bool__(self) -> bool:
        raise NotImplementedError("a database has no truth value: compare it with None")

    def command(
        self, command: str | Mapping[str, Any], value: Any = 1, check: bool = True,
        allowable_errors: Sequence[str | int] | None = None, read_preference: Any = None, codec_options: Any = None,
        session: EmbeddedSession | None = None, comment: Any = None, **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Run any command and return its reply. Raises the command's error unless `check` is False."""
        from pymongo.errors import OperationFailure

        body = {command: value} if isinstance(command, str) else dict(command)
        body |= options_of(comment=comment, **kwargs)
        try:
            reply = self._calls.reply(self.name, body, session)
            return self._calls.checked(reply, session, codec_options or DEFAULT_CODEC_OPTIONS)
        except OperationFailure as error:
            details = error.details
            if details is not None and (not check or error.code in (allowable_errors or ())):
                return dict(details)
            raise

    def aggregate(
        self, pipeline: Sequence[Mapping[str, Any]], session: EmbeddedSession | None = None, **kwargs: Any
    ) -> EmbeddedCommandCursor:
        """Run a pipeline that needs no collection, such as `$documents`, and return a cursor on its results."""
        return run_aggregate(self._calls, self.name, 1, pipeline, session, **kwargs)

    def watch(
        self, pipeline: Sequence[Mapping[str, Any]] | None = None, full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> EmbeddedChangeStream:  # fmt: skip
        """Open a change stream on the database; `EmbeddedChangeStream` documents the arguments."""
        from headrace.embedded.change_stream import STREAM_KEYWORDS, EmbeddedChangeStream

        check_keywords("watch", kwargs, STREAM_KEYWORDS)
        return EmbeddedChangeStream(
            self._calls, self.name, None, pipeline, full_document=full_document, resume_after=resume_after, **kwargs
        )

    def create_collection(
        self, name: str, codec_options: Any = None, read_preference: Any = None, write_concern: Any = None,
        read_concern: Any = None, session: EmbeddedSession | None = None, check_exists: bool | None = True,
        **kwargs: Any,
    ) -> EmbeddedCollection:  # fmt: skip
        """Create a collection or a view with options. Raises `CollectionInvalid` if it exists."""
        from pymongo.errors import CollectionInvalid

        collection_name(name)
        is_outside = session is None or not session.in_transaction
        if check_exists and is_outside and self.list_collection_names(filter={"name": name}):
            raise CollectionInvalid(f"collection {name} already exists")
        calls = self._calls.changed(codec_options, read_concern, write_concern)
        calls.write(self.name, {"create": name, **options_of(**kwargs)}, session)
        return EmbeddedCollection(self, name, calls)

    def drop_collection(
        self, name_or_collection: str | EmbeddedCollection, session: EmbeddedSession | None = None, comment: Any = None
    ) -> dict[str, Any]:
        """Drop a collection. It is no error if it does not exist."""
        body = {"drop": _name_of(name_or_collection), **options_of(comment=comment)}
        return dict(ignoring_missing(self._calls.write, self.name, body, session) or {})

    def list_collections(
        self, session: EmbeddedSession | None = None, filter: Mapping[str, Any] | None = None, comment: Any = None,
        **kwargs: Any,
    ) -> EmbeddedCommandCursor:  # fmt: skip
        """Return a cursor on the descriptions of collections and views."""
        body = {"listCollections": 1, "cursor": {}, **options_of(filter=filter, comment=comment, **kwargs)}
        return EmbeddedCommandCursor(self._calls, self.name, body, session)

    def list_collection_names(
        self, session: EmbeddedSession | None = None, filter: Mapping[str, Any] | None = None, comment: Any = None,
        **kwargs: Any,
    ) -> list[str]:  # fmt: skip
        """Return the names of collections and views."""
        if not filter or set(filter) == {"name"}:
            kwargs["nameOnly"] = True
        return [item["name"] for item in self.list_collections(session, filter, comment, **kwargs)]

    def validate_collection(
        self, name_or_collection: str | EmbeddedCollection, scandata: bool = False, full: bool = False,
        session: EmbeddedSession | None = None, background: bool | None = None, comment: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Check a collection. Raises `CollectionInvalid` if it is damaged."""
        from pymongo.errors import CollectionInvalid

        name = _name_of(name_or_collection)
        body = {"validate": name, "full": full, **options_of(background=background, comment=comment)}
        reply = self._calls.run(self.name, body, session)
        if not reply.get("valid", True):
            raise CollectionInvalid(f"{name} invalid: {reply.get('errors')}")
        return reply


def _name_of(collection: str | EmbeddedCollection) -> str:
    """Return the name of a collection, given as a name or an object. Raises TypeError and `InvalidName`."""
    if isinstance(collection, EmbeddedCollection):
        return collection.name
    return collection_name(collection, "name_or_collection")


NOT_THERE = frozenset({"cursor_command", "dereference", "read_preference"})
"""Attributes of pymongo's databases that an `EmbeddedDatabase` does not have."""
