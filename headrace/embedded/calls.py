"""Commands from Python values, and replies as Python values, for databases, collections and cursors.

    Calls(local, codec_options, ...).run("shop", {"count": "orders", ...})   →   the reply as a dict; raises its error

A command is encoded with the program's codec options and decoded like a message, so that the engine sees what a client
would have sent. The caller encodes a document to insert once. A batch of results is decoded once, from the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import bson
from bson.codec_options import DEFAULT_CODEC_OPTIONS, CodecOptions

from headrace.embedded.errors_raised import raise_failure
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.embedded.local_engine import LocalEngine
    from headrace.embedded.session import EmbeddedSession


_NOT_IN_DATABASES: Final = ' .$/\\\x00"'


def collection_name(name: Any, what: str = "name") -> str:
    """Check and return the name of a collection. Raises TypeError and `InvalidName`."""
    is_type(name, str, what)
    if not name.isidentifier():
        if not name or ".." in name:
            _invalid("collection names cannot be empty")
        if "$" in name and not name.startswith(("oplog.$main", "$cmd")):
            _invalid(f"collection names must not contain '$': {name!r}")
        if name[0] == "." or name[-1] == ".":
            _invalid(f"collection names must not start or end with '.': {name!r}")
        if "\x00" in name:
            _invalid("collection names must not contain the null character")
    return name  # type: ignore[no-any-return]


def database_name(name: Any, what: str = "name") -> str:
    """Check and return the name of a database. Raises TypeError and `InvalidName`."""
    is_type(name, str, what)
    if not name.isidentifier():
        if not name:
            _invalid("database name cannot be the empty string")
        for character in _NOT_IN_DATABASES:
            if character in name and name != "$external":
                _invalid(f"database names cannot contain the character {character!r}")
    return name  # type: ignore[no-any-return]


def is_filter(filter: Any) -> None:
    """Raise TypeError if a filter is not a document."""
    if not isinstance(filter, Mapping):
        raise TypeError(f"filter must be a mapping, not {type(filter).__name__}")


def is_type(value: Any, kind: type, what: str, *, optional: bool = False) -> None:
    """Raise TypeError if a value is not of type `kind`; None is allowed if `optional`."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{what} must be an instance of {kind.__name__}, not {type(value).__name__}")


def is_not_negative(value: Any, what: str) -> None:
    """Raise TypeError for a value that is not a whole number, ValueError for a number below 0."""
    is_type(value, int, what)
    if value < 0:
        raise ValueError(f"{what} must be >= 0")


def _invalid(message: str) -> None:
    from pymongo.errors import InvalidName

    raise InvalidName(message)


_BATCHES: Final = {"cursor": {"firstBatch": 1, "nextBatch": 1}}
_VALUE: Final = {"value": 1}
_to_dict: Final = bson._bson_to_dict  # type: ignore[attr-defined]  # the C codec, less a call
_to_bson: Final = bson._dict_to_bson  # type: ignore[attr-defined]


class Closing:
    """An object that its `with` closes."""

    def close(self) -> None:
        """Close the object. A second call has no effect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CallOptions:
    """The options of collections, databases and stores, as attributes."""

    _calls: Calls

    @property
    def codec_options(self) -> Any:
        """bson's `CodecOptions`, which convert documents to Python values."""
        return self._calls.codec_options

    @property
    def read_concern(self) -> Any:
        """pymongo's `ReadConcern`, or None for the default."""
        return self._calls.read_concern

    @property
    def write_concern(self) -> Any:
        """pymongo's `WriteConcern`, or None for the default."""
        return self._calls.write_concern


