"""The comparison: a case is a list of steps, and each question is asked by every path and of the list in memory.

{"do": command}                          a write, or a change of the indexes; the collection is compared after it
{"outside": command}                     a write of another client, while a transaction is open
{"ask": question}                        a question (`queries.question`)
{"paged": question, "between": [...]}    a find that goes on after each of these writes
{"begin": 1}, {"commit": 1}, {"abort": 1}   a transaction, in which the steps between are run
"""

from __future__ import annotations

import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from headrace.errors import CommandError
from headrace.store.view import bounded_key
from headrace.values.bson import decode
from headrace.values.keystring.encoding import encode_value
from tests.differential.documents import raw
from tests.differential.model import Difference, changed, collation_of, order_of, test_of
from tests.differential.paths import Paths, checked, small_limits
from tests.differential.questions import Asking
from tests.differential.series import SeriesRun

Document = dict[str, Any]
CASE_SECONDS_MAX: Final = 6.0
"""Processor time of a case, which takes a fifth of a second."""
READS_ALL: Document = {"find": "c", "hint": {"$natural": 1}}


@dataclass
class Case:
    """Steps, and the limits that are lowered."""

    steps: list[Document] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)


@dataclass
class Finding:
    """A wrong answer, and the commands that led to it."""

    message: str
    commands: list[Document]


