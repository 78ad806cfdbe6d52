"""Check of a data directory, from its file to its tables. Nothing is written, and no server may have it open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.store.check.pages import page_problems
from headrace.store.check.rows import Rows
from headrace.store.check.tables import check_tables
from headrace.store.checksums.transaction import CheckedTransaction
from headrace.store.checksums.upgrade import FORMAT_KEY, FORMATS, UPGRADE_KEY, WITHOUT_CHECKSUMS, IncompatibleFormat
from headrace.store.data_file import DATA_FILE, DataFile, FileProblem, UnusableDirectory
from headrace.store.lmdb import TABLES, locked_for_reading, read_only


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check."""

    problems: list[str]
    collections: int
    rows: dict[str, int]
    """The number of rows in each table that was walked."""
    has_checksums: bool


Advance = Callable[[str, int, int], object]
"""Called with "pages" or "rows", the number checked so far, and the approximate total."""


def check(path: Path, advance: Advance = lambda what, done, total: None) -> Report:
    """Check a directory; `advance` is called for each page and each row.

    Raises `DirectoryInUse`; `UnusableDirectory` if there is nothing that can be checked.
    """
    file = path / DATA_FILE
    if not file.is_file() or file.stat().st_size == 0:
        raise UnusableDirectory(f"{path} has no data file of Headrace")
    with locked_for_reading(path):
        problems = _page_problems(file, advance)
        if problems:
            return Report(problems, 0, {}, has_checksums=False)
        return _check_tables(path, advance)


def _page_problems(file: Path, advance: Advance) -> list[str]:
    with file.open("rb") as opened:
        try:
            return list(page_problems(DataFile(opened.fileno(), file.stat().st_size), advance))
        except FileProblem as problem:
            raise UnusableDirectory(f"{file} {problem}") from None


def _check_tables(path: Path, advance: Advance) -> Report:
    with read_only(path) as (kv, tables):
        if set(tables) & set(TABLES) and set(tables) != set(TABLES):
            missing, others = sorted(set(TABLES) - set(tables)), sorted(set(tables) - set(TABLES))
            return Report(
                [f"tables are missing: {missing}; unknown ones are there: {others}"], 0, {}, has_checksums=False
            )
        if set(tables) != set(TABLES):
            raise UnusableDirectory(f"{path / DATA_FILE} is an LMDB file of another program")
        version = kv.get(FORMAT_KEY, db=tables["meta"])
        if version not in FORMATS:
            raise IncompatibleFormat(f"{path} has format {(version or b'none').decode(errors='replace')}")
        if kv.get(UPGRADE_KEY, db=tables["meta"]) is not None:
            raise UnusableDirectory(f"the conversion of {path} was cut off: start its server once, which completes it")
        has_checksums = version != WITHOUT_CHECKSUMS
        rows = Rows(kv, tables, checksums=has_checksums, advance=advance)
        names = {table: name for name, table in tables.items()}
        values = CheckedTransaction(kv, lambda table, key: rows.name(names[table], key)) if has_checksums else kv
        check_tables(rows, values)
        return Report(rows.problems, len(rows.catalog.collections), dict(rows.counts), has_checksums=has_checksums)
