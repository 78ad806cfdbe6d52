"""Every example of README.md, docs/ and the other pages is run, in the order of its page.

The convention, in a page:

    ```python     run in one namespace for the whole page; a block that begins `# name.py` is written to that
                  file instead
    ```console    a line after `$ ` is run by the shell; what follows up to the next one must be its output, if
                  anything does; `...` stands for any text
    ```text       right after a python block: what that block prints
    ```toml       a block that begins `# name.toml` is written to that file; one that is a job's file must be valid
    <!-- slow -->            above a block: it needs Spark or many seconds; left out of `make check`
    <!-- not run: why -->    above a block: it cannot be run here

Each page has a new folder and a new home directory. The ports 27017 and 27018 stand for free ones that the test
picks. `make` is run with -n. A slow `headrace pipeline` is called in the test's process, where it finds the Spark
session that the page uses. Other languages (json, sql, ...) are not run.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import pkgutil
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.errors import code_name
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").glob("*.md"),
        *(ROOT / "examples").glob("*.md"),
    ]
)
RUN = {"console", "python"}
SHELLS = {"bash", "console", "py", "pycon", "python", "sh", "shell", "zsh"}  # languages of what could be run
TESTED_ELSEWHERE = {"docs/sinks/own.md"}  # tests/spark has batches for it
JOB_NAMES = re.compile(r"# ([\w-]+\.toml)\n")
MARK = "\x1e"
FENCE = re.compile(r"```(\w*)$")
COMMENT = re.compile(r"<!-- (slow|not run: .+) -->$")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
REPOSITORY_PATH = re.compile(r"`((?:bench|docs|headrace|tests)/[\w/.]*)`")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is where its first line of text is, from 1."""

    language: str
    text: str
    line: int
    slow: bool
    skipped: bool
    prints: str | None


def blocks(page: Path) -> list[Block]:
    """The page's blocks that are run, and what those that print are to print."""
    unpaired: list[Block] = []
    mark, language, start, body = "", None, 0, list[str]()
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if language is None and (fence := FENCE.match(line)):
            language, start, body = fence[1], number + 1, []
        elif language is not None and line == "```":
            unpaired.append(Block(language, "\n".join(body), start, mark == "slow", mark.startswith("not run"), None))
            mark, language = "", None
        elif language is not None:
            body.append(line)
        elif comment := COMMENT.match(line):
            mark = comment[1]
        elif line:
            mark = ""
    blocks = [with_output(block, after) for block, after in zip(unpaired, [*unpaired[1:], None])]
    return [block for block in blocks if block.language in RUN or is_job_file(block)]


def is_job_file(block: Block) -> bool:
    return block.language == "toml" and JOB_NAMES.match(block.text) is not None


def with_output(block: Block, after: Block | None) -> Block:
    if block.language != "python" or after is None or after.language != "text":
        return block
    return Block(block.language, block.text, block.line, block.slow, block.skipped, after.text)


