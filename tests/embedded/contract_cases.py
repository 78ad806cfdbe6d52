"""The table of cases that run by wire and embedded: each a function of a database, whose result must be the same.

A case sees pymongo's `Database` or `EmbeddedDatabase`, and returns plain values: the table is what both have.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Callable
from typing import Any

from bson import SON, Binary, Code, CodecOptions, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import DeleteMany, DeleteOne, IndexModel, InsertOne, ReplaceOne, ReturnDocument, UpdateMany, UpdateOne
from pymongo.collation import Collation
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}
DATE = datetime.datetime(2026, 11, 22, 10, 0, 0, 123000)


def case(function: Case) -> Case:
    """Enter a case under its name."""
    CASES[function.__name__] = function
    return function


def fill(db: Any, count: int = 10) -> Any:
    """A collection `c` of documents {_id, n, even, tags}."""
    db.c.insert_many([{"_id": n, "n": n, "even": n % 2 == 0, "tags": [str(n), "t"]} for n in range(count)])
    return db.c


def failure(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call raises: its class, code and message, and what it says of each write."""
    try:
        call()
    except PyMongoError as error:
        details = getattr(error, "details", None) or {}
        writes = [(item["index"], item["code"], item["errmsg"]) for item in details.get("writeErrors", ())]
        counts = [details.get(name) for name in ("nInserted", "nMatched", "nModified", "nRemoved", "nUpserted")]
        labels = sorted(details.get("errorLabels", ()))
        return type(error).__name__, getattr(error, "code", None), details.get("errmsg"), writes, counts, labels
    except (BSONError, TypeError, ValueError) as error:
        return (type(error).__name__,)
    raise AssertionError("it did not fail")


@case
def values_come_back_as_they_were_sent(db: Any) -> Any:
    document = {
        "_id": ObjectId("64b5f0c0a1b2c3d4e5f60718"),
        "double": 1.5,
        "string": "é",
        "document": {"b": 1, "a": 2},
        "array": [1, [2]],
        "binary": b"\x00\xff",
        "typed": Binary(b"x", 5),
        "true": True,
        "date": DATE,
        "null": None,
        "regex": re.compile("a.b", re.I),
        "int": 7,
        "long": Int64(7),
        "large": 1 << 40,
        "decimal": Decimal128("1.10"),
        "min": MinKey(),
        "max": MaxKey(),
        "timestamp": Timestamp(5, 6),
        "code": Code("x"),
        "tuple": (1, 2),
        "son": SON([("z", 1), ("y", 2)]),
    }
    db.c.insert_one(document)
    return [(key, type(value).__name__, str(value)) for key, value in db.c.find_one().items()]


@case
def an_inserted_document_gets_an_id(db: Any) -> Any:
    document: dict[str, Any] = {"a": 1}
    result = db.c.insert_one(document)
    return result.inserted_id == document["_id"], type(result).__name__, result.acknowledged, db.c.count_documents({})


@case
def duplicates_are_refused(db: Any) -> Any:
    db.c.insert_one({"_id": 1})
    return (
        failure(lambda: db.c.insert_one({"_id": 1})),
        failure(lambda: db.c.insert_many([{"_id": 2}, {"_id": 1}, {"_id": 3}])),
        failure(lambda: db.c.insert_many([{"_id": 4}, {"_id": 1}, {"_id": 5}], ordered=False)),
        ids(db.c.find()),
    )


def ids(documents: Any) -> list[Any]:
    """The `_id` of each."""
    return [document["_id"] for document in documents]


@case
def unique_indexes_are_obeyed(db: Any) -> Any:
    name = db.c.create_index([("a", 1), ("b", -1)], unique=True)
    db.c.insert_one({"a": 1, "b": 1})
    return name, failure(lambda: db.c.insert_one({"a": 1, "b": 1}))[:3], db.c.index_information()


