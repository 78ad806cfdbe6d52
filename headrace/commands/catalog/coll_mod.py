"""collMod: change the options of a collection, of a view, or of an index."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from bson import Int64

from headrace import limits
from headrace.commands.catalog.clustered_index import SECONDS, check_seconds
from headrace.commands.catalog.create import (
    IMAGES,
    OPTION,
    check_database_has_images,
    check_encryption,
    check_limits,
    check_validator,
    check_view,
)
from headrace.commands.catalog.create import OPTIONS as CREATE_OPTIONS
from headrace.commands.catalog.index_specification import can_be_unique
from headrace.commands.catalog.time_series import bucket_index, modify_time_series, view_and_buckets
from headrace.commands.requirements import writes
from headrace.dispatch.arguments import (
    TYPES,
    Field,
    Fields,
    FieldType,
    array,
    boolean,
    document,
    number,
    string,
    unsupported,
)
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.lock_waits import wait_until_unused
from headrace.dispatch.namespaces import COLLECTION_UUID, OPLOG, check_namespace, for_changing, target
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.index_builds import replace_index
from headrace.execution.sources import check_no_cycle
from headrace.execution.time_series import CHANGE as TIME_SERIES
from headrace.execution.time_series import OPTION as SERIES
from headrace.query.expressions.numbers import to_long
from headrace.store import catalog_changes
from headrace.store.catalog import Collection, Index
from headrace.store.indexes.index_keys import CUT_BYTES
from headrace.store.view import LEFT_OUT
from headrace.timeseries.series import Series
from headrace.values.bson import decode, to_string
from headrace.values.order import equal

_SECONDS_MAX: Final = 2**31 - 1
_CHANGEABLE: Final = frozenset({OPTION, "validationAction", "validationLevel", "validator"})

CAPPED_MAX: Final = number("cappedMax")
CAPPED_SIZE: Final = number("cappedSize")
DRY_RUN: Final = boolean("dryRun")
HIDDEN: Final = boolean("hidden")
SECONDS_AFTER: Final = number(SECONDS, 0)
PREPARE_UNIQUE: Final = boolean("prepareUnique")
UNIQUE: Final = boolean("unique")
INDEX: Final = document("index", Fields(
    HIDDEN, PREPARE_UNIQUE, SECONDS_AFTER, UNIQUE, document("keyPattern"), string("name"),
    unsupported("forceNonUnique", (72, "an index cannot be made non-unique: drop it and create it again")),
))  # fmt: skip
SECONDS_OF_COLLECTION: Final[Field[Any]] = Field(
    SECONDS, FieldType(("string", "long", "int", "decimal", "double")), None
)


def _check_stages(path: str, stages: list[Any]) -> None:
    """Raise 14 for a stage that is neither a document nor null, which is left out."""
    for index, stage in enumerate(stages):
        if type(stage) not in (dict, type(None)):
            raise TYPES["object"].error(f"{path}.{index}", stage)


PIPELINE: Final = array("pipeline", check=_check_stages)
CHANGES: Final = Fields(
    CAPPED_MAX, CAPPED_SIZE, DRY_RUN, IMAGES, INDEX, PIPELINE, SECONDS_OF_COLLECTION,
    *(CREATE_OPTIONS.by_name[name] for name in ("validationAction", "validationLevel", "validator", "viewOn")),
)  # fmt: skip
"""The options that can be changed."""
MIXED_SCHEMA: Final = boolean("timeseriesBucketsMayHaveMixedSchemaData")
"""An option without effect: a bucket may have values of any types."""
_REFUSED_IF_TRUE: Final = {
    "recordIdsReplicated": (72, "the recordIdsReplicated option needs a feature flag that is not enabled"),
}
FIELDS: Final = Fields(
    COLLECTION_UUID,
    MIXED_SCHEMA,
    TIME_SERIES,
    *CHANGES.by_name.values(),
    *(unsupported(name, error) for name, error in _REFUSED_IF_TRUE.items()),
)


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """collMod: change a collection's options, a view, or one index. Answer the old and new values."""
    namespace, body = target(request), request.body
    _check_system(namespace, body)
    for_changing(namespace)
    change = {name: field.of(body) for name in body if body[name] is not None and (field := CHANGES.by_name.get(name))}
    if "index" in change:
        change["index"] = {name: value for name, value in change["index"].items() if value is not None}
    collection = _existing(context, namespace)
    dry_run = bool(change.pop("dryRun", False))
    if dry_run and not change.get("index", {}).get("unique"):
        raise CommandError(72, "'dryRun' is only supported with {index: {unique: true}}")
    catalog_changes.require_room(context.txn, len(request.raw))
    series = body.get(SERIES)
    if collection.is_time_series or SERIES in collection.options:
        if series is not None:
            change[SERIES] = series
        if SECONDS in change:
            change[SECONDS] = _checked_seconds(change[SECONDS])
        return _time_series(context, collection, change)
    for name in (SERIES, MIXED_SCHEMA.name):
        if body.get(name) is not None:
            raise CommandError(72, f"option only supported on a time-series collection: {name}")
    if collection.is_view:
        return _view(context, collection, change)
    if "viewOn" in change or "pipeline" in change:
        raise CommandError(72, f"'{next(iter(change))}' is not supported on a collection that is no view")
    if change.get(OPTION, {}).get("enabled"):
        check_database_has_images(namespace)
    if "validator" in change:
        check_validator(namespace, change["validator"])  # may pause
        wait_until_unused(context, namespace)
        collection = _existing(context, namespace)
    index_change = change.get("index")
    if index_change is not None and index_change.get("unique") is not None:
        converted = _check_conversion(context, collection, index_change)
        if dry_run:
            return {}
        collection = _converted(context, collection, converted)
    options = dict(collection.options)
    options.update({name: value for name, value in change.items() if name in _CHANGEABLE})
    check_encryption(options)
    options.update(_capped(collection, change))
    before: dict[str, Any] | None = None
    index: Index | None = None
    if SECONDS in change:
        change[SECONDS] = _seconds(collection, change[SECONDS])
        options.pop(SECONDS, None)
        if change[SECONDS] != "off":
            options[SECONDS] = change[SECONDS]
        index = _with_spec(collection.indexes[0], catalog_changes.id_index_of(options))
    reply: dict[str, Any] = {}
    if index_change is not None:
        index, change["index"], before, reply = _index(collection, index_change)
    # As in MongoDB, write an entry even if nothing changes.
    catalog_changes.modify(context.txn, collection, change, options, index, before)
    return reply


