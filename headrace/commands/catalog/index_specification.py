"""Index specifications: as clients send them, and as they are stored.

Rule: a kind of index that no query could use is refused with error 115.
Source: MongoDB's documentation of createIndexes; its codes, most of them 67 (CannotCreateIndex).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from headrace import limits
from headrace.dispatch.arguments import Field, Fields, FieldType, boolean, document, string, without_effect
from headrace.errors import CommandError
from headrace.query.collation import filled_collation
from headrace.query.expressions.numbers import NUMBERS, double_of, int32_of, nearest_int, truthy
from headrace.query.match import parse_filter
from headrace.query.match.match_expression import (
    AlwaysBoolean,
    And,
    LeafMatchExpression,
    MatchExpression,
    MatchType,
    Or,
)
from headrace.store.catalog import Collection
from headrace.store.indexes.geo_keys import GRID, geo_paths
from headrace.store.indexes.text_keys import is_text
from headrace.store.indexes.wildcard_keys import WILDCARD, wildcard_of
from headrace.values.bson import to_string, type_name
from headrace.values.order import equal


def _unknown(path: str, name: str) -> CommandError:
    return CommandError(197, f"The field '{name}' is not valid for an index specification.")


def _wrong_type(name: str) -> tuple[int, str]:
    return 14, f"The field '{name}' has the wrong type for an index specification"


PARTIAL_FILTER: Final = document("partialFilterExpression", error=_wrong_type("partialFilterExpression"))
SPECIFICATION: Final = Fields(
    PARTIAL_FILTER, boolean("prepareUnique"), boolean("sparse"), boolean("unique"), document("storageEngine"),
    *(document(name, error=_wrong_type(name)) for name in ("collation", "key", "wildcardProjection")),
    Field("hidden", "strictBool", False, error=_wrong_type("hidden")),
    Field("name", "string", "", error=_wrong_type("name")),
    string("default_language"), string("language_override"), string("ns"),
    Field("expireAfterSeconds", "number", None, error=(67, "TTL index 'expireAfterSeconds' option must be numeric")),
    Field("v", "number", None, error=_wrong_type("v")),
    Field("weights", FieldType(("object", "string")), None),
    boolean("clustered"), *without_effect("any", "background", "dropDups"),
    *without_effect(
        "number", "2dsphereIndexVersion", "bits", "bucketSize", "coarsestIndexedLevel", "finestIndexedLevel", "max",
        "min", "textIndexVersion",
    ),
    *without_effect("object", "originalSpec"),
    unknown=_unknown,
)  # fmt: skip
_KNOWN: Final = frozenset(SPECIFICATION.by_name)
_OF_ID: Final = frozenset({"collation", "hidden", "key", "name", "ns", "v"})
_OF_REFERENCES: Final = frozenset({"$db", "$id", "$ref"})
_SECONDS_MAX: Final = 2**31 - 1
_PARTIAL_DEPTH_MAX: Final = 4
_PARTIAL_KINDS: Final = frozenset({
    MatchType.EQ, MatchType.EXISTS, MatchType.GT, MatchType.GTE, MatchType.IN, MatchType.LT, MatchType.LTE,
    MatchType.TYPE,
})  # fmt: skip


def checked(spec: Any, *, ignore_unknown: bool = False) -> dict[str, Any]:
    """Return a specification as it is stored: `v`, `key`, `name` first, then the rest in the order given."""
    if ignore_unknown and type(spec) is dict:
        spec = {name: value for name, value in spec.items() if name in _KNOWN}
    SPECIFICATION.check("createIndexes.indexes", spec)
    for name in ("key", "name"):
        if name not in spec:
            raise CommandError(9, f"The '{name}' field is a required property of an index specification")
    key = spec["key"]
    if spec.get("clustered") is not None and not spec["clustered"]:
        raise CommandError(6492800, "Index option 'clustered' cannot be false")
    _check_name(spec["name"])
    _check_version(spec)
    _check_key(key)
    if spec.get("collation") == {}:
        raise CommandError(2, "The field 'collation' cannot be an empty object.")
    if list(key) == ["_id"] and type(key["_id"]) is not str and nearest_int(key["_id"]) in (1, -1):
        return _id_index(spec)
    if is_text(key):
        from headrace.commands.catalog.text_specification import text_specification

        spec = text_specification(spec)
        key = spec["key"]
    _check_kind(spec)
    _check_options(spec)
    _check_partial(spec)
    rest = {
        name: value for name, value in spec.items()
        if name not in ("v", "key", "name", "ns", "dropDups", "originalSpec") and value is not None
    }  # fmt: skip
    for flag in ("hidden", "prepareUnique", "sparse", "unique"):
        if flag in rest and not rest[flag]:
            del rest[flag]
    if geo_paths(key):
        rest.setdefault("2dsphereIndexVersion", 3)
    return {"v": 2, "key": key, "name": spec["name"], **rest}


def with_collation(spec: dict[str, Any], default: dict[str, Any] | None) -> dict[str, Any]:
    """Return the specification with all options of its collation, by default the collection's collation."""
    collation = filled_collation(spec["collation"]) if "collation" in spec else default
    if spec["key"] == {"_id": 1} and collation != default:
        raise CommandError(2, "The _id index must have the same collation as the collection.")
    rest = {name: value for name, value in spec.items() if name != "collation"}
    if collation is not None and is_text(spec["key"]):
        from headrace.commands.catalog.text_specification import check_collation

        check_collation({"collation": collation})
    return rest if collation is None else {**rest, "collation": collation}