class Calls:
    """Sends commands to the engine, with codec options, a read concern and a write concern."""

    __slots__ = ("_is_default", "codec_options", "local", "owner", "read_concern", "write_concern")

    def __init__(
        self, local: LocalEngine, codec_options: CodecOptions[Any] = DEFAULT_CODEC_OPTIONS,
        read_concern: Any = None, write_concern: Any = None, owner: object = None,
    ) -> None:  # fmt: skip
        self.local = local
        self.owner = owner
        """The store, referenced here because it closes when no reference is left."""
        self.codec_options = codec_options
        self._is_default = codec_options == DEFAULT_CODEC_OPTIONS
        self.read_concern = read_concern
        """pymongo's `ReadConcern`, or None."""
        self.write_concern = write_concern
        """pymongo's `WriteConcern`, or None."""

    def changed(self, codec_options: Any, read_concern: Any, write_concern: Any) -> Calls:
        """Return a copy with other options; None leaves an option unchanged."""
        return Calls(
            self.local,
            codec_options or self.codec_options,
            read_concern or self.read_concern,
            write_concern or self.write_concern,
            self.owner,
        )

    @property
    def acknowledged(self) -> bool:
        """Whether results report what a write has done. With `w: 0` they report nothing, although the write is done."""
        return self.write_concern is None or bool(self.write_concern.acknowledged)

    def encode(self, document: Mapping[str, Any]) -> bytes:
        """Encode a document as BSON. Raises `bson.InvalidDocument`, and TypeError if it is not a document."""
        return _to_bson(document, False, self.codec_options)  # type: ignore[no-any-return]

    def reply(
        self, database: str, body: MutableMapping[str, Any], session: EmbeddedSession | None = None,
        sequences: dict[str, list[bytes]] | None = None,
    ) -> bytes:  # fmt: skip
        """Run a command and return its reply, also if it failed."""
        name = next(iter(body))
        if session is not None:
            session.apply_to(body)
        body["$db"] = database
        raw = _to_bson(body, False, self.codec_options, False)
        return self.local.execute(database, name, decode(raw), raw, sequences)

    def run(
        self, database: str, body: MutableMapping[str, Any], session: EmbeddedSession | None = None,
        sequences: dict[str, list[bytes]] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run a command and return its reply, with values of the default types. Raises the command's error."""
        return self.checked(self.reply(database, body, session, sequences), session)

    def write(
        self, database: str, body: MutableMapping[str, Any], session: EmbeddedSession | None = None,
        sequences: dict[str, list[bytes]] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run a command with the write concern, as `run` does. Errors of statements are in the reply."""
        self.add_write_concern(body, session)
        return self.run(database, body, session, sequences)

    def add_write_concern(self, body: MutableMapping[str, Any], session: EmbeddedSession | None) -> None:
        """Add the write concern to a command outside transactions."""
        if self.write_concern is not None and not (session is not None and session.in_transaction):
            document = {key: value for key, value in self.write_concern.document.items() if (key, value) != ("w", 0)}
            if document:
                body["writeConcern"] = document

    def add_read_concern(self, body: MutableMapping[str, Any], session: EmbeddedSession | None) -> None:
        """Add the read concern to a command outside transactions."""
        in_transaction = session is not None and session.in_transaction
        if self.read_concern is not None and self.read_concern.level and not in_transaction:
            body["readConcern"] = self.read_concern.document

    def checked(
        self, reply: bytes, session: EmbeddedSession | None = None, options: CodecOptions[Any] = DEFAULT_CODEC_OPTIONS
    ) -> dict[str, Any]:
        """Decode a reply, with values of the default types unless `options` say otherwise. Raises its error."""
        return self._checked(_to_dict(reply, options), session)

    def documents(self, reply: bytes, session: EmbeddedSession | None = None) -> dict[str, Any]:
        """Decode a reply; its batch or `value` with the program's codec options. Raises its error."""
        if self._is_default:
            return self._checked(_to_dict(reply, DEFAULT_CODEC_OPTIONS), session)
        options = self.codec_options
        fields = _VALUE if b"\x03cursor\x00" not in reply[:32] else _BATCHES
        return self._checked(bson._decode_all_selective(reply, options, fields)[0], session)

    @staticmethod
    def _checked(answer: dict[str, Any], session: EmbeddedSession | None) -> dict[str, Any]:
        if session is not None:
            session.advance(answer)
        if not answer["ok"]:
            raise_failure(answer)
        return answer


def options_of(**given: Any) -> dict[str, Any]:
    """Return the given options that are not None, as fields of a command."""
    body: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "collation":
            value = getattr(value, "document", value)
            is_type(value, Mapping, "collation")  # type: ignore[type-abstract]
        elif (name == "hint" and not isinstance(value, str)) or name == "sort":
            value = key_document(value)
        elif name in ("projection", "fields"):
            value = projection_document(value)
        elif name == "maxTimeMS" and not value:
            continue
        body[name] = value
    return body


def key_document(keys: Any) -> dict[str, Any]:
    """Return index keys or a sort order as a document, from a name, from pairs, or from names (ascending)."""
    if isinstance(keys, str):
        return {keys: 1}
    if isinstance(keys, Mapping):
        return dict(keys)
    if not isinstance(keys, Iterable):
        raise TypeError(f"expected a field, a mapping or a list of (field, direction), not {keys!r}")
    document = dict((item, 1) if isinstance(item, str) else item for item in keys)
    if not document:
        raise ValueError("there must be at least one field")
    return document


def projection_document(projection: Any) -> dict[str, Any]:
    """Return a projection as a document; a list names the fields to include."""
    if isinstance(projection, Mapping):
        return dict(projection)
    if isinstance(projection, str) or not isinstance(projection, Iterable):
        raise TypeError(f"projection must be a mapping or a list of fields, not {projection!r}")
    return dict.fromkeys(projection, 1)


def pipeline_of(pipeline: Any) -> list[Any]:
    """Return a pipeline as a list. Raises TypeError if it is not a list."""
    if not isinstance(pipeline, Sequence) or isinstance(pipeline, str):
        raise TypeError(f"pipeline must be a list, not {type(pipeline).__name__}")
    return list(pipeline)
