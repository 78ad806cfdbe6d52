"""The methods of a collection that write documents: pymongo's methods, arguments and result classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from headrace import limits
from headrace.embedded.calls import Calls, is_filter, is_type, options_of
from headrace.embedded.errors_raised import check_write, raise_write_concern

if TYPE_CHECKING:
    from pymongo.results import BulkWriteResult, DeleteResult, InsertManyResult, InsertOneResult, UpdateResult

    from headrace.embedded.calls import Calls
    from headrace.embedded.session import EmbeddedSession

BATCH_BYTES: Final = limits.MESSAGE_BYTES_MAX
"""The most bytes of documents in one command, as in a driver's message."""


class BulkStatement(NamedTuple):
    """One statement."""

    number: int
    kind: str
    """The command of the statement: `insert`, `update`, `delete`."""
    sent: Any
    """The statement's part of the command: the raw bytes of a document to insert, or the statement itself."""
    given: Any
    """The statement for error messages."""


class BulkStatements:
    """Statements in their order, and the sum of their replies."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.statements: list[BulkStatement] = []
        self.result: dict[str, Any] = {
            "writeErrors": [], "writeConcernErrors": [], "nInserted": 0, "nUpserted": 0, "nMatched": 0, "nModified": 0,
            "nRemoved": 0, "upserted": [],
        }  # fmt: skip
        """The result in pymongo's form."""

    def _add(self, kind: str, sent: Any, given: Any) -> None:
        self.statements.append(BulkStatement(len(self.statements), kind, sent, given))

    def add_insert(self, document: Any) -> bool:
        """Add an insert; the document gets an `_id` if it has none."""
        if not isinstance(document, RawBSONDocument) and "_id" not in document:
            document["_id"] = ObjectId()
        self._add("insert", self._calls.encode(document), document)
        return True

    def add_update(
        self, selector: Mapping[str, Any], update: Any, multi: bool, upsert: bool | None, collation: Any = None,
        array_filters: Any = None, hint: Any = None, sort: Any = None,
    ) -> None:  # fmt: skip
        """Add an update by operators or a pipeline."""
        if isinstance(update, Mapping) and not next(iter(update), "").startswith("$"):
            raise ValueError("update only works with $ operators")
        statement = {"q": selector, "u": update, "multi": multi, "upsert": bool(upsert)}
        statement |= options_of(collation=collation, arrayFilters=array_filters, hint=hint, sort=sort)
        self._add("update", statement, statement)

    def add_replace(
        self, selector: Mapping[str, Any], replacement: Mapping[str, Any], upsert: bool | None, collation: Any = None,
        hint: Any = None, sort: Any = None,
    ) -> None:  # fmt: skip
        """Add a replacement of one document."""
        if not isinstance(replacement, RawBSONDocument) and next(iter(replacement), "").startswith("$"):
            raise ValueError("replacement can not include $ operators")
        statement = {"q": selector, "u": replacement, "multi": False, "upsert": bool(upsert)}
        statement |= options_of(collation=collation, hint=hint, sort=sort)
        self._add("update", statement, statement)

    def add_delete(self, selector: Mapping[str, Any], limit: int, collation: Any = None, hint: Any = None) -> None:
        """Add a delete of one document (`limit` 1) or of all (0)."""
        statement = {"q": selector, "limit": limit, **options_of(collation=collation, hint=hint)}
        self._add("delete", statement, statement)

    def add_reply(self, kind: str, batch: list[BulkStatement], reply: Mapping[str, Any]) -> None:
        """Add the reply to a command with these statements."""
        result, count = self.result, int(reply.get("n", 0))
        if kind == "insert":
            result["nInserted"] += count
        elif kind == "delete":
            result["nRemoved"] += count
        else:
            upserted = [{**item, "index": batch[item["index"]].number} for item in reply.get("upserted", ())]
            result["upserted"] += upserted
            result["nUpserted"] += len(upserted)
            result["nMatched"] += count - len(upserted)
            result["nModified"] += int(reply["nModified"])
        for error in reply.get("writeErrors", ()):
            statement = batch[error["index"]]
            result["writeErrors"].append({**error, "index": statement.number, "op": statement.given})
        if "writeConcernError" in reply:
            result["writeConcernErrors"].append(reply["writeConcernError"])


