"""One question, asked by every access path: each index by a hint, the collection, and the planner's own choice.

A reply with an error is a difference only where the language in memory has an answer: a sort may fail for two arrays
in one document, and a hint may name an index that cannot answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from headrace import limits
from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.values.order import hash_key
from tests.differential.documents import raw
from tests.differential.indexes import holds_all, in_sparse
from tests.differential.model import (
    Difference,
    changed,
    check_distinct,
    check_rows,
    collation_of,
    grouped,
    index_key,
    key_of,
    order_of,
    test_of,
)
from tests.differential.paths import Paths, checked
from tests.differential.places import check_near

Document = dict[str, Any]
NATURAL: Final = {"$natural": 1}
HINT_REFUSED: Final = frozenset({2, 291})
WRITE_REFUSED: Final = frozenset({171, 11000, 16766, 7246301})
"""Errors of an update that a unique index, one on two arrays, a hashed or a compound wildcard index refuses."""


class Asking:
    """A question to a collection that has these documents, in natural order."""

    def __init__(self, paths: Paths, documents: list[Document], asked: Document) -> None:
        self._paths = paths
        self._documents = documents
        self._asked = asked
        self._given: Document = {"collation": asked["collation"]} if "collation" in asked else {}

    def check(self) -> None:
        """Raise `Difference` where an answer is wrong."""
        asked = self._asked
        try:
            self._matches = test_of(asked["filter"], collation_of(asked))
            matched = [document for document in self._documents if self._matches(document)]
            order = order_of(asked)
            for document in matched if order is not None else ():
                order.key(document)
        except CommandError:
            return
        getattr(self, f"_{asked['kind']}")()

    # ------------------------------------------------------------ ways

    def _ways(self, *, natural: bool = True, orders: bool = True) -> Iterator[tuple[Any, list[Document]]]:
        """(hint, the matches that it can lead to) of every way; the first and the last are the planner's choice."""
        matched = [document for document in self._documents if self._matches(document)]
        yield None, matched
        if natural:
            yield NATURAL, matched
            if orders and "batch" in self._asked:
                yield {"$natural": -1}, matched[::-1]
        for index in self._paths.indexes():
            if self._paths.open is not None and (index.get("hidden") or not holds_all(index)):
                continue  # a hint that is refused would end the transaction
            if index.get("sparse") and any(index_key(item, index["key"]) is None for item in self._documents):
                continue  # an element without the field has no key, which may be the one that matches
            yield index["name"], [document for document in matched if in_sparse(index, document)]
        yield None, matched

    def _rows(self, body: Document, hint: Any) -> list[Document] | None:
        """Return the documents of a reply, None where the hint is refused."""
        asked = self._asked
        given = self._given if hint is None else {**self._given, "hint": hint}
        try:
            return self._paths.rows({**body, **given}, asked.get("batch"))
        except CommandError as error:
            if hint is not None and error.code in HINT_REFUSED:
                return None
            raise Difference(f"error {error.code}: {error}") from error

    def _one(self, body: Document, hint: Any) -> Document | None:
        given = self._given if hint is None else {**self._given, "hint": hint}
        try:
            return checked(self._paths.ask({**body, **given}))
        except CommandError as error:
            if hint is not None and error.code in HINT_REFUSED:
                return None
            raise Difference(f"error {error.code}: {error}") from error

    # ------------------------------------------------------------ reading

    def _find(self) -> None:
        asked = self._asked
        body = {"find": "c", "filter": asked["filter"]}
        body.update({name: asked[name] for name in ("sort", "projection", "skip", "limit") if name in asked})
        for hint, matched in self._ways():
            got = self._rows(body, hint)
            if got is not None:
                check_rows(got, matched, asked, in_order=type(hint) is dict)
            if type(hint) is dict and "sort" not in asked and self._paths.open is None:
                got = self._rows({**body, "sort": hint}, None)
                check_rows(got or [], matched, asked, in_order=True)

    def _near(self) -> None:
        matched = [document for document in self._documents if self._matches(document)]
        names = [index["name"] for index in self._paths.indexes() if "at" in index["key"] and not index.get("hidden")]
        check_near(self._paths, matched, self._asked, [None, *names])

    def _stages(self, spec: Document) -> list[Document]:
        asked = self._asked
        stages = [{"$match": spec}]
        names = {"sort": "$sort", "skip": "$skip", "limit": "$limit", "projection": "$project"}
        return stages + [{stage: asked[name]} for name, stage in names.items() if name in asked]

    def _aggregate(self) -> None:
        body = {"aggregate": "c", "pipeline": self._stages(self._asked["filter"])}
        for hint, matched in self._ways(orders=False):
            got = self._rows(body, hint)
            if got is not None:
                check_rows(got, matched, self._asked, in_order=False)

    def _view(self) -> None:
        """Ask a view of the collection."""
        if self._paths.open is not None:
            return
        asked, self._given = self._asked, {}
        try:
            inner = test_of(asked["of"])
            matches = test_of(asked["filter"])
        except CommandError:
            return
        plain = {name: value for name, value in asked.items() if name != "collation"}
        self._matches = lambda document: inner(document) and matches(document)
        self._paths.send({"drop": "v"})
        checked(self._paths.send({"create": "v", "viewOn": "c", "pipeline": [{"$match": asked["of"]}]}))
        body = {"find": "v", "filter": asked["filter"]}
        body.update({name: asked[name] for name in ("sort", "projection", "skip", "limit") if name in asked})
        for hint, matched in self._ways(orders=False):
            got = self._rows(body, hint)
            if got is not None:
                check_rows(got, matched, plain, in_order=False)
            counted = self._one({"count": "v", "query": asked["filter"]}, hint)
            if counted is not None and counted["n"] != len(matched):
                raise Difference(f"{counted['n']}, expected {len(matched)}")

    def _count(self) -> None:
        asked, spec = self._asked, self._asked["filter"]
        skip, limit = asked.get("skip", 0), asked.get("limit", 0)
        window = {name: asked[name] for name in ("skip", "limit") if name in asked}
        stages = self._stages(spec)
        for hint, matched in self._ways(orders=False):
            expected = max(0, len(matched) - skip)
            expected = min(expected, limit) if limit else expected
            if self._paths.open is None:  # MongoDB has no count in a transaction
                counted = self._one({"count": "c", "query": spec, **window}, hint)
                if counted is not None and counted["n"] != expected:
                    raise Difference(f"{counted['n']}, expected {expected}")
            for last in [{"$group": {"_id": None, "n": {"$sum": 1}}}] if "batch" in asked else [{"$count": "n"}]:
                rows = self._rows({"aggregate": "c", "pipeline": [*stages, last]}, hint)
                if rows is not None and (rows[0]["n"] if rows else 0) != expected:
                    raise Difference(f"{rows}, expected {expected}")

    def _distinct(self) -> None:
        asked = self._asked
        for hint, matched in self._ways(orders=False):
            reply = self._one({"distinct": "c", "key": asked["path"], "query": asked["filter"]}, hint)
            if reply is not None:
                check_distinct(reply["values"], matched, asked)

    def _group(self) -> None:
        group = {"$group": {"_id": f"${self._asked['path']}", "n": {"$sum": 1}}}
        self._compare_groups([{"$match": self._asked["filter"]}], [group], "n")

    def _first(self) -> None:
        """Group by a path and take a document of each value, which an index can give without reading the others."""
        path = self._asked["path"]
        sort = {"$sort": {path: 1, "_id": 1} if path != "_id" else {"_id": 1}}
        group = {"$group": {"_id": f"${path}", "first": {"$first": "$_id"}, "all": {"$first": "$$ROOT.times"}}}
        self._compare_groups([{"$match": self._asked["filter"]}, sort], [group], "first")

    def _compare_groups(self, stages: list[Document], last: list[Document], field: str) -> None:
        for hint, matched in self._ways(orders=False):
            got = self._rows({"aggregate": "c", "pipeline": [*stages, *last]}, hint)
            in_memory = [{"$documents": {"$literal": matched}}, *stages[1:], *last]
            body = {"aggregate": 1, "pipeline": in_memory, "cursor": {"batchSize": 1000}, **self._given}
            last_sent = self._paths.last
            with mock.patch.object(limits, "STAGE_BYTES_MAX", 1 << 24):
                reply = self._paths.send(body)
            self._paths.last = last_sent
            if "cursor" not in reply or got is None:
                continue
            expected = reply["cursor"]["firstBatch"]
            if grouped(got, self._asked, field) != grouped(expected, self._asked, field):
                raise Difference(f"{got}, expected {expected}")

    def _lookup(self) -> None:
        """Join the collection with itself, and with a copy that has no index."""
        if self._paths.open is not None:
            return
        asked = self._asked
        self._paths.send({"drop": "m"})
        if self._documents:
            checked(self._paths.send({"insert": "m", "documents": self._documents}))
        joined = []
        for source in ("m", "c"):
            pipeline = [{"$match": asked["filter"]}, self._join(source)]
            with mock.patch.object(limits, "STAGE_BYTES_MAX", 1 << 24):
                rows = self._rows({"aggregate": "c", "pipeline": pipeline}, None)
            joined.append({raw({"": row["_id"]}): sorted(map(raw, row["joined"])) for row in rows or ()})
        if joined[0] != joined[1]:
            raise Difference(f"{joined[1]}, expected {joined[0]}")

    def _output(self) -> None:
        """Write matches, or what the server says of the collection, into another collection."""
        if self._paths.open is not None or not self._documents:
            return
        ids = {hash_key(document["_id"], collation_of(self._asked)) for document in self._documents}
        is_mergeable = len(ids) == len(self._documents)  # $merge finds a match by the collation
        for stage in ({"$out": "o"}, {"$merge": "o"}) if is_mergeable else ({"$out": "o"},):
            for hint, matched in self._ways(orders=False):
                self._paths.send({"drop": "o"})
                if (
                    self._rows({"aggregate": "c", "pipeline": [*self._stages(self._asked["filter"]), stage]}, hint)
                    is None
                ):
                    continue
                written = matched if "$out" in stage else [_upserted(document) for document in matched]
                check_rows(self._paths.rows({"find": "o"}, None), written, {}, in_order=False)
            self._paths.send({"drop": "o"})
            self._rows({"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}, stage]}, None)
            counts = [document.get("count") for document in self._paths.rows({"find": "o"}, None)]
            if counts != [len(self._documents)]:
                raise Difference(f"{counts} was written, of {len(self._documents)} documents")

    def _join(self, source: str) -> Document:
        asked = self._asked
        local, foreign = asked["local"], asked["foreign"]
        made: Document = {"from": source, "as": "joined"}
        if asked["form"] == "graph":
            made.update(startWith=f"${local}", connectFromField=local, connectToField=foreign, depthField="depth")
            return {"$graphLookup": {**made, "restrictSearchWithMatch": {"_id": {"$ne": 1}}}}
        if asked["form"] != "let":
            made.update(localField=local, foreignField=foreign)
        if asked["form"] == "both":
            made["pipeline"] = [{"$match": {"b": {"$ne": 1}}}]
        if asked["form"] == "let":
            both = [{"$eq": [f"${foreign}", "$$wanted"]}, {"$ne": ["$_id", 3]}]
            made.update(let={"wanted": f"${local}"}, pipeline=[{"$match": {"$expr": {"$and": both}}}])
        return {"$lookup": made}

    def _range(self) -> None:
        """Ask for the keys of an index from one to another."""
        self._given = {}
        self._matches = test_of(self._asked["filter"])
        for index in self._paths.indexes():
            pattern = index["key"]
            special = any(kind == "hashed" or "$**" in path for path, kind in pattern.items())
            if special or "collation" in index or index.get("hidden"):
                continue
            ends = [dict(zip(pattern, values)) for values in self._asked["ends"]]
            keys = [key_of(end.values(), pattern) for end in ends]
            of_documents = [(index_key(document, pattern), document) for document in self._documents]
            if any(key is None for key, _ in of_documents) or not keys[0] < keys[1] or len(ends[1]) < len(pattern):
                continue
            covers = parse_filter(index.get("partialFilterExpression", {})).test
            expected = [
                document for key, document in of_documents
                if not key < keys[0] and key < keys[1]  # type: ignore[operator]
                and self._matches(document) and in_sparse(index, document) and covers(document)
            ]  # fmt: skip
            body = {"find": "c", "filter": self._asked["filter"], "min": ends[0], "max": ends[1]}
            try:
                got = self._paths.rows({**body, "hint": index["name"]}, self._asked.get("batch"))
            except CommandError as error:
                if error.code in (2, 51174):
                    continue
                raise Difference(f"error {error.code}: {error}") from error
            check_rows(got, expected, {}, in_order=False)

    # ------------------------------------------------------------ writing, in transactions that are aborted

    def _remove(self) -> None:
        statement = {"q": self._asked["filter"], "limit": 0, **self._given}
        self._tried("deletes", statement, lambda document: None)

    def _change(self) -> None:
        update, now_ms = self._asked["update"], self._paths.at.clock.now_ms()
        statement = {"q": self._asked["filter"], "u": update, "multi": True, **self._given}
        self._tried("updates", statement, lambda document: changed(document, update, now_ms=now_ms))

    def _tried(self, name: str, statement: Document, change: Any) -> None:
        if self._paths.open is not None:
            return
        for hint, matched in self._ways():
            chosen = {raw(document) for document in matched}
            try:
                made = [change(item) if raw(item) in chosen else item for item in self._documents]
            except CommandError:
                return
            expected = [document for document in made if document is not None]
            given = statement if hint is None else {**statement, "hint": hint}
            self._paths.begin()
            try:
                reply = self._paths.ask({name.removesuffix("s"): "c", name: [given]})
                refused = HINT_REFUSED | WRITE_REFUSED if hint is not None else WRITE_REFUSED
                codes = {item["code"] for item in reply.get("writeErrors", [reply] if reply["ok"] != 1.0 else [])}
                if codes:
                    if matched and not codes <= refused:
                        raise Difference(f"{reply}")
                    continue
                last = self._paths.last
                got = self._paths.rows({"find": "c", "hint": NATURAL}, None)
                self._paths.last = last
                if reply["n"] != len(matched) or list(map(raw, got)) != list(map(raw, expected)):
                    raise Difference(f"n: {reply['n']}, {got}, expected {expected}")
            finally:
                last = self._paths.last
                self._paths.end("abortTransaction")
                self._paths.last = last

    def _take(self) -> None:
        """Take the first document of an order."""
        if self._paths.open is not None:
            return
        asked, order = self._asked, order_of(self._asked)
        body = {"findAndModify": "c", "query": asked["filter"], "remove": True}
        if order is not None:
            body["sort"] = asked["sort"]
        for hint, matched in self._ways():
            self._paths.begin()
            reply = self._one(body, hint)
            last = self._paths.last
            self._paths.end("abortTransaction")
            self._paths.last = last
            if reply is None:
                continue
            taken = reply["value"]
            if (taken is None) != (not matched):
                raise Difference(f"{taken} was taken of {matched}")
            if taken is not None and raw(taken) not in set(map(raw, matched)):
                raise Difference(f"{taken} was taken, which does not match")
            if taken is not None and order is not None:
                least = min(order.key(document) for document in matched)
                if order.key(taken) != least:
                    raise Difference(f"{taken} was taken, which is not first of {matched}")


def _upserted(document: Document) -> Document:
    """Return the document as `$merge` inserts it: it upserts with `$set`, which sorts the fields."""
    return {"_id": document["_id"], **dict(sorted(document.items()))}
