"""Credentials in connection strings: from the environment or a file, and never in what people read."""

from __future__ import annotations

import io
import json
import logging
import pickle
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.cli import main as cli
from headrace.spark.errors import OptionError, error_line, redacted
from headrace.spark.jobs.job_file import parse_job
from headrace.spark.jobs.report import explain_lines, verify_job
from headrace.spark.jobs.runner import run_job
from headrace.spark.jobs.status import job_status, lines_of
from headrace.spark.mirror import Mirror
from headrace.spark.mongodb.connection_strings import resolved
from headrace.spark.source.options import parse_options

CANARY = "canary-7f3a"
LITERAL = f"mongodb://ann:{CANARY}@h:1/?tls=true&tlsCertificateKeyFilePassword={CANARY}"


def test_a_reference_stands_for_the_connection_string(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THE_URI", LITERAL)
    path = tmp_path / "uri"
    path.touch(mode=0o600)
    path.write_text(f"{LITERAL}\n")
    assert resolved("env:THE_URI") == resolved(f"file:{path}") == resolved(LITERAL) == LITERAL
    options = parse_options({"uri": "env:THE_URI"})
    assert options.uri == LITERAL and CANARY not in repr(options) and pickle.loads(pickle.dumps(options)) == options


def test_what_cannot_be_resolved_is_refused_without_a_word_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WRONG", f"ann:{CANARY}@h")
    monkeypatch.setenv("UNESCAPED", f"mongodb://ann:{CANARY}@@:/h")
    (tmp_path / "open").write_text(LITERAL)
    (tmp_path / "open").chmod(0o644)
    for given, reason in (
        ("env:NOT_SET", "NOT_SET"), ("env:WRONG", "env:WRONG"), ("env:UNESCAPED", "env:UNESCAPED"),
        (f"file:{tmp_path}/none", "none"), (f"file:{tmp_path}/open", "too open"), (f"ann:{CANARY}@h", "'uri'"),
        (f"mongodb://ann:{CANARY}@@:/h", "'uri'"), ("localhost:27017", "localhost:27017"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=reason) as failed:
            parse_options({"uri": given})
        assert CANARY not in str(failed.value)


def test_credentials_are_taken_out_of_any_text() -> None:
    for text in (LITERAL, f"x mongodb+srv://ann:{CANARY}@h/ y", f"mongodb://a:{CANARY}%40@h,i/?authMechanism=PLAIN"):
        assert CANARY not in redacted(text) and "@h" not in redacted(text) and "h" in redacted(text)
    assert CANARY not in error_line(ValueError(f"cannot connect to {LITERAL}"))
    assert redacted("mongodb://h:1/?replicaSet=rs0") == "mongodb://h:1/?replicaSet=rs0"
    assert CANARY not in repr(Mirror(LITERAL, "d", "c", Path("x")))


@pytest.mark.spark
def test_a_password_is_nowhere_in_the_life_of_a_job(spark: SparkSession, tmp_path: Path, capfd: Any) -> None:
    """A canary is the password of source and target, literal in the job's file: the worst case."""
    spark.sparkContext.setLogLevel("INFO")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    said: list[str] = []
    try:
        with headrace.Server(tmp_path / "data") as server, pymongo.MongoClient(server.uri) as client:
            client.admin.command("createUser", "ann", pwd=CANARY, roles=["root"])
            client.shop.orders.insert_many({"_id": number} for number in range(20))
            uri = f"mongodb://ann:{CANARY}@{server.address}/?authSource=admin&replicaSet=rs0"
            job = parse_job({
                "checkpoint": "checkpoint",
                "source": {"uri": uri, "database": "shop", "collection": "orders", "startingPosition": "snapshot"},
                "trigger": {"availableNow": True},
                "sink": [
                    {"kind": "mirror", "path": "mirror", "buckets": 1}, {"kind": "changes", "path": "changes"},
                    {"kind": "mongodb", "uri": uri + "&appName=target", "database": "copy", "collection": "orders"},
                ],
            }, "job", tmp_path)  # fmt: skip
            said += explain_lines(job)
            run_job(job, session=spark, report=said.append)
            client.shop.orders.insert_one({"_id": 20})
            run_job(job, session=spark, report=said.append)
            said += lines_of(job_status(job))
            said += [f"{item}" for item in verify_job(job)]
            assert client.copy.orders.count_documents({}) == 21
            frame = spark.read.format("headrace").options(uri=uri, database="shop", collection="orders").load()
            with redirect_stdout(io.StringIO()) as plan:
                frame.explain("extended")
            said += [plan.getvalue(), repr(frame), repr(job)]
            wrong = uri.replace(CANARY, f"{CANARY}x")
            broken = parse_job(NEEDED | {"source": {"uri": wrong}}, "bad", tmp_path)
            with pytest.raises(Exception, match="Authentication failed") as failed:
                run_job(broken, session=spark, report=said.append)
            said.append(error_line(failed.value))
    finally:
        logging.getLogger().removeHandler(handler)
        spark.sparkContext.setLogLevel("ERROR")
    captured = capfd.readouterr()
    for text in (*said, stream.getvalue(), captured.out, captured.err):
        assert CANARY not in text
    files = [path for folder in ("checkpoint", "bad", "mirror", "changes") for path in (tmp_path / folder).rglob("*")]
    assert files and not [path for path in files if path.is_file() and CANARY.encode() in path.read_bytes()]


NEEDED = {"checkpoint": "bad", "trigger": {"availableNow": True}, "sink": [{"kind": "changes", "path": "rows"}]}


def test_the_command_line_prints_no_password(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'checkpoint = "checkpoint"\n[source]\nuri = "{LITERAL}"\ndatabase = "d"\ncollection = "c"\n'
        'startingPosition = "snapshot"\n'
        f'[[sink]]\nkind = "mongodb"\nuri = "{LITERAL}"\ndatabase = "e"\ncollection = "c"\n'
    )
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        cli.main(["pipeline", "explain", str(job)])
    assert "sink: mongodb" in out.getvalue() and CANARY not in out.getvalue() + errors.getvalue()


def test_a_job_reads_its_connection_string_from_the_environment(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('checkpoint = "c"\n[source]\nuri = "env:THE_URI"\n[[sink]]\nkind = "changes"\npath = "x"\n')
    words = [sys.executable, "-m", "headrace", "pipeline", "explain", str(job)]
    done = subprocess.run(words, env={"THE_URI": LITERAL}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and CANARY not in done.stdout + done.stderr
    assert json.dumps(done.stdout)
