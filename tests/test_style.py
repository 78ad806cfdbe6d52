"""The house style, as far as a machine can tell: sizes, opening sentences, names of rooms, tables, foreign paths.

CONTRIBUTING.md has the whole of it, with the reasons.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TABLE_ROWS_MIN = 4
FORBIDDEN_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}
ORDERED_BY_MEANING = {
    "headrace/commands/server_info/server_status.py:_OPERATIONS",  # as serverStatus lists them
    "headrace/query/stages/granularity.py:SERIES",  # by coarseness
    "headrace/query/stages/time_units.py:MILLISECONDS",  # by length
}
FOREIGN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.~*}])/(home|mnt|opt|root|srv|Users|work|workspace)/\w"),
    "the address of a package index": re.compile(r"https?://[^\s\"')]*/simple\b|(extra-)?index-url\b", re.IGNORECASE),
    "a tool of the workplace": re.compile(r"\bfar[m]-[a-z]+"),
}


@cache
def tracked() -> tuple[Path, ...]:
    """The repository's files; outside a git checkout, everything that is no hidden or built folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return tuple(
            path for name in sorted(filter(None, listed.stdout.split("\0"))) if (path := ROOT / name).is_file()
        )
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    )


def sources(*folders: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_of_source_is_longer_than_600_lines() -> None:
    long = {
        name(path): lines
        for path in every_source()
        if (lines := len(path.read_text("utf-8").splitlines())) > FILE_LINES_MAX
    }
    assert not long, f"more than {FILE_LINES_MAX} lines"


def every_source() -> list[Path]:
    return sources("bench", "docs", "headrace", "tests")


def test_no_function_is_longer_than_70_lines() -> None:
    long = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in every_source()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long


def test_every_module_opens_by_saying_what_it_is() -> None:
    """Packages of tests may be silent: their `__init__` is there for Python, not for a reader."""
    silent = [
        name(path)
        for path in every_source()
        if not ast.get_docstring(parsed(path)) and not (path.name == "__init__.py" and "tests" in path.parts)
    ]
    assert not silent


def test_no_room_is_called_after_nothing() -> None:
    found = [
        name(path)
        for path in every_source()
        if FORBIDDEN_NAMES & {path.stem, *path.relative_to(ROOT).parts, *path.stem.split("_")}
    ]
    assert not found


def test_tables_are_sorted() -> None:
    unsorted = [
        f"{name(path)}:{title}"
        for path in sources("headrace")
        for title, keys in tables(parsed(path))
        if keys != sorted(keys) and f"{name(path)}:{title}" not in ORDERED_BY_MEANING
    ]
    assert not unsorted, "sort them, or name them in ORDERED_BY_MEANING with the reason"


def tables(module: ast.Module) -> Iterator[tuple[str, list[str] | list[int]]]:
    """(name, keys) of every table: a constant that is a dict by constants, or a row of calls that begin with a name."""
    for statement in module.body:
        if isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        elif isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        else:
            continue
        if not isinstance(target, ast.Name) or not target.id.isupper():
            continue
        keys = keys_of(value)
        if len(keys) >= TABLE_ROWS_MIN and all(type(key) is type(keys[0]) for key in keys):
            yield target.id, keys


def keys_of(value: ast.expr | None) -> list[str] | list[int]:
    found: list[ast.expr | None] = []
    if isinstance(value, ast.Dict):
        found = list(value.keys)
    elif isinstance(value, ast.Tuple | ast.List):
        found = [item.args[0] if isinstance(item, ast.Call) and item.args else None for item in value.elts]
    keys = [key.value for key in found if isinstance(key, ast.Constant)]
    return keys if len(keys) == len(found) else []  # type: ignore[return-value]


@pytest.mark.parametrize("what", sorted(FOREIGN))
def test_no_file_holds_what_belongs_to_one_machine(what: str) -> None:
    found = []
    for path in tracked():
        if path.suffix in {".ico", ".png"} or path == Path(__file__).resolve():
            continue
        lines = path.read_text("utf-8").splitlines()
        found += [f"{name(path)}:{number}" for number, line in enumerate(lines, 1) if FOREIGN[what].search(line)]
    assert not found


def test_the_server_starts_without_spark_and_arrow() -> None:
    program = """
import sys, headrace
with headrace.Server():
    print(sorted({"deltalake", "pandas", "pyarrow", "pyspark"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
