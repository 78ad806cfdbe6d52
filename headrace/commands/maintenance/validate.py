"""validate, validateDBMetadata: check whether a collection's documents, indexes and counts agree, and whether a client
of the strict stable API could have made views, validators and indexes.

Source: MongoDB's manual. Every value that is read is compared with its checksum, so `full` and `background` make no
difference. Writes go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from bson import Binary

from headrace.auth.privileges import ANY, Privilege
from headrace.dispatch.access import Grants
from headrace.dispatch.api_version import check_stages
from headrace.dispatch.arguments import Fields, any_boolean, boolean, document, string
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.namespaces import OPLOG, target
from headrace.dispatch.request import Request
from headrace.dispatch.requirement import Requirement, on_collection
from headrace.errors import CommandError, code_name
from headrace.execution.integrity import CollectionReport, inspect, inspect_count
from headrace.execution.reader_calls import LARGE_COUNT, NotAnswered, ask, made_request, may_ask
from headrace.execution.time_series import buckets_of
from headrace.store.catalog import Collection
from headrace.values.bson import decode

if TYPE_CHECKING:
    from headrace.dispatch.engine import Engine

BACKGROUND: Final = any_boolean("background")
FULL: Final = any_boolean("full")
METADATA: Final = any_boolean("metadata")
CONFORMANCE: Final = any_boolean("checkBSONConformance")
REPAIR: Final = any_boolean("repair")


def validate(context: CommandContext, request: Request) -> dict[str, Any]:
    """validate: raise 26 without a collection, 166 for a view, 72 for options that do not go together or a repair on a
    replica set, 115 for `background` on a standalone."""
    namespace, body = target(request), request.body
    _check_options(context, body)
    collection = context.view.collection(namespace)
    if (buckets := buckets_of(context.view, collection)) is not None:
        collection = buckets.collection
    if collection is None or namespace == OPLOG:
        raise CommandError(26, f"Collection '{namespace}' does not exist to validate.")
    if collection.is_view:
        raise CommandError(166, "Cannot validate a view")
    if METADATA.of(body):
        return _reply(collection, CollectionReport(), scanned=False, repairs=False)
    repairs = REPAIR.of(body)
    if not repairs and (reply := _asked(context, request, collection)) is not None:
        return reply
    report = inspect(context, collection, repairs=repairs)
    return _reply(collection, report, scanned=True, repairs=repairs)


def _asked(context: CommandContext, request: Request, collection: Collection) -> dict[str, Any] | None:
    """Return the report of a reader process on a large collection, with the count checked here; None: check it here."""
    count = context.view.estimated_count(collection)
    if (count is not None and count <= LARGE_COUNT) or not may_ask(context, request.db):
        return None
    try:
        reply = decode(ask(context, made_request(request.client, {**request.body, "$db": request.db})).reply)
    except NotAnswered:
        return None
    reply["warnings"] += inspect_count(context, collection).warnings
    return {name: value for name, value in reply.items() if name not in ("$clusterTime", "ok", "operationTime")}


def _check_options(context: CommandContext, body: dict[str, Any]) -> None:
    background, full, metadata, repair = (item.of(body) for item in (BACKGROUND, FULL, METADATA, REPAIR))
    conforms = CONFORMANCE.of(body)
    for name, given in (("full", full), ("repair", repair)):
        if background and given:
            raise CommandError(
                72,
                f"Running the validate command with both {{ background: true }} and {{ {name}: true }} is not "
                "supported.",
            )
    if conforms and repair:
        raise CommandError(
            72,
            "Running the validate command with both { checkBSONConformance: true } and { repair: true } is not "
            "supported.",
        )
    if metadata and (background or full or repair or conforms):
        raise CommandError(
            72, "Running the validate command with { metadata: true } is not supported with any other options"
        )
    if background and not context.store.oplog_enabled:
        raise CommandError(
            115, "Running the validate command with { background: true } is not supported in standalone mode"
        )
    if repair and context.store.oplog_enabled:
        raise CommandError(
            72, "Running the validate command with { repair: true } can only be done in standalone mode."
        )


def _reply(collection: Collection, report: CollectionReport, *, scanned: bool, repairs: bool) -> dict[str, Any]:
    missing = sum(item.missing for item in report.indexes.values())
    extra = sum(item.extra for item in report.indexes.values())
    warnings, errors = list(report.warnings), list(report.errors)
    if report.non_compliant:
        warnings.append(
            f"Detected {report.non_compliant} documents not compliant with the collection's schema: see its validator"
        )
    if repairs:
        warnings += _repairs(report, missing, extra)
        errors = [text for item in report.indexes.values() for text in item.errors]
    else:
        if missing:
            warnings.append(f"Detected {missing} missing index entries.")
        if extra:
            warnings.append(f"Detected {extra} extra index entries.")
        errors += [
            f"Index with name '{name}' has inconsistencies." for name, item in report.indexes.items() if not item.valid
        ]
    assert collection.uuid is not None
    reply: dict[str, Any] = {"ns": collection.namespace, "uuid": Binary(collection.uuid, 4)}
    if scanned:
        reply |= {
            "nInvalidDocuments": report.invalid, "nNonCompliantDocuments": report.non_compliant,
            "nrecords": report.count,
        }  # fmt: skip
    reply["nIndexes"] = len(report.indexes) if scanned else len(collection.indexes)
    if scanned:
        reply["keysPerIndex"] = {name: item.keys for name, item in report.indexes.items()}
    specs = {index.name: index.spec for index in collection.indexes}
    details = {
        name: {"valid": item.valid or repairs, "spec": specs[name], **({"errors": item.errors} if item.errors else {})}
        for name, item in report.indexes.items()
    }
    changed = repairs and bool(missing or extra or report.invalid)
    reply |= {
        "indexDetails": details, "valid": not errors, "repaired": changed,
        "repairMode": "FixErrors" if repairs else "None", "warnings": warnings, "errors": errors,
        "extraIndexEntries": report.extra, "missingIndexEntries": report.missing, "corruptRecords": report.corrupt,
    }  # fmt: skip
    if repairs:
        reply |= {
            "numRemovedCorruptRecords": len(report.corrupt), "numRemovedExtraIndexEntries": extra,
            "numInsertedMissingIndexEntries": missing,
        }  # fmt: skip
    return reply


def _repairs(report: CollectionReport, missing: int, extra: int) -> list[str]:
    """Return the messages about repairs, in MongoDB's words."""
    said = []
    if report.corrupt:
        said.append(f"Removed {len(report.corrupt)} invalid documents.")
    if extra:
        said.append(f"Removed {extra} extra index entries.")
    if missing:
        said.append(f"Inserted {missing} missing index entries.")
    return said


_FIELDS: Final = Fields(
    BACKGROUND, FULL, METADATA, REPAIR,
    CONFORMANCE, any_boolean("enforceFastCount"), any_boolean("fixMultikey"), strict=False,
)  # fmt: skip


META_COLLECTION: Final = string("collection")
META_DATABASE: Final = string("db")
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


def _metadata_needs(engine: Engine, request: Request, grants: Grants) -> Iterator[Privilege]:
    database, name = request.body.get("db"), request.body.get("collection")
    yield ANY if database is None else f"{database}.{name or ''}", frozenset({"validate"})


COMMANDS: Final = (
    Command(
        "validate",
        validate,
        _FIELDS,
        pauses=True,
        writes=lambda request: REPAIR.of(request.body),
        requires=on_collection("validate"),
    ),
    Command(
        "validateDBMetadata",
        validate_metadata,
        Fields(META_COLLECTION, META_DATABASE, PARAMETERS),
        pauses=True,
        requires=Requirement("validate on the collection or database that it names, or on everything", _metadata_needs),
    ),
)
