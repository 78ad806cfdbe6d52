"""A time series answers what the language says over a list of its measurements, whatever was inserted and deleted."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bson import ObjectId
from bson.datetime_ms import DatetimeMS

from headrace.query.match import parse_filter
from headrace.query.pipeline import PipelineContext, parse_pipeline, run_pipeline
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode

Document = dict[str, Any]
START = 1_700_000_000_000
SPANS = (10_000, 3_600_000, 40 * 3_600_000)
OPTIONS: tuple[Document, ...] = (
    {"granularity": "seconds"}, {"granularity": "minutes"}, {"granularity": "hours"},
    {"bucketMaxSpanSeconds": 5, "bucketRoundingSeconds": 5},
)  # fmt: skip
SOURCES: tuple[Any, ...] = ("a", 1, 1.0, None, {"x": 1}, {"x": 2, "y": "b"}, [1, 2], ...)


class Model:
    """A time series and the list of what it should have."""

    def __init__(self, at: DrivenServer, seed: int) -> None:
        self.at = at
        self.chance = random.Random(seed)
        self.span = self.chance.choice(SPANS)
        self.has_meta = self.chance.random() < 0.8
        meta = {"metaField": "m"} if self.has_meta else {}
        option = {"timeField": "t", **meta, **self.chance.choice(OPTIONS)}
        at.must("t", {"create": "c", "timeseries": option})
        self.documents: list[Document] = []

    def time(self) -> DatetimeMS:
        base = self.chance.choice((START, START, START, -5000, 2**33 * 1000))
        return DatetimeMS(base + self.chance.randint(0, self.span))

    def measurement(self) -> Document:
        chance = self.chance
        made: Document = {"_id": ObjectId(), "t": self.time(), "v": round(chance.uniform(0, 10), 1)}
        if (source := chance.choice(SOURCES)) is not ... and self.has_meta:
            made["m"] = source
        if chance.random() < 0.3:
            made["w"] = chance.choice(("x", 5, None, {"deep": [1]}, made["t"]))
        return made

    def insert(self) -> None:
        added = [self.measurement() for _ in range(self.chance.choice((1, 1, 5, 60)))]
        assert self.at.must("t", {"insert": "c", "documents": added})["n"] == len(added)
        self.documents += added

    def condition(self) -> Document:
        chance = self.chance
        one, other = sorted((self.time(), self.time()))
        source = chance.choice(SOURCES[:-1])
        return chance.choice([
            {}, {"t": {"$gte": one, "$lt": other}}, {"t": {"$gt": one}}, {"t": {"$lte": one}}, {"t": one},
            {"t": {"$in": [one, other]}}, {"m": source}, {"m": {"$ne": source}}, {"m.x": {"$gte": 2}},
            {"m": {"$exists": False}}, {"v": {"$lt": 3}}, {"w": "x"}, {"t": {"$ne": one}}, {"t": {"$gt": 5}},
            {"m": {"$in": ["a", {"x": 1}]}}, {"$or": [{"t": {"$lt": one}}, {"m": source}]},
            {"$or": [{"v": 1.0}, {"m": source}]}, {"$and": [{"t": {"$gte": one}}, {"m": "a"}, {"v": {"$gt": 5}}]},
            {"$nor": [{"m": source}]}, {"$expr": {"$gt": ["$t", one]}},
        ])  # fmt: skip

    def delete(self) -> None:
        spec, one = self.condition(), self.chance.random() < 0.5
        if not spec and not one:
            return
        gone = self.at.must("t", {"delete": "c", "deletes": [{"q": spec, "limit": int(one)}]})["n"]
        matching = [item for item in self.documents if parse_filter(spec)(item)]
        assert gone == (min(len(matching), 1) if one else len(matching)), spec
        left = {item["_id"] for item in self.read()}
        lost = [item for item in self.documents if item["_id"] not in left]
        assert len(lost) == gone and all(item in matching for item in lost)
        self.documents = [item for item in self.documents if item["_id"] in left]

    def update(self) -> None:
        if not self.has_meta:
            return
        spec = self.chance.choice([{"m": "a"}, {"m.x": 1}, {"m": {"$exists": False}}, {}])
        change = {"q": spec, "u": {"$set": {"m": self.chance.choice(("a", "b", {"x": 1}))}}, "multi": True}
        self.at.must("t", {"update": "c", "updates": [change]})
        for item in [item for item in self.documents if parse_filter(spec)(item)]:
            item["m"] = change["u"]["$set"]["m"]

    def read(self, **find: Any) -> list[Document]:
        found: list[Document] = self.at.must("t", {"find": "c", **find, "batchSize": 100_000})["cursor"]["firstBatch"]
        return found

    def compare(self) -> None:
        spec = self.condition()
        expected = [item for item in self.documents if parse_filter(spec)(item)]
        assert canonical(self.read(filter=spec)) == canonical(expected), spec
        assert self.at.must("t", {"count": "c", "query": spec})["n"] == len(expected)
        stages: list[Document] = [{"$match": spec}, {"$group": {"_id": "$m", "n": {"$sum": 1}, "last": {"$max": "$t"}}}]
        made = self.at.must("t", {"aggregate": "c", "pipeline": stages, "cursor": {"batchSize": 100_000}})
        modelled = run_pipeline(parse_pipeline(stages, context=PipelineContext()), iter(self.documents))
        assert {encode(item) for item in made["cursor"]["firstBatch"]} == {encode(item) for item in modelled} or any(
            item.get("m") in (1, 1.0)
            for item in self.documents  # which are one group, under either name
        )

    def check(self) -> None:
        assert canonical(self.read()) == canonical(self.documents)
        assert self.at.must("t", {"validate": "c"})["valid"]


def canonical(documents: list[Document]) -> list[bytes]:
    """The documents in an order, and their fields in one."""
    return sorted(encode({"_id": item["_id"], **dict(sorted(item.items()))}) for item in documents)


@pytest.mark.parametrize("seed", range(12))
def test_random_measurements_queries_deletes_and_updates(seed: int) -> None:
    with DrivenServer() as at:
        model = Model(at, seed)
        for _ in range(60):
            model.chance.choice((model.insert, model.insert, model.compare, model.delete, model.update))()
        model.check()
