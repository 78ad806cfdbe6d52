"""GridFS, by pymongo's two interfaces: files in pieces, their versions, their metadata and their end."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any

import gridfs
import pymongo
import pytest
from gridfs.errors import CorruptGridFile, NoFile
from pymongo import AsyncMongoClient

DATA = os.urandom(1 << 20) + b"end"


@pytest.fixture
def database(uri: str) -> Iterator[Any]:
    with pymongo.MongoClient(uri) as client:
        yield client.files
        client.drop_database("files")


def test_a_bucket_stores_versions_of_files(database: Any) -> None:
    bucket = gridfs.GridFSBucket(database, chunk_size_bytes=100_000)
    first = bucket.upload_from_stream("a.bin", io.BytesIO(DATA), metadata={"kind": "test", "n": 1})
    with bucket.open_upload_stream("a.bin", metadata={"kind": "test", "n": 2}) as upload:
        upload.write(b"second ")
        upload.write(b"version")
    assert bucket.open_download_stream(first).read() == DATA
    assert bucket.open_download_stream_by_name("a.bin").read() == b"second version"
    assert bucket.open_download_stream_by_name("a.bin", revision=0).read() == DATA
    download = bucket.open_download_stream(first)
    download.seek(250_000)
    assert download.read(10) == DATA[250_000:250_010] and download.tell() == 250_010
    assert [item.metadata["n"] for item in bucket.find({"metadata.kind": "test"}).sort("metadata.n", -1)] == [2, 1]
    bucket.rename(first, "b.bin")
    bucket.delete(first)
    with pytest.raises(NoFile):
        bucket.open_download_stream(first)
    assert database.fs.chunks.count_documents({}) == 1
    assert database.fs.chunks.index_information()["files_id_1_n_1"]["unique"]
    aborted = bucket.open_upload_stream("c.bin")
    aborted.write(DATA)
    aborted.abort()
    assert database.fs.chunks.count_documents({}) == 1
    plan = database.fs.chunks.find({"files_id": 1}, sort=[("n", 1)]).explain()["queryPlanner"]["winningPlan"]
    assert plan["inputStage"]["indexName"] == "files_id_1_n_1"


def test_the_older_interface(database: Any) -> None:
    files = gridfs.GridFS(database, collection="old")
    key = files.put(DATA, filename="a", content_type="x/y")
    assert files.get(key).read() == DATA and files.exists(filename="a") and files.list() == ["a"]
    assert files.get_last_version("a").content_type == "x/y"
    database.old.chunks.delete_one({"files_id": key, "n": 1})
    with pytest.raises(CorruptGridFile):
        files.get(key).read()
    files.delete(key)
    assert not files.exists(key)


async def test_the_asynchronous_interface(uri: str) -> None:
    async with AsyncMongoClient(uri) as client:
        bucket = gridfs.AsyncGridFSBucket(client.files)
        key = await bucket.upload_from_stream("a", DATA)
        assert await (await bucket.open_download_stream(key)).read() == DATA
        await bucket.delete(key)
        await client.drop_database("files")
