"""Random events, documents, filters and pipelines, for comparing the ways in which a pipeline can be run.

Values are few and alike, so that filters meet them: numbers of all types that are equal, strings that are numbers,
null beside nothing, arrays of what stands elsewhere as itself.
"""

from __future__ import annotations

from typing import Any

from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import strategies as st

Document = dict[str, Any]

SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, False, 0, 1, 2, 35, Int64(1), Int64(2**53 + 1), 1.0, -0.0, 2.5, 1e300, float("nan"),
        2.0**53, Int64(2**53), Decimal128("9007199254740993"), Decimal128("NaN"), Decimal128("-0"), Regex("a", "i"),
        Decimal128("1"), Decimal128("2.50"), "", "a", "b", "1", 'q"é\\', ObjectId("64b000000000000000000001"),
        DatetimeMS(0), DatetimeMS(1_600_000_000_123), Timestamp(5, 1), Timestamp(5, 2), Timestamp(9, 0), b"\0\1",
        Binary(b"zz", 5),
    ]
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c", "0", "x.y", "é"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "0", "x.y", "$d"]), inner, max_size=3)
    ),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "n"]), VALUES, max_size=3)
KINDS = st.sampled_from(["insert", "update", "replace", "delete", "drop", "rename"])


@st.composite
def events(draw: st.DrawFn) -> Document:
    """An event as a server may report it, with the fields in the server's order."""
    kind = draw(KINDS)
    event: Document = {}
    if kind == "rename":
        event["to"] = {"db": "d", "coll": "a"}
    elif draw(st.booleans()):
        event |= {"txnNumber": Int64(draw(st.integers(0, 3))), "lsid": {"id": Binary(b"0" * 16, 4), "uid": b"u"}}
    event["_id"] = {"_data": f"8265{draw(st.integers(0, 255)):02X}"}
    event["operationType"] = kind
    event["clusterTime"] = Timestamp(draw(st.integers(4, 10)), draw(st.integers(0, 3)))
    if draw(st.booleans()):
        event["collectionUUID"] = Binary(b"1" * 16, 4)
    event["wallTime"] = DatetimeMS(draw(st.sampled_from([0, 1, 1_600_000_000_123])))
    key = draw(st.one_of(SCALARS, VALUES))
    if kind in ("insert", "replace", "update"):
        event["fullDocument"] = None if kind == "update" and draw(st.booleans()) else {"_id": key, **draw(DOCUMENTS)}
    event["ns"] = {"db": "d", "coll": draw(st.sampled_from(["a", "b"]))}
    if kind not in ("drop", "rename"):
        event["documentKey"] = {"shard": draw(SCALARS), "_id": key} if draw(st.integers(0, 4)) == 0 else {"_id": key}
    if kind == "update":
        fields = draw(st.dictionaries(st.sampled_from(["a", "b.c", "n"]), VALUES, max_size=2))
        event["updateDescription"] = {"updatedFields": fields, "removedFields": ["x"], "truncatedArrays": []}
    if kind == "delete" and draw(st.booleans()):
        event["fullDocumentBeforeChange"] = draw(st.one_of(st.none(), DOCUMENTS))
    return event


HEADER = st.sampled_from(
    ["operationType", "ns.db", "ns.coll", "ns", "clusterTime", "wallTime", "txnNumber", "_id._data", "documentKey",
     "documentKey._id", "documentKey.shard", "to.db", "collectionUUID", "lsid.uid", "fullDocument",
     "fullDocumentBeforeChange.a"]
)  # fmt: skip
DEEP = st.sampled_from(
    ["fullDocument.a", "fullDocument.b", "fullDocument.n", "fullDocument.a.b", "fullDocument.a.0", "fullDocument.a.0.b",
     "fullDocument.a.x.y", "fullDocument.b.$d", "fullDocument.none", "updateDescription.updatedFields.a",
     "updateDescription.updatedFields.b.c", "updateDescription.removedFields", "updateDescription.removedFields.0",
     "fullDocument._id"]
)  # fmt: skip
WANTED: st.SearchStrategy[Any] = st.one_of(
    SCALARS,
    VALUES,
    st.sampled_from(
        [
            "insert",
            "update",
            "delete",
            "d",
            "8265",
            "826580",
            Timestamp(7, 1),
            Int64(2),
            2.0,
            {"_id": 1},
            {"_id": "a"},
            {"_id": 1.0},
            {"db": "d", "coll": "a"},
        ]
    ),
)


