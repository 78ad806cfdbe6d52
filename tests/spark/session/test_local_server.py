"""A data directory given instead of a server: one is started, found again, and ended with its job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

import headrace
from headrace.spark.source.local_server import NOTE, NotStarted, uri_of
from headrace.spark.source.options import parse_options
from tests.waiting import until

pytestmark = pytest.mark.process


def test_a_server_is_started_once_and_ends_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    uri = uri_of(tmp_path, owner=owner.pid)
    with MongoClient[dict[str, Any]](uri) as client:
        client.d.c.insert_one({"_id": 1})
        assert uri_of(tmp_path, owner=owner.pid) == uri
        assert parse_options({"path": str(tmp_path)}).uri == uri
    owner.communicate(b"\n")
    until(lambda: not (tmp_path / NOTE).exists())
    with headrace.Server(tmp_path) as server, MongoClient[dict[str, Any]](server.uri) as client:
        assert client.d.c.find_one() == {"_id": 1}


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with headrace.Server(tmp_path), pytest.raises(NotStarted, match="'uri'"):
        uri_of(tmp_path)