def is_there(collection: Collection, spec: dict[str, Any], more: list[dict[str, Any]]) -> bool:
    """Whether the same index exists. Raise 85 or 86 if a conflicting index exists."""
    return any(is_like(existing, spec) for existing in [*(index.spec for index in collection.indexes), *more])


def is_like(existing: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether two specifications are the same index. Raise 85 or 86 if they conflict."""
    same_key = equal(existing["key"], spec["key"])
    same_name = existing["name"] == spec["name"]
    if same_key and spec["key"] == {"_id": 1}:
        return True
    if same_key and same_name and _comparable(existing) == _comparable(spec):
        return True
    if same_name:
        if same_key and _identity(existing) == _identity(spec):
            raise CommandError(
                85, "An equivalent index already exists with the same name but different options. Requested index: "
                f"{to_string(spec)}, existing index: {to_string(existing)}",
            )  # fmt: skip
        raise CommandError(
            86,
            "An existing index has the same name as the requested index. When index names are not specified, they "
            "are auto generated and can cause conflicts. Please refer to our documentation. Requested index: "
            f"{to_string(spec)}, existing index: {to_string(existing)}",
        )
    if same_key and is_text(spec["key"]):
        raise CommandError(
            85, "An equivalent index already exists with a different name and options. Requested index: "
            f"{to_string(spec)}, existing index: {to_string(existing)}",
        )  # fmt: skip
    if is_text(existing["key"]) and is_text(spec["key"]):
        raise CommandError(
            67, f'only one text index per collection allowed, found existing text index "{existing["name"]}"'
        )
    if same_key and _identity(existing) == _identity(spec):
        raise CommandError(85, f"Index already exists with a different name: {existing['name']}")
    return False


def _comparable(spec: dict[str, Any]) -> dict[str, Any]:
    without = ("v", "ns", "key", "background", "textIndexVersion")
    return {name: value for name, value in spec.items() if name not in without}


def _identity(spec: dict[str, Any]) -> Any:
    """Return the options in which two indexes on one key must differ to exist both."""
    return tuple(spec.get(name) for name in ("collation", "partialFilterExpression", "wildcardProjection")) + tuple(
        bool(spec.get(name)) for name in ("sparse", "unique")
    )


def can_be_unique(spec: dict[str, Any]) -> bool:
    """Whether an index of this kind can refuse duplicates."""
    return "hashed" not in spec["key"].values() and wildcard_of(spec["key"]) is None


# ------------------------------------------------------------------ checks


def _check_name(name: str) -> None:
    if not name:
        raise CommandError(67, "The index name cannot be empty")
    if name == "*":
        raise CommandError(2, "The index name '*' is not valid.")
    if "\0" in name:
        raise CommandError(67, "The index name cannot contain an embedded null byte")


def _check_version(spec: dict[str, Any]) -> None:
    version = int32_of(spec.get("v", 2))
    if version is None:
        raise CommandError(2, f"Index version must be representable as a 32-bit integer, but got {spec['v']}")
    if version not in (1, 2):
        raise CommandError(
            67, f"Invalid index specification {to_string(spec)}; cannot create an index with v={version}"
        )


def _check_key(key: dict[str, Any]) -> None:
    if not key:
        raise CommandError(67, "Index keys cannot be an empty object.")
    if len(key) > limits.INDEX_FIELD_COUNT_MAX:
        raise CommandError(13103, f"Index key pattern has {len(key)} fields, more than {limits.INDEX_FIELD_COUNT_MAX}")
    for path, kind in key.items():
        _check_value(kind)
        if not path or path.startswith(".") or path.endswith(".") or ".." in path:
            raise CommandError(67, "Index keys cannot contain an empty field.")
        first, *rest = path.split(".")
        if [first, *rest][-1] == WILDCARD:
            first, *rest = [first, *rest][:-1] or [""]
        elif kind == "wildcard":
            raise CommandError(7246202, "An index of the kind 'wildcard' is written {$**: 1}")
        if first.startswith("$") or any(name.startswith("$") and name not in _OF_REFERENCES for name in rest):
            raise CommandError(
                67, f"Index key contains an illegal field name: field name starts with '$'. Field: {path}"
            )


def _check_value(kind: Any) -> None:
    if type(kind) is str:
        if kind not in ("2d", "2dsphere", "hashed", "text", "wildcard"):
            raise CommandError(67, f"Unknown index plugin '{kind}'")
    elif type(kind) not in NUMBERS:
        raise CommandError(
            67, f"Values in v:2 index key pattern cannot be of type {type_name(kind)}. "
            "Only numbers > 0, numbers < 0, and strings are allowed."
        )  # fmt: skip
    elif not (double_of(kind) > 0 or double_of(kind) < 0):
        raise CommandError(67, "Values in the index key pattern cannot be 0.")


def _id_index(spec: dict[str, Any]) -> dict[str, Any]:
    if double_of(spec["key"]["_id"]) != 1:
        raise CommandError(2, "The field 'key' for an _id index must be {_id: 1}, but got " + to_string(spec["key"]))
    allowed = _OF_ID | {"clustered", "expireAfterSeconds", "unique"} if spec.get("clustered") else _OF_ID
    for name, value in spec.items():
        if name not in allowed and (value or name in ("expireAfterSeconds", "partialFilterExpression")):
            raise CommandError(
                197, f"The field '{name}' is not valid for an _id index specification. Specification: {to_string(spec)}"
            )
    if spec.get("hidden"):
        raise CommandError(2, "can't hide _id index")
    collation = {"collation": spec["collation"]} if "collation" in spec else {}
    clustered = {"clustered": True} if spec.get("clustered") else {}
    return {"v": 2, "key": spec["key"], "name": "_id_", **collation, **clustered}


def _check_kind(spec: dict[str, Any]) -> None:
    """Raise the errors for options that a special kind of index does not allow."""
    key = spec["key"]
    if len({kind for kind in key.values() if type(kind) is str}) > 1:
        raise CommandError(67, "Can't use more than one index plugin for a single index.")
    version = spec.get("2dsphereIndexVersion", 3)
    if geo_paths(key) and version not in (1, 2, 3):
        raise CommandError(
            67, f"unsupported geo index version {{ 2dsphereIndexVersion : {version} }}, only support versions: [1,2,3]"
        )  # fmt: skip
    if "2d" in key.values():
        _check_flat(spec)
    hashed = sum(kind == "hashed" for kind in key.values())
    wildcards = [path for path in key if wildcard_of({path: 1}) is not None]
    if hashed > 1:
        raise CommandError(
            31303, f"A maximum of one index field is allowed to be hashed but found {hashed} for 'key' {to_string(key)}"
        )
    if hashed and (spec.get("unique") or spec.get("prepareUnique")):
        raise CommandError(16764, "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.")
    if "wildcardProjection" in spec:
        _check_projection(spec, wildcards)
    if not wildcards:
        return
    if len(wildcards) > 1:
        raise CommandError(7246201, "wildcard indexes do not allow multiple wildcard fields")
    for plugin in ("2d", "2dsphere", "hashed", "wildcard"):
        if plugin in key.values():
            raise CommandError(67, f"Index type '{plugin}' does not support the wildcard option")
    if spec.get("v", 2) != 2:
        raise CommandError(67, "A wildcard index is of version 2")
    for option in ("unique", "prepareUnique", "sparse"):
        if spec.get(option):
            raise CommandError(67, f"Index type 'wildcard' does not support the {option} option")
    if "expireAfterSeconds" in spec:
        raise CommandError(67, "Index type 'wildcard' cannot be a TTL index")
    _check_compound_wildcard(spec, wildcards[0])


def _check_flat(spec: dict[str, Any]) -> None:
    """Raise the errors for options that a 2d index does not allow."""
    if sum(kind == "2d" for kind in spec["key"].values()) > 1:
        raise CommandError(16800, "can't have 2 geo fields")
    if next(iter(spec["key"].values())) != "2d":
        raise CommandError(16801, "2d has to be first in index")
    bits, low, high = [double_of(default if spec.get(name) is None else spec[name]) for name, default in GRID.items()]
    if not 1 <= bits < 33:
        raise CommandError(72, f"bits for hash must be > 0 and <= 32, but {bits:.0f} bits were specified")
    if not low < high or math.isinf(high - low):
        raise CommandError(
            72, f"region for hash must be valid and have positive area, but [{low:g}, {high:g}] was specified"
        )


def _check_projection(spec: dict[str, Any], wildcards: list[str]) -> None:
    projection = spec["wildcardProjection"]
    if not wildcards:
        raise CommandError(2, "The field 'wildcardProjection' is only allowed in an 'wildcard' index")
    if wildcards[0] != WILDCARD:
        raise CommandError(9, "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": ±1}")
    if not projection:
        raise CommandError(9, "The 'wildcardProjection' field can't be an empty object")
    kinds = list(_projected(projection, top=True))
    if False in kinds and True in kinds:
        raise CommandError(31254 if kinds[0] else 31253, "Cannot do inclusion and exclusion in one projection")


def _projected(projection: dict[str, Any], *, top: bool) -> Iterator[bool]:
    """Yield whether each field of a projection is included or excluded, except `_id`."""
    for name, shown in projection.items():
        if type(shown) is dict and shown and not any(inner.startswith("$") for inner in shown):
            yield from _projected(shown, top=False)
        elif type(shown) not in (*NUMBERS, bool):
            raise CommandError(51271, "Bad projection specification, cannot use computed fields here")
        elif not (top and name == "_id"):
            yield truthy(shown)


def _check_compound_wildcard(spec: dict[str, Any], wildcard: str) -> None:
    """Raise 67 or 7246209 if the wildcard of a compound index contains one of its other fields."""
    from headrace.store.indexes.wildcard_keys import WildcardPaths

    paths = WildcardPaths(spec)
    for path in spec["key"]:
        if path != wildcard and paths.reaches(path):
            raise CommandError(
                7246209 if "wildcardProjection" in spec else 67,
                f"The wildcard of a compound index must not have its field '{path}': exclude it with "
                "'wildcardProjection', or name a path of the wildcard",
            )


def _check_options(spec: dict[str, Any]) -> None:
    if "expireAfterSeconds" in spec:
        if len(spec["key"]) > 1:
            raise CommandError(
                67, f"TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: "
                f"{to_string(spec)}"
            )  # fmt: skip
        if "_id" in spec["key"]:
            raise CommandError(197, f"The field 'expireAfterSeconds' is not valid for an _id index: {to_string(spec)}")
        seconds = float(str(spec["expireAfterSeconds"]))
        if seconds < 0:
            raise CommandError(67, "TTL index 'expireAfterSeconds' option cannot be less than 0")
        if not seconds <= _SECONDS_MAX:
            raise CommandError(
                67, "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a different number "
                f"than {spec['expireAfterSeconds']}"
            )  # fmt: skip
    if spec.get("unique") and spec.get("prepareUnique"):
        raise CommandError(67, "An index cannot have both 'prepareUnique' and 'unique'")


def _check_partial(spec: dict[str, Any]) -> None:
    if "partialFilterExpression" not in spec:
        return
    if spec.get("sparse"):
        raise CommandError(67, 'cannot mix "partialFilterExpression" and "sparse" options')
    _check_features(spec["partialFilterExpression"])
    predicate: Any = parse_filter(PARTIAL_FILTER.of(spec))
    _check_partial_node(predicate.node, spec, 0)


def _check_features(spec: dict[str, Any]) -> None:
    """Raise 224 for an expression or a schema in a partial filter, 2 for a text search or JavaScript."""
    for name, value in spec.items():
        if name in ("$expr", "$jsonSchema"):
            raise CommandError(224, f"{name} is not allowed in this context")
        if name in ("$text", "$where"):
            raise CommandError(2, f"{name} is not allowed in this context")
        if name in ("$and", "$nor", "$or") and type(value) is list:
            for branch in value:
                if type(branch) is dict:
                    _check_features(branch)


def _check_partial_node(node: MatchExpression, spec: dict[str, Any], depth: int) -> None:
    if depth > _PARTIAL_DEPTH_MAX:
        raise CommandError(67, f"partialFilterExpression depth may not exceed {_PARTIAL_DEPTH_MAX}")
    if isinstance(node, And | Or):
        for child in node.children:
            _check_partial_node(child, spec, depth + 1)
    elif not isinstance(node, AlwaysBoolean) and not (
        isinstance(node, LeafMatchExpression) and node.kind in _PARTIAL_KINDS
    ):
        shown = to_string(spec["partialFilterExpression"])
        raise CommandError(67, f"Expression not supported in partial index: {shown}")
