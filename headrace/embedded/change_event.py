"""A change event as an object: attributes for the usual fields, and `raw` for the document that drivers return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class ChangeEvent(Mapping[str, Any]):
    """One event of a change stream, a mapping with the fields of `raw`, so that it is used as a driver's event is."""

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        """The event's document, as drivers return it."""

    @property
    def operation_type(self) -> str:
        """`insert`, `update`, `replace`, `delete`, `drop`, `rename`, `dropDatabase`, `invalidate`, or another."""
        return str(self.raw["operationType"])

    @property
    def resume_token(self) -> Mapping[str, Any]:
        """The event's resume token. A stream with this `resume_after` begins with the next event."""
        return self.raw["_id"]  # type: ignore[no-any-return]

    @property
    def cluster_time(self) -> Any:
        """The `Timestamp` of the change; all events of a transaction have the same one."""
        return self.raw.get("clusterTime")

    @property
    def wall_time(self) -> Any:
        """The server's date and time of the change, in the date type of the codec options."""
        return self.raw.get("wallTime")

    @property
    def database(self) -> str | None:
        """The database's name; None for `invalidate`."""
        return self.raw.get("ns", {}).get("db")  # type: ignore[no-any-return]

    @property
    def collection(self) -> str | None:
        """The collection's name; None for an event without a collection."""
        return self.raw.get("ns", {}).get("coll")  # type: ignore[no-any-return]

    @property
    def document_key(self) -> Mapping[str, Any] | None:
        """The document's key: `{"_id": ...}`."""
        return self.raw.get("documentKey")

    @property
    def document_id(self) -> Any:
        """The `_id` of the document; None for an event without a document."""
        return (self.raw.get("documentKey") or {}).get("_id")

    @property
    def full_document(self) -> Any:
        """The document after an insert or a replace; after an update if the stream has `full_document`."""
        return self.raw.get("fullDocument")

    @property
    def full_document_before_change(self) -> Any:
        """The document before the change, if the stream has `full_document_before_change`."""
        return self.raw.get("fullDocumentBeforeChange")

    @property
    def updated_fields(self) -> Mapping[str, Any]:
        """The fields that an update has set, by dotted path."""
        return self.raw.get("updateDescription", {}).get("updatedFields", {})  # type: ignore[no-any-return]

    @property
    def removed_fields(self) -> list[str]:
        """The fields that an update has removed, as dotted paths."""
        return list(self.raw.get("updateDescription", {}).get("removedFields", ()))

    @property
    def truncated_arrays(self) -> list[Mapping[str, Any]]:
        """The arrays that an update has made shorter: `field`, `newSize`."""
        return list(self.raw.get("updateDescription", {}).get("truncatedArrays", ()))

    @property
    def transaction(self) -> tuple[Any, int] | None:
        """The session and number that identify the transaction of the change; None outside transactions."""
        return (self.raw["lsid"]["id"], int(self.raw["txnNumber"])) if "txnNumber" in self.raw else None

    def __getitem__(self, name: str) -> Any:
        return self.raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        where = ".".join(name for name in (self.database, self.collection) if name)
        return f"<{self.operation_type} {where}{'' if self.document_key is None else f' {self.document_id!r}'}>"
