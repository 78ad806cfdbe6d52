"""`headrace export`: a collection into a file or a pipe, or databases into a folder as mongodump writes it.

DIR/shop/orders.bson             the documents
DIR/shop/orders.metadata.json    options, indexes and UUID; of a view just this
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from headrace.cli.arguments import DEFAULT_URI, Failed, add_command, positive, split_words
from headrace.cli.transfer import FORMATS, counted

if TYPE_CHECKING:
    from headrace.cli.connection import Client

_INTERNAL: Final = frozenset({"admin", "config", "local"})
_DESCRIPTION: Final = (
    "Write a collection to a file or to the standard output: a document on each line in Extended JSON, CSV, or BSON. "
    "Without a collection, write a database, or all of them, into a folder, in BSON with the collections' options and "
    "indexes, as mongodump does; mongorestore reads it."
)
_EXAMPLES: Final = (
    "headrace export shop.orders > orders.jsonl",
    'headrace export shop.orders --out orders.csv --fields _id,item,qty --query \'{"qty": {"$gt": 1}}\'',
    "headrace export mongodb://db.example:27017 shop --out dump",
)


def add_parser(commands: Any) -> None:
    """The subcommand `export`."""
    parser = add_command(commands, "export", _run, "write collections to files", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "words", metavar="[URI] [DB[.COLLECTION]]", nargs="*",
        help=f"the server (default: {DEFAULT_URI}), and what to write (default: all databases)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="PATH", type=Path, help="the file (default: the standard output), or the folder of a dump"
    )
    parser.add_argument("--format", choices=FORMATS, help="the format (default: by the file's suffix, else json)")
    parser.add_argument("--query", metavar="JSON", help="only the documents that match")
    parser.add_argument("--fields", metavar="A,B.C", help="only these fields; of CSV, the columns")
    parser.add_argument("--sort", metavar="JSON", help="the order, such as '{\"at\": -1}'")
    parser.add_argument("--limit", metavar="N", type=positive, default=0, help="so many documents at most")
    parser.add_argument(
        "--canonical",
        action="store_true",
        help="Extended JSON that keeps every type (default: numbers and dates plain)",
    )


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.connection import connected, split_namespace

    uri, given = split_words(arguments.words, 1)
    database, collection = split_namespace(given[0] if given else "")
    with connected(uri) as client:
        if collection:
            count = _export(client, database, collection, arguments)
            print(
                f"{counted(count)} of {database}.{collection}",
                file=sys.stderr if arguments.out is None else sys.stdout,
            )
        else:
            if arguments.out is None or arguments.query or arguments.fields or arguments.format not in (None, "bson"):
                raise Failed("a dump of databases is BSON in a folder: give --out, without --query and --fields", 2)
            _dump(client, [database] if database else _databases(client), arguments.out)
    return 0


def _databases(client: Client) -> list[str]:
    return sorted(name for name in client.list_database_names() if name not in _INTERNAL)


def _export(client: Client, database: str, collection: str, arguments: argparse.Namespace) -> int:
    """Write one collection; how many documents. Raises Failed, PyMongoError."""
    from bson.errors import BSONError

    from headrace.cli.tail.start import json_object
    from headrace.cli.transfer.formats import format_of, writer_of

    kind = format_of(arguments.out, arguments.format)
    fields = [field.strip() for field in (arguments.fields or "").split(",") if field.strip()]
    source = _raw(client, database, collection)
    cursor = source.find(
        json_object(arguments.query, "--query") if arguments.query else {},
        fields or None,
        limit=arguments.limit,
    )
    if arguments.sort:
        cursor = cursor.sort(list(json_object(arguments.sort, "--sort").items()))
    count = 0
    with _output(arguments.out) as file:
        write = writer_of(kind, file, fields, arguments.canonical)
        for document in cursor:
            try:
                write(document)
            except BSONError as error:
                raise Failed(f"a document cannot be written as {kind}: {error}; --format bson writes it") from None
            count += 1
    return count


def _dump(client: Client, databases: Sequence[str], folder: Path) -> None:
    """Write databases into a folder. Raises Failed, PyMongoError."""
    from headrace.cli.transfer.formats import metadata_text

    for database in databases:
        for info in client.get_database(database).list_collections():
            name = info["name"]
            if name.startswith("system.") and name != "system.js":
                continue
            path = folder / quote(database, safe="") / f"{quote(name, safe='$&+=:@')}.bson"
            source = _raw(client, database, name)
            is_view = info["type"] == "view"
            indexes = [] if is_view else list(client.get_database(database).get_collection(name).list_indexes())
            metadata = {"options": info.get("options", {}), "indexes": indexes}
            if "uuid" in info.get("info", {}):
                metadata["uuid"] = bytes(getattr(info["info"]["uuid"], "bytes", info["info"]["uuid"])).hex()
            metadata |= {"collectionName": name, "type": info["type"]}
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_suffix(".metadata.json").write_text(metadata_text(metadata), "utf-8")
            except OSError as error:
                raise Failed(f"{error.filename}: {error.strerror}") from None
            count = 0
            if not is_view:
                with _output(path) as file:
                    for document in source.find():
                        file.write(document.raw)
                        count += 1
            print(f"{counted(count)} of {database}.{name}")


def _raw(client: Client, database: str, collection: str) -> Any:
    """The collection, its documents as they are on the wire."""
    from bson.codec_options import CodecOptions, DatetimeConversion
    from bson.raw_bson import RawBSONDocument

    options: CodecOptions[Any] = CodecOptions(
        document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO, tz_aware=True
    )
    return client.get_database(database).get_collection(collection, options)


@contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    """The file to write to, replaced when it is complete. Raises Failed."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}") from None