@case
def indexes_are_created_listed_and_dropped(db: Any) -> Any:
    names = db.c.create_indexes([IndexModel("a"), IndexModel([("b", -1)], name="down", sparse=True)])
    db.c.create_index("t", expireAfterSeconds=60)
    listed = [dict(index) for index in db.c.list_indexes()]
    db.c.drop_index("down")
    db.c.drop_index([("a", 1)])
    left = sorted(db.c.index_information())
    db.c.drop_indexes()
    return (
        names,
        listed,
        left,
        list(db.c.index_information()),
        list(db.missing.list_indexes()),
        failure(lambda: db.c.drop_index("nope"))[:2],
    )


@case
def queries_match(db: Any) -> Any:
    c = fill(db)
    return [
        ids(c.find({"n": {"$gt": 6}})),
        ids(c.find({"tags": "3"})),
        ids(c.find({"$or": [{"n": 1}, {"even": True}]})),
        ids(c.find({"tags": re.compile("^[12]$")})),
        c.find_one({"n": 99}),
        c.find_one(3),
        c.find_one({"_id": Int64(3)}),
        ids(c.find({"n": {"$in": (1, 2)}})),
        c.distinct("even"),
        c.distinct("n", {"even": False}),
        c.count_documents({"even": True}),
        c.count_documents({}, skip=2, limit=3),
        c.estimated_document_count(),
    ]


@case
def cursors_are_chained(db: Any) -> Any:
    c = fill(db, 25)
    cursor = c.find({"n": {"$gte": 0}}, {"n": 1}).sort("n", -1).skip(2).limit(7).batch_size(3)
    return [
        list(cursor),
        cursor.alive,
        list(cursor),
        ids(cursor.rewind()),
        ids(cursor.clone()),
        ids(c.find(sort=[("n", -1)], limit=2)),
        c.find().sort([("even", 1), ("n", -1)])[3],
        ids(c.find().sort("n")[2:5]),
        c.find(limit=5).to_list(3),
        ids(c.find(limit=-4)),
        ids(c.find(batch_size=2)),
        c.find({"n": 1}, ["tags"]).next(),
        [sorted(d) for d in c.find({"n": 1}, {"_id": 0})],
        [sorted(d) for d in c.find({"n": 1}, [])],
        ids(c.find().min([("_id", 3)]).max([("_id", 5)]).hint("_id_")),
        ids(c.find().hint("_id_").max_time_ms(10_000).comment("x").limit(3)),
    ]


@case
def cursors_cannot_be_changed_once_open(db: Any) -> Any:
    cursor = fill(db).find()
    next(cursor)
    with cursor as opened:
        open_failure = failure(lambda: opened.sort("n"))
    return open_failure[0], list(cursor), cursor.alive


@case
def collations_compare(db: Any) -> Any:
    db.c.insert_many([{"_id": 1, "s": "Ä"}, {"_id": 2, "s": "a"}, {"_id": 3, "s": "B"}])
    strength = Collation("en", strength=1)
    return (
        ids(db.c.find({"s": "A"}, collation=strength)),
        ids(db.c.find().sort("s").collation(strength)),
        ids(db.c.find().sort("s")),
    )


@case
def pipelines_run(db: Any) -> Any:
    c = fill(db)
    grouped = c.aggregate([{"$group": {"_id": "$even", "sum": {"$sum": "$n"}}}, {"$sort": {"_id": 1}}])
    with_let = c.aggregate([{"$match": {"$expr": {"$eq": ["$n", "$$x"]}}}], let={"x": 4}, allowDiskUse=True)
    out = list(c.aggregate([{"$match": {"n": {"$lt": 3}}}, {"$out": "copy"}]))
    batched = c.aggregate([{"$sort": {"n": 1}}], batchSize=2)
    documents = list(db.aggregate([{"$documents": [{"a": 1}]}]))
    return (
        list(grouped),
        ids(with_let),
        out,
        ids(db.copy.find()),
        ids(batched),
        documents,
        failure(lambda: c.aggregate([{"$nope": 1}]))[:3],
    )