def _check_system(namespace: str, body: dict[str, Any]) -> None:
    """Raise 72 for a size of the oplog or a validator of `system.views`."""
    if namespace == OPLOG and any(body.get(name) is not None for name in _LIMITS):
        raise CommandError(72, "collMod cannot change the size of the oplog; use replSetResizeOplog")
    if namespace.endswith(".system.views") and body.get("validator") is not None:
        raise CommandError(72, f"Document validators are not allowed on system collection {namespace}")


def _existing(context: CommandContext, namespace: str) -> Collection:
    collection = context.txn.collection(namespace)
    if collection is None:
        raise CommandError(26, f"ns does not exist: {namespace}")
    return collection


def _time_series(context: CommandContext, collection: Collection, change: dict[str, Any]) -> dict[str, Any]:
    """Change a time series, or hide an index of it. As in MongoDB, limits of capped collections have no effect."""
    index_change = change.pop("index", None)
    for name in _LIMITS:
        change.pop(name, None)
    if change or index_change is None:
        modify_time_series(context, collection, change)
    if index_change is None:
        return {}
    _, buckets = view_and_buckets(context, _existing(context, collection.namespace))
    if index_change.keys() & {SECONDS, "prepareUnique", "unique"}:
        raise CommandError(72, "an index of a time series can only be hidden")
    if "keyPattern" in index_change:
        series = Series.of(buckets.options[SERIES])
        index_change["keyPattern"] = bucket_index(series, {"name": "", "key": index_change["keyPattern"]})["key"]
    index, change["index"], before, reply = _index(buckets, index_change)
    catalog_changes.modify(context.txn, buckets, {"index": change["index"]}, buckets.options, index, before)
    return reply


