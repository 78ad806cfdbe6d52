"""A client of a change stream: it opens, reads, stops and resumes, and each event it receives is checked.

It receives exactly the events of its scope since it began, in order, none twice, with the images that it asks for.
Where that cannot be, because the oplog was pruned, it gets error 286.
"""

from __future__ import annotations

import copy
from typing import Final

from bson import Timestamp

from tests.simulation.language import Document
from tests.simulation.model import INTERNAL, Event, Finding, collection_of
from tests.simulation.world import World

Place = tuple[int, int, tuple[Document, ...]]
"""Where a stream is: (index in the history, 0 for the change or 1 for the invalidate after it, its first fragments)."""
MARK: Final = "2B0429"
"""How a high-water mark goes on after its position: a token of no event, which comes before the events there."""
SHOWN: Final = frozenset({"delete", "drop", "dropDatabase", "insert", "rename", "replace", "update"})
EXPANDED: Final = {
    "collMod": "modify", "commitIndexBuild": "createIndexes", "createIndexes": "createIndexes",
    "dropIndexes": "dropIndexes",
}  # fmt: skip
"""The types of the events that only streams with `showExpandedEvents` have, by the entries' commands."""
VIEW_KINDS: Final = {"d": "drop", "i": "create", "u": "modify"}
"""Their types for views, by the entries' operations."""
FILTERS: Final[dict[str, list[Document]]] = {
    "all": [],
    "even": [{"$match": {"documentKey._id": {"$mod": [2, 0]}}}],
    "inserts": [{"$match": {"operationType": "insert"}}],
    "more": [{"$set": {"more": 1}}],
    "no deletes": [{"$match": {"operationType": {"$ne": "delete"}}}],
    "updates": [{"$match": {"operationType": {"$in": ["update", "invalidate"]}}}, {"$unset": "updateDescription"}],
}


def passes(name: str, event: Event, kind: str) -> bool:
    """Whether a stream's filter lets an event through."""
    if name == "even":
        return kind != "invalidate" and isinstance(event.key, int) and event.key % 2 == 0
    if name == "inserts":
        return kind == "insert"
    if name == "no deletes":
        return kind != "delete"
    return kind in ("update", "invalidate") if name == "updates" else True


