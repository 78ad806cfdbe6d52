"""create: create a collection or a view, with the options that are stored and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bson import Binary, Int64

from headrace.auth.privileges import is_system
from headrace.commands.catalog.clustered_index import FIELD as CLUSTERED_INDEX
from headrace.commands.catalog.clustered_index import OPTION as CLUSTERED
from headrace.commands.catalog.clustered_index import SECONDS, check_seconds, check_with, clustered_index
from headrace.commands.catalog.index_specification import checked
from headrace.commands.catalog.time_series import check_with as check_with_series
from headrace.commands.catalog.time_series import create_time_series
from headrace.commands.requirements import writes
from headrace.dispatch.arguments import (
    Field,
    Fields,
    FieldType,
    any_type,
    array,
    boolean,
    document,
    documents,
    number,
    string,
    unsupported,
    without_effect,
)
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import COLLATION
from headrace.dispatch.namespaces import check_namespace, for_changing, for_creating, target
from headrace.dispatch.request import Request
from headrace.errors import CommandError
from headrace.execution.sources import check_no_cycle, check_view_sources
from headrace.execution.time_series import FIELD as TIME_SERIES
from headrace.execution.time_series import OPTION as SERIES
from headrace.execution.time_series import checked as checked_series
from headrace.execution.writes.matches import may_create
from headrace.query.collation import filled_collation
from headrace.query.expressions.numbers import NUMBERS
from headrace.query.match import parse_filter
from headrace.query.match.index_conditions import TextQuery
from headrace.query.match.json_schema import names_encryption
from headrace.query.pipeline import PipelineContext, parse_pipeline
from headrace.query.stages.fusion import is_fusion
from headrace.store import catalog_changes
from headrace.store.catalog import ENCRYPTED as ENCRYPTED_OPTION
from headrace.timeseries.series import is_buckets
from headrace.values.bson import to_string, type_name
from headrace.values.order import compare

if TYPE_CHECKING:
    from headrace.text.text_spec import TextSpec

# Encrypted fields: clients encrypt them, and say how they may be queried. The server stores and shows these fields, and
# refuses unencrypted values. Drivers create the metadata collections. Source: MongoDB's manual, "Queryable Encryption",
# and its drivers' specification.

_TEXT: Final = ("prefixPreview", "substringPreview", "suffixPreview")
_TYPES: Final = ("equality", "range", *_TEXT)
_NEVER: Final = frozenset({"double", "decimal", "object", "array"})
_RANGES: Final = frozenset({"date", "decimal", "double", "int", "long"})
_LENGTHS: Final = ("strMinQueryLength", "strMaxQueryLength")


def _is_uuid(path: str, value: Any) -> None:
    if type(value) is not Binary or value.subtype != 4 or len(value) != 16:
        raise CommandError(14, f"BSON field '{path}' is the wrong type 'binData', expected type 'UUID'")


ENCRYPTED_QUERY: Final = Fields(
    string("queryType", choices=_TYPES, required=True), number("contention", least=0), number("sparsity"),
    any_type("min"), any_type("max"), number("trimFactor"), number("precision"), number("strMaxLength", least=1),
    number("strMinQueryLength", least=1), number("strMaxQueryLength", least=1), boolean("caseSensitive", strict=True),
    boolean("diacriticSensitive", strict=True), path="create.encryptedFields.fields.queries",
)  # fmt: skip
ENCRYPTED_FIELD: Final = Fields(
    Field("keyId", "binData", None, required=True, check=_is_uuid), string("path", required=True), string("bsonType"),
    Field("queries", FieldType(("object", "array")), None), path="create.encryptedFields.fields",
)  # fmt: skip


ENCRYPTED: Final = document(ENCRYPTED_OPTION, Fields(
    string("escCollection"), string("ecocCollection"), number("strEncodeVersion"),
    documents("fields", ENCRYPTED_FIELD, required=True),
))  # fmt: skip


def check_encrypted(config: dict[str, Any], body: dict[str, Any], *, has_oplog: bool) -> None:
    """Raise the errors of invalid `encryptedFields` in a `create`, or of options that do not go with them."""
    if body.get("viewOn") is not None or body.get("timeseries") is not None:
        raise CommandError(6346401, "Encrypted collections cannot be views or time-series collections")
    if body.get("capped"):
        raise CommandError(6367301, "Encrypted collections cannot be capped")
    if not has_oplog:
        raise CommandError(6346402, "Encrypted collections are not supported on standalone")
    seen: list[str] = []
    for field in config["fields"]:
        _check_path(field["path"], seen)
        queries = field.get("queries")
        if queries is None:
            if field.get("bsonType") in ("minKey", "maxKey", "null", "undefined"):
                raise CommandError(6338405, f"Type '{field['bsonType']}' is not a supported type for encryption")
            continue
        given = [queries] if type(queries) is dict else queries
        if not given:
            raise CommandError(9783412, "'queries' must have at least one query type")
        for query in given:
            if type(query) is not dict:
                raise CommandError(14, f"'queries' is the wrong type '{type_name(query)}', expected type 'object'")
            ENCRYPTED_QUERY.check("queries", query)
        _check_together([query["queryType"] for query in given])
        for query in given:
            _check_query(field, query)


def _check_path(path: str, seen: list[str]) -> None:
    if not path:
        raise CommandError(6316402, "Encrypted field path cannot be empty")
    if path == "_id" or path.startswith("_id."):
        raise CommandError(6316403, "Cannot encrypt _id or its subfields")
    for other in seen:
        if other == path or other.startswith(f"{path}.") or path.startswith(f"{other}."):
            raise CommandError(6338402, f"Duplicate paths are not allowed: '{other}' and '{path}'")
    seen.append(path)


def _check_together(types: list[str]) -> None:
    if len(types) > 2:
        raise CommandError(9783413, "A field has at most two query types")
    if len(types) == 2 and set(types) != {"prefixPreview", "suffixPreview"}:
        raise CommandError(9783414, "Only prefix and suffix queries can be combined on a field")


def _check_query(field: dict[str, Any], query: dict[str, Any]) -> None:
    kind, bson_type = query["queryType"], field.get("bsonType")
    if bson_type is None:
        raise CommandError(6412601, "The 'bsonType' of an encrypted field that can be queried is required")
    if kind == "equality" and (bson_type in _NEVER or bson_type in ("minKey", "maxKey", "null", "undefined")):
        raise CommandError(6338406, f"Type '{bson_type}' is not a supported equality indexed type")
    if kind == "range":
        _check_range(bson_type, query)
    elif kind in _TEXT:
        _check_text(bson_type, query)


def _check_range(bson_type: str, query: dict[str, Any]) -> None:
    if bson_type not in _RANGES:
        raise CommandError(6775201, f"Type '{bson_type}' is not a supported range indexed type")
    ends = [query[name] for name in ("min", "max") if query.get(name) is not None]
    if any(type_name(end) != bson_type for end in ends):
        raise CommandError(7018200, f"'min' and 'max' must be of type '{bson_type}'")
    if len(ends) == 2 and compare(ends[0], ends[1], None) >= 0:
        raise CommandError(6720005, "'min' must be less than 'max'")
    factor = query.get("trimFactor")
    if factor is not None and type(factor) in NUMBERS and not 0 <= factor < (64 if bson_type != "int" else 32):
        raise CommandError(8574000, f"'trimFactor' is out of range for type '{bson_type}'")


def _check_text(bson_type: str, query: dict[str, Any]) -> None:
    if bson_type != "string":
        raise CommandError(9783400, f"Type '{bson_type}' is not a supported type of text queries")
    for code, name in ((9783402, _LENGTHS[0]), (9783403, _LENGTHS[1]), (9783404, "caseSensitive"),
                       (9783405, "diacriticSensitive")):  # fmt: skip
        if query.get(name) is None:
            raise CommandError(code, f"'{name}' is required for {query['queryType']} queries")
    if query[_LENGTHS[0]] > query[_LENGTHS[1]]:
        raise CommandError(9783406, "'strMinQueryLength' must not exceed 'strMaxQueryLength'")


# The options.

OPTION: Final = "changeStreamPreAndPostImages"
IMAGES: Final = document(OPTION, Fields(boolean("enabled", strict=True, required=True)))


def check_database_has_images(namespace: str) -> None:
    """Raise 72 for the server's own databases, whose changes have no images."""
    database = namespace.partition(".")[0]
    if database in ("admin", "config", "local"):
        raise CommandError(72, f"{OPTION} collection option is not supported in the '{database}' database: {namespace}")


