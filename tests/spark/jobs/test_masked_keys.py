"""A job whose mask hashes `_id`: no table and no line has the key, in no token either, and all else goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pymongo import MongoClient
from pymongo.database import Database

import headrace
from headrace.spark.jobs.job_file import Job, parse_job
from headrace.spark.jobs.report import verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.rows.tokens import Token
from headrace.spark.sinks.contract import BatchReport, MicroBatch
from headrace.spark.tables.progress import Progress
from headrace.spark.tables.refused_rows import RowRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAMES = [f"secret-name-{number}" for number in range(20)]


class Choosy:
    """A sink that refuses deletes."""

    def position(self) -> Progress:
        return Progress()

    def apply(self, batch: MicroBatch) -> BatchReport | None:
        for row in batch.rows():
            if row.operationType == "delete":
                raise RowRefused("not now", row.token)
        return None


def choosy() -> Choosy:
    return Choosy()


def job_of(uri: str, folder: Path, *sinks: dict[str, Any], **more: Any) -> Job:
    given = {
        "checkpoint": "checkpoint",
        "source": {"uri": uri, "database": "shop", "collection": "people", "startingPosition": "snapshot"}
        | more.pop("source", {}),
        "mask": {"key": "file:key.txt", "hash": ["_id"]},
        "trigger": {"availableNow": True},
        "sink": list(sinks),
    }  # fmt: skip
    (folder / "key.txt").write_text("a key of the test that is long enough")
    (folder / "key.txt").chmod(0o600)
    given["source"] = {name: value for name, value in given["source"].items() if value is not None}
    return parse_job(given | more, "people", folder)


def write(database: Database[dict[str, Any]], names: list[str]) -> None:
    for number, name in enumerate(names):
        database.people.insert_one({"_id": name, "n": number})
        database.people.update_one({"_id": name}, {"$set": {"n": number + 1, "m.x": "y"}})
        if number % 3 == 0:
            database.people.delete_one({"_id": name})
    with database.client.start_session() as session, session.start_transaction():
        for name in names[1:3]:
            database.people.update_one({"_id": name}, {"$inc": {"n": 5}}, session=session)


def shown_in(folder: Path, lines: list[str]) -> set[str]:
    """Which files and lines have a name, as text or in a token."""
    secret = b"secret-name"
    wanted = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    texts = {"lines": "\n".join(lines).encode()}
    for path in folder.rglob("*"):
        if path.is_file() and "checkpoint" not in path.relative_to(folder).parts:
            texts[str(path.relative_to(folder))] = path.read_bytes()
    for log in folder.rglob("_delta_log"):
        rows = DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()  # files are compressed
        texts[f"rows of {log.parent.name}"] = json.dumps(rows, default=str).encode()
    assert len(texts) > 2
    return {name for name, text in texts.items() if any(each in text for each in wanted)}


def tokens_of(path: Path) -> list[str]:
    tokens: list[str] = DeltaTable(str(path)).to_pyarrow_table(columns=["token"])["token"].to_pylist()
    return tokens


def test_no_table_and_no_line_has_a_hashed_key(spark: SparkSession, tmp_path: Path) -> None:
    sinks: list[dict[str, Any]] = [
        {"kind": "mirror", "path": "mirror"}, {"kind": "history", "path": "history"},
        {"kind": "mirror", "path": "typed", "schema": "infer"}, {"kind": "changes", "path": "changes"},
        {"kind": "own", "factory": f"{__name__}:choosy"},
    ]  # fmt: skip
    letters = {"errors": "deadletter", "deadletter": "letters", "deadletter_max": 1000}
    lines: list[str] = []
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        for names in (NAMES[:10], NAMES[10:], []):
            write(client.shop, names)
            client.other.people.insert_one({})
            run_job(job_of(server.uri, tmp_path, *sinks, **letters), session=spark, report=lines.append)
            job = job_of(server.uri, tmp_path, *sinks, **letters)
            assert [each.equal for each in verify_job(job)] == [True, True, True, True, None]
            lines += [json.dumps(job_status(job).document()), *lines_of(job_status(job)), *map(str, verify_job(job))]
        assert not shown_in(tmp_path, lines)
        # One that lacks an event, or has another, is not equal.
        DeltaTable(str(tmp_path / "changes")).delete(f"token = '{max(tokens_of(tmp_path / 'changes'))}'")
        assert [each.equal for each in verify_job(job)] == [True, True, True, False, None]
    masked = [token for token in tokens_of(tmp_path / "changes") if Token(token).is_masked]
    assert len(masked) == len(set(masked)) > 20


def test_no_table_of_several_collections_has_a_hashed_key(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [{"kind": kind, "path": f"{kind}/{{collection}}"} for kind in ("mirror", "changes")]
    lines: list[str] = []
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        for names in (NAMES[:10], NAMES[10:]):
            write(client.shop, names)
            client.shop.other.insert_one({})
            job = job_of(server.uri, tmp_path, *sinks, source={"collection": None})
            run_job(job, session=spark, report=lines.append)
            assert [each.equal for each in verify_job(job)] == [True] * 4
            lines += lines_of(job_status(job))
    assert not shown_in(tmp_path, lines)


def test_workers_that_write_the_table_write_no_hashed_key(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[str] = []
    with headrace.Server() as server, MongoClient[dict[str, Any]](server.uri) as client:
        job = job_of(server.uri, tmp_path, {"kind": "changes", "path": "changes"}, source={"idleadvancems": "1"})
        for names in (NAMES[:10], NAMES[10:], []):
            write(client.shop, names)
            client.other.people.insert_one({})
            run_job(job, session=spark, report=lines.append)
            assert [each.equal for each in verify_job(job)] == [True]
    assert not shown_in(tmp_path, lines)
