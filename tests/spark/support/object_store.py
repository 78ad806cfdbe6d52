"""An object store that speaks as much of S3 as `deltalake` asks: objects, ranges, lists, uploads in parts, deletes.

It is a process of its own: `deltalake` holds the interpreter's lock while it waits for some answers. No signature is
checked. A request that it does not know is answered 501, which fails the test that sent it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_NEVER = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True)
class ObjectStore:
    """A running one, by its address; every bucket is there."""

    url: str

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process must have in its environment to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip

    def copy(self, source: str, target: str) -> None:
        """All objects whose names, `bucket/key`, begin with `source`, under names that begin with `target`."""
        with urlopen(Request(f"{self.url}/{quote(source)}?copy={quote(target)}", method="POST")):
            pass

    def listed(self, bucket: str, prefix: str) -> str:
        """The list of the objects whose keys begin with the prefix, as the store answers it: names, sizes, tags."""
        with urlopen(f"{self.url}/{bucket}?list-type=2&prefix={quote(prefix)}") as answer:
            text: str = answer.read().decode()
            return text


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A running one, empty."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        port = int(process.stdout.readline())
        yield ObjectStore(f"http://127.0.0.1:{port}")
        process.stdin.close()


def main() -> None:
    """Serves until the standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


class _StoredObjects:
    """The objects by bucket and key, `bucket/key`, and the parts of those that are being uploaded."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    store = _StoredObjects()
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one packet

    def log_message(self, *_: Any) -> None:
        pass

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        path, query = urlsplit(self.path)[2:4]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return unquote(path)[1:], {name: values[0] for name, values in parse_qs(query, True).items()}, body

    def _answer(self, status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _missing(self) -> None:
        self._answer(404, b"" if self.command == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        data = self.store.objects.get(self._asked()[0])
        if data is None:
            return self._missing()
        self._answer(200, length=len(data), ETag=_tag(data), Last_Modified=_NEVER)

    def do_GET(self) -> None:
        name, query, _ = self._asked()
        if query.get("list-type") == "2":
            return self._answer(200, _listed(self.store, name.rstrip("/"), query))
        data = self.store.objects.get(name)
        if data is None:
            return self._missing()
        headers = {"ETag": _tag(data), "Last_Modified": _NEVER}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self._answer(200, data, **headers)
        first, last = wanted.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        self._answer(206, data[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(data)}", **headers)

    def do_PUT(self) -> None:
        name, query, body = self._asked()
        with self.store.lock:
            if "uploadId" in query:
                self.store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            elif "x-amz-copy-source" in self.headers:
                return self._answer(501)
            elif self.headers.get("If-None-Match") == "*" and name in self.store.objects:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            else:
                self.store.objects[name] = body
        self._answer(200, ETag=_tag(body))

    def do_POST(self) -> None:
        name, query, body = self._asked()
        with self.store.lock:
            if "uploads" in query:
                upload = f"u{len(self.store.uploads)}"
                self.store.uploads[upload] = {}
                reply = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            elif "uploadId" in query:
                chunks = self.store.uploads[query["uploadId"]]
                self.store.objects[name] = data = b"".join(chunks[number] for number in sorted(chunks))
                reply = f"<CompleteMultipartUploadResult><ETag>{_tag(data)}</ETag></CompleteMultipartUploadResult>"
            elif "copy" in query:
                copied = {key: data for key, data in self.store.objects.items() if key.startswith(name)}
                self.store.objects |= {query["copy"] + key.removeprefix(name): data for key, data in copied.items()}
                reply = ""
            elif "delete" in query:
                keys = [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]
                for key in keys:
                    self.store.objects.pop(f"{name.rstrip('/')}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                reply = f"<DeleteResult>{deleted}</DeleteResult>"
            else:
                return self._answer(501)
        self._answer(200, reply.encode())

    def do_DELETE(self) -> None:
        name, query, _ = self._asked()
        with self.store.lock:
            if "uploadId" in query:
                self.store.uploads.pop(query["uploadId"], None)
            else:
                self.store.objects.pop(name, None)
        self._answer(204)


def _tag(data: bytes) -> str:
    return f'"{md5(data).hexdigest()}"'


def _listed(store: _StoredObjects, bucket: str, query: Mapping[str, str]) -> bytes:
    prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
    contents, folders = [], set()
    with store.lock:
        for name, data in sorted(store.objects.items()):
            if not name.startswith(f"{bucket}/{prefix}"):
                continue
            key = name.removeprefix(f"{bucket}/")
            inside, cut, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if cut:
                folders.add(f"{prefix}{inside}{delimiter}")
            elif key > after:
                contents.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{escape(_tag(data))}</ETag>"
                    f"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders))
    reply = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(contents)}{common}</ListBucketResult>"
    return reply.encode()


if __name__ == "__main__":
    main()