def run_case(case: Case, *, in_reader: bool = False) -> Finding | None:
    """Run all steps. Return the first difference, or the first exception, which ends them. `in_reader`: a reader
    process answers what it may."""
    with small_limits(case.limits):
        has_series = any("timeseries" in step.get("do", ()) for step in case.steps)
        run = SeriesRun(in_reader=in_reader) if has_series else _Run(in_reader=in_reader)
        try:
            with _time_limit():
                for step in case.steps:
                    run.step(step)
                run.close()
        except Difference as difference:
            return Finding(str(difference), run.commands())
        except Exception:
            return Finding(traceback.format_exc(limit=-6), run.commands())
        finally:
            run.paths.close()
    return None


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `Difference` in a case that takes `CASE_SECONDS_MAX`: a command does not end."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Difference("a command does not end")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _Run:
    def __init__(self, *, in_reader: bool = False) -> None:
        self.paths = Paths(in_reader=in_reader)
        self.documents: list[Document] = []
        """All documents in natural order, as clients outside of transactions see them."""
        self._is_clustered = False
        self.inside: list[Document] | None = None
        """As the open transaction sees them."""
        self._began: list[Document] = []
        self._has_written = False
        self._done: list[Document] = []

    def commands(self) -> list[Document]:
        """Return the changes, then the command that showed the difference."""
        return [*self._done, self.paths.last]

    def step(self, step: Document) -> None:
        if "ask" in step:
            seen = self.documents if self.inside is None else self.inside
            Asking(self.paths, seen, step["ask"]).check()
            self._note_filter(step["ask"])
        elif "paged" in step and self.inside is None:
            self._paged(step)
        elif "turned" in step and self.inside is None:
            self._turned(step)
        elif "do" in step:
            self._change(step["do"])
        elif "outside" in step and self.inside is not None and not self._has_written:
            fields, self.paths.open, inside = self.paths.open, None, self.inside
            self.inside = None
            self._change(step["outside"])
            self.paths.open, self.inside = fields, inside
        elif "refused" in step and self.inside is None:
            self._refused(step["refused"])
        elif "begin" in step and self.inside is None and self.documents:
            self.paths.begin()
            self._began = self.inside = self.documents
            self._has_written = False
        elif ("commit" in step or "abort" in step) and self.inside is not None:
            self._end("commitTransaction" if "commit" in step else "abortTransaction")

    def close(self) -> None:
        """End what is open, and validate: indexes, documents and counts must agree."""
        if self.inside is not None:
            self._end("abortTransaction")
        reply = self.paths.send({"validate": "c"})
        if reply["ok"] == 1.0 and not reply["valid"]:
            raise Difference(f"validate: {reply['errors']}")

    def _note_filter(self, asked: Document) -> None:
        """Ask about a filter during the next commits, if it is one."""
        try:
            test_of(asked["filter"])
        except CommandError:
            return
        self.paths.filters = [*self.paths.filters[-1:], asked["filter"]]

    def _end(self, command: str) -> None:
        self.paths.expect(self.documents)
        reply, inside, self.inside = self.paths.end(command), self.inside, None
        self.paths.expect(None)
        if command == "commitTransaction" and inside is not None:
            checked(reply)
            self.documents = _merged(self._began, inside, self.documents)
            if self._is_clustered:
                self.documents.sort(key=_place)
        self._compare(self._present(), self.documents)

    def _present(self) -> list[Document]:
        """Return the collection as it is."""
        try:
            return self.paths.rows(READS_ALL, None)
        except CommandError as error:
            raise Difference(f"the collection cannot be read: {error}") from error

    def _compare(self, got: list[Document], expected: list[Document]) -> None:
        if self._is_clustered:
            expected = sorted(expected, key=_place)
        if [raw(document) for document in got] != [raw(document) for document in expected]:
            raise Difference(f"the collection is {got}, expected {expected}")

    def _change(self, command: Document) -> None:
        """Run a write or a change of indexes, and compare the collection with the change made in memory."""
        before = self.documents if self.inside is None else self.inside
        name = next(iter(command))
        if self.inside is not None:
            if name in ("createIndexes", "dropIndexes", "collMod"):
                return
            self._has_written = True
        self.paths.expect(self.documents)
        reply = self.paths.ask(command)
        self.paths.expect(None)
        if name == "dropIndexes":
            self.paths.collect()
        last = self.paths.last
        self._done.append(last)
        if (self.inside is not None and reply["ok"] != 1.0) or reply.get("code") == 0:
            self.inside = self.paths.open = None  # an error ends the transaction
            self._compare(self._present(), self.documents)
            return
        if self.inside is not None and reply.get("writeErrors"):
            self._end("abortTransaction")
            return
        after = self._present()
        self.paths.last = last
        now_ms = self.paths.at.clock.now_ms()
        if name == "create":
            self._is_clustered = reply["ok"] == 1.0 and "clusteredIndex" in command
        elif name == "insert":
            self._inserted(command, reply, before, after)
        elif name in ("createIndexes", "dropIndexes", "collMod"):
            self._compare(after, before)
        else:
            failed = reply["ok"] != 1.0 or bool(reply.get("writeErrors"))
            _check_change(command, reply, before, after, now_ms, failed=failed)
        if self.inside is None:
            self.documents = after
        else:
            self.inside = after

    def _inserted(self, command: Document, reply: Document, before: list[Document], after: list[Document]) -> None:
        if reply["ok"] != 1.0:
            return self._compare(after, before)
        failed = {error["index"] for error in reply.get("writeErrors", ())}
        new = [document for at, document in enumerate(command["documents"]) if at not in failed]
        if reply.get("n") != len(new):
            raise Difference(f"{reply} for {len(new)} documents")
        self._compare(after, [*before, *new])

    def _refused(self, command: Document) -> None:
        before = self._collections(), self.paths.at.store.last_position
        reply = self.paths.send(command)
        last = self.paths.last
        after = self._collections(), self.paths.at.store.last_position
        self.paths.last = last
        if (reply["ok"] != 1.0 or reply.get("n") == 0) and after != before:
            raise Difference(f"a refused command left {after}, before it there was {before}")

    def _collections(self) -> list[str]:
        reply = self.paths.send({"listCollections": 1, "nameOnly": True, "cursor": {"batchSize": 100}})
        return sorted(item["name"] for item in reply["cursor"]["firstBatch"])

    def _turned(self, step: Document) -> None:
        """Write while others write: each match that they leave alone is changed once."""
        command, before, between = step["turned"], self.documents, _Between(self, step["between"])

        def go_on(count: int) -> None:
            self.documents = self._present()  # with what the command has done so far
            between.next()

        reply, _ = self.paths.at.in_turns("t", command, go_on)
        self.paths.forget_indexes()
        self._done.append(command)
        after = self._present()
        self.paths.last = command
        if "createIndexes" in command:
            self._compare(after, self.documents)
            return
        constant = [document for document in before if between.is_constant(document)]
        identities = {_identity(document) for document in constant}
        there = [document for document in after if _identity(document) in identities]
        failed = reply["ok"] != 1.0 or bool(reply.get("writeErrors"))
        _check_change(command, None, constant, there, self.paths.at.clock.now_ms(), failed=failed)
        self.documents = after

    def _paged(self, step: Document) -> None:
        """Read while others write: what does not change is there exactly once, or never."""
        asked, before = step["paged"], self.documents
        between = _Between(self, step["between"])
        body = {"find": "c", "filter": asked["filter"]}
        body.update({name: asked[name] for name in ("sort", "collation", "hint") if name in asked})
        try:
            matches = test_of(asked["filter"], collation_of(asked))
            if step.get("turns"):
                got = self.paths.in_turns({**body, "batchSize": 1000}, between.next)
            else:
                got = self.paths.rows(body, asked.get("batch", 2), between.next)
        except CommandError:
            return
        constant = [document for document in before if between.is_constant(document)]
        expected = Counter(raw(document) for document in constant if matches(document))
        found = Counter(raw(document) for document in got if between.is_constant(document))
        if found != expected:
            raise Difference(f"unchanged documents {_shown(found)}, expected {_shown(expected)}")
        if any(raw(document) not in between.versions.get(_identity(document), ()) for document in got):
            raise Difference("a version of a document that there has never been")
        order = order_of(asked)
        if order is not None:
            keys = [order.key(document) for document in got if between.is_constant(document)]
            if keys != sorted(keys):
                raise Difference("the documents are not in order")


