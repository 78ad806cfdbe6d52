"""`headrace import`: read a file or a pipe into a collection, or a folder in mongodump's layout into databases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from headrace.cli.arguments import DEFAULT_URI, Failed, add_command, split_words
from headrace.cli.progress import Bar, index_progress, progress
from headrace.cli.transfer import FORMATS, counted

if TYPE_CHECKING:
    from headrace.cli.connection import Client

BATCH_COUNT: Final = 1000
ERROR_COUNT: Final = 5
"""This many refused documents are shown."""
_DESCRIPTION: Final = (
    "Insert the documents of a file, or of the standard input, into a collection: Extended JSON (a document on each "
    "line, or an array), CSV with a line of names, or BSON. Or restore a folder that mongodump or `headrace export` "
    "wrote: all collections, with their options and indexes. The exit status is 1 if a document was refused."
)
_EXAMPLES: Final = (
    "headrace import shop.orders orders.jsonl",
    "headrace import shop.orders orders.csv --columnsHaveTypes --upsert sku",
    "headrace import mongodb://db.example:27017 dump --drop",
)


def add_parser(commands: Any) -> None:
    """Add the subcommand `import`."""
    parser = add_command(commands, "import", _run, "read collections from files", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "words", metavar="[URI] [DB.COLLECTION] PATH", nargs="+",
        help=f"the server (default: {DEFAULT_URI}), the collection, and the file (`-`: the standard input) or folder",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, help="the format (default: by the file's suffix, otherwise json)")
    parser.add_argument("--drop", action="store_true", help="drop each collection before it is filled")
    parser.add_argument(
        "--upsert", metavar="A,B.C", help="replace the document with the same values of these fields, if there is one"
    )
    parser.add_argument(
        "--columnsHaveTypes", action="store_true", help="the names of CSV have types, such as qty.int32(), at.date()"
    )


@dataclass
class _Result:
    """The numbers of stored and refused documents, and the first errors."""

    stored: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the numbers as text."""
        return f"{counted(self.stored)}{f', {self.refused} refused' if self.refused else ''}"

    def refuse(self, text: str) -> None:
        """Count a document that the server has refused."""
        self.refused += 1
        if len(self.errors) < ERROR_COUNT:
            self.errors.append(text)


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.connection import connected, split_namespace

    uri, given = split_words(arguments.words, 2)
    if not given:
        raise Failed("give a file and its collection, or the folder of a dump", 2)
    path = Path(given.pop())
    result = _Result()
    database, collection = split_namespace(given[0] if given else "")
    if given and not collection:
        raise Failed(f"{given[0]!r} names no collection: DB.COLLECTION", 2)
    if given and str(path) != "-" and not path.exists():
        raise Failed(f"{path} cannot be read: there is no such file", 2)
    if bool(given) == path.is_dir():
        raise Failed(
            f"{path} is a folder, whose collections have their names: leave out {given[0]}" if given
            else f"{path} is not a folder: for a file, name its collection as DB.COLLECTION", 2,
        )  # fmt: skip
    try:
        with connected(uri) as client:
            if given:
                _import_file(client, database, collection, path, arguments, result)
            else:
                _restore(client, path, arguments, result)
    finally:  # documents before an invalid one stay stored
        for text in result.errors:
            print(f"headrace: {text}", file=sys.stderr)
        if result.stored or result.refused:
            print(result.text())
    if not result.stored and not result.refused:
        print(result.text())
    return 1 if result.refused else 0


def _import_file(
    client: Client, database: str, collection: str, path: Path, arguments: argparse.Namespace, result: _Result
) -> None:
    """Fill a collection from a file. Raises Failed, PyMongoError."""
    from headrace.cli.transfer.formats import documents_of, format_of

    source = None if str(path) == "-" else path
    kind = format_of(source, arguments.format)
    keys = [key.strip() for key in (arguments.upsert or "").split(",") if key.strip()]
    with _input(source) as file:
        documents = documents_of(kind, file, str(path), arguments.columnsHaveTypes)
        target = client.get_database(database).get_collection(collection)
        if arguments.drop:
            target.drop()
        size = _size(source)
        with progress(f"{database}.{collection}", size, "documents" if size is None else "B") as bar:

            def advance() -> None:
                bar.set(result.stored + result.refused if size is None else file.tell())

            _store(target, documents, keys, result, advance)


