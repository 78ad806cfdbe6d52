"""A snapshot between whose chunks events come, with crashes: each table ends as the collection (rule: `fold.py`)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from bson import Decimal128

from headrace.spark.rows.events import SNAPSHOT, SNAPSHOT_BEGIN, SNAPSHOT_END, Row
from headrace.spark.rows.extjson import dumps
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.tables.fold import MirrorRow, MirrorState, document_keys, fold, keys_to_read
from headrace.spark.tables.history_table import DocumentVersion, VersionChanges
from headrace.spark.tables.progress import Progress, Sieve, identity, may_be_present

KEYS = 6
SPELLINGS: tuple[Any, ...] = (int, float, lambda key: Decimal128(f"{key}.0"))


class Collection:
    """A collection and its events; a token is the number of an event."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.documents: dict[int, dict[str, Any]] = {}
        self.events: list[Row] = []
        self.drops = True
        self.quiet = False

    @property
    def token(self) -> str:
        return f"{len(self.events):05}"

    def write(self) -> None:
        key = self.choose.randrange(KEYS)
        there = self.documents.get(key)
        if self.drops and self.choose.random() < 0.02:
            self.documents.clear()
            self._add("drop", None)
        elif there is None:
            self.documents[key] = {"_id": self.choose.choice(SPELLINGS)(key), "a": [1, 2]}
            self._add("insert", self.documents[key]["_id"], fullDocument=self.documents[key])
        elif self.choose.random() < 0.25:
            self._add("delete", self.documents.pop(key)["_id"])
        elif self.choose.random() < 0.2:
            self.documents[key] = {"_id": self.choose.choice(SPELLINGS)(key), "a": [len(self.events)]}
            self._add("replace", there["_id"], fullDocument=self.documents[key])
        elif len(there["a"]) > 2:
            self.documents[key] = there | {"a": there["a"][:1]}
            cut = {"updatedFields": {}, "removedFields": [], "truncatedArrays": [{"field": "a", "newSize": 1}]}
            self._add("update", there["_id"], updateDescription=cut)
        else:
            self.documents[key] = there | {"a": [*there["a"], len(self.events)]}
            grown = {"updatedFields": {f"a.{len(there['a'])}": len(self.events)}, "removedFields": []}
            self._add("update", there["_id"], updateDescription=grown)

    def writes(self, most: int) -> None:
        for _ in range(0 if self.quiet else self.choose.randrange(most + 1)):
            self.write()

    def _add(self, kind: str, key: Any, **fields: Any) -> None:
        texts = {name: dumps(value) for name, value in fields.items()}
        document_key = None if key is None else dumps({"_id": key})
        row = Row(f"{len(self.events) + 1:05}", operationType=kind, documentKey=document_key, **texts)
        self.events.append(row)


@dataclass
class Mirror:
    """A mirror's table in memory."""

    policy: str = "follow"
    rows: dict[str, MirrorRow] = field(default_factory=dict)
    state: MirrorState = field(default_factory=MirrorState)

    def apply(self, rows: list[Row], query: str, batch: int) -> None:
        if self.state.has(query, batch):
            return
        wanted = {key_identity(key) for key in (document_keys(rows) if self.state.leftovers else keys_to_read(rows))}
        existing = {key: row for key, row in self.rows.items() if key_identity(key) in wanted}
        changes = fold(rows, self.state, existing, clearing=self.policy != "keep")
        if changes.clear:
            self.rows.clear()
        for key in changes.deletes:
            del self.rows[key]
        self.rows = {key: row for key, row in self.rows.items() if row.token >= changes.stale_before}
        self.rows |= changes.upserts
        self.state = replace(changes.state, query=query, batch=batch)

    def documents(self) -> dict[str, str]:
        return {key: row.document for key, row in self.rows.items()}


@dataclass
class History:
    """A history's table in memory."""

    policy: str = "follow"
    versions: dict[tuple[str, str], DocumentVersion] = field(default_factory=dict)
    state: Progress = field(default_factory=Progress)

    def current(self) -> dict[str, DocumentVersion]:
        opened = [version for version in self.versions.values() if version.until is None]
        assert len({version.key for version in opened}) == len(opened)
        return {version.key: version for version in opened}

    def apply(self, rows: list[Row], query: str, batch: int) -> None:
        if self.state.has(query, batch):
            return
        wanted = {key_identity(key) for key in document_keys(rows)}
        current = self.current()
        some = {key: version for key, version in current.items() if key in document_keys(rows)}
        if self.policy == "keep":
            some = {key: version for key, version in current.items() if key_identity(key) in wanted}
        changes = VersionChanges(self.state, some, lambda _: self.current(), self.policy)
        for row in sorted(rows, key=lambda row: row.token):
            changes.take(row)
        self.versions |= changes.changed
        self.state = replace(changes.progress, query=query, batch=batch)

    def documents(self) -> dict[str, str]:
        return {key: version.document for key, version in self.current().items()}