@case
def updates_say_what_they_did(db: Any) -> Any:
    c = fill(db)
    results = [
        c.update_one({"n": 1}, {"$inc": {"n": 100}}),
        c.update_one({"n": 1}, {"$inc": {"n": 1}}),
        c.update_many({"even": True}, {"$set": {"x": 1}}),
        c.update_many({"even": True}, {"$set": {"x": 1}}),
        c.update_one({"_id": "new"}, {"$set": {"y": 1}}, upsert=True),
        c.replace_one({"_id": 2}, {"z": 1}),
        c.replace_one({"_id": "r"}, {"z": 1}, upsert=True),
        c.update_one({"_id": 3}, [{"$set": {"m": {"$add": ["$n", 1]}}}]),
        c.update_many({"tags": "t"}, {"$set": {"tags.$[t]": "T"}}, array_filters=[{"t": "t"}]),
    ]
    return [(type(r).__name__, r.matched_count, r.modified_count, r.upserted_id) for r in results], list(
        c.find().sort("n")
    )


@case
def deletes_say_what_they_did(db: Any) -> Any:
    c = fill(db)
    return (
        c.delete_one({"even": True}).deleted_count,
        c.delete_many({"n": {"$gt": 5}}).deleted_count,
        c.delete_one({"n": 99}).deleted_count,
        ids(c.find()),
    )


@case
def one_document_is_changed_and_returned(db: Any) -> Any:
    c = fill(db)
    after = ReturnDocument.AFTER
    return [
        c.find_one_and_update({"n": 1}, {"$set": {"x": 1}}),
        c.find_one_and_update({"n": 1}, {"$inc": {"x": 1}}, return_document=after),
        c.find_one_and_update({"n": 77}, {"$set": {"x": 1}}),
        c.find_one_and_replace({"n": 2}, {"r": 1}, return_document=after),
        c.find_one_and_delete({"even": False}, sort=[("n", -1)]),
        c.find_one_and_delete({"n": 3}, projection=["n"]),
        c.find_one_and_update({"_id": "u"}, {"$set": {"v": 1}}, upsert=True, return_document=after),
    ]


@case
def wrong_arguments_raise_before_anything_is_sent(db: Any) -> Any:
    c = db.c
    return [
        failure(lambda: c.update_one({}, {"a": 1})),
        failure(lambda: c.update_one({}, {})),
        failure(lambda: c.replace_one({}, {"$set": {}})),
        failure(lambda: c.insert_one([])),
        failure(lambda: c.insert_many([])),
        failure(lambda: c.find("x").next()),
        failure(lambda: c.aggregate({"$match": {}})),
        failure(lambda: c.bulk_write([])),
        failure(lambda: c.bulk_write([1])),
        failure(lambda: c.update_one({}, [])),
        failure(lambda: c.update_one({}, {"$set": {"a": 1}}, upsert="x")),
        failure(lambda: c.delete_one("x")),
        failure(lambda: c.delete_one(None)),
        failure(lambda: c.find_one_and_update("x", {"$set": {"a": 1}})),
        failure(lambda: c.find_one_and_update({}, {"$set": {"a": 1}}, return_document="after")),
        failure(lambda: c.find_one_and_update({}, {"$set": {"a": 1}}, array_filters=5)),
        failure(lambda: c.find(limit="x")),
        failure(lambda: c.find(skip="x")),
        failure(lambda: c.find(batch_size=-1)),
        failure(lambda: c.find().limit("x")),
        failure(lambda: c.find().skip(-1)),
        failure(lambda: c.find().max_time_ms("x")),
        failure(lambda: c.find().allow_disk_use(5)),
        failure(lambda: c.find().collation(5)),
        failure(lambda: c.aggregate([], explain=True)),
        failure(lambda: c.create_indexes([1])),
        failure(lambda: c.create_indexes("x")),
        failure(lambda: c.insert_one({"a": "x" * 17_000_000}))[0],
        failure(lambda: db.watch({})),
        failure(lambda: db.drop_collection(5)),
        failure(lambda: db.validate_collection(5)),
        failure(lambda: db.client.drop_database(5)),
        failure(lambda: db.client.start_session(snapshot=True, causal_consistency=True)),
    ]


