"""A time series in the hands of mongodump, mongorestore and `headrace export`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pymongo import MongoClient

import headrace
from headrace.cli.main import main
from tests.tools.programs import run, unpacked

pytestmark = pytest.mark.process


class Client(NamedTuple):
    """A client of a server of its own."""

    uri: str
    client: MongoClient[Any]


def served() -> Iterator[Client]:
    with headrace.Server() as server, MongoClient[Any](server.uri) as client:
        yield Client(server.uri, client)


@pytest.fixture
def old() -> Iterator[Client]:
    yield from served()


@pytest.fixture
def new() -> Iterator[Client]:
    yield from served()


def fill(client: MongoClient[Any]) -> None:
    fields = {"timeField": "at", "metaField": "sensor", "granularity": "minutes"}
    series = client.shop.create_collection("series", timeseries=fields, expireAfterSeconds=10**9)
    series.create_index([("at", -1)])
    times = [datetime(2024, 1, 1) + timedelta(minutes=number) for number in range(2000)]
    series.insert_many([{"_id": number, "at": at, "sensor": number % 3} for number, at in enumerate(times)])
    series.insert_one({"_id": -1, "at": times[0], "sensor": 1})


def content(client: MongoClient[Any]) -> Any:
    series = client.shop.series
    listed = next(client.shop.list_collections(filter={"name": "series"}))
    return listed, series.index_information(), sorted(series.find(), key=lambda item: item["_id"])


def test_it_is_dumped_and_restored_by_its_buckets(old: Client, new: Client, tmp_path: Path) -> None:
    unpacked()
    fill(old.client)
    run("mongodump", old.uri, f"--out={tmp_path}")
    run("mongorestore", new.uri, tmp_path)
    assert content(new.client) == content(old.client)
    assert new.client.shop.command("validate", "series")["valid"]


def test_it_is_exported_and_imported_by_its_measurements(old: Client, new: Client, tmp_path: Path) -> None:
    fill(old.client)
    assert main(["export", old.uri, "--out", str(tmp_path / "dump")]) == 0
    assert main(["import", new.uri, str(tmp_path / "dump")]) == 0
    assert content(new.client) == content(old.client)
