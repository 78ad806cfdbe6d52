"""`headrace export`: write a collection to a file or a pipe, or databases into a folder in mongodump's layout.

DIR/shop/orders.bson             the documents
DIR/shop/orders.metadata.json    options, indexes and UUID; the only file of a view
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.arguments import DEFAULT_URI, Failed, add_command, positive, split_words
from headrace.cli.transfer import FORMATS, counted

if TYPE_CHECKING:
    from headrace.cli.connection import Client

_DESCRIPTION: Final = (
    "Write a collection to a file or to the standard output: a document on each line in Extended JSON, CSV, or BSON. "
    "Without a collection, write a database, or all of them, into a folder, in BSON with the collections' options and "
    "indexes, as mongodump does; mongorestore reads it. All documents are as they were at one time."
)
_EXAMPLES: Final = (
    "headrace export shop.orders > orders.jsonl",
    'headrace export shop.orders --out orders.csv --fields _id,item,qty --query \'{"qty": {"$gt": 1}}\'',
    "headrace export mongodb://db.example:27017 shop --out dump",
)


def add_parser(commands: Any) -> None:
    """Add the subcommand `export`."""
    parser = add_command(commands, "export", _run, "write collections to files", _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "words", metavar="[URI] [DB[.COLLECTION]]", nargs="*",
        help=f"the server (default: {DEFAULT_URI}), and what to write (default: all databases)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="PATH", type=Path, help="the file (default: the standard output), or the folder of a dump"
    )
    parser.add_argument("--format", choices=FORMATS, help="the format (default: by the file's suffix, otherwise json)")
    parser.add_argument("--query", metavar="JSON", help="only the documents that match")
    parser.add_argument("--fields", metavar="A,B.C", help="only these fields; of CSV, the columns")
    parser.add_argument("--sort", metavar="JSON", help="the order, such as '{\"at\": -1}'")
    parser.add_argument("--limit", metavar="N", type=positive, default=0, help="N documents at most")
    parser.add_argument(
        "--live",
        action="store_true",
        help="read what is there as it changes (default: all of it as it was at one time)",
    )
    parser.add_argument(
        "--no-documents",
        action="store_true",
        help="of a dump, only the collections with their options and indexes",
    )
    parser.add_argument(
        "--canonical",
        action="store_true",
        help="Extended JSON that keeps every type (default: numbers and dates plain)",
    )


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    from headrace.cli.connection import connected, split_namespace
    from headrace.cli.transfer.dump import dump

    uri, given = split_words(arguments.words, 1)
    database, collection = split_namespace(given[0] if given else "")
    with connected(uri) as client:
        if collection:
            if arguments.no_documents:
                raise Failed("--no-documents is for a dump of databases", 2)
            count = _export(client, database, collection, arguments)
            print(
                f"{counted(count)} of {database}.{collection}",
                file=sys.stderr if arguments.out is None else sys.stdout,
            )
        else:
            if arguments.out is None or arguments.query or arguments.fields or arguments.format not in (None, "bson"):
                raise Failed("a dump of databases is BSON in a folder: give --out, without --query and --fields", 2)
            dump(client, database, arguments.out, live=arguments.live, documents=not arguments.no_documents)
    return 0


def _export(client: Client, database: str, collection: str, arguments: argparse.Namespace) -> int:
    """Write one collection; return the number of documents. Raises Failed, PyMongoError."""
    from bson.errors import BSONError
    from pymongo.errors import OperationFailure

    from headrace.cli.progress import progress
    from headrace.cli.tail.start import json_object
    from headrace.cli.transfer.dump import SNAPSHOT_GONE, output, raw_collection, snapshot_session
    from headrace.cli.transfer.formats import format_of, writer_of

    kind = format_of(arguments.out, arguments.format)
    fields = [field.strip() for field in (arguments.fields or "").split(",") if field.strip()]
    query = json_object(arguments.query, "--query") if arguments.query else {}
    order = list(json_object(arguments.sort, "--sort").items()) if arguments.sort else None
    source = raw_collection(client, database, collection)
    count = 0
    with (
        snapshot_session(client, database, collection, arguments.live) as session,
        output(arguments.out) as file,
        progress(f"{database}.{collection}", None, "documents") as bar,
    ):
        if bar.is_shown and not query:
            there = source.estimated_document_count()
            bar.set(0, min(there, arguments.limit or there))
        write = writer_of(kind, file, fields, arguments.canonical)
        try:
            for document in source.find(query, fields or None, limit=arguments.limit, sort=order, session=session):
                write(document)
                count += 1
                bar.add(1)
        except BSONError as error:
            raise Failed(f"a document cannot be written as {kind}: {error}; --format bson writes it") from None
        except OperationFailure as error:
            if error.code not in SNAPSHOT_GONE:
                raise
            text = (error.details or {}).get("errmsg") or error
            raise Failed(
                f"the server no longer has the snapshot of {database}.{collection} ({text}): try again, or read the "
                "collection as it is with --live"
            ) from None
    return count