class _Between:
    """Steps that are taken while a command has paused, and the documents that they change."""

    def __init__(self, run: _Run, steps: list[Document]) -> None:
        self.versions: dict[bytes, set[bytes]] = {}
        """The forms that each document has had, by its identity."""
        self._run = run
        self._steps = list(steps)
        self._changed: set[bytes] = set()
        self._note()

    def next(self) -> None:
        """Take the next step."""
        if not self._steps:
            return
        last = self._run.paths.last
        old = {_identity(document): raw(document) for document in self._run.documents}
        self._run.step(self._steps.pop(0))
        new = {_identity(document): raw(document) for document in self._run.documents}
        self._changed.update(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        self._note()
        self._run.paths.last = last

    def is_constant(self, document: Document) -> bool:
        """Whether no step has changed a document."""
        return _identity(document) not in self._changed

    def _note(self) -> None:
        for document in self._run.documents:
            self.versions.setdefault(_identity(document), set()).add(raw(document))


def _shown(rows: Counter[bytes]) -> list[Document]:
    return [decode(row) for row in rows.elements()]


def _identity(document: Document) -> bytes:
    return raw({"": document["_id"]})


def _place(document: Document) -> bytes:
    """The place of a document in a clustered collection: the key of its `_id`, whose end is a digest if it is long."""
    return bounded_key(b"", encode_value(document["_id"]))


def _merged(began: list[Document], inside: list[Document], outside: list[Document]) -> list[Document]:
    """Return what a commit makes of a collection that others have changed since the transaction began."""
    first = {_identity(document): raw(document) for document in began}
    last = {_identity(document): document for document in inside}
    made = []
    for document in outside:
        key = _identity(document)
        if key not in first or key in last:
            made.append(last[key] if key in last and raw(last[key]) != first.get(key) else document)
    there = {_identity(document) for document in outside}
    return made + [document for key, document in last.items() if key not in first and key not in there]


def _check_change(
    command: Document, reply: Document | None, before: list[Document], after: list[Document], now_ms: int, *,
    failed: bool,
) -> None:  # fmt: skip
    """Raise `Difference` unless an update, delete or findAndModify did as it says, to the documents that match.

    `reply`: None where other documents were changed, too.
    """
    statement = command["updates"][0] if "update" in command and "updates" in command else (
        command["deletes"][0] if "deletes" in command else command
    )  # fmt: skip
    removes = "deletes" in command or command.get("remove", False)
    many = statement.get("multi", False) or statement.get("limit") == 0
    update = statement.get("u", statement.get("update"))
    try:
        matches = test_of(statement.get("q", statement.get("query", {})), collation_of(statement))
    except CommandError:
        matches = lambda document: False  # noqa: E731
    matched = [_identity(document) for document in before if matches(document)]
    old = {_identity(document): document for document in before}
    new = {_identity(document): document for document in after}
    if [key for key in old if key in new] != list(new) or len(new) != len(after):
        raise Difference(f"documents that were not there: {after}")
    touched = [key for key in old if key not in new or raw(old[key]) != raw(new[key])]
    if not set(touched) <= set(matched):
        raise Difference(f"changed documents that do not match: {[old[key] for key in touched]}")
    for key in touched:
        if removes != (key not in new):
            raise Difference(f"{old[key]} was changed or removed, not the other")
        if not removes and raw(changed(old[key], update, now_ms=now_ms)) != raw(new[key]):
            raise Difference(f"{old[key]} became {new[key]}")
    if failed:
        return
    wanted = len(matched) if many else min(1, len(matched))
    reported = wanted if reply is None else reply["n"] if "n" in reply else reply["lastErrorObject"]["n"]
    if reported != wanted or len(touched) != wanted:
        raise Difference(f"{reply}: {len(touched)} changed, expected {wanted}")
    if reply is not None and "findAndModify" in command:
        _check_taken(command, reply, [old[key] for key in matched], [old[key] for key in touched])


def _check_taken(command: Document, reply: Document, matched: list[Document], touched: list[Document]) -> None:
    if not touched:
        if reply["value"] is not None:
            raise Difference(f"{reply['value']} where nothing matches")
        return
    if raw(reply["value"]) != raw(touched[0]):
        raise Difference(f"{reply['value']} was returned, {touched[0]} was taken")
    order = order_of(command)
    if order is not None and order.key(touched[0]) != min(order.key(document) for document in matched):
        raise Difference(f"{touched[0]} is not first in the order")
