"""The house style, as far as a machine can check: sizes, opening sentences, names of files, tables, foreign paths.

CONTRIBUTING.md has the whole of it, with the reasons.
"""

from __future__ import annotations

import ast
import gc
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
    "headrace/query/stages/bucket.py:SERIES",  # by coarseness
}
FOREIGN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.~*}])/(home|mnt|opt|root|srv|Users|work|workspace)/\w"),
    "the address of a package index": re.compile(r"https?://[^\s\"')]*/simple\b|(extra-)?index-url\b", re.IGNORECASE),
    "a tool of the workplace": re.compile(r"\bfar[m]-[a-z]+"),
}
FOLDER_FILES_MAX = 30
FAMILIES = {"headrace/query/expressions", "headrace/query/stages"}
RETIRED_WORDS = frozenset("disturb hear heard hears hush obey retell strike strikes tally".split())
BAD_OPENING = re.compile(r"(Nobody|Of|That|They|Those|What|Whatever|Who|Whose)\b(?!'s)")
FOREIGN_CALLBACKS = frozenset(
    "connection_lost connection_made data_received do_GET emit getDefaultReadLimit initialOffset latestOffset "
    "onQueryIdle onQueryProgress onQueryStarted onQueryTerminated pause_writing prepareForTriggerAvailableNow reader "
    "resume_writing schema streamReader".split()
)
FOREIGN_NAMES = re.compile(  # MongoDB's CursorNotFound and ChangeStreamHistoryLost, asyncio's connection_lost
    r"not_?found|connection_lost|(history|position)_?lost", re.IGNORECASE
)


@pytest.fixture(autouse=True, scope="module")
def no_passes_over_the_trees() -> Iterator[None]:
    """The collector's passes over all nodes of all files would take five times as long as parsing them.

    The nodes are dropped afterwards, or they would cost every pass in the tests that come next.
    """
    gc.disable()
    yield
    for function in (nodes, parsed):
        function.cache_clear()
    gc.enable()


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


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, the module first."""
    return tuple(ast.walk(parsed(path)))


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
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long


def test_tests_without_a_package_have_names_of_their_own() -> None:
    """pytest imports them by their names alone."""
    seen: dict[str, str] = {}
    for path in sources("tests"):
        if path.name.startswith("test_") and not (path.parent / "__init__.py").exists():
            assert seen.setdefault(path.name, name(path)) == name(path)


def test_every_module_opens_by_saying_what_it_is() -> None:
    """Packages of tests may be silent: their `__init__` is there for Python, not for a reader."""
    silent = [
        name(path)
        for path in every_source()
        if not ast.get_docstring(parsed(path)) and not (path.name == "__init__.py" and "tests" in path.parts)
    ]
    assert not silent


def test_no_file_or_folder_has_an_empty_name() -> None:
    offenders = [
        name(path)
        for path in every_source()
        if FORBIDDEN_NAMES & {path.stem, *path.relative_to(ROOT).parts, *path.stem.split("_")}
    ]
    assert not offenders


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
    items: list[ast.expr | None] = []
    if isinstance(value, ast.Dict):
        items = list(value.keys)
    elif isinstance(value, ast.Tuple | ast.List):
        items = [item.args[0] if isinstance(item, ast.Call) and item.args else None for item in value.elts]
    keys = [key.value for key in items if isinstance(key, ast.Constant)]
    return keys if len(keys) == len(items) else []  # type: ignore[return-value]


def test_names_hold_no_retired_words() -> None:
    """ARCHITECTURE.md has the table of words: what MongoDB, LMDB, asyncio or Spark call a thing is its name here."""
    retired = [
        f"{name(path)}:{line} {defined}"
        for path in sources("bench", "docs", "examples", "headrace", "tests")
        for line, defined in definitions(path)
        if words_of(defined) & RETIRED_WORDS
    ]
    assert not retired


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    offenders = [
        f"{name(path)}:{node.lineno} {node.value.value.splitlines()[0]}"
        for path in sources("headrace")
        for node in nodes(path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if BAD_OPENING.match(node.value.value)
    ]
    assert not offenders, "write 'Return...', 'The position of...' (CONTRIBUTING.md)"


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for path in sources("headrace"):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{name(path)}:{node.lineno}")
    assert not {title: files for title, files in homes.items() if len(files) > 1}


def test_no_folder_is_crowded() -> None:
    """Families of operators and stages have a file each, and may be many."""
    crowded = {
        name(folder): count
        for folder in {path.parent for path in tracked()}
        if (count := sum(path.parent == folder for path in tracked())) > FOLDER_FILES_MAX
        and name(folder) not in FAMILIES
    }
    assert not crowded


def test_public_functions_have_a_docstring() -> None:
    """But for a command's, which the first sentence of its file describes, and methods whose contract stands elsewhere:
    overrides, implementations of a protocol, callbacks of asyncio and Spark."""
    stated = {
        node.name
        for path in sources("headrace")
        for owner in nodes(path)
        if isinstance(owner, ast.ClassDef)
        for node in functions_of(owner)
        if ast.get_docstring(node)
    } | FOREIGN_CALLBACKS
    silent = [
        f"{name(path)}:{node.lineno} {node.name}"
        for path in sources("headrace")
        if path.parent.parent.name != "commands"
        for owner in nodes(path)
        if isinstance(owner, ast.Module) or (isinstance(owner, ast.ClassDef) and not owner.name.startswith("_"))
        for node in functions_of(owner)
        if not node.name.startswith("_") and not ast.get_docstring(node)
        if isinstance(owner, ast.Module) or node.name not in stated
    ]
    assert not silent


def functions_of(owner: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_stub(node):
            yield node


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has no body: a method of a protocol, whose class is described, or an overload."""
    last = node.body[-1]
    return len(node.body) == 1 and isinstance(last, ast.Expr) and getattr(last.value, "value", None) is ...


def definitions(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of everything that a file defines, and the file itself."""
    yield 1, path.stem
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(defined: str) -> set[str]:
    """The words of a name, whatever its case; those of MongoDB's and asyncio's own names left out."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", FOREIGN_NAMES.sub("", defined))}


@pytest.mark.parametrize("what", sorted(FOREIGN))
def test_no_file_holds_what_belongs_to_one_machine(what: str) -> None:
    offenders = []
    for path in tracked():
        if path.suffix in {".ico", ".png", ".zst"} or path == Path(__file__).resolve():
            continue
        lines = path.read_text("utf-8").splitlines()
        offenders += [f"{name(path)}:{number}" for number, line in enumerate(lines, 1) if FOREIGN[what].search(line)]
    assert not offenders


def test_the_server_starts_without_spark_and_arrow() -> None:
    program = """
import sys, headrace
with headrace.Server():
    print(sorted({"deltalake", "pandas", "pyarrow", "pyspark"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
