"""docs/security.md names a test for each threat, and there is such a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THREATS = (
    "Stranger on the network", "Reader who wants to write", "User of another database", "Stolen log",
    "Stolen data directory", "Stolen backup", "Flood of logins", "Downgrade", "Replayed conversation",
    "Injected namespace",
)  # fmt: skip


def rows() -> dict[str, list[str]]:
    """The tests of each threat, as the page names them."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("## Threats")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    return {threat: re.findall(r"`([^`]*)`", tests) for threat, _, tests in cells}


def test_each_threat_is_met() -> None:
    assert not set(THREATS) - rows().keys()


def test_the_tests_that_are_named_exist() -> None:
    for threat, tests in rows().items():
        assert tests, threat
        path = ""
        for name in tests:
            where, sign, function = name.partition("::")
            path = where or path
            assert sign and re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name
