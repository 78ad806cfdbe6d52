"""Events of views. A view is a document of `system.views`, and a change of that document is a change of the view.

    insert → create    replace → modify    delete → drop

Rule: only streams with `showExpandedEvents` have these events, and a collection's stream never does.

The document's `_id` is the view's namespace. Its other fields are the operationDescription, except for a drop.
"""

from __future__ import annotations

from typing import Final

from headrace.changes.command_events import CommandChange, CommandDraft, opening
from headrace.changes.operation import Operation
from headrace.changes.stream_options import Shape
from headrace.timeseries.series import PREFIX
from headrace.values.bson import decode, encode

KINDS: Final = {"delete": "drop", "insert": "create", "replace": "modify"}


def view_draft(operation: Operation, shape: Shape, version: int = 2) -> CommandDraft | None:
    """Return the draft of a view's change by an operation on `system.views`; None if it is not an event."""
    assert operation.head is not None
    kind = KINDS.get(operation.head.kind)
    if kind is None or not shape.expanded:
        return None
    definition = decode(operation.o)
    db, _, coll = definition.pop("_id").partition(".")
    description = None if kind == "drop" else definition
    is_series = "timeseries" in definition or definition.get("viewOn") == PREFIX + coll
    ns_type = "timeseries" if is_series else "view"
    change = CommandChange(kind, db, coll, description, ns_type=ns_type if kind == "create" else None)
    raw = None if description is None else encode(description)
    start, text, document = opening(operation, kind, raw, version, shape, None)
    return CommandDraft(operation, shape, change, start, text, document, raw, version)