class Stream:
    """One stream of a client: what it watches, where it is."""

    def __init__(self, world: World, spec: Document) -> None:
        self.world = world
        self.spec = spec
        """`database` and `collection` (None for wider scopes), `filter`, `full`, `before`, `split` and `expanded`."""
        self.events: list[tuple[Document, Place]] = []
        self.cursor = 0
        self.name = ""
        self.place: Place = (0, 0, ())
        self.token: Document = {}
        self.is_closed = False
        self.text = ""
        self.floor = 0
        self.opened_at = world.published_count
        self._invalidates: set[str] = set()  # the tokens after which only `startAfter` goes on

    @property
    def database(self) -> str:
        """The database that its commands are sent to."""
        return self.spec["database"] or "admin"

    def open_body(self, options: Document, size: int | None) -> Document:
        """The aggregate that opens it."""
        spec = self.spec
        options = dict(options)
        if spec["database"] is None:
            options["allChangesForCluster"] = True
        if spec.get("expanded"):
            options["showExpandedEvents"] = True
        if spec["full"]:
            options["fullDocument"] = spec["full"]
        if spec["before"]:
            options["fullDocumentBeforeChange"] = spec["before"]
        pipeline = [{"$changeStream": options}, *FILTERS[spec["filter"]]]
        if spec.get("split"):
            pipeline.append({"$changeStreamSplitLargeEvent": {}})
        return {"aggregate": spec["collection"] or 1, "pipeline": pipeline,
                "cursor": {} if size is None else {"batchSize": size}}  # fmt: skip

    def resume_options(self, op: Document) -> tuple[Document, Place]:
        """The options of the aggregate that resumes it, and where it then goes on. `op` has the `way` (`event`, `mark`,
        `time`), how many events before the last (`pick`), a `shift` of the time, and whether to prefer `startAfter`."""
        if op["way"] == "time" and not self.is_closed:
            position = position_of(self.token) + op["shift"]
            index = len(self.world.history)
            while index and self.world.history[index - 1].position >= position:
                index -= 1
            self.floor = position
            return {"startAtOperationTime": Timestamp(position >> 32, position & 0xFFFFFFFF)}, (index, 0, ())
        if op["way"] == "event" and self.events:
            token, place = self.events[-1 - op["pick"] % len(self.events)]
        else:
            token, place = self.token, self.place
        self.floor = position_of(token)
        after = token["_data"] in self._invalidates or op["start_after"]
        return {"startAfter" if after else "resumeAfter": token}, place

    def begin(self, reply: Document) -> None:
        """It watches from some time on between the start of the aggregate that opens it and the reply."""
        batch = reply["cursor"]["firstBatch"]
        history, index = self.world.history, self.opened_at
        token = batch[0]["_id"] if batch else reply["cursor"]["postBatchResumeToken"]
        wanted = position_of(token) - (1 if batch or token["_data"][18:].startswith(MARK) else 0)
        while index < self.world.published_count and history[index].position <= wanted:
            index += 1
        self.place = (index, 0, ())

    def take(self, reply: Document, field: str) -> None:
        """Check and note a batch."""
        cursor = reply["cursor"]
        self.cursor, self.name = int(cursor["id"]), cursor["ns"].partition(".")[2]
        for event in cursor[field]:
            self._take_one(event)
        self.token = cursor["postBatchResumeToken"]
        if self.token["_data"] < self.text:
            raise Finding("stream", f"the batch's token is before its last event's: {reply}")
        if self.cursor == 0:
            self._pass_by_the_end()

    def require_nothing(self) -> None:
        """Raise `Finding` where an event that is published should have been returned."""
        left = self.place[2] or self.next_due(self.world.published_count)
        if left:
            raise Finding("stream", f"no event, but {left} was expected by {self.spec}")

    def _take_one(self, event: Document) -> None:
        """Check an event; of one that is sent in fragments, when the last of them is there."""
        text, index, part = event["_id"]["_data"], *self.place[:2]
        if text <= self.text:
            raise Finding("stream", f"a token that does not come after {self.text}: {text}")
        self.text = text
        fragments = [*self.place[2], event] if "splitEvent" in event else []
        of = event["splitEvent"]["of"] if fragments else 0
        numbers = [(fragment["splitEvent"]["fragment"], fragment["splitEvent"]["of"]) for fragment in fragments]
        if numbers != [(number + 1, of) for number in range(len(fragments))] or (self.place[2] and not fragments):
            raise Finding("stream", f"received {event} after the fragments {self.place[2]}")
        if len(fragments) < of:
            self.next_due(self.world.published_count)  # moves on to its place
            self.place = (*self.place[:2], tuple(fragments))
        else:
            self.place = (index, part, ())
            self._check({name: value for fragment in [*fragments, event] for name, value in fragment.items()})
        self.events.append((event["_id"], self.place))

    def _check(self, event: Document) -> None:
        expected = self.next_due(self.world.published_count)
        if expected is None:
            raise Finding("stream", f"received {event}, but nothing was expected by {self.spec}")
        due, kind = expected
        time = event["clusterTime"]
        text = event["_id"]["_data"]
        if (event["operationType"], (time.time << 32) + time.inc) != (kind, due.position):
            raise Finding("stream", f"received {event}, expected {kind} of {due}")
        if kind == "invalidate":
            self._invalidates.add(text)
        elif kind != "dropDatabase":
            database, _, name = due.namespace.partition(".")
            if event["ns"] != {"db": database, "coll": name}:
                raise Finding("stream", f"received {event['ns']}, expected {due.namespace}")
        if due.kind in ("catalog", "create", "view"):
            self._check_description(event, due, kind)
        if kind in ("delete", "insert", "replace", "update"):
            self._check_documents(event, due, kind, self.place[0])
        self.place = self._after(self.place)

    @staticmethod
    def _check_description(event: Document, due: Event, kind: str) -> None:
        """Raise `Finding` where an event of the catalog does not tell of its entry."""
        o, shown = (due.entry or {})["o"], event.get("operationDescription", {})
        wanted = {name: value for name, value in o.items() if name not in (*EXPANDED, "_id", "create")}
        if kind == "createIndexes":
            names = [spec["name"] for spec in o.get("indexes", [o])]
            is_right = [spec["name"] for spec in shown["indexes"]] == names
        elif kind == "dropIndexes":
            is_right = [spec["name"] for spec in shown["indexes"]] == [o["index"]]
        else:
            is_right = shown == (wanted if kind != "drop" else {})
        kinds = ("collection",) if due.kind == "create" else ("timeseries", "view")
        if not is_right or (kind == "create") != (event.get("nsType") in kinds):
            raise Finding("stream", f"received {event}, expected {kind} of {due}")

    def _check_documents(self, event: Document, due: Event, kind: str, index: int) -> None:
        if event["documentKey"] != {"_id": due.key}:
            raise Finding("stream", f"received {event['documentKey']}, expected {due.key}")
        if kind in ("insert", "replace") and event["fullDocument"] != due.after:
            raise Finding("stream", f"received {event['fullDocument']}, expected {due.after}")
        if kind == "update":
            if "updateDescription" in event and described(due.before or {}, event["updateDescription"]) != due.after:
                raise Finding("stream", f"received {event}, expected {due.after} of {due.before}")
            self._check_full(event, due, index)
        if self.spec["before"] and kind != "insert":
            wanted = due.before if due.images else None
            if event.get("fullDocumentBeforeChange") != wanted:
                raise Finding("stream", f"received {event}, expected the document before: {wanted}")

    def _check_full(self, event: Document, due: Event, index: int) -> None:
        if self.spec["full"] == "whenAvailable":
            wanted = [due.after if due.images else None]
        elif self.spec["full"] == "updateLookup":
            wanted = []
            for state in self.world.states[self.world.state_numbers[index] :]:
                there = collection_of(state, due.namespace)  # by name, as on MongoDB
                wanted.append(None if there is None else there.documents.get(due.key))
        else:
            return
        if event.get("fullDocument") not in wanted:
            raise Finding("stream", f"received {event}, expected one of {wanted}")

    def _pass_by_the_end(self) -> None:
        """The stream has ended, perhaps by an invalidate that the filter hid: go on after it."""
        self.is_closed = True
        if self.events and self.events[-1][0] == self.token:
            return
        index, history = self.place[0], self.world.history
        while index < len(history) and not self._ended_at(index):
            if self.next_due(index + 1) is not None:
                raise Finding("stream", f"ended before {history[index]}")
            index += 1
        if index == len(history) or passes(self.spec["filter"], history[index], "invalidate"):
            raise Finding("stream", "ended with nothing that ends it")
        self._invalidates.add(self.token["_data"])
        self.place = (index + 1, 0, ())

    def _kind_of(self, due: Event) -> str | None:
        """The type of the event of a change, None if the stream has none."""
        if due.kind in SHOWN:
            return due.kind
        if not self.spec.get("expanded") or (due.kind == "view" and self.spec["collection"] is not None):
            return None
        entry = due.entry or {}
        if due.kind == "catalog":
            return EXPANDED.get(next(iter(entry["o"])))
        return VIEW_KINDS[entry["op"]] if due.kind == "view" else due.kind

    def _concerns(self, due: Event) -> bool:
        if self._kind_of(due) is None or due.position < self.floor or ".system." in due.namespace:
            return False
        database, collection = self.spec["database"], self.spec["collection"]
        if collection is not None:
            return f"{database}.{collection}" in (due.namespace, due.to)
        if due.namespace.partition(".")[0] in INTERNAL:
            return False
        return database is None or due.namespace.partition(".")[0] == database

    def _ended_at(self, index: int) -> bool:
        due = self.world.history[index]
        if not self._concerns(due):
            return False
        if self.spec["collection"] is not None:
            return due.kind in ("drop", "rename")
        return self.spec["database"] is not None and due.kind == "dropDatabase"

    def next_due(self, end: int) -> tuple[Event, str] | None:
        """The event that must come next, of the history before `end`; moves the place up to it."""
        index, part, fragments = self.place
        history, name = self.world.history, self.spec["filter"]
        while index < end:
            due = history[index]
            if self._concerns(due):
                kind = self._kind_of(due)
                if part == 0 and kind is not None and passes(name, due, kind):
                    self.place = (index, 0, fragments)
                    return due, kind
                if self._ended_at(index):
                    if passes(name, due, "invalidate"):
                        self.place = (index, 1, fragments)
                        return due, "invalidate"
                    return None
            index, part = index + 1, 0
        return None

    def _after(self, at: Place) -> Place:
        index, part, _ = at
        return (index, 1, ()) if part == 0 and self._ended_at(index) else (index + 1, 0, ())


def position_of(token: Document) -> int:
    """The position in a resume token."""
    return int(token["_data"][2:18], 16)


def described(document: Document, description: Document) -> Document:
    """The document after an `updateDescription`."""
    new = copy.deepcopy(document)
    for path in description.get("removedFields", ()):
        first, _, rest = path.partition(".")
        (new[first] if rest else new).pop(rest or first, None)
    for item in description.get("truncatedArrays", ()):
        del new[item["field"]][item["newSize"] :]
    for path, value in description.get("updatedFields", {}).items():
        first, _, rest = path.partition(".")
        if not rest:
            new[first] = value
        elif isinstance(new[first], list):
            new[first][int(rest) :] = [value, *new[first][int(rest) + 1 :]]
        else:
            new[first][rest] = value
    return new