def _plain(value: Any) -> bool:
    return type(value) is not dict or not next(iter(value), "").startswith("$")


OPERATORS = st.one_of(
    st.tuples(st.just("$eq"), WANTED),
    # These take no regular expression: an error of the server's.
    st.tuples(st.sampled_from(["$ne", "$gt", "$gte", "$lt", "$lte"]), WANTED).filter(
        lambda pair: type(pair[1]) is not Regex
    ),
    st.tuples(
        st.sampled_from(["$in", "$nin"]), st.lists(st.one_of(WANTED.filter(_plain), st.just(Regex("^i"))), max_size=3)
    ),
    st.tuples(st.just("$all"), st.lists(SCALARS, max_size=2)),
    st.tuples(st.just("$exists"), st.booleans()),
    st.tuples(st.just("$type"), st.sampled_from(["string", "number", "null", "date", "timestamp", "long", "object"])),
    st.tuples(st.just("$regex"), st.sampled_from(["^i", "a", "x"])),
    st.tuples(st.just("$size"), st.integers(0, 2)),
    st.tuples(st.just("$mod"), st.just([2, 1])),
    st.tuples(st.just("$bitsAnySet"), st.just(1)),
    st.tuples(st.just("$elemMatch"), st.sampled_from([{"$gt": 0}, {"b": 1}, {"$exists": True}])),
).map(lambda pair: {pair[0]: pair[1]})


def conditions(paths: st.SearchStrategy[str]) -> st.SearchStrategy[Document]:
    """A filter on one path."""
    wanted = st.one_of(
        WANTED.filter(_plain), OPERATORS, OPERATORS.map(lambda operators: {"$not": operators}), st.just(Regex("a"))
    )
    return st.tuples(paths, wanted).map(lambda pair: {pair[0]: pair[1]})


def filters(paths: st.SearchStrategy[str]) -> st.SearchStrategy[Document]:
    """A filter."""
    expression = st.sampled_from(
        [
            {"$expr": {"$gt": ["$fullDocument.a", 1]}},
            {"$expr": {"$eq": ["$ns.coll", "a"]}},
            {"$expr": {"$lt": ["$fullDocument.n", {"$ifNull": ["$fullDocument.a", 0]}]}},
            {"$expr": {"$in": [{"$type": "$fullDocument.a"}, ["missing", "null", "array"]]}},
            {"$alwaysTrue": 1},
        ]
    )
    return st.recursive(
        st.one_of(conditions(paths), conditions(paths), conditions(paths), expression),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["$and", "$or", "$nor"]), st.lists(inner, min_size=1, max_size=3)).map(
                lambda pair: {pair[0]: pair[1]}
            ),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        ),
        max_leaves=4,
    )


EVENT_FILTERS = filters(st.one_of(HEADER, HEADER, DEEP))

_PITFALLS: list[Any] = [
    [], [None], [[1]], [1, "a"], [{"b": 1}, {"b": [2]}], {"b": None}, {}, {"x.y": 1}, {"x": {"y": 1}}, {"$d": 1}, None,
    float("nan"), Decimal128("NaN"), Decimal128("1.0"), -0.0, 0, Decimal128("-0"), Int64(2**53), Int64(2**53 + 1),
    2.0**53, Decimal128("9007199254740993"), DatetimeMS(5000), Timestamp(5, 0), Timestamp(5, 1), "1", 1, True, "A",
    Regex("a", "i"), Binary(b"zz", 5), b"zz", ObjectId("64b000000000000000000001"), Int64(1), 1.0, "fullDocument",
]  # fmt: skip
_TESTS: list[Any] = [
    *[value for value in _PITFALLS if type(value) is not dict or not any(name[:1] == "$" for name in value)],
    *({"$gte": value} for value in (None, 1, 2.0**53, float("nan"), "1", DatetimeMS(5000), Timestamp(5, 0), [1], True)),
    *({"$lt": value} for value in (0, Int64(2**53 + 1), Decimal128("1.0"), [], {}, "b")),
    {"$in": [None]}, {"$in": [None, 1]}, {"$nin": [None]}, {"$nin": [1, Regex("^a", "i")]}, {"$in": [Regex("a")]},
    {"$ne": None}, {"$ne": 1}, {"$not": {"$gt": 0}}, {"$not": {"$exists": True}}, {"$not": Regex("a")},
    {"$not": {"$elemMatch": {"b": 1}}}, {"$elemMatch": {"b": {"$gt": 1}}}, {"$elemMatch": {"$in": [None, "a"]}},
    {"$exists": False}, {"$type": ["double", "null"]}, {"$size": 0}, {"$all": [1, "a"]}, {"$mod": [2, 1]},
]  # fmt: skip
_PATHS = ("a", "a.b", "a.0", "a.x.y", "a.$d", "none")