def _capped(collection: Collection, change: dict[str, Any]) -> dict[str, Any]:
    """Return the new limits of a capped collection, in force from the next insert. Raise 2, or 72 if not capped."""
    limits = {_LIMITS[name]: value for name, value in change.items() if name in _LIMITS}
    if limits and not collection.options.get("capped"):
        raise CommandError(72, "Collection must be capped.")
    if limits.get("size", 1) == 0:
        raise CommandError(2, "BSON field 'cappedSize' value must be greater than 0")
    check_limits(limits.get("size"), limits.get("max"))
    return limits


_LIMITS: Final = {"cappedMax": "max", "cappedSize": "size"}


def _view(context: CommandContext, view: Collection, change: dict[str, Any]) -> dict[str, Any]:
    if OPTION in change:
        raise CommandError(72, f"option not supported on a view: {OPTION}")
    options = dict(view.options)
    for name, value in change.items():
        if name not in ("viewOn", "pipeline"):
            raise CommandError(72, f"option not supported on a view: {name}")
        options[name] = value if name == "viewOn" else [stage for stage in value if stage is not None]
    check_namespace(f"{view.database}.{options['viewOn']}")
    check_view(view.database, view.namespace, options["viewOn"], options["pipeline"])  # may pause
    wait_until_unused(context, view.namespace)
    view = _existing(context, view.namespace)
    check_no_cycle(context.txn, view.namespace, options["viewOn"], options["pipeline"])
    if change:
        catalog_changes.modify_view(context.txn, view, options)
    return {}


