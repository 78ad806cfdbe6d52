"""Draw what a client does next, as plain data, so that a step can be recorded, left out and printed."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from tests.simulation.language import COLLATION, FOLD, Document
from tests.simulation.measurements import SERIES
from tests.simulation.merges import MATCHED
from tests.simulation.reads import CAPPED
from tests.simulation.streams import FILTERS
from tests.simulation.world import EPOCH

NAMESPACES: Final = ("a.x", "a.x", "a.x", "a.y", "b.x")
CREATED: Final = ("a.q", "a.z")
"""The collections that transactions create."""
VIEWS: Final = ("a.v", "a.w")
KEY_COUNT: Final = 14
START: Final[datetime] = EPOCH + timedelta(seconds=1_700_000_000)
INDEXES: Final[dict[str, Document]] = {
    "a_1": {"key": {"a": 1}},
    "a_1_n_-1": {"key": {"a": 1, "n": -1}},
    "a_hashed": {"key": {"a": "hashed"}},
    "all": {"key": {"$**": 1}},
    "b_1": {"key": {"b": 1}},
    "b_1_a_1": {"key": {"b": 1, "a": 1}},
    "d": {"key": {"d.$**": 1}},
    "n_1": {"key": {"n": 1}, "sparse": True},
    "p_2d": {"key": {"p": "2d"}},
    "p_2dsphere": {"key": {"p": "2dsphere"}},
    "n_5": {"key": {"n": 1}, "partialFilterExpression": {"n": {"$gte": 5}}},
    "s_1_a_1": {"key": {"s": 1, "a": 1}},
    "s_folded": {"key": {"s": 1}, "collation": COLLATION},
    "s_text": {"key": {"s": "text"}},
    "t_1": {"key": {"t": 1}, "expireAfterSeconds": 60},
    "n_1_u_1": {"key": {"n": 1, "u": 1}},
    "u_s_folded": {"key": {"u": 1, "s": 1}, "unique": True, "sparse": True, "collation": COLLATION},
    "u_1": {"key": {"u": 1}, "unique": True, "sparse": True},
    "u_1_a_1": {"key": {"u": 1, "a": 1}, "unique": True},
}
SERIES_INDEXES: Final[dict[str, Document]] = {
    "a_1": {"key": {"a": 1}},
    "t_-1_a_1": {"key": {"t": -1, "a": 1}},
    "t_1_first": {"key": {"t": 1}},
}
SERIES_OPTIONS: Final[tuple[Document, ...]] = (
    {"granularity": "seconds"}, {"granularity": "minutes"}, {"bucketMaxSpanSeconds": 100, "bucketRoundingSeconds": 100},
)  # fmt: skip
CLUSTERED: Final[Document] = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}
IMAGES: Final[Document] = {"changeStreamPreAndPostImages": {"enabled": True}}
HINTED: Final = ("a_1", "a_1_n_-1", "b_1", "s_1_a_1")


class Draw:
    """Draws from one `Random`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._next_key = 1000

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of cases."""
        return self.random.random() < share

    def document(self, *, is_new: bool = False) -> Document:
        """A document to insert; `is_new`: with an `_id` that nothing has."""
        random = self.random
        if is_new:
            self._next_key += 1
        made: Document = {"_id": self._next_key if is_new else random.randrange(KEY_COUNT)}
        if self.chance(0.9):
            made["a"] = random.choice((0, 1, 2, 3, None))
        if self.chance(0.5):
            made["b"] = [random.randrange(4) for _ in range(random.randrange(4))]
        if self.chance(0.8):
            made["n"] = random.randrange(10)
        if self.chance(0.6):
            made["s"] = random.choice("xxyyXY")
        if self.chance(0.3):
            made["d"] = {"e": random.randrange(3)}
        if self.chance(0.3):
            made["p"] = self._place()
        if self.chance(0.3):
            made["u"] = random.randrange(12)
        if self.chance(0.2):
            made["t"] = self._time()
        return made

    def _time(self) -> datetime:
        return START + timedelta(seconds=self.random.randrange(0, 600))

    def measurement(self) -> Document:
        """A document of the time series, whose `_id` nothing else has."""
        return {**self.document(is_new=True), "t": self._time()}

    def filter(self) -> Document:
        """A filter, by zero to three fields."""
        random = self.random
        if self.chance(0.12):
            return {}
        if self.chance(0.25):
            return {"_id": self._key_condition()}
        if self.chance(0.08):
            return {"$or": [{"a": random.randrange(4)}, {"s": random.choice("xy")}]}
        names = random.sample(("a", "b", "n", "p", "s", "t", "d.e", "u"), random.choice((1, 1, 2, 2, 3)))
        return {name: self._condition(name) for name in names}

    def collated(self, condition: Document) -> Document:
        """A filter, sometimes with a collation."""
        return {FOLD: condition} if condition and self.chance(0.2) else condition

    def _key_condition(self) -> Any:
        random = self.random
        key = random.randrange(KEY_COUNT)
        if self.chance(0.6):
            return key
        return random.choice(({"$in": [key, (key + 3) % KEY_COUNT, 99]}, {"$gte": key}, {"$lt": key}, {"$ne": key}))

    def _place(self) -> list[int]:
        return [self.random.randrange(5), self.random.randrange(5)]

    def _condition(self, name: str) -> Any:
        random = self.random
        if name == "p":
            x, y = self._place()
            box = [[x - 0.5, y - 0.5], [x + 1.5, y + 1.5]]
            return {"$geoWithin": random.choice(({"$box": box}, {"$centerSphere": [[x, y], 0.03]}))}
        if name == "s":
            return random.choice(("x", "y", {"$gte": "y"}))
        if name == "t":
            first = self._time()
            between = {"$gt": first, "$lte": first + timedelta(seconds=90)}
            return random.choice(({"$gte": first}, {"$lt": first}, between, between))
        value = random.randrange(10 if name in ("n", "u") else 4)
        return random.choice((
            value, value, value, {"$gte": value}, {"$lt": value}, {"$gt": value, "$lte": value + 3},
            {"$in": [value, value + 2]}, {"$ne": value}, {"$exists": self.chance(0.7)}, None,
        ))  # fmt: skip

    def change(self) -> Document:
        """An update or a replacement."""
        random = self.random
        kind = random.randrange(8)
        if kind == 0:
            made = self.document()
            del made["_id"]
            return made
        if kind == 1:
            return {"$set": {"a": random.randrange(4), "d.e": random.randrange(3)}}
        if kind == 2:
            return {"$unset": {random.choice(("a", "s", "u", "d")): 1}}
        if kind == 3:
            return {"$push": {"b": random.randrange(4)}}
        if kind == 4:
            return {"$set": random.choice(({"u": random.randrange(12)}, {"p": self._place()}))}
        if kind == 5:
            return {"$set": {"b": [random.randrange(4) for _ in range(random.randrange(3))]}}
        return random.choice(({"$inc": {"n": 1}}, {"$set": {"a": random.randrange(4)}, "$inc": {"n": 3}}))

    # Commands.

    def read(self) -> Document:
        """A read by some access path."""
        random = self.random
        namespace = random.choice((*NAMESPACES, *VIEWS, CAPPED, SERIES, SERIES))
        base = {"ns": namespace, "calm": self.chance(0.4)}
        kind = random.choice(("find",) * 10 + ("count",) * 3 + ("distinct",) * 2 + ("aggregate",) * 3 + ("list",))
        if kind == "list":
            return {
                **base,
                "do": random.choice(("listCollections", "listIndexes")),
                "ns": random.choice((*NAMESPACES, SERIES)),
            }
        base["filter"] = self.filter()
        if namespace == SERIES and self.chance(0.5):
            base["filter"] = {"t": self._condition("t"), **({"a": self._condition("a")} if self.chance(0.5) else {})}
        if namespace in (*NAMESPACES, CAPPED) and kind in ("count", "find"):
            base["filter"] = self.collated(base["filter"])
        if kind == "count":
            return {**base, "do": "count"}
        if kind in ("aggregate", "distinct"):
            made = self._aggregate_or_distinct(base, is_distinct=kind == "distinct")
            return {**made, "batch": random.choice((None, 1, 2, 3))} if kind == "aggregate" else made
        if namespace in NAMESPACES and self.chance(0.1):
            base["filter"] = {} if base["filter"].keys() & {FOLD, "$or"} or self.chance(0.5) else base["filter"]
            base["filter"]["p"] = {"$near": self._near()}
            return {**base, "do": "find", "batch": random.choice((None, 1, 2, 5))}
        return self._find(base, is_view=namespace in (*VIEWS, SERIES))

    def _near(self) -> Any:
        """The argument of a `$near`, for an index `2d` or `2dsphere`."""
        point = {"type": "Point", "coordinates": self._place()}
        return self.random.choice((self._place(), {"$geometry": point, "$maxDistance": 235_000}))

    def _aggregate_or_distinct(self, base: Document, *, is_distinct: bool = False) -> Document:
        random = self.random
        if is_distinct:
            return {**base, "do": "distinct", "key": random.choice(("a", "b", "n", "s"))}
        stage = random.choice(("count", "group", "group", "lookup", "lookup", "union", "union group"))
        made = {**base, "do": "aggregate", "stage": stage, "key": random.choice(("a", "n", "s"))}
        if stage in ("count", "group") and base["ns"] in NAMESPACES:
            made["filter"] = self.collated(base["filter"])
            made["key"] = random.choice("an") if FOLD in made["filter"] else made["key"]
        if stage in ("lookup", "union", "union group"):
            made["from"] = base["ns"].partition(".")[0] + random.choice((".x", ".y", ".v", ".m"))
        return made

    def _find(self, base: Document, *, is_view: bool) -> Document:
        random = self.random
        made = {**base, "do": "find", "batch": random.choice((None, None, 2, 3, 5))}
        if self.chance(0.4):
            direction = random.choice((1, -1))
            made["sort"] = random.choice(({"_id": direction}, {"n": direction, "_id": 1}, {"a": 1, "n": -1, "_id": 1}))
            if self.chance(0.3):
                made["limit"] = random.randrange(1, 6)
        elif not is_view and self.chance(0.2):
            made["hint"] = {"$natural": random.choice((1, -1))}
        if self.chance(0.2):
            made["fields"] = random.choice(({"_id": 0, "a": 1}, {"_id": 0, "a": 1, "n": 1}, {"n": 1}, {"_id": 1}))
            if "sort" in made and made["fields"].get("_id") != 0:
                made["fields"] = {"_id": 1, "a": 1, "n": 1}
        if not is_view and "hint" not in made and self.chance(0.2):
            made["hint"] = random.choice(HINTED)
        return made

    def write(self) -> Document:
        """A write outside transactions."""
        random = self.random
        if self.chance(0.1):
            return self.capped_insert()
        if self.chance(0.25):
            return self.series_write()
        if self.chance(0.2):
            return self.merge()
        retries = self.chance(0.25)
        if self.chance(0.15):
            made = self.bulk(retries=retries)
            return {**made, "retry": True} if retries else made
        kind = random.choice(("insert",) * 5 + ("update",) * 5 + ("delete",) * 2 + ("findAndModify",) * 2)
        made = self._single(kind, retries=retries)
        return {**made, "retry": True} if retries else made

    def bulk(self, *, retries: bool) -> Document:
        """A bulkWrite, with one update and one delete of each collection at most."""
        random = self.random
        ops: list[Document] = []
        for _ in range(random.choice((1, 2, 3, 5, 8))):
            kind = random.choice(("insert",) * 3 + ("update",) * 2 + ("delete",))
            one = self._single(kind, retries=retries)
            if self.chance(0.03):
                one["ns"] = "a.v"
            if kind == "insert":
                ops += [{**one, "documents": [document]} for document in one["documents"]]
            elif not any((other["do"], other["ns"]) == (kind, one["ns"]) for other in ops):
                ops.append(one)
        errors_only = self.chance(0.4)
        for one in ops if errors_only else ():
            one.pop("upsert", None)
        return {
            "do": "bulkWrite", "ops": ops, "namespaces": sorted({one["ns"] for one in ops}), "calm": self.chance(0.4),
            "errors_only": errors_only, "ordered": retries or self.chance(0.5),
        }  # fmt: skip

    def _single(self, kind: str, *, retries: bool) -> Document:
        random = self.random
        base: Document = {"do": kind, "ns": random.choice(NAMESPACES), "calm": self.chance(0.7)}
        if kind == "insert":
            count = random.choice((1, 1, 1, 2, 4, 8))
            base["documents"] = [self.document(is_new=self.chance(0.2)) for _ in range(count)]
            base["ordered"] = retries or self.chance(0.5)
        elif kind == "findAndModify":
            base |= {"filter": self.collated(self.filter()), "sort": {"n": random.choice((1, -1)), "_id": 1}}
            if self.chance(0.75):
                base |= {"change": self.change(), "new": self.chance(0.5)}
        else:
            base |= {"filter": self.collated(self.filter()), "multi": not retries and self.chance(0.5)}
            if base["multi"]:
                base["calm"] = self.chance(0.4)
            if kind == "update":
                base["change"] = self.change()
                if base["multi"] and not next(iter(base["change"]), "").startswith("$"):
                    base["multi"] = False
        if base.get("change") and self.chance(0.25):
            base |= {"filter": {"_id": random.randrange(KEY_COUNT)}, "upsert": True}
        return base

    def merge(self) -> Document:
        """A `$merge`, often into the collection that it reads."""
        random = self.random
        goal = random.choice(("a.x", "a.x", "a.y", "a.z", "b.x", "a.v"))
        matched = random.choice(MATCHED)
        modes = ("insert",) if matched in ("fail", "keepExisting") else ("discard", "fail", "insert", "insert")
        return {
            "do": "merge", "ns": goal, "from": goal if self.chance(0.2) else random.choice((*NAMESPACES, "a.v")),
            "filter": self.filter(), "matched": matched, "not_matched": random.choice(modes),
            "calm": self.chance(0.3),
        }  # fmt: skip

    def capped_insert(self) -> Document:
        """An insert that makes the oldest documents of a capped collection go."""
        documents = [self.document(is_new=self.chance(0.8)) for _ in range(self.random.choice((1, 1, 2, 4)))]
        return {"do": "insert", "ns": CAPPED, "calm": self.chance(0.5), "documents": documents,
                "ordered": self.chance(0.5)}  # fmt: skip

    def series_write(self) -> Document:
        """An insert of measurements, a delete of some, or an update of their source."""
        random = self.random
        kind = random.choice(("insert",) * 6 + ("delete", "update"))
        base: Document = {"do": kind, "ns": SERIES, "calm": self.chance(0.5)}
        if kind == "insert":
            documents = [self.measurement() for _ in range(random.choice((1, 1, 2, 4, 20)))]
            made = {**base, "documents": documents, "ordered": self.chance(0.5)}
            return {**made, "retry": True} if self.chance(0.3) else made
        if kind == "delete":
            return {**base, "filter": {**self.filter(), "t": self._condition("t")}, "multi": self.chance(0.5)}
        source = {"a": random.choice((random.randrange(4), {"$gte": random.randrange(3)}, None))}
        return {**base, "filter": source, "change": {"$set": {"a": random.randrange(4)}}, "multi": True}

    def tail(self) -> Document:
        """A tailable cursor to open."""
        random = self.random
        return {
            "do": "tail", "ns": CAPPED, "filter": random.choice(({}, {}, {"n": {"$lt": 5}})), "calm": self.chance(0.4),
            "batch": random.choice((None, 1, 2, 3)), "awaits": self.chance(0.7),
        }  # fmt: skip

    def catalog(self) -> Document:
        """A change of the catalog."""
        random = self.random
        if self.chance(0.06):
            return self.capped_create() if self.chance(0.7) else {"do": "drop", "ns": CAPPED, "calm": self.chance(0.5)}
        if self.chance(0.08):
            return self.capped_copy()
        if self.chance(0.12):
            return self._series_change()
        if self.chance(0.2):
            return self._output()
        kind = random.choice(
            ("createIndexes",) * 8 + ("dropIndexes",) * 5 + ("collMod",) * 4 + ("create",) * 2
            + ("createView",) * 2 + ("drop",) + ("renameCollection",) + ("dropView",)
            + (("dropDatabase",) if self.chance(0.3) else ())
        )  # fmt: skip
        base: Document = {"do": kind, "ns": random.choice(NAMESPACES), "calm": self.chance(0.5)}
        if kind == "createIndexes":
            return {**self.builds(), **base}
        if kind == "dropIndexes":
            return {**base, "index": random.choice((*INDEXES, "*"))}
        if kind == "create":
            return {
                **base,
                "options": random.choice(({}, CLUSTERED, IMAGES)),
            }
        if kind == "createView":
            return {**base, "ns": random.choice(VIEWS), "on": random.choice("xy"), "pipeline": self._view_pipeline()}
        if kind == "dropView":
            return {**base, "do": "drop", "ns": random.choice(VIEWS)}
        if kind == "renameCollection":
            return {**base, "ns": random.choice(("a.x", "a.y")), "to": random.choice(("a.x", "a.y", "a.z")),
                    "drop_target": self.chance(0.5)}  # fmt: skip
        if kind == "collMod":
            return self._coll_mod(base)
        if kind == "drop" and self.chance(0.7):
            base["ns"] = random.choice(CREATED)
        return base

    def _output(self) -> Document:
        """An `$out`, or a rename into another database."""
        random = self.random
        base: Document = {"calm": self.chance(0.3)}
        if self.chance(0.5):
            goal, source = random.choice(("a.x", "a.y", "a.z")), random.choice(("a.x", "a.y", "a.v"))
            return {**base, "do": "out", "ns": goal, "from": source, "filter": self.filter()}
        source, goal = random.choice((("a.x", "b.x"), ("b.x", "a.y"), ("a.y", "b.x"), ("b.x", "a.x")))
        return {**base, "do": "renameCollection", "ns": source, "to": goal, "drop_target": self.chance(0.7)}

    def compact(self) -> Document:
        """A compaction of the data file, whose command names a collection."""
        return {"do": "compact", "ns": self.random.choice(NAMESPACES), "calm": self.chance(0.5)}

    def capped_create(self) -> Document:
        """A capped collection."""
        options = {"capped": True, "size": 4096, "max": self.random.choice((3, 5))}
        return {"do": "create", "ns": CAPPED, "options": options, "calm": self.chance(0.5)}

    def capped_copy(self) -> Document:
        """A collection that becomes capped, or a capped copy."""
        if self.chance(0.6):
            return {"do": "convertToCapped", "ns": CAPPED, "calm": self.chance(0.3)}
        source = self.random.choice(("a.x", "a.y"))
        return {"do": "cloneCollectionAsCapped", "ns": source, "to": CAPPED, "calm": self.chance(0.3)}

    def series_create(self) -> Document:
        """A time series."""
        options: Document = {"timeseries": {"timeField": "t", "metaField": "a", **self.random.choice(SERIES_OPTIONS)}}
        if self.chance(0.4):
            options["expireAfterSeconds"] = self.random.choice((60, 600))
        return {"do": "create", "ns": SERIES, "options": options, "calm": self.chance(0.5)}

    def _series_change(self) -> Document:
        random = self.random
        base: Document = {"ns": SERIES, "calm": self.chance(0.5)}
        kind = random.choice(("create",) * 3 + ("createIndexes",) * 3 + ("collMod",) * 2 + ("drop", "dropIndexes"))
        if kind == "create":
            return self.series_create()
        if kind == "createIndexes":
            name = random.choice(sorted(SERIES_INDEXES))
            return {**base, "do": kind, "indexes": [{**SERIES_INDEXES[name], "name": name}]}
        if kind == "dropIndexes":
            return {**base, "do": kind, "index": random.choice((*SERIES_INDEXES, "a_1_t_1"))}
        if kind == "collMod":
            changes = (
                {"timeseries": {"granularity": "minutes"}},
                {"expireAfterSeconds": 60},
                {"expireAfterSeconds": "off"},
            )
            return {**base, "do": kind, "options": random.choice(changes)}
        return {**base, "do": "drop"}

    def builds(self) -> Document:
        """Some indexes to build."""
        names = self.random.sample(sorted(INDEXES), self.random.choice((1, 1, 1, 2)))
        if self.chance(0.3):
            names = ["p_2d", "p_2dsphere"]  # each `$near` needs one
        specs = [{**INDEXES[name], "name": name} for name in names]
        return {"do": "createIndexes", "ns": self.random.choice(NAMESPACES), "indexes": specs}

    def inserts(self, count: int) -> Document:
        """Documents to begin with."""
        documents = [self.document() | {"_id": key} for key in range(count)]
        return {"do": "insert", "documents": documents, "ordered": False, "calm": True}

    def _view_pipeline(self) -> list[Document]:
        return [{"$match": {"a": {"$gte": self.random.randrange(3)}}}]

    def _coll_mod(self, base: Document) -> Document:
        random = self.random
        if self.chance(0.2):
            return {**base, "ns": random.choice(VIEWS),
                    "options": {"viewOn": random.choice("xy"), "pipeline": self._view_pipeline()}}  # fmt: skip
        return {**base, "options": random.choice((
            {"validator": {"n": {"$lt": 9}}}, {"validator": {}}, {"validator": {}},
            {"changeStreamPreAndPostImages": {"enabled": self.chance(0.8)}},
            {"index": {"name": random.choice(HINTED), "hidden": self.chance(0.5)}},
            {"index": {"name": "n_1_u_1", "prepareUnique": self.chance(0.8)}},
            {"index": {"name": "n_1_u_1", "unique": True}},
            {"index": {"name": "t_1", "expireAfterSeconds": random.choice((30, 60, 90))}},
        ))}  # fmt: skip

    def statement(self) -> Document:
        """A statement of a client's transaction."""
        random = self.random
        base: Document = {"ns": random.choice(NAMESPACES), "calm": self.chance(0.6)}
        if self.chance(0.1):
            base["ns"] = random.choice(CREATED)
        if self.chance(0.07):
            base["ns"] = random.choice((*CREATED, *CREATED, "a.x"))
            specs = [{**INDEXES[name], "name": name} for name in random.choice((("b_1_a_1",), ("u_1", "b_1_a_1")))]
            return {
                **base,
                **random.choice(({"do": "create", "options": {}}, {"do": "createIndexes", "indexes": specs})),
            }
        kind = random.choice(("find",) * 3 + ("read",) * 2 + ("insert",) * 2 + ("update",) * 3 + ("delete",))
        if kind == "read":
            made = self._aggregate_or_distinct({**base, "filter": self.filter()}, is_distinct=self.chance(0.3))
            return {**made, "batch": random.choice((None, 1, 2))}
        if kind == "find":
            made = self._find({**base, "filter": self.filter()}, is_view=False)
            return {**made, "hint": None} if isinstance(made.get("hint"), str) else made
        if kind == "insert":
            documents = [self.document(is_new=self.chance(0.6)) for _ in range(random.choice((1, 1, 3)))]
            if len({document["_id"] for document in documents}) < len(documents):
                documents = documents[:1]
            return {**base, "do": "insert", "documents": documents}
        base["filter"] = {"_id": random.randrange(KEY_COUNT)}
        base["multi"] = False
        if kind == "delete":
            return {**base, "do": "delete"}
        base["change"] = self.change()
        base["upsert"] = self.chance(0.3)
        if not base["upsert"] and self.chance(0.4) and next(iter(base["change"]), "").startswith("$"):
            base |= {"filter": self.filter(), "multi": True}
        return {**base, "do": "update"}

    def stream(self) -> Document:
        """A change stream to open."""
        random = self.random
        database, collection = random.choice(
            ((None, None), ("a", None), ("a", "x"), ("a", "x"), ("a", "y"), ("a", "c"), ("b", None), ("b", "x"))
        )
        more = random.choice(("expanded", "plain", "split"))  # a low limit of events is too low for long tokens
        looks_up = more != "split" and self.chance(0.4)  # fragments change with a document that is looked up
        return {
            "database": database, "collection": collection, "filter": random.choice(sorted(FILTERS)),
            "full": "updateLookup" if looks_up else random.choice((None, None, "whenAvailable")),
            "before": random.choice((None, None, "whenAvailable")), more: True,
        }  # fmt: skip

    def size(self) -> int | None:
        """The size of a stream's batch."""
        return self.random.choice((None, None, 1, 2, 5))

    def resume(self) -> Document:
        """How a stream is resumed."""
        random = self.random
        return {
            "do": "resume", "way": random.choice(("event", "mark", "time")), "pick": random.choice((0, 0, 1, 3, 8)),
            "shift": random.choice((0, 0, 1)), "start_after": self.chance(0.3), "size": self.size(),
        }  # fmt: skip
