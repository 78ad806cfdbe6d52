"""The statements of a bulk write, to which pymongo's `InsertOne`, `UpdateOne`, ... add themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from headrace import limits
from headrace.embedded.calls import options_of

if TYPE_CHECKING:
    from headrace.embedded.calls import Calls

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