@dataclass
class Log:
    """A log of events in memory."""

    rows: list[Row] = field(default_factory=list)
    state: Progress = field(default_factory=Progress)

    def apply(self, rows: list[Row], query: str, batch: int) -> None:
        if self.state.has(query, batch):
            return
        rows = sorted(rows, key=lambda row: row.token)
        present = set(map(identity, self.rows)) if may_be_present(rows, self.state) else ()
        sieve = Sieve(self.state, present)
        self.rows += [row for row in rows if sieve.is_new(row)]
        self.state = replace(sieve.progress, query=query, batch=batch)


Table = Mirror | History | Log


class Job:
    """Batches of a range of events and some chunks, as the source plans them; tables apply them, or crash."""

    def __init__(self, collection: Collection, tables: list[Table]) -> None:
        self.collection, self.tables = collection, tables
        self.choose = collection.choose
        self.queries = 0
        self.begin()

    def begin(self) -> None:
        """A new checkpoint: a new snapshot."""
        self.queries += 1
        self.batch = 0
        self.token = self.collection.token
        self.waits = self.choose.randrange(3)
        self.begun: str | None = None
        self.chunks = self._chunks()

    @property
    def done(self) -> bool:
        return not self.chunks and self.begun is not None

    def run_batch(self) -> None:
        """Plans a batch, and applies it until every table has it. Chunks are read again after a crash."""
        start, choose = self.token, self.choose
        ahead = min(int(self.collection.token) - int(start), 12)
        end = f"{int(start) + choose.randrange(ahead + 1):05}"
        begins = self.waits == 0
        self.waits -= 1
        self.begun = start if begins else self.begun
        count = choose.randrange(3) if self.begun is not None else 0
        some, self.chunks = self.chunks[:count], self.chunks[count:]
        last = bool(some) and not self.chunks
        # The events of a collection whose turn has not come are left out.
        events = self.collection.events[int(start) : int(end)] if self.begun is not None else []
        for table in self.tables:
            for _ in range(3 if choose.random() < 0.3 else 1):
                self.collection.writes(3)
                rows = [*events, *([Row(start, operationType=SNAPSHOT_BEGIN)] if begins else []), *self._read(some)]
                rows += [Row(self.collection.token, operationType=SNAPSHOT_END)] if last else []
                # Some attempts end before the commit.
                if rows and choose.random() < 0.8:
                    table.apply(rows, f"q{self.queries}", self.batch)
            table.apply(rows, f"q{self.queries}", self.batch) if rows else None
        self.token = end
        self.batch += 1

    def _chunks(self) -> list[list[int]]:
        chunks: list[list[int]] = [[]]
        for key in range(KEYS):
            chunks[-1].append(key)
            if self.choose.random() < 0.5:
                chunks.append([])
        return chunks

    def _read(self, chunks: list[list[int]]) -> list[Row]:
        rows = []
        for chunk in chunks:
            self.collection.writes(2)
            for key in chunk:
                document = self.collection.documents.get(key)
                if document is not None:
                    names = {"documentKey": dumps({"_id": document["_id"]}), "fullDocument": dumps(document)}
                    rows.append(Row(self.collection.token, operationType=SNAPSHOT, **names))
        return rows


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("policy", ["follow", "keep"])
def test_chunks_events_and_crashes_in_any_order_give_the_collection(seed: int, policy: str) -> None:
    choose = random.Random(seed)
    collection = Collection(choose)
    mirror, history, log = Mirror(policy), History(policy), Log()
    collection.writes(20)
    job = Job(collection, [mirror, history, log])
    for _ in range(choose.randrange(3)):
        # The checkpoint is lost, and events with it, amid a snapshot or after it.
        for _ in range(choose.randrange(8)):
            job.run_batch()
            collection.writes(6)
        collection.writes(10)
        collection.writes(1)
        job.begin()
    while not job.done:
        job.run_batch()
        collection.writes(6)
    assert not mirror.state.in_snapshot and not history.state.in_snapshot
    collection.writes(20)
    collection.quiet = True
    while job.token < max(collection.token, mirror.state.snapshot_token):
        job.run_batch()
    expected = {dumps(document["_id"]): dumps(document) for document in collection.documents.values()}
    identities = set(map(key_identity, expected))
    for documents in (mirror.documents(), history.documents()):
        there = {key: text for key, text in documents.items() if policy == "follow" or key_identity(key) in identities}
        assert there == expected
    since = [row for row in log.rows if row.operationType == SNAPSHOT_BEGIN][-1].token
    events = [row for row in log.rows if not (row.operationType or "").startswith(SNAPSHOT) and row.token > since]
    assert sorted(events) == [row for row in collection.events if row.token > since]