_CAPPED_BYTES_MAX: Final = 2**50
_REFUSED_IF_TRUE: Final = {
    "recordIdsReplicated": (72, "the recordIdsReplicated option needs a feature flag that is not enabled"),
    "temp": (72, "the 'temp' field is an invalid option"),
}
OPTIONS: Final = Fields(
    IMAGES, CLUSTERED_INDEX, COLLATION, ENCRYPTED, TIME_SERIES, boolean("autoIndexId"), boolean("capped"),
    number("expireAfterSeconds"), document("idIndex"), document("indexOptionDefaults"), number("max"),
    array("pipeline", "object"), number("size"), document("storageEngine"),
    string("validationAction", choices=("error", "errorAndLog", "warn")),
    string("validationLevel", choices=("moderate", "off", "strict")), document("validator"), string("viewOn"),
)  # fmt: skip
"""The options of a collection or a view."""
FIELDS: Final = Fields(
    *OPTIONS.by_name.values(), *(unsupported(name, error) for name, error in _REFUSED_IF_TRUE.items()),
    *without_effect("number", "flags"),
)  # fmt: skip


def options_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a `create`, in the order given. Raise the errors of an invalid collation."""
    options = {
        name: OPTIONS.by_name[name].of(body)
        for name, value in body.items()
        if name in OPTIONS.by_name and value is not None
    }
    if "collation" in options:
        collation = filled_collation(options["collation"])
        if collation is None:
            del options["collation"]
        else:
            options["collation"] = collation
    if CLUSTERED in options:
        clustered = clustered_index(options[CLUSTERED])
        if clustered is None:
            del options[CLUSTERED]
        else:
            options[CLUSTERED] = clustered
    if SECONDS in options:
        options[SECONDS] = Int64(options[SECONDS])
    return options


def run(context: CommandContext, request: Request) -> dict[str, Any]:
    """create: raise 48 if the namespace exists with other options, or exists at all in a transaction."""
    return create(context, request, None)


def create(context: CommandContext, request: Request, uuid: bytes | None) -> dict[str, Any]:
    """Create a collection or a view. A collection gets the given UUID, or a new one if `uuid` is None."""
    namespace = target(request)
    (for_creating if uuid is None else for_changing)(namespace)
    body = request.body
    if body.get(ENCRYPTED.name) is not None:
        check_encrypted(ENCRYPTED.of(body), body, has_oplog=context.store.oplog_enabled)
    if uuid is None:  # an oplog entry may have options that only earlier releases allowed
        if is_buckets(namespace.partition(".")[2]):
            raise CommandError(73, f"buckets are created with their time-series collection: {namespace}")
        if body.get(SERIES) is not None:
            check_with_series(context, namespace, body, frozenset(OPTIONS.by_name))
        else:
            _check_fields(body)
    options = options_of(body)
    if SERIES in options and uuid is None:
        options[SERIES] = checked_series(options[SERIES])
        catalog_changes.require_room(context.txn, len(request.raw))
        create_time_series(context, namespace, options)
        return {}
    stored_options = {name: value for name, value in options.items() if name not in ("idIndex", "autoIndexId")}
    if _is_there(context, namespace, stored_options):
        return {}
    catalog_changes.require_room(context.txn, len(request.raw))
    if "viewOn" in options:
        if is_system(namespace):
            raise CommandError(73, "View name cannot start with 'system.', which is reserved for system namespaces")
        check_namespace(f"{request.db}.{options['viewOn']}")
        _create_view(context, request, namespace, stored_options)
        return {}
    _check(namespace, stored_options, is_logged=uuid is not None)  # may pause
    while not _is_there(context, namespace, stored_options):
        if may_create(context, namespace, stored_options):
            catalog_changes.create(context.txn, namespace, stored_options, uuid)
            break
    return {}


def _is_there(context: CommandContext, namespace: str, options: dict[str, Any]) -> bool:
    """Whether the namespace exists with the same options. Raise 48 if it has others, or exists in a transaction."""
    existing = context.txn.collection(namespace)
    if existing is None:
        return False
    if context.transaction is not None:
        raise CommandError(48, f"Collection {namespace} already exists.")
    if existing.is_view == ("viewOn" in options) and existing.options == options:
        return True
    kind = "view" if existing.is_view else "collection"
    raise CommandError(48, f"Collection {namespace} already exists as a {kind} with other options")


def _check_fields(body: dict[str, Any]) -> None:
    """Raise the errors for fields that do not go together."""
    _check_capped(body)
    if body.get("pipeline") is not None and body.get("viewOn") is None:
        raise CommandError(72, "'pipeline' requires 'viewOn' to also be specified")
    if body.get("idIndex") is not None and CLUSTERED not in body:
        _check_id_index(body)
    if body.get(CLUSTERED) is not None:
        check_with(body)
    elif body.get(SECONDS) is not None:
        raise CommandError(
            72,
            "'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is "
            "specified",
        )


def _check_capped(body: dict[str, Any]) -> None:
    """Raise 72 for limits without `capped`, or `capped` without `size`; 2 for invalid limits."""
    if body.get(CLUSTERED) is not None:
        return
    is_capped = OPTIONS.by_name["capped"].of(body)
    if is_capped and body.get("size") is None:
        raise CommandError(72, "the 'size' field is required when 'capped' is true")
    if not is_capped and (body.get("size") is not None or body.get("max") is not None):
        raise CommandError(72, "the 'capped' field needs to be true when either the 'size' or 'max' fields are present")
    check_limits(OPTIONS.by_name["size"].of(body), OPTIONS.by_name["max"].of(body))


def check_limits(size: int | None, count_max: int | None) -> None:
    """Raise 2 for limits that a capped collection cannot have."""
    if size is not None and size < 0:
        raise CommandError(2, "size has to be >= 0")
    if size is not None and size > _CAPPED_BYTES_MAX:
        raise CommandError(2, "size cannot exceed 1 PB")
    if count_max is not None and count_max >= 1 << 31:
        raise CommandError(2, "max in a capped collection has to be < 2^31 or not set")


def _check_id_index(body: dict[str, Any]) -> None:
    """Raise 2, 9, 72 or 197 unless `idIndex` is the `_id` index that every collection has."""
    spec = body["idIndex"]
    if body.get("viewOn") is not None:
        raise CommandError(72, f"'idIndex' is not allowed with 'viewOn': {to_string(spec)}")
    if body.get("autoIndexId"):
        raise CommandError(72, f"'idIndex' is not allowed with 'autoIndexId': {to_string(spec)}")
    stored = checked(spec)
    if stored["key"] != {"_id": 1}:
        raise CommandError(
            2, f"The field 'key' for an _id index must be {{_id: 1}}, but got {to_string(stored['key'])}"
        )
    collation = body.get("collation")
    default = filled_collation(collation) if collation else None
    own = filled_collation(stored["collation"]) if "collation" in stored else default
    if own != default:
        raise CommandError(2, "'idIndex' must have the same collation as the collection.")


def _check(namespace: str, options: dict[str, Any], *, is_logged: bool) -> None:
    if options.get(OPTION, {}).get("enabled"):
        check_database_has_images(namespace)
    if "validator" in options:
        check_validator(namespace, options["validator"])
        check_encryption(options)
    if SECONDS in options and not is_logged:
        if CLUSTERED not in options:
            raise CommandError(
                72, "'expireAfterSeconds' can be used only for clustered collections or timeseries collections"
            )
        check_seconds(options[SECONDS])


def check_validator(namespace: str, validator: dict[str, Any]) -> None:
    """Raise 72 where no collection has a validator, or the error of its filter."""
    database = namespace.partition(".")[0]
    if database in ("admin", "config", "local"):
        raise CommandError(
            72, f"Document validators are not allowed on collection {namespace} in the {database} database"
        )
    parse_filter(validator)


def check_encryption(options: dict[str, Any]) -> None:
    """Raise 224 for a validator of encrypted fields that would allow invalid documents."""
    is_strict = options.get("validationLevel", "strict") == "strict"
    if (not is_strict or options.get("validationAction") == "warn") and names_encryption(options.get("validator")):
        raise CommandError(
            224, "Encryption-related validator keywords are not allowed unless validationAction is 'error' and "
            "validationLevel is 'strict'"
        )  # fmt: skip


def _create_view(context: CommandContext, request: Request, namespace: str, options: dict[str, Any]) -> None:
    """Create a view. Its pipeline is checked now; its source need not exist yet."""
    if OPTION in options:
        raise CommandError(72, f"option not supported on a view: {OPTION}")
    unknown = [name for name in options if name not in ("viewOn", "pipeline", "collation")]
    if unknown:
        raise CommandError(72, f"option not supported on a view: {unknown[0]}")
    pipeline = options.get("pipeline", [])
    check_view(request.db, namespace, options["viewOn"], pipeline)  # may pause
    if _is_there(context, namespace, options):
        return
    check_no_cycle(context.txn, namespace, options["viewOn"], pipeline)
    made = {"viewOn": options["viewOn"], "pipeline": pipeline}
    if "collation" in options:
        made["collation"] = options["collation"]
    catalog_changes.create_view(context.txn, namespace, made)


def check_view(database: str, namespace: str, source: str, pipeline: list[Any]) -> None:
    """Raise 73 or 167 for a source or a pipeline that a view may not have."""
    check_view_sources(database, source, pipeline)
    if pipeline and type(pipeline[0]) is dict and "$changeStream" in pipeline[0]:
        raise CommandError(167, "$changeStream cannot be used in a view definition")
    if is_fusion(pipeline):
        raise CommandError(167, "$rankFusion and $scoreFusion are currently unsupported in a view definition")
    pipeline_context = PipelineContext(
        database=database, collection=namespace.partition(".")[2], read_collection=lambda *_: (),
        describe=lambda *_: (), search_in=lambda _: _any_search(), text=_any_search(),
    )  # fmt: skip
    for stage in parse_pipeline(pipeline, context=pipeline_context):
        if stage.name in ("$out", "$merge"):
            raise CommandError(167, f"The aggregation stage {stage.name} cannot be used in a view definition")


def _any_search() -> TextQuery:
    """Return a parser for a text search whose index need not exist yet."""

    def spec() -> TextSpec:
        from headrace.text.text_spec import TextSpec  # imported only for a view with a text search

        return TextSpec({}, "none", "language")

    return TextQuery(spec)


COMMAND: Final = Command("create", run, FIELDS, pauses=True, writes=True, requires=writes.CREATE)