def _size(path: Path | None) -> int | None:
    """Return the size of a regular file in bytes; None for the standard input and a pipe."""
    return path.stat().st_size if path is not None and path.is_file() else None


def _store(
    target: Any, documents: Iterator[Mapping[str, Any]], keys: Sequence[str], result: _Result,
    advance: Callable[[], None],
) -> None:  # fmt: skip
    """Write documents in batches, and call `advance` after each."""
    from pymongo import InsertOne, ReplaceOne
    from pymongo.errors import BulkWriteError

    from headrace.cli.transfer.formats import value_at

    batch: list[Any] = []

    def write() -> None:
        try:
            target.bulk_write(batch, ordered=False)
            result.stored += len(batch)
        except BulkWriteError as error:
            failures = error.details["writeErrors"]
            result.stored += len(batch) - len(failures)
            for failure in failures:
                result.refuse(f"error {failure['code']}: {failure['errmsg']}")
        batch.clear()
        advance()

    try:
        for document in documents:
            if keys:
                batch.append(ReplaceOne({key: value_at(document, key) for key in keys}, document, upsert=True))
            else:
                batch.append(InsertOne(document))
            if len(batch) == BATCH_COUNT:
                write()
    finally:
        if batch:
            write()


def _restore(client: Client, folder: Path, arguments: argparse.Namespace, result: _Result) -> None:
    """Create and fill the collections of a dump: `DIR/DB/COLLECTION.bson`, or the folder of one database."""
    databases = [path for path in sorted(folder.iterdir()) if path.is_dir()] or [folder]
    views = []
    with progress("restore", sum(_size(path) or 0 for one in databases for path in one.glob("*.bson")), "B") as bar:
        for database in databases:
            for path in sorted({*database.glob("*.bson"), *database.glob("*.metadata.json")}):
                name = path.name.removesuffix(".bson").removesuffix(".metadata.json")
                if path.suffix == ".json" and path.with_name(f"{name}.bson").exists():
                    continue
                metadata = _metadata(path.with_name(f"{name}.metadata.json"))
                target = (
                    client.get_database(unquote(database.resolve().name)),
                    metadata.get("collectionName", unquote(name)),
                )
                if metadata.get("type") == "view":
                    views.append((*target, metadata))
                    continue
                _make(client, *target, metadata, drop=arguments.drop)
                if path.suffix == ".bson":
                    bar.name(f"{target[0].name}.{target[1]}")
                    _fill(target[0].get_collection(target[1]), path, result, bar)
    for view in views:
        _make(client, *view, drop=arguments.drop)


def _fill(target: Any, path: Path, result: _Result, bar: Bar) -> None:
    """Fill a collection from its BSON file in a dump."""
    from headrace.cli.transfer.formats import documents_of

    before = bar.done
    with _input(path) as file:
        documents = documents_of("bson", file, str(path), has_types=False)
        _store(target, documents, (), result, lambda: bar.set(before + file.tell()))


def _metadata(path: Path) -> dict[str, Any]:
    from bson import json_util

    if str(path) != "-" and not path.exists():
        return {}
    try:
        return dict(json_util.loads(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise Failed(f"{path} is not the metadata of a dump: {error}") from None


def _make(client: Client, database: Any, name: str, metadata: Mapping[str, Any], *, drop: bool) -> None:
    """Create a collection or view with its options and indexes. Raises PyMongoError."""
    if drop:
        database.drop_collection(name)
    if name not in database.list_collection_names():
        database.command({"create": name, **metadata.get("options", {})})
    indexes = [dict(index) for index in metadata.get("indexes", ()) if index.get("name") != "_id_"]
    for index in indexes:
        index.pop("ns", None)
    if indexes:
        with index_progress(client, database.name, name):
            database.command({"createIndexes": name, "indexes": indexes})


@contextmanager
def _input(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    with file:
        yield file
