"""From oplog entries to the events that one kind of stream hears.

Two ways lead to an event. Most streams are settled (see `resume.py`): they share one builder, and what it makes of
an entry goes to all of them. A stream that is still looking for its client's token asks with its own guard, which
sees every event in scope before conditions and lookups do.
"""

from __future__ import annotations

from headrace import limits
from headrace.changes import commands, crud, split, views
from headrace.changes.commands import CommandDraft
from headrace.changes.draft import Draft
from headrace.changes.entry import DecodedEntry, History
from headrace.changes.event import Event, PartlyTold
from headrace.changes.images import Lookup
from headrace.changes.operation import Head, Operation
from headrace.changes.options import Shape
from headrace.changes.pipeline import StreamPipeline, passes
from headrace.changes.resume import ResumeGuard, Verdict
from headrace.changes.scope import VIEWS, ScopeKind
from headrace.changes.slicing import HEADS_MAX
from headrace.changes.stream import StreamSpec
from headrace.errors import CommandError
from headrace.values.bson import decode
from headrace.values.bson.to_string import shown


class Route:
    """What this stream does with the operations of one head."""

    __slots__ = ("heard", "in_scope", "view")

    def __init__(self, in_scope: bool, heard: bool, view: bool) -> None:
        self.in_scope = in_scope
        self.heard = heard
        """In scope, and the conditions that look at nothing but the head are met."""
        self.view = view
        """Its documents are the definitions of views."""


class EventBuilder:
    """Builds the events of all streams with the same `share_key`. Keeps no state but what it has learnt."""

    def __init__(self, spec: StreamSpec, lookup: Lookup, history: History | None = None) -> None:
        self._spec = spec
        self._shape = spec.shape
        self._lookup = lookup
        self._history = history
        self._pipeline = pipeline = StreamPipeline(spec)
        self._plain = not (pipeline.header or pipeline.early or pipeline.late or pipeline.changes)
        self._routes: dict[Head, Route] = {}

    def build(self, entry: DecodedEntry, guard: ResumeGuard | None = None) -> list[Event]:
        """The events this entry means to the stream, in order; mostly none or one.

        `guard` is the guard of the one stream that asks, as long as it is not settled. Raises `CommandError` where
        an event cannot be told (280, 47, 10334, 286, and whatever the client's expressions raise): `PartlyTold` when
        other events of the same entry go before it.
        """
        operations = entry.operations(self._history)
        events: list[Event] = []
        try:
            if guard is not None and not guard.settled:
                for operation in operations:
                    self._add_guarded(operation, guard, events)
            else:
                for operation in operations:
                    self._add(operation, events)
        except CommandError as error:
            if events:
                raise PartlyTold(error, events) from error
            raise
        return events

    @property
    def plain(self) -> bool:
        """Whether events are told as they are, and which ones is decided by the head alone."""
        return self._plain and not self._spec.split

    def hears(self, head: Head) -> bool | None:
        """Whether a plain stream hears the changes of this head; None where their events are not those of documents."""
        route = self._routes.get(head) or self._learn(head)
        if not route.in_scope:
            return False
        return None if route.view else route.heard

    def _add(self, operation: Operation, events: list[Event]) -> None:
        """The events of one operation."""
        head = operation.head
        if head is None:
            self._add_command(commands_draft(operation, self._shape), events)
            return
        route = self._routes.get(head) or self._learn(head)
        if not route.in_scope or (operation.migrated and not self._shape.migration):
            return
        if route.view:
            self._add_command(views.view_draft(operation, self._shape), events)
        elif route.heard:
            self._add_crud(operation, events)

    def _learn(self, head: Head) -> Route:
        """The route of a head not met before."""
        scope, shape = self._spec.scope, self._shape
        view = head.coll == VIEWS and (shape.expanded or shape.system) and scope.kind is not ScopeKind.COLLECTION
        in_scope = scope.matches_database(head.db) if view else scope.matches(head.namespace)
        known = {"operationType": head.kind, "ns": {"db": head.db, "coll": head.coll}}
        route = Route(in_scope, in_scope and passes(self._pipeline.fixed, known), view)
        if len(self._routes) >= HEADS_MAX:
            self._routes.clear()
        self._routes[head] = route
        return route

    def _add_crud(self, operation: Operation, events: list[Event]) -> None:
        """The event of a changed document, if the conditions are met; the cheap ones are asked first."""
        if self._plain:
            made = kept(operation, self._shape)
            fresh = crud.event(operation, self._shape) if made is None else made
            if fresh is not None and not (self._spec.split and _must_split(fresh)):
                events.append(made or self._keep(operation, fresh))
                return
        pipeline = self._pipeline
        if pipeline.header and not passes(pipeline.header, crud.header(operation)):
            return
        draft = drafted(operation, self._shape)
        if pipeline.early and not passes(pipeline.early, draft.core_fields):
            return
        if pipeline.late and not passes(pipeline.late, draft.final_fields(self._lookup)):
            return
        self._finish(draft, events)

    def _keep(self, operation: Operation, event: Event) -> Event:
        """The event, checked and kept for the next stream of this shape."""
        if len(event.document or b"") > limits.INTERNAL_DOCUMENT_BYTES_MAX:
            if self._spec.whole:
                return event
            raise too_large(event.document or b"")
        if operation.told is None:
            operation.told = {self._shape: event}
        else:
            operation.told[self._shape] = event
        return event

    def _add_command(self, draft: CommandDraft | None, events: list[Event]) -> None:
        """The event of a command, if it is in scope and wanted, and what it ends."""
        if draft is None or not draft.concerns(self._spec.scope):
            return
        for each in (draft, draft.invalidate(self._spec.scope)):
            if each is not None:
                self._add_whole(each, events)

    def _add_whole(self, draft: Draft, events: list[Event]) -> None:
        """The event of a draft about which nothing was asked yet; an invalidate closes even when it is hidden."""
        if passes(self._pipeline.tests, draft.core_fields):
            self._finish(draft, events)
        elif draft.kind == "invalidate":
            events.append(Event(draft.token, draft.token_document, draft.operation.position, None, True))

    def _finish(self, draft: Draft, events: list[Event]) -> None:
        """The event of a draft that met all conditions."""
        operation, closes = draft.operation, draft.kind == "invalidate"
        as_it_is = draft.shared and not self._pipeline.changes and not self._spec.split
        if as_it_is and (made := kept(operation, self._shape)) is not None:
            events.append(made)
            return
        document = self._document(draft)
        if document is None and not closes:
            return
        if document is not None and self._spec.split and split.must_split(document, draft.token_document):
            events += _as_events(draft, split.fragments(document, draft.fragment_token))
            return
        large = document is not None and len(document) > limits.INTERNAL_DOCUMENT_BYTES_MAX
        if document is not None and large and not self._spec.whole:
            raise too_large(document)
        event = Event(draft.token, draft.token_document, operation.position, document, closes)
        events.append(self._keep(operation, event) if as_it_is else event)

    def _document(self, draft: Draft) -> bytes | None:
        """The event after the client's stages; None when they dropped it."""
        if not self._pipeline.changes:
            return draft.final(self._lookup)
        return self._pipeline.run(draft.final_fields(self._lookup))

    def _add_guarded(self, operation: Operation, guard: ResumeGuard, events: list[Event]) -> None:
        """The events for the one stream of this guard, which decides on each before anything is asked about it."""
        for draft in self._drafts_in_scope(operation, guard.version_at(operation.position, operation.index)):
            verdict = guard.admit(draft.token)
            if verdict is Verdict.PASS:
                self._add_admitted(draft, events)
            elif verdict is Verdict.SWALLOW and guard.fragment is not None:
                self._add_other_fragments(draft, guard, events)

    def _drafts_in_scope(self, operation: Operation, version: int) -> list[Draft]:
        """The drafts of an operation, wanted or not, with tokens of this version."""
        head, shape, scope = operation.head, self._shape, self._spec.scope
        if operation.migrated and not shape.migration:
            return []
        told: CommandDraft | None
        if head is not None:
            route = self._routes.get(head) or self._learn(head)
            if not route.in_scope:
                return []
            if not route.view:
                return [drafted(operation, shape) if version == 2 else crud.crud_draft(operation, shape, version)]
            told = views.view_draft(operation, shape, version)
        else:
            told = commands.command_draft(operation, shape, version)
        if told is None or not told.concerns(scope):
            return []
        invalidate = told.invalidate(scope)
        return [told] if invalidate is None else [told, invalidate]

    def _add_admitted(self, draft: Draft, events: list[Event]) -> None:
        """The event of a draft that the guard let pass."""
        pipeline = self._pipeline
        if isinstance(draft, crud.CrudDraft):
            if passes((*pipeline.fixed, *pipeline.header, *pipeline.early), draft.core_fields) and (
                not pipeline.late or passes(pipeline.late, draft.final_fields(self._lookup))
            ):
                self._finish(draft, events)
            return
        self._add_whole(draft, events)

    def _add_other_fragments(self, draft: Draft, guard: ResumeGuard, events: list[Event]) -> None:
        """The fragments behind the one that the client has seen, of the event it belongs to."""
        assert guard.fragment is not None
        if not passes(self._pipeline.tests, draft.final_fields(self._lookup)):
            return
        document = self._document(draft)
        if document is None:
            return
        large = split.must_split(document, draft.token_document)
        made = split.fragments(document, draft.fragment_token) if large else []
        events += _as_events(draft, split.after_fragment(made, guard.fragment, guard.client_token))


