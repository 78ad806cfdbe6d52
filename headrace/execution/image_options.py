"""The collection option `changeStreamPreAndPostImages`, checked."""

from __future__ import annotations

from typing import Final

from headrace.dispatch.arguments import Fields, boolean, document
from headrace.errors import CommandError

OPTION: Final = "changeStreamPreAndPostImages"
IMAGES: Final = document(OPTION, Fields(boolean("enabled", strict=True, required=True)))


def check_database_has_images(namespace: str) -> None:
    """Raise 72 for the server's own databases, whose changes have no images."""
    database = namespace.partition(".")[0]
    if database in ("admin", "config", "local"):
        raise CommandError(72, f"{OPTION} collection option is not supported in the '{database}' database: {namespace}")