def _index(
    collection: Collection, change: dict[str, Any]
) -> tuple[Index, dict[str, Any], dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return (the changed index, the change for the oplog entry, the options before, the reply).

    As in MongoDB, the entry names the index by its name, even if the client gave its key.
    """
    new = _checked_index(change)
    index = _find(collection, change)
    _check_new(index, new)
    before: dict[str, Any] = {}
    reply: dict[str, Any] = {}
    spec = dict(index.spec)
    for name, value in new.items():
        old = Int64(int(spec[name])) if name == SECONDS and name in spec else spec.get(name)
        if name in ("hidden", "prepareUnique"):
            old = bool(old)
        if name == "unique":
            old = None
        if old is not None:
            before[name] = reply[f"{name}_old"] = old
        reply[f"{name}_new"] = spec[name] = value
    for flag in ("hidden", "prepareUnique"):
        if not spec.get(flag):
            spec.pop(flag, None)
    return _with_spec(index, spec), {"name": index.name, **new}, before, reply


def _with_spec(index: Index, spec: dict[str, Any]) -> Index:
    return Index(index.number, spec, index.traits, has_entries=index.has_entries)


def _seconds(collection: Collection, value: Any) -> Any:
    """Return the new `expireAfterSeconds`, an `Int64` or "off". Raise 72 if the collection is not clustered."""
    if not collection.clustered:
        raise CommandError(72, "'expireAfterSeconds' option is only supported on collections clustered by _id")
    return _checked_seconds(value)


def _checked_seconds(value: Any) -> Any:
    """Return `expireAfterSeconds` as an `Int64` or "off". Raise 72 for an invalid value."""
    if type(value) is str:
        if value != "off":
            raise CommandError(
                72,
                f"Invalid string value for the 'clusteredIndex::expireAfterSeconds' option. Got: '{value}'. Accepted "
                "value is 'off'",
            )
        return value
    seconds = Int64(to_long(value))
    check_seconds(seconds)
    return seconds


def _checked_index(change: dict[str, Any]) -> dict[str, Any]:
    """Return the new options of an index. Raise 72 if they are not allowed."""
    if ("name" in change) == ("keyPattern" in change):
        raise CommandError(72, "Must specify either index name or key pattern, and not both")
    new: dict[str, Any] = {}
    if change.get(SECONDS) is not None:
        new[SECONDS] = Int64(min(SECONDS_AFTER.of(change), _SECONDS_MAX))
        if new[SECONDS] < 0:
            raise CommandError(72, f"TTL index '{SECONDS}' must be within 0 and {_SECONDS_MAX}")
    if change.get("hidden") is not None:
        new["hidden"] = HIDDEN.of(change)
    if change.get("prepareUnique") is not None:
        new["prepareUnique"] = PREPARE_UNIQUE.of(change)
    if change.get("unique") is not None:
        if not UNIQUE.of(change):
            raise CommandError(2, "Cannot make index non-unique")
        new["unique"] = True
    if not new:
        raise CommandError(72, "no expireAfterSeconds, hidden, unique, or prepareUnique field")
    return new


def _check_new(index: Index, new: dict[str, Any]) -> None:
    """Raise 2, 72 or 6011800 if the kind of index does not allow the new options."""
    if index.is_clustered:
        raise CommandError(6011800, "The 'hidden' option is not supported for a clusteredIndex")
    if index.is_of_id:
        if new.get("hidden"):
            raise CommandError(2, "can't hide _id index")
        if SECONDS in new:
            raise CommandError(72, "the _id field does not support TTL indexes")
        if "prepareUnique" in new or "unique" in new:
            raise CommandError(72, "the _id index is unique")
    if SECONDS in new and SECONDS not in index.spec and len(index.spec["key"]) > 1:
        raise CommandError(72, "TTL indexes are single-field indexes, compound indexes do not support TTL")
    if new.get("prepareUnique") and not can_be_unique(index.spec):
        raise CommandError(72, "an index of this kind cannot be unique")
    if new.get("prepareUnique") and index.spec.get("unique"):
        raise CommandError(72, "the index is unique already")


def _check_conversion(context: CommandContext, collection: Collection, change: dict[str, Any]) -> Index:
    """Return the index that is to become unique. Raise 72 unless it is prepared, 359 with the duplicates."""
    _checked_index(change)
    index = _find(collection, change)
    _check_new(index, {"unique": True})
    if not index.spec.get("prepareUnique") and not index.spec.get("unique"):
        raise CommandError(72, "Cannot make an index unique whose 'prepareUnique' is not true")
    violations = [] if index.unique else duplicates(context, collection, index)
    if violations:
        raise CommandError(
            359, "Cannot convert the index to unique. Please resolve conflicting documents before running collMod "
            "again.", extra={"violations": violations},
        )  # fmt: skip
    return index


def _converted(context: CommandContext, collection: Collection, index: Index) -> Collection:
    """Make the index unique, and return the changed collection."""
    if index.unique:
        return collection
    spec = {name: value for name, value in index.spec.items() if name != "prepareUnique"}
    replace_index(context, _existing(context, collection.namespace), {**spec, "unique": True})
    wait_until_unused(context, collection.namespace)
    return _existing(context, collection.namespace)


def _find(collection: Collection, change: dict[str, Any]) -> Index:
    for index in collection.indexes:
        if index.name == change.get("name"):
            return index
        if "keyPattern" in change and equal(index.spec["key"], change["keyPattern"]):
            return index
    named = to_string(change["keyPattern"]) if "keyPattern" in change else change.get("name")
    raise CommandError(27, f"cannot find index {named} for ns {collection.namespace}")


def duplicates(context: CommandContext, collection: Collection, index: Index) -> list[dict[str, Any]]:
    """Return `{ids: [...]}` for each key that several documents share, up to a limit. Read the index in pieces.

    Truncated keys do not show whether their values are equal. The build of the unique index detects these.
    """
    number = index.number.to_bytes(4, "big")
    low, high = number + b"\x01", number + b"\xff"
    groups: list[list[bytes]] = []
    last = b""
    while True:
        piece = list(islice(context.view.index_keys(index, low, high), limits.VIEW_CHUNK_COUNT))
        if not piece or len(groups) > limits.VIOLATION_COUNT_MAX:
            break
        for key, record in piece:
            if record is LEFT_OUT:
                continue
            if key[:-8] == last[:-8] and len(key) < CUT_BYTES + 12:
                if groups and groups[-1][-1] == last[-8:]:
                    groups[-1].append(key[-8:])
                else:
                    groups.append([last[-8:], key[-8:]])
            last = key
        low = piece[-1][0] + b"\0"
        context.tick()
    shown = []
    for records in groups:
        documents = [context.view.by_record(collection, record) for record in records]
        shown.append({"ids": [decode(document)["_id"] for document in documents if document is not None]})
    return shown


COMMAND: Final = Command("collMod", run, FIELDS, pauses=True, writes=True, requires=writes.COLL_MOD)
