"""`headrace serve --console`: a console beside the server, as long as it lives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headrace.cli.main import main
from tests.ports import free_port
from tests.waiting import until


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("socket", [True, False])
def test_serve_prints_the_address_of_a_console_that_ends_with_it(
    tmp_path: Path, number: signal.Signals, socket: bool
) -> None:
    words = ["serve", "--port", str(free_port()), "--dbpath", str(tmp_path), "--console"]
    words += ["--unixSocketPrefix", str(tmp_path)] if socket else ["--nounixsocket"]
    with subprocess.Popen([sys.executable, "-m", "headrace", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headrace listens on ")
        said = process.stdout.readline()
        assert said.startswith("headrace console: http://127.0.0.1:")
        address = said.split()[-1]
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(address)
            assert page.status_code == 200 and "Headrace" in page.text
            base = str(page.url)
            assert browser.get(f"{base}api/session").json()["version"]
            process.send_signal(number)
            process.wait(60)
            until(lambda: not answers(browser, base))


def answers(browser: httpx.Client, address: str) -> bool:
    try:
        browser.get(address)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--port", "0"], "needs a --port"),
        (["--logpath", "headrace.log"], "not for a log"),
        (["--console", "70000"], "not a port"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    command = ["serve", "--dbpath", str(tmp_path / "data"), "--console", *words]
    try:
        status = main(command)
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2 and reason in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_the_command_line_and_a_server_do_without_the_console() -> None:
    program = """
import sys, headrace
from headrace.cli.main import build_parser
build_parser()
with headrace.Server():
    print(sorted({"starlette", "uvicorn", "websockets", "headrace.cli.console.application"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