@case
def names_are_checked(db: Any) -> Any:
    collections = ["", "a..b", "$a", ".a", "a.", "a\0b", "a-b", "a.b", "system.x", 5]
    databases = ["", "a b", "a.b", "a$", "a/b", "a\\b", 'a"b', "a\0b", "a-b", 5]
    return [
        *((name, named(lambda name=name: db[name].full_name)) for name in collections),
        *((name, named(lambda name=name: db.client[name].name)) for name in databases),
        *(failure(lambda name=name: db.c.rename(name))[0] for name in [*collections[:5], 5]),
        failure(lambda: db.create_collection(""))[0],
    ]


def named(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except (PyMongoError, TypeError) as error:
        return type(error).__name__


@case
def bulk_writes_are_summed_up(db: Any) -> Any:
    c = fill(db, 4)
    result = c.bulk_write(
        [
            InsertOne({"_id": 10}),
            UpdateOne({"_id": 1}, {"$set": {"a": 1}}),
            UpdateMany({}, {"$set": {"b": 1}}),
            ReplaceOne({"_id": "r"}, {"c": 1}, upsert=True),
            DeleteOne({"_id": 2}),
            DeleteMany({"even": False}),
            InsertOne({"_id": 11}),
        ]
    )
    counts = (
        result.inserted_count,
        result.matched_count,
        result.modified_count,
        result.deleted_count,
        result.upserted_count,
        result.upserted_ids,
    )
    wrong = [InsertOne({"_id": 20}), InsertOne({"_id": 10}), InsertOne({"_id": 21}), DeleteOne({"_id": 11})]
    return (
        counts,
        failure(lambda: c.bulk_write(wrong)),
        failure(lambda: c.bulk_write(wrong, ordered=False)),
        sorted(map(str, ids(c.find()))),
    )


@case
def collections_are_created_listed_and_dropped(db: Any) -> Any:
    db.create_collection("capped", capped=True, size=4096)
    db.create_collection("checked", validator={"a": {"$type": "int"}})
    fill(db)
    db.create_collection("v", viewOn="c", pipeline=[{"$match": {"even": True}}])
    names = sorted(db.list_collection_names())
    again = failure(lambda: db.create_collection("c"))[0]
    refused = failure(lambda: db.checked.insert_one({"_id": 1, "a": "x"}))
    options = db.capped.options(), db.missing.options()
    seen = ids(db.v.find())
    db.c.rename("d")
    db.drop_collection("v")
    db.checked.drop()
    db.checked.drop()
    only = db.list_collection_names(filter={"name": {"$in": ["d", "x"]}})
    return names, again, refused, options, seen, only, sorted(item["type"] for item in db.list_collections())


@case
def commands_are_run_by_name(db: Any) -> Any:
    fill(db)
    return [
        db.command("ping")["ok"],
        db.command("count", "c", query={"even": True})["n"],
        db.command({"count": "c"})["n"],
        failure(lambda: db.command("nope"))[:3],
        db.command("nope", check=False)["code"],
        db.command("distinct", "c", key="even")["values"],
        failure(lambda: db.command("count", "c", skip=-1))[:3],
        db.command("nope", allowable_errors=[59])["code"],
        db.validate_collection("c")["valid"],
        type(
            db.command("find", "c", codec_options=CodecOptions(document_class=SON))["cursor"]["firstBatch"][0]
        ).__name__,
    ]


@case
def codec_options_decide_what_documents_are(db: Any) -> Any:
    fill(db, 2)
    db.c.insert_one({"_id": "d", "date": DATE, "uuid": Binary.from_uuid(uuid.UUID(int=5))})
    raw = db.get_collection("c", CodecOptions(document_class=RawBSONDocument))
    ordered = db.c.with_options(CodecOptions(document_class=SON, tz_aware=True, uuid_representation=4))
    late = db.with_options(CodecOptions(datetime_conversion=3)).c.find_one({"_id": "d"})
    seen = ordered.find_one({"_id": "d"})
    copied = raw.find_one({"_id": 1})
    db.copy.insert_one(copied)
    changed = raw.find_one_and_update({"_id": 0}, {"$set": {"x": 1}})
    return [
        type(copied).__name__,
        copied["n"],
        db.copy.find_one(),
        type(seen).__name__,
        seen["date"].tzinfo is None,
        seen["uuid"],
        isinstance(late["date"], DatetimeMS),
        type(changed).__name__,
        [type(d).__name__ for d in raw.aggregate([{"$limit": 1}])],
    ]


@case
def concerns_are_checked(db: Any) -> Any:
    three = db.get_collection("c", write_concern=WriteConcern(w=3))
    failed = failure(lambda: three.insert_one({"_id": 1}))
    none = db.get_collection("c", write_concern=WriteConcern(w=0))
    unacknowledged = none.update_one({"_id": 1}, {"$set": {"a": 1}})
    for again in (
        lambda: none.insert_one({"_id": 1}),
        lambda: none.insert_many([{"_id": 1}, {"_id": 2}]),
        lambda: none.update_one({"_id": 1}, {"$set": {"_id": 2}}),
    ):
        assert not again().acknowledged
    majority = db.get_collection("c", read_concern=ReadConcern("majority"))
    return failed[:2], unacknowledged.acknowledged, ids(majority.find()), ids(db.c.find())


@case
def transactions_commit_and_abort(db: Any) -> Any:
    fill(db, 3)
    with db.client.start_session() as session:
        with session.start_transaction():
            db.c.insert_one({"_id": "in"}, session=session)
            inside, outside = db.c.count_documents({}, session=session), db.c.count_documents({})
        with session.start_transaction():
            db.c.delete_many({}, session=session)
            session.abort_transaction()
        twice = failure(session.abort_transaction)[0]
        with_callback = session.with_transaction(
            lambda s: db.c.update_many({}, {"$set": {"t": 1}}, session=s).modified_count
        )
    return inside, outside, twice, with_callback, ids(db.c.find()), failure(session.start_transaction)[0]


@case
def conflicting_transactions_are_labelled(db: Any) -> Any:
    fill(db, 1)
    with db.client.start_session() as first, db.client.start_session() as second:
        first.start_transaction()
        second.start_transaction()
        db.c.update_one({"_id": 0}, {"$set": {"a": 1}}, session=first)
        conflict = failure(lambda: db.c.update_one({"_id": 0}, {"$set": {"a": 2}}, session=second))
        first.commit_transaction()
        return conflict, db.c.find_one()["a"], failure(second.commit_transaction)[1]


@case
def snapshots_read_one_moment(db: Any) -> Any:
    fill(db, 2)
    with db.client.start_session(snapshot=True) as session:
        before = ids(db.c.find(session=session))
        db.c.insert_one({"_id": "later"})
        return before, ids(db.c.find(session=session)), ids(db.c.find())


@case
def killed_cursors_are_gone(db: Any) -> Any:
    fill(db)
    cursor = db.c.find(batch_size=2)
    next(cursor)
    db.command("killCursors", "c", cursors=[Int64(cursor.cursor_id)])
    next(cursor)
    return failure(lambda: next(cursor))[:2]


@case
def time_limits_end_commands(db: Any) -> Any:
    fill(db, 200)
    slow = [{"$lookup": {"from": "c", "pipeline": [{"$match": {"$expr": {"$gt": ["$n", -1]}}}], "as": "all"}}] * 4
    return failure(lambda: list(db.c.aggregate(slow, maxTimeMS=1)))[:2]


@case
def databases_are_listed_and_dropped(db: Any) -> Any:
    fill(db, 1)
    client = db.client
    listed = (
        db.name in client.list_database_names(),
        [d["empty"] for d in client.list_databases() if d["name"] == db.name],
    )
    client.drop_database(db.name)
    return listed, db.name in client.list_database_names(), client.server_info()["version"]


@case
def a_stream_has_the_same_events(db: Any) -> Any:
    options = {"full_document": "updateLookup"}
    with db.watch([{"$match": {"operationType": {"$ne": "drop"}}}], **options) as stream:
        fill(db, 2)
        db.c.update_one({"_id": 0}, {"$set": {"a.b": 1}, "$unset": {"even": 1}})
        db.c.replace_one({"_id": 1}, {"r": 1})
        db.c.delete_one({"_id": 0})
        raws = [getattr(event, "raw", event) for event in (stream.next() for _ in range(5))]
    varying = ("_id", "clusterTime", "wallTime")
    return [{key: value for key, value in raw.items() if key not in varying} for raw in raws]


def shape(event: Any) -> Any:
    """An event without what differs between two stores: its token and its times."""
    varying = ("_id", "clusterTime", "collectionUUID", "lsid", "txnNumber", "wallTime")
    return {key: value for key, value in getattr(event, "raw", event).items() if key not in varying}


def events(stream: Any, count: int) -> list[Any]:
    """The next events of a stream, which it is closed behind."""
    with stream:
        return [shape(stream.next()) for _ in range(count)]


@case
def a_stream_begins_at_a_token_or_a_time(db: Any) -> Any:
    fill(db, 1)
    with db.c.watch() as stream:
        begin = db.command("hello")["operationTime"]
        db.c.insert_many([{"_id": "a"}, {"_id": "b"}])
        db.c.delete_one({"_id": "a"})
        first = stream.next()
        token = stream.resume_token
        stream.next()
    return (
        token == first["_id"],
        events(db.c.watch(resume_after=token), 2),
        events(db.c.watch(start_after=token, batch_size=1), 2),
        events(db.watch([{"$match": {"operationType": "delete"}}], start_at_operation_time=begin), 1),
        [event for event in events(db.client.watch(resume_after=token), 2) if event["ns"]["db"] == db.name],
    )


@case
def a_stream_has_images_and_expanded_events(db: Any) -> Any:
    db.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    options = {"full_document": "required", "full_document_before_change": "required"}
    images, expanded = db.c.watch(**options), db.watch(show_expanded_events=True)
    db.c.insert_one({"_id": 1, "a": [1, 2, 3]})
    db.c.update_one({"_id": 1}, [{"$set": {"a": [1], "b": {"c": 1}}}])
    db.c.delete_one({"_id": 1})
    db.c.create_index("a")
    with db.client.start_session() as session, session.start_transaction():
        db.c.insert_many([{"_id": 2}, {"_id": 3}], session=session)
    db.c.drop()
    return events(images, 3), events(expanded, 7)


@case
def a_stream_that_is_invalidated_ends(db: Any) -> Any:
    fill(db, 1)
    with db.c.watch() as stream:
        db.c.rename("d")
        seen = [shape(event) for event in stream]
        alive, token = stream.alive, stream.resume_token
    db.c.insert_one({"_id": "anew"})
    return seen, alive, events(db.c.watch(start_after=token), 1), failure(lambda: db.c.watch(resume_after=token))[:2]


@case
def streams_that_cannot_be_are_refused(db: Any) -> Any:
    fill(db, 1)
    return [
        failure(call)[:3]
        for call in (
            lambda: db.c.watch([{"$group": {"_id": 1}}]),
            lambda: db.c.watch([{"$nope": 1}]),
            lambda: db.c.watch([{"$match": {"$where": "1"}}]),
            lambda: db.c.watch(full_document="nope"),
            lambda: db.c.watch(full_document_before_change="nope"),
            lambda: db.c.watch(resume_after={"_data": "zz"}),
            lambda: db.c.watch(resume_after={"nope": 1}),
        )
    ]