def in_batches(statements: list[BulkStatement], *, ordered: bool) -> Iterator[tuple[str, list[BulkStatement]]]:
    """Yield (kind, statements of one command): neighbours of a kind if `ordered`, otherwise all of a kind."""
    if not ordered:
        statements = sorted(statements, key=lambda statement: ("insert", "update", "delete").index(statement.kind))
    for kind, same in groupby(statements, key=lambda statement: statement.kind):
        batch: list[BulkStatement] = []
        size = 0
        for statement in same:
            size += len(statement.sent) if kind == "insert" else 0
            if batch and (len(batch) == limits.WRITE_BATCH_COUNT_MAX or size > BATCH_BYTES):
                yield kind, batch
                batch, size = [], len(statement.sent) if kind == "insert" else 0
            batch.append(statement)
        yield kind, batch


_SCALARS: Final = frozenset({bool, bytes, float, int, str, type(None), ObjectId})
"""Types whose encoding always decodes. A list or a document may hold a `RawBSONDocument` with arbitrary bytes."""


@cache
def _results() -> Any:
    """Return the module of the result classes, which is imported only when needed."""
    from pymongo import results

    return results


class WritingCollection:
    """The methods of `EmbeddedCollection` that write."""

    name: str
    _calls: Calls
    _db: str
    _namespace: str

    # Inserts.

    def insert_one(
        self, document: MutableMapping[str, Any] | RawBSONDocument, bypass_document_validation: bool | None = None,
        session: EmbeddedSession | None = None, comment: Any = None,
    ) -> InsertOneResult:  # fmt: skip
        """Insert a document, which gets an `_id` if it has none."""
        calls = self._calls
        identity = self._identified(document)
        raw = calls.encode(document)
        is_plain = session is None and bypass_document_validation is None and comment is None
        if (
            is_plain
            and calls.write_concern is None
            and calls.local.writes.insert(
                self._namespace, raw, type(document) is dict and _SCALARS.issuperset(map(type, document.values()))
            )
        ):
            return _results().InsertOneResult(identity, True)  # type: ignore[no-any-return]
        if len(raw) > limits.INTERNAL_DOCUMENT_BYTES_MAX:
            from pymongo.errors import DocumentTooLarge

            raise DocumentTooLarge(f"BSON document too large ({len(raw)} bytes): {limits.DOCUMENT_BYTES_MAX} at most")
        body = {"insert": self.name, **options_of(bypassDocumentValidation=bypass_document_validation, comment=comment)}
        self._check(calls.write(self._db, body, session, {"documents": [raw]}))
        return _results().InsertOneResult(identity, calls.acknowledged)  # type: ignore[no-any-return]

    def _check(self, reply: Mapping[str, Any]) -> None:
        """Raise the error of a statement, unless the write concern is `w: 0`."""
        if self._calls.acknowledged:
            check_write(reply)

    def insert_many(
        self, documents: Iterable[MutableMapping[str, Any] | RawBSONDocument], ordered: bool = True,
        bypass_document_validation: bool | None = None, session: EmbeddedSession | None = None, comment: Any = None,
    ) -> InsertManyResult:  # fmt: skip
        """Insert documents in their order. Raises `BulkWriteError` for refused documents."""
        from pymongo.results import InsertManyResult

        if isinstance(documents, Mapping) or not isinstance(documents, Iterable):
            raise TypeError("documents must be a non-empty list")
        statements = BulkStatements(self._calls)
        identities = []
        for document in documents:
            identities.append(self._identified(document))
            statements.add_insert(document)
        if not identities:
            raise TypeError("documents must be a non-empty list")
        self._run(statements, ordered, bypass_document_validation, session, options_of(comment=comment))
        return InsertManyResult(identities, self._calls.acknowledged)

    @staticmethod
    def _identified(document: Any) -> Any:
        """Return the `_id` of a document to insert; add one if it has none."""
        if type(document) is not dict:
            if isinstance(document, RawBSONDocument):
                return document.get("_id")
            if not isinstance(document, MutableMapping):
                raise TypeError(f"document must be a mapping, not {type(document).__name__}")
        if "_id" not in document:
            document["_id"] = ObjectId()
        return document["_id"]

    # Updates and deletes.

    def update_one(
        self, filter: Mapping[str, Any], update: Any, upsert: bool = False,
        bypass_document_validation: bool | None = None, collation: Any = None,
        array_filters: Sequence[Mapping[str, Any]] | None = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, sort: Any = None,
        comment: Any = None,
    ) -> UpdateResult:  # fmt: skip
        """Update the first document that matches, by operators or a pipeline."""
        _check_operators(update)
        statement = _update(filter, update, upsert, collation, array_filters, hint, sort=sort)
        return self._update(statement, bypass_document_validation, session, let, comment)

    def update_many(
        self, filter: Mapping[str, Any], update: Any, upsert: bool = False,
        array_filters: Sequence[Mapping[str, Any]] | None = None, bypass_document_validation: bool | None = None,
        collation: Any = None, hint: Any = None, session: EmbeddedSession | None = None,
        let: Mapping[str, Any] | None = None, comment: Any = None,
    ) -> UpdateResult:  # fmt: skip
        """Update all documents that match."""
        _check_operators(update)
        statement = _update(filter, update, upsert, collation, array_filters, hint, multi=True)
        return self._update(statement, bypass_document_validation, session, let, comment)

    def replace_one(
        self, filter: Mapping[str, Any], replacement: Mapping[str, Any], upsert: bool = False,
        bypass_document_validation: bool | None = None, collation: Any = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, sort: Any = None,
        comment: Any = None,
    ) -> UpdateResult:  # fmt: skip
        """Replace the first document that matches."""
        _check_replacement(replacement)
        statement = _update(filter, replacement, upsert, collation, None, hint, sort=sort)
        return self._update(statement, bypass_document_validation, session, let, comment)

    def _update(
        self, statement: dict[str, Any], bypass: bool | None, session: EmbeddedSession | None, let: Any, comment: Any
    ) -> UpdateResult:
        from pymongo.results import UpdateResult

        body = {"update": self.name, "updates": [statement]}
        body |= options_of(bypassDocumentValidation=bypass, let=let, comment=comment)
        reply = self._calls.write(self._db, body, session)
        self._check(reply)
        if reply.get("upserted"):
            reply["upserted"] = reply["upserted"][0]["_id"]
        reply["updatedExisting"] = bool(reply.get("n")) and "upserted" not in reply
        return UpdateResult(reply, self._calls.acknowledged)

    def delete_one(
        self, filter: Mapping[str, Any], collation: Any = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, comment: Any = None,
    ) -> DeleteResult:  # fmt: skip
        """Delete the first document that matches."""
        return self._delete(filter, 1, collation, hint, session, let, comment)

    def delete_many(
        self, filter: Mapping[str, Any], collation: Any = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, comment: Any = None,
    ) -> DeleteResult:  # fmt: skip
        """Delete all documents that match."""
        return self._delete(filter, 0, collation, hint, session, let, comment)

    def _delete(
        self, filter: Any, limit: int, collation: Any, hint: Any, session: EmbeddedSession | None, let: Any,
        comment: Any,
    ) -> DeleteResult:  # fmt: skip
        from pymongo.results import DeleteResult

        is_filter(filter)
        statement = {"q": filter, "limit": limit, **options_of(collation=collation, hint=hint)}
        body = {"delete": self.name, "deletes": [statement], **options_of(let=let, comment=comment)}
        reply = self._calls.write(self._db, body, session)
        self._check(reply)
        return DeleteResult(reply, self._calls.acknowledged)

    def bulk_write(
        self, requests: Sequence[Any], ordered: bool = True, bypass_document_validation: bool | None = None,
        session: EmbeddedSession | None = None, comment: Any = None, let: Mapping[str, Any] | None = None,
    ) -> BulkWriteResult:  # fmt: skip
        """Run pymongo's `InsertOne`, `UpdateOne`, ... in their order. Raises `BulkWriteError`."""
        from pymongo.errors import InvalidOperation
        from pymongo.results import BulkWriteResult

        statements = BulkStatements(self._calls)
        for request in requests:
            try:
                request._add_to_bulk(statements)
            except AttributeError:
                raise TypeError(f"{request!r} is not a valid request") from None
        if not statements.statements:
            raise InvalidOperation("No operations to execute")
        options = options_of(comment=comment, let=let)
        result = self._run(statements, ordered, bypass_document_validation, session, options)
        return BulkWriteResult(result, self._calls.acknowledged)

    def _run(
        self, statements: BulkStatements, ordered: bool, bypass: bool | None, session: EmbeddedSession | None,
        options: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Run statements, with a command for each batch; return the sum of the replies. Raises `BulkWriteError`."""
        from pymongo.errors import BulkWriteError

        for kind, batch in in_batches(statements.statements, ordered=ordered):
            body = {kind: self.name, "ordered": ordered, **options}
            if kind == "insert":
                body.pop("let", None)
            if bypass is not None and kind != "delete":
                body["bypassDocumentValidation"] = bypass
            sequences = {"documents": [item.sent for item in batch]} if kind == "insert" else None
            if sequences is None:
                body[f"{kind}s"] = [item.sent for item in batch]
            statements.add_reply(kind, batch, self._calls.write(self._db, body, session, sequences))
            if ordered and statements.result["writeErrors"]:
                break
        result = statements.result
        if self._calls.acknowledged and (result["writeErrors"] or result["writeConcernErrors"]):
            result["writeErrors"].sort(key=lambda error: error["index"])
            raise BulkWriteError(result)
        return result

    # Find and modify one document.

    def find_one_and_update(
        self, filter: Mapping[str, Any], update: Any, projection: Any = None, sort: Any = None, upsert: bool = False,
        return_document: bool = False, array_filters: Sequence[Mapping[str, Any]] | None = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, comment: Any = None,
        **kwargs: Any,
    ) -> Any | None:  # fmt: skip
        """Update one document and return it as it was before, or as it is after with `ReturnDocument.AFTER`."""
        _check_operators(update)
        return self._find_and_modify(
            filter, projection, sort, hint, session, let, comment, update=update, upsert=upsert or None,
            new=return_document or None, arrayFilters=array_filters, **kwargs,
        )  # fmt: skip

    def find_one_and_replace(
        self, filter: Mapping[str, Any], replacement: Mapping[str, Any], projection: Any = None, sort: Any = None,
        upsert: bool = False, return_document: bool = False, hint: Any = None, session: EmbeddedSession | None = None,
        let: Mapping[str, Any] | None = None, comment: Any = None, **kwargs: Any,
    ) -> Any | None:  # fmt: skip
        """Replace one document and return it as it was before, or as it is after with `ReturnDocument.AFTER`."""
        _check_replacement(replacement)
        return self._find_and_modify(
            filter, projection, sort, hint, session, let, comment, update=replacement, upsert=upsert or None,
            new=return_document or None, **kwargs,
        )  # fmt: skip

    def find_one_and_delete(
        self, filter: Mapping[str, Any], projection: Any = None, sort: Any = None, hint: Any = None,
        session: EmbeddedSession | None = None, let: Mapping[str, Any] | None = None, comment: Any = None,
        **kwargs: Any,
    ) -> Any | None:  # fmt: skip
        """Delete one document and return it."""
        return self._find_and_modify(filter, projection, sort, hint, session, let, comment, remove=True, **kwargs)

    def _find_and_modify(
        self, filter: Any, projection: Any, sort: Any, hint: Any, session: EmbeddedSession | None, let: Any,
        comment: Any, **options: Any,
    ) -> Any | None:  # fmt: skip
        is_filter(filter)
        is_type(options.get("new"), bool, "return_document", optional=True)
        _check_options(options.get("upsert"), options.get("arrayFilters"))
        body = {"findAndModify": self.name, "query": filter}
        body |= options_of(fields=projection, sort=sort, hint=hint, let=let, comment=comment, **options)
        self._calls.add_write_concern(body, session)
        reply = self._calls.documents(self._calls.reply(self._db, body, session), session)
        if "writeConcernError" in reply:
            raise_write_concern(reply)
        return reply.get("value")


def _update(
    filter: Mapping[str, Any], update: Any, upsert: bool, collation: Any, array_filters: Any, hint: Any, *,
    multi: bool = False, sort: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a statement of the command `update`."""
    is_filter(filter)
    _check_options(upsert, array_filters)
    return {
        "q": filter, "u": update, "multi": multi, "upsert": upsert,
        **options_of(collation=collation, arrayFilters=array_filters, hint=hint, sort=sort),
    }  # fmt: skip


def _check_options(upsert: Any, array_filters: Any) -> None:
    is_type(upsert, bool, "upsert", optional=True)
    is_type(array_filters, list, "array_filters", optional=True)


def _check_operators(update: Any) -> None:
    """Raise pymongo's error for an update that has neither operators nor a pipeline."""
    if not isinstance(update, (Mapping, list)):
        raise TypeError(f"update must be a mapping or a list, not {type(update).__name__}")
    if not update:
        raise ValueError("update cannot be empty")
    if isinstance(update, Mapping) and not next(iter(update)).startswith("$"):
        raise ValueError("update only works with $ operators")


def _check_replacement(replacement: Any) -> None:
    if not isinstance(replacement, Mapping):
        raise TypeError(f"replacement must be a mapping, not {type(replacement).__name__}")
    if replacement and not isinstance(replacement, RawBSONDocument) and next(iter(replacement)).startswith("$"):
        raise ValueError("replacement can not include $ operators")