class Reader:
    """Somebody who follows one page from top to bottom, in a folder of their own."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.namespace: dict[str, Any] = {"__name__": "__page__"}
        self.ports = {"27017": str(free_port()), "27018": str(free_port())}
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(folder / "home" / "data"),
        }
        (folder / "home").mkdir()

    def follow(self, block: Block) -> None:
        text = self.with_ports(block.text)
        prints = None if block.prints is None else self.with_ports(block.prints)
        if block.language == "toml":
            (self.folder / text.partition("\n")[0].removeprefix("# ")).write_text(text, "utf-8")
        elif block.language == "console" and block.slow and text.startswith("$ headrace pipeline"):
            self.pipeline(text, block)
        elif block.language == "console":
            self.shell(text, block)
        elif match := re.match(r"# ([\w/]+\.py)\n", text):
            (self.folder / match[1]).write_text(text, "utf-8")
        else:
            self.python(text, prints, block)

    def with_ports(self, text: str) -> str:
        for written, free in self.ports.items():
            text = text.replace(written, free)
        return text

    def python(self, text: str, prints: str | None, block: Block) -> None:
        """Run a block as if it stood at its place in the page, so that a traceback names the page's line."""
        tree = ast.increment_lineno(ast.parse(text), block.line - 1)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.chdir(self.folder):
            exec(compile(tree, str(self.page), "exec"), self.namespace)
        if prints is not None:
            check(out.getvalue(), prints, f"{self.page.name}:{block.line}")

    def pipeline(self, text: str, block: Block) -> None:
        """Run `headrace` with the Spark session of this process."""
        for line in text.splitlines():
            if line.startswith("$ "):
                out = io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.chdir(self.folder):
                    status = main(shlex.split(line)[2:])
                assert status == 0, f"{self.page.name}:{block.line}\n{out.getvalue()}"

    def shell(self, text: str, block: Block) -> None:
        """Run a block's commands in one shell, which stops at the first that fails."""
        commands, expected = list[str](), list[list[str]]()
        for line in text.splitlines():
            if line.startswith("$ "):
                commands.append(as_asked(line[2:]))
                expected.append([])
            elif commands and commands[-1].endswith("\\"):
                commands[-1] += "\n" + line
            else:
                expected[-1].append(line)
        script = "".join(f"{command}\nprintf '{MARK}'\n" for command in commands)
        done = subprocess.run(
            ["sh", "-e", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        location = f"{self.page.name}:{block.line}"
        assert done.returncode == 0, f"{location}\n{done.stdout}\n{done.stderr}"
        for got, wanted in zip(done.stdout.split(MARK), expected):
            if wanted:
                check(got, "\n".join(wanted), location)

    def end(self) -> None:
        """Stop the servers that the page started in the background and left running: those with a pid file."""
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)


def as_asked(command: str) -> str:
    return f"make -C '{ROOT}' -n{command[4:]}" if command.startswith("make ") else command


def check(got: str, wanted: str, location: str) -> None:
    pattern = ".*?".join(re.escape(literal) for literal in wanted.strip().split("..."))
    assert re.fullmatch(pattern, got.strip(), re.DOTALL), f"{location} says\n{wanted}\nbut it is\n{got}"


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(request.param, tmp_path)
    yield reader
    reader.end()


def pages_with(*, slow: bool) -> list[Path]:
    """Pages that have something to run: slow ones are run whole, the others without their slow blocks."""
    pages = [page for page in PAGES if page_id(page) not in TESTED_ELSEWHERE]
    return [page for page in pages if any(block.slow == slow for block in blocks(page) if runs(block))]


def runs(block: Block) -> bool:
    return block.language in RUN and not block.skipped


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.long
@pytest.mark.parametrize("reader", pages_with(slow=False), ids=page_id, indirect=True)
def test_the_examples_of_a_page_do_what_it_says(reader: Reader) -> None:
    for block in blocks(reader.page):
        if not block.skipped and not block.slow:
            reader.follow(block)


@pytest.mark.spark
@pytest.mark.parametrize("reader", pages_with(slow=True), ids=page_id, indirect=True)
def test_the_examples_of_a_page_do_what_it_says_with_spark(reader: Reader, spark: object) -> None:
    assert spark  # `get_session()` on the page gives this one
    for block in blocks(reader.page):
        if not block.skipped:
            reader.follow(block)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_could_be_run_is_run_or_says_why_not(page: Path) -> None:
    """No block of a shell or of Python under another language's name, or indented, which no test would run."""
    text = page.read_text("utf-8")
    opened = [
        match[1] for number, match in enumerate(re.finditer(r"^ *```(\w*)$", text, re.MULTILINE)) if not number % 2
    ]
    assert not (SHELLS - RUN).intersection(opened)
    nested = re.findall(r"(?:^ +(.*)\n)? +```(?:console|python)$", text, re.MULTILINE)
    assert all(COMMENT.match(above) for above in nested), "a block inside a list is not run: say why not"
    outside = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?<=\n\n)    +\S.*", outside)
    assert not [line for line in indented if not re.match(r" +(?:[-*]|\d+\.) ", line)]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_job_files_on_a_page_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.spark.jobs.job_file import parse_job

    monkeypatch.setenv("MASK_KEY", "a key for the examples of the pages")
    (tmp_path / "mask.key").write_text("a key for the examples of the pages", encoding="utf-8")
    (tmp_path / "mask.key").chmod(0o600)
    for text in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        given = tomllib.loads(text)
        if "checkpoint" in given:
            assert parse_job(given, page.stem, tmp_path).sinks


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor[1:] not in anchors(there)):
            broken.append(target + anchor)
    assert not broken


def anchors(page: Path) -> set[str]:
    """Where links into a page may point: its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_and_tests_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [path for path in REPOSITORY_PATH.findall(text) if not (ROOT / path).exists()]
    for path, test in TEST_NAME.findall(text):
        if (ROOT / path).exists() and test and f"def {test}(" not in (ROOT / path).read_text("utf-8"):
            missing.append(f"{path}::{test}")
    assert not missing


def test_the_page_of_what_is_not_supported_is_what_the_tables_say() -> None:
    writer = runpy.run_path(str(ROOT / "docs" / "unsupported.py"))
    assert writer["PAGE"].read_text("utf-8") == writer["page"](), "run: python docs/unsupported.py"


@pytest.mark.parametrize("name", ["cli.md", "job-file.md", "job-file.schema.json", "source-options.md"])
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    writer = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    assert (writer["FOLDER"] / name).read_text("utf-8") == writer["pages"]()[name], "run: python docs/reference.py"


def test_the_page_of_errors_names_codes_and_exceptions_that_exist() -> None:
    titles = re.findall(r"^### (\w+)(?: (\w+))?$", (ROOT / "docs" / "errors.md").read_text("utf-8"), re.MULTILINE)
    codes = {int(code): name for code, name in titles if name}
    assert codes == {code: code_name(code) for code in sorted(codes)}
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "headrace").rglob("*.py"))
    assert not {name for name, more in titles if not more and f"class {name}(" not in code}


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    index = {target for target, _ in LINK.findall((ROOT / "docs" / "index.md").read_text("utf-8"))}
    assert not pages - index
    navigation = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert not pages - set(navigation)


def test_the_page_of_the_python_api_names_what_exists() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        assert pkgutil.resolve_name(name), name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    names = set(re.findall(r"`(headrace(?:\.\w+)+)`", page.read_text("utf-8")))
    names -= {"headrace.lock", "headrace.positions", "headrace.redo", "headrace.tokens"}  # a file, and collections
    assert all(pkgutil.resolve_name(name) for name in names)
