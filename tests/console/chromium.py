"""A headless Chromium that a test drives by the Chrome DevTools protocol: as a person would."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

from tests.waiting import until

PROGRAM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_NAMELESS: Final = frozenset(
    {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "img", "image", "region"}
)
"""Roles that need a name."""
KEYS: Final = {"Enter": (13, "\r"), "Tab": (9, "")}


class Page:
    """One page of the browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        """Exceptions, refused scripts and other errors of the page."""
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of one call of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(message["params"]["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.problems.append(message["params"]["entry"]["text"])

    def open(self, address: str, width: int = 1200, height: int = 800, scheme: str = "light") -> None:
        """Open an address in a window of this size and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression once it is true."""
        return until(lambda: self.run(script), 60)

    def shows(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    def appears(self, selector: str, count: int = 1) -> None:
        """Wait until the page has at least `count` elements of a selector."""
        self.until(f"document.querySelectorAll({json.dumps(selector)}).length >= {count}")

    def click(self, selector: str) -> None:
        """Click into the middle of an element, with the mouse."""
        place = self.until(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return null;"
            "found.scrollIntoView({block: 'center'}); const box = found.getClientRects()[0];"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key."""
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def unnamed(self) -> list[str]:
        """The controls of the accessibility tree without a name."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            json.dumps(node)
            for node in nodes
            if not node["ignored"] and node["role"]["value"].lower() in _NAMELESS
            if not node.get("name", {}).get("value", "").strip()
        ]

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A page of a new browser, whose profile is in a folder."""
    assert PROGRAM is not None
    words = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
        f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = folder / "DevToolsActivePort"
        until(lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2, 60)
        port, path = port_file.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}") as socket:
            socket.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            found = json.loads(socket.recv(timeout=60))["result"]["targetInfos"]
        target = next(one["targetId"] for one in found if one["type"] == "page")
        with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)
