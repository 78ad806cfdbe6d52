"""`collectionUUID`: a command runs only if its collection has the UUID that the client expects.

Source: the documentation of the field in MongoDB's commands; the fields of its error 361.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from bson import Binary

from headrace.dispatch.arguments import uuid
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.errors import CommandError

R = TypeVar("R")


COLLECTION_UUID: Final = uuid("collectionUUID")


def with_expected_uuid(run: Callable[[CommandContext, Request], R]) -> Callable[[CommandContext, Request], R]:
    """Make a command check its `collectionUUID` first."""

    def checked(context: CommandContext, request: Request) -> R:
        check_collection_uuid(context, _namespace(request), request.body["collectionUUID"])
        return run(context, request)

    return checked


def _namespace(request: Request) -> str:
    name = request.body[request.name]
    if request.name == "aggregate" and type(name) is not str:
        raise CommandError(4928901, "'collectionUUID' is not supported for a pipeline without a collection")
    return str(name) if request.name == "renameCollection" else f"{request.db}.{name}"


def check_collection_uuid(context: CommandContext, namespace: str, uuid: bytes | None) -> None:
    """Raise 361 unless the namespace is a collection with this UUID. None: accept any.

    The error's `actualCollection` is the collection of the same database that has the UUID, or null.
    """
    if uuid is None:
        return
    uuid = bytes(uuid)  # a Binary never equals bytes
    collection = context.view.collection(namespace)
    if collection is not None and collection.uuid == uuid:
        return
    database, _, expected = namespace.partition(".")
    collections = context.view.catalog.in_database(database)
    actual = next((item.name for item in collections if item.uuid == uuid), None)
    raise CommandError(
        361, "Collection UUID does not match that specified",
        extra={
            "db": database, "collectionUUID": Binary(uuid, 4), "expectedCollection": expected,
            "actualCollection": actual,
        },
    )  # fmt: skip