def drafted(operation: Operation, shape: Shape) -> Draft:
    """The draft of a changed document in this shape, made once for all streams."""
    if operation.drafts is None:
        operation.drafts = {}
    draft: Draft | None = operation.drafts.get(shape)
    if draft is None:
        draft = operation.drafts[shape] = crud.crud_draft(operation, shape)
    return draft


def commands_draft(operation: Operation, shape: Shape) -> CommandDraft | None:
    """The draft of a command in this shape, made once for all streams."""
    if operation.drafts is None:
        operation.drafts = {}
    if shape not in operation.drafts:
        operation.drafts[shape] = commands.command_draft(operation, shape)
    draft: CommandDraft | None = operation.drafts[shape]
    return draft


def kept(operation: Operation, shape: Shape) -> Event | None:
    """The event of this shape as it is, if some stream was told it before."""
    return None if operation.told is None else operation.told.get(shape)


def _must_split(event: Event) -> bool:
    return split.must_split(event.document or b"", event.token_document)


def _as_events(draft: Draft, made: list[split.Fragment]) -> list[Event]:
    position = draft.operation.position
    return [Event(text, token, position, document) for text, token, document in made]


def too_large(document: bytes) -> CommandError:
    """Error 10334: an event that no reply can hold; counted."""
    split.COUNTS.failed += 1
    size = len(document)
    name, value = next(iter(decode(document).items()))
    return CommandError(
        10334,
        f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
        f"{limits.INTERNAL_DOCUMENT_BYTES_MAX}(16MB) First element: {name}: {shown(value)}",
    )
