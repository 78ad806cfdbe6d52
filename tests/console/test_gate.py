"""An attacker's afternoon at the console: other origins, other hosts, no token, large bodies, paths, methods."""

from __future__ import annotations

import http.client
from typing import Any

import httpx
import pytest

from headrace.cli.console.application import BODY_BYTES_MAX, ConsoleServer

PATHS = [
    "/static/console.js", "/api/session", "/api/live", "/api/tail", "/api/collections", "/api/documents?ns=a.b",
    "/api/explain?ns=a.b", "/api/oplog", "/api/slow", "/api/jobs", "/nothing",
]  # fmt: skip


def asked(console: ConsoleServer, path: str, headers: dict[str, str], method: str = "GET", body: Any = None) -> Any:
    """The response to exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def cookie_of(browser: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_without_the_cookie_nothing_is_answered(console: ConsoleServer, path: str) -> None:
    assert asked(console, path, {"Host": f"127.0.0.1:{console.port}"}).status == 403
    forged = {"Host": f"127.0.0.1:{console.port}", "Cookie": f"{console.cookie}={console.token}"}
    assert asked(console, path, forged).status == 403, "the token is no cookie"


@pytest.mark.parametrize("token", ["", "x", "é", "A" * 43])
def test_a_wrong_token_begins_no_session(console: ConsoleServer, token: str) -> None:
    response = httpx.get(f"http://127.0.0.1:{console.port}/", params={"token": token})
    assert response.status_code == 403 and "set-cookie" not in response.headers


def test_the_address_sets_a_strict_cookie_and_leaves_the_history(console: ConsoleServer) -> None:
    response = httpx.get(console.address)
    assert response.status_code == 303 and response.headers["location"] == "/"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and console.token not in cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""]
)
def test_a_name_that_was_rebound_to_loopback_reaches_nothing(
    console: ConsoleServer, browser: httpx.Client, host: str
) -> None:
    headers = {"Host": host.format(port=console.port), "Cookie": cookie_of(browser)}
    assert asked(console, "/api/session", headers).status == 421


@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/session", "/api/tail"])
def test_another_origin_is_refused_even_with_the_cookie(
    console: ConsoleServer, browser: httpx.Client, header: dict[str, str], path: str
) -> None:
    given = {name: value.format(port=console.port) for name, value in header.items()}
    assert browser.get(path, headers=given).status_code == 403
    assert browser.post("/api/sign-out", json={}, headers=given).status_code == 403
    assert httpx.get(console.address, headers=given).status_code == 403, "not even with the token"


def test_every_response_forbids_inline_code_frames_and_other_sources(
    console: ConsoleServer, browser: httpx.Client
) -> None:
    entrance = httpx.get(f"http://127.0.0.1:{console.port}/")
    for response in (entrance, *(browser.get(path) for path in ("/", "/api/session", "/nothing"))):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["cache-control"] == "no-store"
        assert "server" not in response.headers and "access-control-allow-origin" not in response.headers


def test_a_large_body_is_refused_whether_its_length_is_announced_or_not(
    console: ConsoleServer, browser: httpx.Client
) -> None:
    large = b"x" * (BODY_BYTES_MAX + 1)
    headers = {"Content-Type": "application/json"}
    assert browser.post("/api/sign-in", content=large, headers=headers).status_code == 413
    assert browser.post("/api/sign-in", content=iter([large]), headers=headers).status_code == 413
    base = {"Host": f"127.0.0.1:{console.port}", "Cookie": cookie_of(browser)}
    assert asked(console, "/api/sign-in", base | {"Content-Length": "-1"}, "POST").status in (400, 413)
    assert browser.get("/api/session").status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"user": 1, "password": 2, "database": 3}', b"\xff"])
def test_a_body_that_is_no_sign_in_is_refused(browser: httpx.Client, body: bytes) -> None:
    response = browser.post("/api/sign-in", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and "error" in response.json()
    assert browser.post("/api/sign-in", content=body, headers={"Content-Type": "text/plain"}).status_code == 415


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py", "/static/..%2fapplication.py", "/static/%2e%2e/application.py",
        "/static/uPlot.LICENSE.txt%00.js",
        "/static//etc/passwd", "/static/..\\gate.py", "/static/", "/static/index.html/..",
    ],
)  # fmt: skip
def test_static_files_are_a_list_of_names(console: ConsoleServer, browser: httpx.Client, path: str) -> None:
    headers = {"Host": f"127.0.0.1:{console.port}", "Cookie": cookie_of(browser)}
    assert asked(console, path, headers).status == 404


@pytest.mark.parametrize("method", ["DELETE", "OPTIONS", "PUT", "TRACE", "CONNECT"])
def test_other_methods_are_refused(console: ConsoleServer, browser: httpx.Client, method: str) -> None:
    headers = {"Host": f"127.0.0.1:{console.port}", "Cookie": cookie_of(browser)}
    assert asked(console, "/api/session", headers, method).status in (400, 405)


def test_the_page_writes_text_only_as_text(browser: httpx.Client) -> None:
    page = browser.get("/").text
    assert "<style" not in page and "onclick" not in page and "http:" not in page and "https:" not in page
    for name in ("changes", "collections", "console", "jobs", "page", "plot", "server", "slow", "streams"):
        script = browser.get(f"/static/{name}.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for unsafe in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            assert unsafe not in script.text, f"{name}.js"
