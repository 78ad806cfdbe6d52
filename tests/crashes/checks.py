"""A data directory after a crash, opened and compared with everything that was acknowledged.

documents   what the model of each worker says, or that with the operation that was under way
oplog       replayed, it gives the documents
streams     what was delivered is the beginning of what is due, and a stream that resumes delivers the rest
counts, indexes   `count`, `validate`, and `headrace check` of the whole directory
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bson import Int64

from headrace.dispatch.wait import Wait
from headrace.store.check.directory import check
from headrace.testing.driven import DrivenServer
from headrace.values.position import from_timestamp
from headrace.values.token import decode_token
from tests.crashes.history import INTERNAL, DueEvent, History
from tests.crashes.model import CollectionModel, Document, Model, Operation, differences
from tests.crashes.workload import SHARED, Ask, CommandFailed, commands_of, must

STREAMS: Final[dict[str, tuple[str, str | int, Document]]] = {
    "all": ("admin", 1, {"allChangesForCluster": True}),
    "images": ("s", "shared", {"fullDocument": "required", "fullDocumentBeforeChange": "required"}),
    "one database": ("d0", 1, {}),
}
"""(database, collection, options) of the streams that are watched."""


HISTORY_LOST: Final = 286
TEMPORARY: Final = ".renameCollection"
"""The end of a name: a rename into another database was cut short, and a job drops its copy."""


class Finding(AssertionError):
    """The product has lost or invented something."""


class Streams:
    """The events delivered to each stream since the last check, and its last token."""

    def __init__(self) -> None:
        self.tokens: dict[str, Document] = {}
        self.delivered: dict[str, list[Document]] = {name: [] for name in STREAMS}


class Checker:
    """Knowledge of a directory, which must be true after each crash."""

    def __init__(self, path: Path, worker_count: int) -> None:
        self.path = path
        self.models = [Model() for _ in range(worker_count)]
        self.history = History()
        self.streams = Streams()
        self._first_token: Document = {}
        self.pruned_count = 0
        """How often the history of a token was pruned."""
        self.event_count = 0
        self.resent_count = 0

    def copy(self, path: Path | None = None) -> Checker:
        """A checker of a copy of the directory, which goes on alone."""
        made = Checker(path or self.path, 0)
        made.models = [model.copy() for model in self.models]
        made.history = self.history.copy()
        made._first_token = self._first_token
        made.streams.tokens = dict(self.streams.tokens)
        made.streams.delivered = dict(self.streams.delivered)
        return made

    def prepare(self) -> None:
        """Make the collection that all workers share, and open the streams."""
        with Opened(self.path) as at:
            must(at.ask, "s", {"create": "shared", "changeStreamPreAndPostImages": {"enabled": True}})
            must(at.ask, "s", {"createIndexes": "shared", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
            for name in STREAMS:
                self.streams.tokens[name] = open_stream(at.ask, name, None)["postBatchResumeToken"]
            self._first_token = self.streams.tokens["all"]
            self.history.read(entries_of(at, 0))
        for model in self.models:
            model.collections[SHARED] = CollectionModel()

    def check(
        self, under_way: dict[int, Operation], last: dict[int, Operation], random: Random, *, thorough: bool
    ) -> None:
        """Compare everything, and take over what the operations under way have done. Raises `Finding`.

        `last`: the operations that were acknowledged last. What may be sent again sometimes is.
        """
        with Opened(self.path) as at:
            contents = contents_of(at)
            for number, operation in under_way.items():
                self._compare(at, contents, number, operation)
            sends_again = random.random() < 0.4
            if sends_again:
                self._resend(at, under_way, last)
                contents = contents_of(at)
            for number in range(len(self.models)):
                unfinished = under_way.get(number)
                if unfinished is not None and unfinished["again"] and sends_again:
                    self.models[number].apply(unfinished)
                    unfinished = None
                self.models[number] = self._compare(at, contents, number, unfinished)
            due = self.history.read(entries_of(at, self.history.position + 1))
            self._check_replay(contents)
            self._check_streams(at, due, random)
            self._check_counts(at, contents, random)
            self._check_retention(at)
        if thorough and (problems := check(self.path).problems):
            raise Finding("headrace check: " + "; ".join(problems[:5]))

    def _compare(
        self, at: Opened, contents: dict[str, dict[Any, Document]], number: int, operation: Operation | None
    ) -> Model:
        """What is there of a worker."""
        actual = actual_model(at, contents, number)
        found = differences(actual, self.models[number], operation)
        if found:
            raise Finding(f"worker {number}, under way {operation}: " + "; ".join(found[:4]))
        return actual

    def _check_replay(self, contents: dict[str, dict[Any, Document]]) -> None:
        replayed = {name: documents for name, documents in self.history.documents.items() if is_checked(name)}
        if replayed != contents:
            if replayed.keys() != contents.keys():
                raise Finding(f"the oplog gives the collections {sorted(replayed)}, and there are {sorted(contents)}")
            raise Finding("; ".join(
                f"the oplog gives {namespace} {key} as {documents.get(key)}, and it is {contents[namespace].get(key)}"
                for namespace, documents in replayed.items()
                for key in documents.keys() | contents[namespace].keys()
                if documents.get(key) != contents[namespace].get(key)
            )[:2000])  # fmt: skip

    def _check_streams(self, at: Opened, due: list[DueEvent], random: Random) -> None:
        for name, (database, collection, _) in STREAMS.items():
            expected = [event for event in due if concerns(event, database, collection)]
            delivered = self.streams.delivered[name]
            rest = read_stream(at.ask, name, self.streams.tokens[name], random)
            events = [*delivered, *rest.events]
            self.event_count += len(events)
            for number, (event, wanted) in enumerate(zip(events, expected)):
                if not is_as_due(event, wanted, images=name == "images"):
                    when = "before the crash" if number < len(delivered) else "after it"
                    raise Finding(f"the stream {name!r} delivered {event} {when}; due was {wanted}")
            if len(events) != len(expected):
                raise Finding(
                    f"the stream {name!r} delivered {len(delivered)} events before the crash and {len(rest.events)} "
                    f"after it, of {len(expected)}"
                )
            self.streams.delivered[name] = []
            self.streams.tokens[name] = rest.token

    def _check_counts(self, at: Opened, contents: dict[str, dict[Any, Document]], random: Random) -> None:
        for namespace, documents in contents.items():
            database, _, name = namespace.partition(".")
            count = must(at.ask, database, {"count": name})["n"]
            if count != len(documents):
                raise Finding(f"count of {namespace} is {count}, and {len(documents)} documents are there")
        if random.random() < 0.7:
            return
        namespace = random.choice(list(contents))
        database, _, name = namespace.partition(".")
        reply = must(at.ask, database, {"validate": name})
        if not reply["valid"]:
            raise Finding(f"validate of {namespace}: {reply}")

    def _check_retention(self, at: Opened) -> None:
        """A token whose history is pruned is refused, and one that has it is not."""
        token = self._first_token
        with at.store.reading() as view:
            oldest = view.oldest_position() or 0
        is_pruned = at.store.pruned_through >= 0 and decode_token(token).cluster_time < oldest
        try:
            open_stream(at.ask, "all", token)
            code = 0
        except CommandFailed as error:
            code = error.code
        if code != (HISTORY_LOST if is_pruned else 0):
            raise Finding(f"resuming the first token gives error {code}; the oplog begins at {oldest}")
        if is_pruned:
            self._first_token = self.streams.tokens["all"]
            self.pruned_count += 1

    def _resend(self, at: Opened, under_way: dict[int, Operation], last: dict[int, Operation]) -> None:
        """Send retryable writes once more: each is then done, and once."""
        for number, operation in {**last, **under_way}.items():
            if not operation["again"]:
                continue
            self.resent_count += 1
            database, body = commands_of(operation, number)
            try:
                must(at.ask, database, body)
            except CommandFailed as error:
                raise Finding(f"sent again, {operation} failed: {error}") from None


class Opened(DrivenServer):
    """The directory, opened by this process, which sends commands and waits for none."""

    def ask(self, database: str, body: Document) -> Document:
        """The reply; a getMore that would wait has no events."""
        reply = self.run(database, body)
        return {"ok": 1.0, "waits": True} if isinstance(reply, Wait) else reply


def is_checked(namespace: str) -> bool:
    """Whether it is a collection of the workers."""
    database, _, name = namespace.partition(".")
    return database not in INTERNAL and not name.startswith("system.")


def contents_of(at: Opened) -> dict[str, dict[Any, Document]]:
    """The documents of all collections of the workers, by `_id`."""
    contents = {}
    for namespace in at.store.catalog.collections:
        if is_checked(namespace):
            database, _, name = namespace.partition(".")
            found = must(at.ask, database, {"find": name, "batchSize": 100_000})["cursor"]
            contents[namespace] = {document["_id"]: document for document in found["firstBatch"]}
            if len(found["firstBatch"]) != len(contents[namespace]) or found["id"]:
                raise Finding(f"a find of {namespace} has a document twice")
    return contents


def entries_of(at: Opened, first: int) -> list[tuple[int, bytes]]:
    """The entries of the oplog from a position on."""
    with at.store.reading() as view:
        return [(position, bytes(entry)) for position, entry in view.entries(first)]


def actual_model(at: Opened, contents: dict[str, dict[Any, Document]], number: int) -> Model:
    """What is there of one worker."""
    actual = Model()
    shared = contents.get(SHARED, {})
    actual.collections[SHARED] = CollectionModel({k: item for k, item in shared.items() if item["worker"] == number})
    for namespace, documents in contents.items():
        if namespace.startswith((f"d{number}.", f"e{number}.")) and not namespace.endswith(TEMPORARY):
            collection = at.store.catalog.collections[namespace]
            ready = {index.name for index in collection.indexes if not index.building}
            building = {index.name for index in collection.maintained if index.building}
            actual.collections[namespace] = CollectionModel(documents, ready - {"_id_"}, building)
    return actual


# Streams.


def concerns(event: DueEvent, database: str, collection: str | int) -> bool:
    """Whether an event belongs to a stream."""
    if database == "admin":
        return True
    return event.namespace.startswith(f"{database}.{'' if collection == 1 else collection}")


def open_stream(ask: Ask, name: str, token: Document | None) -> Document:
    """Open a stream behind a token: the cursor."""
    database, collection, options = STREAMS[name]
    if token is not None:
        options = {**options, "resumeAfter": token}
    body = {"aggregate": collection, "pipeline": [{"$changeStream": options}], "cursor": {}}
    cursor: Document = must(ask, database, body)["cursor"]
    return cursor


def read_stream(ask: Ask, name: str, token: Document, random: Random) -> Delivered:
    """Resume a stream and read it to its end."""
    cursor = open_stream(ask, name, token)
    database, _, collection = cursor["ns"].partition(".")
    events, batch = list(cursor["firstBatch"]), cursor
    while True:
        body: Document = {"getMore": Int64(cursor["id"]), "collection": collection}
        if random.random() < 0.3:
            body["batchSize"] = random.choice((1, 3))
        reply = must(ask, database, body)
        if reply.get("waits"):
            break
        batch = reply["cursor"]
        events += batch["nextBatch"]
    must(ask, database, {"killCursors": collection, "cursors": [Int64(cursor["id"])]})
    return Delivered(events, batch["postBatchResumeToken"])


@dataclass(frozen=True, slots=True)
class Delivered:
    """The events that a stream has delivered, and the token to continue from."""

    events: list[Document]
    token: Document


def is_as_due(event: Document, due: DueEvent, *, images: bool) -> bool:
    """Whether it is this event."""
    key = event.get("documentKey", {}).get("_id")
    namespace = f"{event['ns']['db']}.{event['ns']['coll']}"
    if (from_timestamp(event["clusterTime"]), event["operationType"], namespace, key) != due.seen:
        return False
    return not images or (event.get("fullDocumentBeforeChange"), event.get("fullDocument")) == (due.before, due.after)
