"""A job with typed tables and a mask: nothing that is masked is in any file, and `verify` finds the tables right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS
from deltalake import DeltaTable
from pymongo import MongoClient
from pymongo.collection import Collection

import headrace
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.rows.extjson import loads
from headrace.spark.tables.progress import NotOurTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEY = "a key of the test that is long enough"
SECRETS = ("ada@example.org", "grace@example.org", "4111111111111111", "Lovelace", "0150 Oslo", KEY)


def job_of(uri: str, folder: Path, **mask: Any) -> Job:
    given = {
        "checkpoint": "checkpoint",
        "source": {"uri": uri, "database": "shop", "collection": "orders", "startingPosition": "snapshot",
                   "fullDocumentBeforeChange": "whenAvailable"},
        "mask": {"key": "file:key.txt", "hash": ["email"], "redact": ["name"], "null": ["cards.number"],
                 "truncate": {"address.zip": 2}} | mask,
        "trigger": {"availableNow": True},
        "sink": [
            {"kind": "mirror", "path": "mirror", "schema": "infer", "flatten": ["address"], "partition": "day(at)"},
            {"kind": "history", "path": "history", "schema": "infer", "evolve": "add", "omit": ["internal"]},
            {"kind": "changes", "path": "changes", "schema": "infer", "evolve": "text"},
        ],
    }  # fmt: skip
    return parse_job(given, "orders", folder)


def write(orders: Collection[dict[str, Any]]) -> None:
    orders.database.create_collection(
        "orders", validator={"$jsonSchema": {"properties": {"sum": {"bsonType": "long"}}}},
        validationAction="warn", changeStreamPreAndPostImages={"enabled": True},
    )  # fmt: skip
    address = {"zip": "0150 Oslo", "city": "Oslo"}
    orders.insert_many(
        [
            {"_id": 1, "email": "ada@example.org", "name": {"last": "Lovelace"}, "sum": 1, "at": DatetimeMS(0)},
            {"_id": 2, "email": "ada@example.org", "cards": [{"number": "4111111111111111"}], "address": address},
        ]
    )


def update(orders: Collection[dict[str, Any]]) -> None:
    orders.update_one({"_id": 1}, {"$set": {"email": "grace@example.org", "sum": Int64(1 << 40), "internal": 1}})
    orders.update_one(
        {"_id": 2}, {"$push": {"cards": {"number": "4111111111111111", "n": 0.5}}, "$unset": {"email": 1}}
    )
    orders.update_one({"_id": 2}, {"$set": {"address.zip": "0150 Oslo", "sum": Decimal128("1.50"), "note": "x"}})
    orders.update_one({"_id": 2}, {"$set": {"sum": "text"}})
    orders.insert_one({"_id": "three", "name": "Lovelace"})


def test_masked_typed_tables_are_equal_to_the_collection(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(KEY)
    (tmp_path / "key.txt").chmod(0o600)
    lines: list[str] = []
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        orders = client.shop.orders
        write(orders)
        run_job(job_of(server.uri, tmp_path), session=spark, report=lines.append)
        assert (tmp_path / "_mirror.columns").read_text().splitlines()[-7].startswith("sum bigint")
        update(orders)
        metrics = run_job(job_of(server.uri, tmp_path), session=spark, report=lines.append)
        assert [(each.sink.split()[0], each.equal) for each in verify_job(job_of(server.uri, tmp_path))] == [
            ("mirror", True), ("history", True), ("changes", True),
        ]  # fmt: skip
        with pytest.raises(NotOurTable, match="mask"):
            run_job(job_of(server.uri, tmp_path, redact=[]), session=spark, report=lines.append)
    assert metrics.rest_values_total > 0 and "values in _rest" in lines[-1]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key.txt"]
    held = {secret for path in files for secret in SECRETS if secret.encode() in path.read_bytes()}
    assert not held and not any(secret in line for line in lines for secret in SECRETS)
    rows = {row["_id"]: row for row in DeltaTable(str(tmp_path / "mirror")).to_pyarrow_table().to_pylist()}
    assert (rows[2]["address_zip"], rows[2]["address_city"], rows[2]["sum"]) == ("01", "Oslo", None)
    assert loads(rows[2]["_rest"])["cards"] == [{"number": None}, {"number": None, "n": 0.5}]
    assert "internal" not in DeltaTable(str(tmp_path / "history")).to_pyarrow_table().column_names


def geometries() -> list[Any]:
    """A geometry of every kind, as GeoJSON or as a pair."""
    ring = [[0, 0], [2.5, 0], [2, 2], [0, 0]]
    shapes: list[tuple[str, Any]] = [
        ("Point", [13.4, 52.5]), ("LineString", ring[:2]), ("Polygon", [ring]), ("MultiPoint", ring[:2]),
        ("MultiLineString", [ring[:2]]), ("MultiPolygon", [[ring]]),
    ]  # fmt: skip
    made: list[Any] = [{"type": kind, "coordinates": coordinates} for kind, coordinates in shapes]
    return [*made, {"type": "GeometryCollection", "geometries": made[:2]}, [1, 2.5], {"lng": 1, "lat": 2}, None]


def test_typed_tables_hold_geometries(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        places = client.shop.create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        places.create_index([("at", "2dsphere"), ("name", 1)], sparse=True)
        kinds = geometries()
        places.insert_many([{"_id": number, "name": "x", "at": shape} for number, shape in enumerate(kinds)])
        given = {
            "checkpoint": "checkpoint", "trigger": {"availableNow": True},
            "source": {"uri": server.uri, "database": "shop", "collection": "orders", "startingPosition": "snapshot",
                       "fullDocumentBeforeChange": "whenAvailable"},
            "sink": [
                {"kind": "mirror", "path": "mirror", "schema": "infer", "flatten": ["at"]},
                {"kind": "history", "path": "history", "schema": "infer"},
                {"kind": "changes", "path": "changes", "schema": "infer"},
            ],
        }  # fmt: skip
        job = parse_job(given, "places", tmp_path)
        run_job(job, session=spark, report=lambda line: None)
        for number, shape in enumerate(reversed(kinds)):
            places.update_one({"_id": number}, {"$set": {"at": shape}})
        places.update_one({"at": {"$geoWithin": {"$centerSphere": [[13.4, 52.5], 0.001]}}}, {"$set": {"name": "here"}})
        run_job(job, session=spark, report=lambda line: None)
        assert [(each.sink.split()[0], each.equal) for each in verify_job(job)] == [
            ("mirror", True), ("history", True), ("changes", True),
        ]  # fmt: skip
        rows = {row["_id"]: row for row in DeltaTable(str(tmp_path / "mirror")).to_pyarrow_table().to_pylist()}
        assert len(rows) == len(kinds) and rows[9]["name"] == "here"
