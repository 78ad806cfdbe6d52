"""validateDBMetadata: the views, validators and indexes that a client of the strict stable API could not have made.

Source: MongoDB's documentation of the command; a sparse or a text index is not in version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.auth.privileges import ANY, Privilege
from headrace.dispatch.access import Grants
from headrace.dispatch.api_version import check_stages
from headrace.dispatch.arguments import Fields, boolean, document, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement
from headrace.errors import CommandError, code_name
from headrace.store.catalog import Collection

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

COLLECTION: Final = string("collection")
DATABASE: Final = string("db")
STRICT: Final = boolean("strict", strict=True)
VERSION: Final = string("version")
PARAMETERS: Final = document(
    "apiParameters", Fields(boolean("deprecationErrors", strict=True), STRICT, VERSION), required=True
)


def validate_metadata(context: CommandContext, request: Request) -> dict[str, Any]:
    """validateDBMetadata: answer an error for each part outside the API version. Raise 322 for an unknown version."""
    parameters, database, name = PARAMETERS.of(request.body), request.body.get("db"), request.body.get("collection")
    version = parameters.get("version")
    if version is not None and version != "1":
        raise CommandError(322, 'API version must be "1"')
    if version is None or not STRICT.of(parameters):
        return {"apiVersionErrors": []}
    errors = [
        {"ns": collection.namespace, "code": error.code, "codeName": code_name(error.code), "errmsg": error.message}
        for collection in context.paced(sorted(context.view.catalog.collections.values(), key=_place))
        if database in (None, collection.database) and name in (None, collection.name)
        for error in _errors(collection)
    ]
    return {"apiVersionErrors": errors}


def _place(collection: Collection) -> tuple[str, bool, str]:
    """Return the sort key of a collection: by database, views first."""
    return collection.database, not collection.is_view, collection.name


def _errors(collection: Collection) -> Iterator[CommandError]:
    if collection.is_view:
        try:
            check_stages(collection.options.get("pipeline"))
        except CommandError as error:
            yield error
    for index in collection.indexes:
        if index.spec.get("sparse") or "text" in index.spec["key"].values():
            yield CommandError(323, f"The index with name {index.name} is not allowed in API version 1.")


def _needs(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    database, name = request.body.get("db"), request.body.get("collection")
    yield ANY if database is None else f"{database}.{name or ''}", frozenset({"validate"})


COMMANDS: Final = (
    Command(
        "validateDBMetadata",
        validate_metadata,
        Fields(COLLECTION, DATABASE, PARAMETERS),
        pauses=True,
        requires=Requirement("validate on the collection or database that it names, or on everything", _needs),
    ),
)
