"""Documents before and after a change, for `fullDocument` and `fullDocumentBeforeChange`.

    fullDocumentBeforeChange   of update, replace, delete: the pre-image stored with the change
    fullDocument of an update  updateLookup: the document as it is now; whenAvailable, required: the pre-image
                               with the change applied

A missing image is `null`, or error 47 if it is required. Inserts and replacements show the oplog's document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace.changes.bson_elements import document_element
from headrace.changes.operation import Operation
from headrace.errors import CommandError
from headrace.query.diff import apply_diff
from headrace.values.bson import decode, encode, to_compact_string
from headrace.values.position import Position, to_timestamp

if TYPE_CHECKING:
    from headrace.changes.draft import Draft

KINDS_WITH_PRE_IMAGE: Final = frozenset({"delete", "replace", "update"})
POINT_IN_TIME: Final = frozenset({"required", "whenAvailable"})


class ImageLookup(Protocol):
    """Finds documents outside the oplog."""

    def current(self, namespace: str, uuid: bytes | None, document_key: bytes) -> bytes | None:
        """Return the present document with this key (raw BSON `{_id}`), or None.

        It is looked up in the collection that has the name now; with a `uuid`, only if that is the same collection.
        """

    def pre_image(self, uuid: bytes, position: Position, index: int) -> bytes | None:
        """Return the document before the change at `position` (and number `index` in its transaction's entry), or
        None."""


def before_image(draft: Draft, lookup: ImageLookup) -> bytes | None:
    """Return the stored pre-image if the shape wants it. Raises 47 if it is required and missing."""
    shape, operation = draft.shape, draft.operation
    wants_after = draft.kind == "update" and shape.full_document in POINT_IN_TIME
    if operation.uuid is None or (shape.before_change == "off" and not wants_after):
        return None
    image = lookup.pre_image(operation.uuid, operation.image_position, operation.image_index)
    if image is None and shape.before_change == "required":
        raise CommandError(
            47,
            "Change stream was configured to require a pre-image for all update, delete and replace events, but the "
            f"pre-image was not found for event: {_described(draft)}",
        )
    return image


def after_image(draft: Draft, before: bytes | None, lookup: ImageLookup) -> bytes | None:
    """Return the element `fullDocument` of an update; None if the shape needs only the oplog. Raises 47 if a required
    post-image is missing."""
    mode, operation = draft.shape.full_document, draft.operation
    if draft.kind != "update" or mode == "default":
        return None
    image = _current(operation, draft, lookup) if mode == "updateLookup" else _applied(operation, before)
    if image is not None:
        return document_element(b"fullDocument", image)
    if mode == "required":
        raise CommandError(
            47,
            "Change stream was configured to require a post-image for all update events, but the post-image was not "
            f"found for event: {_described(draft)}",
        )
    return b"\x0afullDocument\0"


def _current(operation: Operation, draft: Draft, lookup: ImageLookup) -> bytes | None:
    assert operation.head is not None
    uuid = operation.uuid if draft.shape.same_uuid else None
    return lookup.current(operation.head.namespace, uuid, operation.o2)


def _applied(operation: Operation, before: bytes | None) -> bytes | None:
    """Return the image with the update's diff applied."""
    if before is None:
        return None
    return encode(apply_diff(decode(before), decode(operation.o)["diff"]))


def _described(draft: Draft) -> str:
    """Return the event as error messages name it. Outside a transaction it has no txnNumber."""
    operation = draft.operation
    assert operation.head is not None
    ns = to_compact_string({"db": operation.head.db, "coll": operation.head.coll})
    number = "MISSING" if operation.session is None else str(int.from_bytes(operation.session.txn_number, "little"))
    cluster_time = to_compact_string(to_timestamp(operation.position))
    return f'{{operationType: "{draft.kind}", ns: {ns}, clusterTime: {cluster_time}, txnNumber: {number}}}'
