"""The builder of a stream's events from oplog entries.

    operation ─▶ decided by its head alone, or an event made from slices           `_fast_path`
        └─▶ drafts in scope ─▶ [resume guard] ─▶ conditions ─▶ stages ─▶ [split] ─▶ events

Most streams share a builder with all streams of their share key, and the events of an entry go to all of them. A stream
that still looks for its client's token has a guard (`resume.py`), a filter over the drafts. The guard must see every
event in scope before the conditions do, so the fast path is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace import limits
from headrace.changes import command_events, document_events, split
from headrace.changes.draft import Draft
from headrace.changes.entry import DecodedEntry, EntryLookup
from headrace.changes.event import Event, Item, renewed
from headrace.changes.full_document import ImageLookup
from headrace.changes.operation import Head, Operation
from headrace.changes.resume import TOKEN_VERSION, ResumeGuard
from headrace.changes.split import CountMetric
from headrace.changes.stream import VIEWS, ScopeKind, Shape, StreamSpec
from headrace.changes.stream_pipeline import StreamPipeline, passes
from headrace.errors import CommandError
from headrace.values.bson import decode, to_string


class HeadRule:
    """A stream's treatment of the operations with one head."""

    __slots__ = ("in_scope", "is_view", "matches", "plain")

    def __init__(self, in_scope: bool, matches: bool, is_view: bool, plain: bool | None) -> None:
        self.in_scope = in_scope
        self.matches = matches
        """Whether the operations are in scope and meet the conditions that use only the head."""
        self.is_view = is_view
        """Whether its documents are the definitions of views."""
        self.plain = plain
        """See `EventBuilder.matches_head`."""