PITFALL_EVENTS: list[Document] = [
    {"_id": {"_data": f"82{number:04X}"}, "operationType": "insert", "clusterTime": Timestamp(5, number),
     "wallTime": DatetimeMS(5000), "fullDocument": {"_id": number} | document, "ns": {"db": "d", "coll": "a"},
     "documentKey": {"_id": number}}
    for number, document in enumerate([{}, *({"a": value} for value in _PITFALLS)])
]  # fmt: skip
"""Events with the values at which engines differ, each in a document of its own."""

PITFALL_FILTERS: list[Document] = [
    *({f"fullDocument.{path}": test} for path in _PATHS for test in _TESTS),
    *({"$nor": [{"fullDocument.a": test}, {"ns.coll": "b"}]} for test in _TESTS[-20:]),
    *({"$or": [{"fullDocument.a": test}, {"$and": [{"fullDocument.a.b": 1}, {"operationType": {"$ne": "x"}}]}]}
      for test in _TESTS[-20:]),
    {"$expr": {"$eq": ["$fullDocument.a", None]}}, {"$expr": {"$gt": ["$fullDocument.a", 1]}},
    {"$nor": [{"$or": [{"fullDocument.a": {"$exists": False}}, {"fullDocument.a": None}]}]},
]  # fmt: skip
"""Every test of every such value, over paths that there are, are not, and lead through arrays."""

SHAPING = st.sampled_from(
    [
        {"$project": {"operationType": 1, "fullDocument.a": 1}},
        {"$project": {"documentKey": 0, "fullDocument.a.b": 0}},
        {"$project": {"k": {"$concat": ["$ns.coll", "."]}, "fullDocument": 1}},
        {"$set": {"fullDocument.z": {"$ifNull": ["$fullDocument.a", "none"]}}},
        {"$addFields": {"when": "$clusterTime", "kind": {"$toUpper": "$operationType"}}},
        {"$set": {"size": {"$size": {"$objectToArray": {"$ifNull": ["$fullDocument", {}]}}}}},
        {"$unset": ["updateDescription", "lsid"]},
        {"$redact": {"$cond": [{"$eq": ["$a", 1]}, "$$PRUNE", "$$DESCEND"]}},
        {"$match": {"fullDocument.a": {"$exists": True}}},
        {"$match": {"operationType": {"$ne": "delete"}}},
    ]
)
"""Stages that a change stream allows and that leave `_id`."""

FREE = st.sampled_from(
    [
        {"$unwind": "$fullDocument.a"},
        {"$unwind": {"path": "$fullDocument.b", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "at"}},
        {"$replaceRoot": {"newRoot": {"$ifNull": ["$fullDocument", {"none": "$documentKey"}]}}},
        {"$replaceWith": {"root": "$$ROOT"}},
        {"$fill": {"output": {"a": {"value": 7}}}},
    ]
)
"""Stages of one document that only Spark runs, or that change `_id`."""

STREAM_PIPELINES = st.tuples(
    st.lists(EVENT_FILTERS.map(lambda condition: {"$match": condition}), max_size=1), st.lists(SHAPING, max_size=3)
).map(lambda pair: [*pair[0], *pair[1]])
PIPELINES = st.tuples(STREAM_PIPELINES, st.lists(FREE, max_size=2)).map(lambda pair: [*pair[0], *pair[1]])
