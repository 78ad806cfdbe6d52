"""The files that an export writes, and the collections that it reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from headrace.cli.arguments import Failed

if TYPE_CHECKING:
    from headrace.cli.connection import Client


def raw_collection(client: Client, database: str, collection: str) -> Any:
    """Return the collection, with documents as raw BSON."""
    options: CodecOptions[Any] = CodecOptions(
        document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO, tz_aware=True
    )
    return client.get_database(database).get_collection(collection, options)


@contextmanager
def output(path: Path | None) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces `path` when it is complete. Raises Failed."""
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
    finally:
        with suppress(OSError):
            temporary.unlink()
