"""Each kind of sink has its page; the example of a sink of one's own keeps the contract."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from headrace.spark.rows.events import Row
from headrace.spark.sinks.sink_options import KINDS, TYPED_OPTIONS, parse_sink
from tests.spark.support.generated_changes import GeneratedChanges, batches, generated_changes

PAGES = Path(__file__).resolve().parents[3] / "docs" / "sinks"


def blocks(kind: str, language: str) -> list[str]:
    text = (PAGES / f"{kind}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_page_whose_options_are_those_of_the_sink(kind: str, tmp_path: Path) -> None:
    first, *others = [given for block in blocks(kind, "toml") for given in tomllib.loads(block)["sink"]]
    assert {parse_sink(given, tmp_path).kind for given in (first, *others)} == {kind}
    alternative = {"table", "using"} if "path" in first else set()
    assert KINDS[kind].options - TYPED_OPTIONS - {"omit"} - alternative <= first.keys()
    assert KINDS[kind].options <= {name for given in (first, *others) for name in given}


def test_the_custom_sink_counts_each_event_once(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    example, _ = blocks("own", "python")
    exec(compile(example, "own.md", "exec"), names)
    changes = generated_changes(9)
    for query in ("q", "another"):
        for batch in batches(changes.row_batches, query):
            for _ in range(2):
                names["OrderCounts"](tmp_path / "counts.db").apply(batch)
    with sqlite3.connect(tmp_path / "counts.db") as file:
        counts = dict(file.execute("select kind, number from counts"))
    assert counts == Counter(row.operationType for row_batch in changes.row_batches for row in row_batch)


class BulkIndex:
    """What a search index does with a bulk request: versions of documents and of deletes, the higher one stays."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.documents: dict[str, Any] = {}
        self.crashes_after: int | None = None
        self.requests = 0

    def bulk(self, body: str) -> dict[str, Any]:
        lines = iter([json.loads(line) for line in body.splitlines()])
        items = []
        for line in lines:
            ((action, target),) = line.items()
            source = next(lines) if action == "index" else None
            items.append({action: {"_id": target["_id"], "status": self._take(action, target, source)}})
        return {"items": items, "errors": any(next(iter(item.values()))["status"] >= 400 for item in items)}

    def _take(self, action: str, target: dict[str, Any], source: Any) -> int:
        key, version = target["_id"], target["version"]
        assert target["version_type"] == "external_gte" and 0 < version < 1 << 63
        if version < self.versions.get(key, 0):
            return 409
        self.versions[key] = version
        if action == "index":
            self.documents[key] = source
            return 200
        return 200 if self.documents.pop(key, None) is not None else 404


@contextmanager
def bulk_server(index: BulkIndex) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path.startswith("/orders/_bulk")
            reply = json.dumps(index.bulk(self.rfile.read(int(self.headers["Content-Length"])).decode())).encode()
            index.requests += 1
            if index.requests == index.crashes_after:
                self.close_connection = True  # the request is done, and nobody learns of it
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/orders"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def looked_up(changes: GeneratedChanges) -> list[list[Row]]:
    """The rows as `updateLookup` has them: updates with the document as it is at the end, if it is there."""
    now = changes.contents()
    return [
        [
            row._replace(
                fullDocument=now.get(json.dumps(json.loads(row.documentKey or "{}")["_id"], separators=(",", ":")))
            )
            if row.operationType == "update"
            else row
            for row in rows
        ]
        for rows in changes.row_batches
    ]


@pytest.mark.parametrize("crashes_after", [None, 1, 3, 5])
def test_the_search_index_ends_equal_to_the_collection(tmp_path: Path, crashes_after: int | None) -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("own", "python")[1], "own.md", "exec"), names)
    changes = GeneratedChanges(4)
    changes.writes(12)
    changes.snapshot()
    changes.writes(40)
    changes.stream(changes.time - 40)
    index = BulkIndex()
    index.crashes_after = crashes_after
    with bulk_server(index) as url:
        for query in ("q", "another"):
            for batch in batches(looked_up(changes), query):
                sink = names["search_index"](url, tmp_path / "notes.json")
                try:
                    sink.apply(batch)
                except (URLError, ConnectionError):
                    assert index.requests == crashes_after
                    sink.apply(batch)
                names["search_index"](url, tmp_path / "notes.json").apply(batch)
            (tmp_path / "notes.json").unlink(missing_ok=query == "another")
    documents = {json.dumps(json.loads(key)["_id"], separators=(",", ":")): it for key, it in index.documents.items()}
    expected = {
        key: {n: v for n, v in json.loads(text).items() if n != "_id"} for key, text in changes.contents().items()
    }
    assert documents == expected
