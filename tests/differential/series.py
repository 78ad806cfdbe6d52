"""Time series in the comparison: buckets are read by time, by meta, by indexes on both, and unpacked, and must answer
as the list of measurements does.

{"do": command}      an insert, a delete, an update of the meta field, or a change of the indexes
{"ask": question}    a filter, and how it is read: find, count, distinct, aggregate or group, by every hint
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.values.bson import decode
from headrace.values.order import hash_key
from tests.differential.documents import RARE, raw
from tests.differential.model import Difference, changed, check_distinct, check_rows, order_of, test_of
from tests.differential.paths import Paths, checked

Document = dict[str, Any]
_START: Final = 1_700_000_000_000
_HOUR: Final = 3_600_000
_OPTIONS: Final[list[Document]] = [
    {}, {"granularity": "minutes"}, {"granularity": "hours"}, {"bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 60},
]  # fmt: skip
_SOURCES: Final[list[Any]] = ["a", "b", 1, 2, None, {"x": 1}, {"x": 2, "y": "b"}, [1, 2], ...]
_INDEXES: Final[list[Document]] = [
    {"m": 1}, {"m": -1, "t": -1}, {"t": 1}, {"t": -1}, {"m.x": 1, "t": 1}, {"m": "hashed"}, {"m.y": 1, "m.x": -1},
    {"t": 1, "m": 1},
]  # fmt: skip
_COVERED: Final[list[Document]] = [
    {"m": "a"}, {"m.x": {"$gte": 1}}, {"$or": [{"m": {"$exists": True}}, {"m.y": "b"}]}, {"m": {"$gt": 1}},
]  # fmt: skip
_HINT_REFUSED: Final = frozenset({2, 291})


class Measurements:
    """A source of random measurements and of questions about them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._spans = [random.choice([60_000, _HOUR, 30 * _HOUR])] * 3 + [3000 * _HOUR]
        self._sources = random.sample(_SOURCES, random.choice([2, 3, 6]))
        self._starts = [_START, _START, _START, -5000] if random.random() < 0.2 else [_START]

    def time(self) -> DatetimeMS:
        """Return a time: often one that is met again."""
        span = self.random.choice(self._spans)
        steps = self.random.choice([5, 60, span])
        return DatetimeMS(self.random.choice(self._starts) + span * self.random.randrange(steps) // steps)

    def source(self) -> Any:
        """Return a value of the meta field; `...` for none."""
        return self.random.choice(self._sources)

    def document(self, number: int) -> Document:
        """Return a measurement."""
        random = self.random
        made: Document = {"_id": number, "t": self.time()}
        if (source := self.source()) is not ...:
            made["m"] = source
        if random.random() < 0.9:
            made["v"] = random.choice([random.randrange(6), random.randrange(6), 1.5, None, "a", random.choice(RARE)])
        if random.random() < 0.3:
            made["w"] = random.choice([{"x": random.randrange(3)}, [1, random.randrange(3)], "b", made["t"]])
        return made

    def condition(self) -> Document:
        """Return a condition on one field."""
        random, one = self.random, self.time()
        other = DatetimeMS(int(one) + random.choice([0, 1, 60_000, _HOUR, 100 * _HOUR]))
        source = None if (found := self.source()) is ... else found
        return random.choice([
            {"t": {"$gte": one, "$lt": other}}, {"t": {"$gt": one}}, {"t": {"$lte": one}}, {"t": one},
            {"t": {"$in": [one, other]}}, {"t": {"$ne": one}}, {"t": {"$gt": 5}}, {"t": {"$not": {"$gte": one}}},
            {"m": source}, {"m": source}, {"m": {"$ne": source}}, {"m": {"$in": [source, "a"]}}, {"m": {"$gte": "a"}},
            {"m": {"$exists": random.random() < 0.5}}, {"m.x": {"$gte": 2}}, {"m.x": 1}, {"m": {"$type": "object"}},
            {"v": {"$lt": 3}}, {"v": random.randrange(6)}, {"w.x": 1}, {"w": "b"},
            {"_id": {"$lt": random.randrange(40)}},
            {"$expr": {"$gt": ["$t", one]}}, {"$expr": {"$eq": ["$m", {"$literal": source}]}},
            {"$expr": {"$lt": ["$v", 3]}},
        ])  # fmt: skip

    def filter(self) -> Document:
        """Return a filter of one condition or several."""
        random, dice = self.random, self.random.random()
        if dice < 0.1:
            return {}
        if dice < 0.5:
            return self.condition()
        several = [self.condition() for _ in range(random.choice([2, 2, 3]))]
        return {random.choice(["$and", "$and", "$or", "$nor"]): several}

    def sort(self) -> Document:
        """Return a sort."""
        return dict(self.random.choice([
            {"t": 1}, {"t": -1}, {"m": 1, "t": 1}, {"m": -1, "t": -1}, {"m": 1, "t": -1}, {"m": 1}, {"v": 1},
            {"t": 1, "v": -1}, {"m.x": 1, "t": 1},
        ]))  # fmt: skip

    def question(self) -> Document:
        """Return a question."""
        random = self.random
        kind = random.choice(["find"] * 4 + ["aggregate"] * 4 + ["count", "count", "distinct", "group", "group"])
        asked: Document = {"kind": kind, "filter": self.filter()}
        if kind in ("find", "aggregate"):
            if random.random() < 0.5:
                asked["sort"] = self.sort()
            for name in ("skip", "limit"):
                if random.random() < 0.3:
                    asked[name] = random.choice([1, 2, 5, 20])
            if random.random() < 0.3:
                asked["batch"] = random.choice([1, 3])
        if kind in ("aggregate", "group"):
            asked["before"] = random.choice([
                [], [], [{"$addFields": {"v": {"$ifNull": ["$v", 0]}}}], [{"$match": self.condition()}],
                [{"$set": {"t2": "$t"}}, {"$match": self.condition()}], [{"$unset": "w"}],
                [{"$project": {"t": 1, "m": 1, "v": 1}}],
                [{"$unwind": {"path": "$w", "preserveNullAndEmptyArrays": True}}],
            ])  # fmt: skip
        if kind == "group":
            asked["by"] = random.choice(
                ["$m", "$m.x", None, {"$dateTrunc": {"date": "$t", "unit": "hour"}}, "$t", {"m": "$m", "v": "$v"}]
            )
        if kind == "distinct":
            asked["path"] = random.choice(["m", "m.x", "t", "v", "w"])
        return asked

    def change(self, number: int) -> Document:
        """Return a write or a change of indexes."""
        random, dice = self.random, self.random.random()
        if dice < 0.5:
            documents = [self.document(number + at) for at in range(random.choice([1, 1, 2, 5, 30]))]
            return {"insert": "c", "documents": documents, "ordered": random.random() < 0.5}
        if dice < 0.7:
            spec = self.filter() or self.condition()
            return {"delete": "c", "deletes": [{"q": spec, "limit": random.choice([0, 0, 1])}]}
        if dice < 0.8:
            source = self.source()
            change = {"$unset": {"m": ""}} if source is ... else {"$set": {"m": source}}
            spec = random.choice([{}, {"m": "a"}, {"m.x": {"$gte": 1}}, {"m": {"$exists": False}}])
            return {"update": "c", "updates": [{"q": spec, "u": change, "multi": True}]}
        at = random.randrange(len(_INDEXES))
        if dice < 0.95:
            spec: Document = {"key": _INDEXES[at], "name": f"i{at}"}
            if random.random() < 0.3:
                spec["partialFilterExpression"] = random.choice(_COVERED)
            return {"createIndexes": "c", "indexes": [spec]}
        return {"dropIndexes": "c", "index": random.choice(["*", f"i{at}"])}


def series_steps(random: Random) -> list[Document]:
    """Return the steps of a case about a time series."""
    source = Measurements(random)
    meta = {"metaField": "m"} if random.random() < 0.85 else {}
    options = {"timeField": "t", **meta, **random.choice(_OPTIONS)}
    fill = [source.document(at) for at in range(random.choice([5, 20, 60]))]
    steps: list[Document] = [{"do": {"create": "c", "timeseries": options}}]
    size = random.choice([1, 4, 60])
    steps += [{"do": {"insert": "c", "documents": fill[at : at + size]}} for at in range(0, len(fill), size)]
    for number in range(1, 20):
        is_change = random.random() < 0.3
        steps.append({"do": source.change(100 * number)} if is_change else {"ask": source.question()})
    return steps


class SeriesRun:
    """A case about a time series. `paths.last` is the command that was sent last."""

    def __init__(self, *, in_reader: bool = False) -> None:
        self.paths = Paths(in_reader=in_reader)
        self._documents: list[Document] = []
        self._has_meta = True
        self._done: list[Document] = []

    def commands(self) -> list[Document]:
        """Return the changes, then the command that showed the difference."""
        return [*self._done, self.paths.last]

    def step(self, step: Document) -> None:
        """Take a step. Before the collection is created there is nothing to compare."""
        if not self._done and "create" not in step.get("do", ()):
            return
        if "ask" in step:
            self._ask(step["ask"])
        elif "do" in step:
            self._change(step["do"])

    def close(self) -> None:
        """Compare the whole, and validate."""
        self._compare(self._present(), self._documents)
        for name in ("c", "system.buckets.c"):
            reply = self.paths.send({"validate": name})
            if reply["ok"] == 1.0 and not reply["valid"]:
                raise Difference(f"validate: {reply['errors']}")

    # ------------------------------------------------------------ writing

    def _present(self) -> list[Document]:
        last = self.paths.last
        found = self.paths.rows({"find": "c"}, None)
        self.paths.last = last
        return found

    def _compare(self, got: list[Document], expected: list[Document]) -> None:
        if sorted(map(_form, got)) != sorted(map(_form, expected)):
            raise Difference(f"the time series is {got}, expected {expected}")

    def _change(self, command: Document) -> None:
        name, before = next(iter(command)), self._documents
        reply = self.paths.send(command)
        self._done.append(self.paths.last)
        self.paths.forget_indexes()
        if name == "create":
            self._has_meta = "metaField" in command.get("timeseries", ())
        failed = reply["ok"] != 1.0 or bool(reply.get("writeErrors"))
        after = self._present()
        if name == "insert" and reply["ok"] == 1.0:
            self._compare(after, [*before, *_inserted(command, reply)])
        elif name == "delete" and not failed:
            self._deleted(command["deletes"][0], reply["n"], after)
        elif name == "update" and not failed:
            self._updated(command["updates"][0], after)
        else:
            self._compare(after, before)
        self._documents = after

    def _deleted(self, statement: Document, count: int, after: list[Document]) -> None:
        matches = test_of(statement["q"])
        matched = [document for document in self._documents if matches(document)]
        left = set(map(_form, after))
        gone = [document for document in self._documents if _form(document) not in left]
        wanted = min(1, len(matched)) if statement["limit"] else len(matched)
        if not count == len(gone) == wanted or not all(map(matches, gone)):
            raise Difference(f"{count} deleted, {gone}, expected {wanted} of {matched}")
        self._compare(after, [document for document in self._documents if _form(document) in left])

    def _updated(self, statement: Document, after: list[Document]) -> None:
        matches = test_of(statement["q"])
        self._compare(after, [
            changed(document, statement["u"], now_ms=0) if matches(document) else document
            for document in self._documents
        ])  # fmt: skip

    # ------------------------------------------------------------ reading

    def _ways(self) -> Iterator[Any]:
        """Yield the hints: none, natural order, and each index."""
        yield from (None, {"$natural": 1})
        yield from (index["name"] for index in self.paths.indexes())

    def _rows(self, body: Document, hint: Any, batch: int | None) -> list[Document] | None:
        given = body if hint is None else {**body, "hint": hint}
        try:
            return self.paths.rows(given, batch)
        except CommandError as error:
            if hint is not None and error.code in _HINT_REFUSED:
                return None
            raise Difference(f"error {error.code}: {error}") from error

    def _ask(self, asked: Document) -> None:
        try:
            matches = test_of(asked["filter"])
            matched = [document for document in self._documents if matches(document)]
            if (order := order_of(asked)) is not None:
                for document in matched:
                    order.key(document)
        except CommandError:
            return
        for hint in self._ways():
            getattr(self, f"_{asked['kind']}")(asked, matched, hint)

    def _find(self, asked: Document, matched: list[Document], hint: Any) -> None:
        body: Document = {"find": "c", "filter": asked["filter"]}
        body.update({name: asked[name] for name in ("sort", "skip", "limit") if name in asked})
        self._check(self._rows(body, hint, asked.get("batch")), matched, asked)

    def _check(self, got: list[Document] | None, matched: list[Document], asked: Document) -> None:
        if got is not None:
            check_rows(list(map(_ordered, got)), list(map(_ordered, matched)), asked, in_order=False)

    def _count(self, asked: Document, matched: list[Document], hint: Any) -> None:
        given = {} if hint is None else {"hint": hint}
        reply = self.paths.send({"count": "c", "query": asked["filter"], **given})
        if reply["ok"] == 1.0 and reply["n"] != len(matched):
            raise Difference(f"{reply['n']}, expected {len(matched)}")
        if reply["ok"] != 1.0 and (hint is None or reply["code"] not in _HINT_REFUSED):
            raise Difference(f"{reply}")

    def _distinct(self, asked: Document, matched: list[Document], hint: Any) -> None:
        if hint is None:
            body = {"distinct": "c", "key": asked["path"], "query": asked["filter"]}
            check_distinct(checked(self.paths.send(body))["values"], matched, asked)

    def _aggregate(self, asked: Document, matched: list[Document], hint: Any) -> None:
        names = {"sort": "$sort", "skip": "$skip", "limit": "$limit"}
        stages = [{stage: asked[name]} for name, stage in names.items() if name in asked]
        pipeline = [{"$match": asked["filter"]}, *asked["before"], *stages]
        got = self._rows({"aggregate": "c", "pipeline": pipeline}, hint, asked.get("batch"))
        self._check(got, _run(asked["before"], matched), asked)

    def _group(self, asked: Document, matched: list[Document], hint: Any) -> None:
        last = {"$group": {"_id": asked["by"], "n": {"$sum": 1}, "low": {"$min": "$t"}, "high": {"$max": "$t"}}}
        pipeline = [{"$match": asked["filter"]}, *asked["before"], last]
        got = self._rows({"aggregate": "c", "pipeline": pipeline}, hint, None)
        if got is None:
            return
        forms = [
            Counter((hash_key(row["_id"]), row["n"], str(row["low"]), str(row["high"])) for row in rows)
            for rows in (got, _run([*asked["before"], last], matched))
        ]
        if forms[0] != forms[1]:
            raise Difference(f"{got}, expected {forms[1]}")


def _inserted(command: Document, reply: Document) -> list[Document]:
    """Return the documents of an insert that the reply does not refuse."""
    documents: list[Document] = command["documents"]
    refused = {error["index"] for error in reply.get("writeErrors", ())}
    if refused and command.get("ordered", True):
        return documents[: min(refused)]
    return [document for at, document in enumerate(documents) if at not in refused]


def _run(pipeline: list[Document], documents: list[Document]) -> list[Document]:
    """Return what the stages make of documents in memory."""
    stages = parse_pipeline(decode(raw({"p": pipeline}))["p"], context=PipelineContext())
    return [decode(raw(document)) for document in run_pipeline(stages, iter(documents))]


def _ordered(document: Document) -> Document:
    """Return a measurement with its fields in one order: a bucket does not hold theirs."""
    return dict(sorted(document.items()))


def _form(document: Document) -> bytes:
    return raw(_ordered(document))