class EventBuilder:
    """Builds the events of all streams with the same `share_key`. Its only state is its memo of heads."""

    def __init__(
        self, spec: StreamSpec, lookup: ImageLookup, history: EntryLookup | None = None,
        count: CountMetric | None = None,
    ) -> None:  # fmt: skip
        """`history` finds the earlier entries of transactions. `count`, if given, counts events that are too large."""
        self._spec = spec
        self._shape = spec.shape
        self._lookup = lookup
        self._history = history
        self._count = count or _count_nothing
        self._pipeline = pipeline = StreamPipeline(spec)
        self._plain = not (pipeline.header or pipeline.early or pipeline.late or pipeline.changes)
        self._rules: dict[Head, HeadRule] = {}

    def build(self, entry: DecodedEntry, guard: ResumeGuard | None = None) -> list[Item]:
        """Return the stream's events of this entry, in order; mostly none or one.

        If an event cannot be built, its error is the last item (280, 47, 10334, 286, and errors of the client's
        expressions). `guard` belongs to a single stream until it is settled.
        """
        try:
            operations = entry.operations(self._history)
        except CommandError as error:
            return [renewed(error)]
        return self._build(operations, guard)

    def build_in_pieces(self, entry: DecodedEntry, guard: ResumeGuard | None = None) -> Iterator[list[Item]]:
        """Yield the items of `build`, of some operations at a time."""
        try:
            for operations in entry.pieces(self._history):
                items = self._build(operations, guard)
                yield items
                if items and isinstance(items[-1], CommandError):
                    return
        except CommandError as error:
            yield [renewed(error)]

    def _build(self, operations: Iterable[Operation], guard: ResumeGuard | None) -> list[Item]:
        items: list[Item] = []
        guarded = guard is not None and not guard.settled
        try:
            for operation in operations:
                if guarded:
                    assert guard is not None
                    self._build_guarded(operation, guard, items)
                elif not self._fast_path(operation, items):
                    for draft in self._drafts(operation, TOKEN_VERSION):
                        self._add(draft, items, head_matched=True)
        except CommandError as error:
            items.append(renewed(error))
        return items

    @property
    def plain(self) -> bool:
        """Whether events are sent unchanged and the head alone decides which events the stream has."""
        return self._plain and not self._spec.split

    def matches_head(self, head: Head) -> bool | None:
        """Return whether a plain stream has the changes of this head; None if the entries alone do not make their
        events."""
        return (self._rules.get(head) or self._learn(head)).plain

    def _learn(self, head: Head) -> HeadRule:
        """Return the rule of a new head."""
        scope, shape = self._spec.scope, self._shape
        is_view = head.coll == VIEWS and (shape.expanded or shape.system) and scope.kind is not ScopeKind.COLLECTION
        in_scope = scope.matches_database(head.db) if is_view else scope.matches(head.namespace)
        known = {"operationType": head.kind, "ns": {"db": head.db, "coll": head.coll}}
        matches = in_scope and passes(self._pipeline.fixed, known)
        plain: bool | None = matches
        if in_scope and is_view:
            plain = None
        elif matches:
            template = document_events.template_of(head, shape)
            plain = None if template.maker is None or template.needs_lookup else True
        rule = HeadRule(in_scope, matches, is_view, plain)
        if len(self._rules) >= limits.HEAD_COUNT_MAX:
            self._rules.clear()
        self._rules[head] = rule
        return rule

    # Operations to drafts.

    def _fast_path(self, operation: Operation, items: list[Item]) -> bool:
        """Decide on a changed document without a draft, if possible. Return False to continue with the drafts.

        With False, the conditions on the head or the header alone are met.
        """
        head = operation.head
        if head is None:
            return False
        rule = self._rules.get(head) or self._learn(head)
        if not rule.in_scope:
            return True
        if rule.is_view:
            return False
        if not rule.matches or (operation.migrated and not self._shape.migration):
            return True
        if self._plain:
            shared = shared_event(operation, self._shape)
            event = document_events.event(operation, self._shape) if shared is None else shared
            if event is None or (self._spec.split and _must_split(event)):
                return False
            items.append(shared or self._share(operation, event))
            return True
        header = self._pipeline.header
        return bool(header) and not passes(header, document_events.header(operation))

    def _drafts(self, operation: Operation, version: int) -> Iterator[Draft]:
        """Yield the drafts of an operation that are in scope, with tokens of this version, before any conditions."""
        head, shape, scope = operation.head, self._shape, self._spec.scope
        if operation.migrated and not shape.migration:
            return
        if head is None:
            draft = _made_once(operation, shape, version, command_events.command_draft)
        else:
            rule = self._rules.get(head) or self._learn(head)
            if not rule.in_scope:
                return
            if not rule.is_view:
                yield _made_once(operation, shape, version, document_events.crud_draft)
                return
            draft = command_events.view_draft(operation, shape, version)
        if draft is None or not draft.concerns(scope):
            return
        yield draft
        invalidate = draft.invalidate(scope)
        if invalidate is not None:
            yield invalidate

    def _build_guarded(self, operation: Operation, guard: ResumeGuard, items: list[Item]) -> None:
        """Build the events of an operation for the single stream of this guard."""
        drafts = self._drafts(operation, guard.version_at(operation.position, operation.index))
        for draft, fragment in guard.filter(drafts):
            if fragment is None:
                self._add(draft, items, head_matched=False)
            else:
                self._add_fragments_after(draft, fragment, guard.client_token, items)

    # Drafts to events.

    def _add(self, draft: Draft, items: list[Item], *, head_matched: bool) -> None:
        """Add the event of a draft if the conditions are met. An invalidate closes the stream even if it is hidden."""
        if self._matches(draft, head_matched):
            self._finish(draft, items)
        elif draft.kind == "invalidate":
            items.append(Event(draft.token, draft.token_document, draft.operation.position, None, True))

    def _matches(self, draft: Draft, head_matched: bool) -> bool:
        """Return whether the conditions are met. `head_matched`: the conditions on a changed document's header are
        met."""
        pipeline = self._pipeline
        if not isinstance(draft, document_events.CrudDraft):
            return passes(pipeline.tests, draft.core_fields)
        tests = pipeline.early if head_matched else pipeline.before_lookup
        if tests and not passes(tests, draft.core_fields):
            return False
        return not pipeline.late or passes(pipeline.late, draft.final_fields(self._lookup))

    def _finish(self, draft: Draft, items: list[Item]) -> None:
        """Add the event of a draft that met all conditions."""
        operation, closes = draft.operation, draft.kind == "invalidate"
        unchanged = draft.shared and not self._pipeline.changes and not self._spec.split
        if unchanged and (shared := shared_event(operation, self._shape)) is not None:
            items.append(shared)
            return
        document = self._document(draft)
        if document is None and not closes:
            return
        if document is not None and self._spec.split and split.must_split(document, draft.token_document):
            items += _as_events(draft, split.fragments(document, draft.fragment_token, self._count))
            return
        if document is not None and len(document) > limits.INTERNAL_DOCUMENT_BYTES_MAX and not self._spec.unbounded:
            raise self._too_large(document)
        event = Event(draft.token, draft.token_document, operation.position, document, closes)
        items.append(self._share(operation, event) if unchanged else event)

    def _document(self, draft: Draft) -> bytes | None:
        """Return the event after the client's stages, or None if they dropped it."""
        if not self._pipeline.changes:
            return draft.final(self._lookup)
        return self._pipeline.run(draft.final_fields(self._lookup))

    def _add_fragments_after(self, draft: Draft, fragment: int, client_token: str, items: list[Item]) -> None:
        """Add the event's fragments after the last one that the client has seen."""
        if not passes(self._pipeline.tests, draft.final_fields(self._lookup)):
            return
        document = self._document(draft)
        if document is None:
            return
        large = split.must_split(document, draft.token_document)
        fragments = split.fragments(document, draft.fragment_token, self._count) if large else []
        items += _as_events(draft, split.after_fragment(fragments, fragment, client_token))

    def _share(self, operation: Operation, event: Event) -> Event:
        """Check the event and store it with its operation, for the next stream of this shape; return it."""
        if len(event.document or b"") > limits.INTERNAL_DOCUMENT_BYTES_MAX:
            if self._spec.unbounded:
                return event
            raise self._too_large(event.document or b"")
        if operation.events is None:
            operation.events = {self._shape: event}
        else:
            operation.events[self._shape] = event
        return event

    def _too_large(self, document: bytes) -> CommandError:
        """Return error 10334 for an event that no reply can hold, and count it."""
        self._count(split.EVENTS_FAILED)
        size = len(document)
        name, value = next(iter(decode(document).items()))
        return CommandError(
            10334,
            f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
            f"{limits.INTERNAL_DOCUMENT_BYTES_MAX}(16MB) First element: {name}: {to_string(value)}",
        )


def _count_nothing(metric: str) -> None:
    """The default `count`, which counts nothing."""


def _made_once(operation: Operation, shape: Shape, version: int, make: Callable[[Operation, Shape, int], Any]) -> Any:
    """Return the draft that `make` makes. With the current token version it is made once per shape."""
    if version != TOKEN_VERSION:
        return make(operation, shape, version)
    if operation.drafts is None:
        operation.drafts = {}
    if shape not in operation.drafts:
        operation.drafts[shape] = make(operation, shape, version)
    return operation.drafts[shape]


def shared_event(operation: Operation, shape: Shape) -> Event | None:
    """Return the unchanged event of this shape if it was already built for another stream, otherwise None."""
    return None if operation.events is None else operation.events.get(shape)


def _must_split(event: Event) -> bool:
    return split.must_split(event.document or b"", event.token_document)


def _as_events(draft: Draft, fragments: list[split.Fragment]) -> list[Event]:
    """Return fragments as events. The last fragment of an invalidate closes the stream."""
    position, closes = draft.operation.position, draft.kind == "invalidate"
    events = [Event(text, token, position, document) for text, token, document in fragments]
    return [*events[:-1], events[-1]._replace(closes=closes)] if closes and events else events
