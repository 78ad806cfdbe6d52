"""The interface of a parsed update, the result of applying it to a document, and the document that an upsert inserts.

Rule: applying an `Update` does not change it, so it can be cached and used for many documents and commands. `apply`
does not change the given document either. The new document shares the unchanged values with it.

Rule of upserts whose filter matched nothing: the document starts with the fields for which the filter implies equality
with one value, in the order of their paths: `{a: 1}`, `$eq`, an `$in` or `$all` of one value, also under `$and` or an
`$or` of one branch. Two values for one path, or paths inside each other, are error 54 (NotSingleValueField). Then the
update is applied. With a replacement, only `_id` is taken from the filter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from bson import ObjectId, Regex, Timestamp

from headrace.errors import CommandError
from headrace.values.order import hash_key

UpdateKind = Literal["operators", "pipeline", "replacement"]


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """The inputs of an update besides the document.

    `now_ms` is the wall clock in milliseconds since the epoch ($currentDate as a date, NOW). `timestamp` is the cluster
    time ($currentDate as a timestamp, CLUSTER_TIME). `positional` is the array index that the filter matched, for `$`
    in paths; needed if `Update.needs_position`. `inserting`: the document is made by an upsert ($setOnInsert applies).
    """

    now_ms: int
    timestamp: Timestamp
    positional: str | None = None
    inserting: bool = False


class Diff(NamedTuple):
    """The oplog records a difference: `entry` is the complete `o`, {$v: 2, diff: {…}}."""

    entry: dict[str, Any]

    @property
    def diff(self) -> dict[str, Any]:
        """The diff without `$v`; see `query/diff.py` for its format."""
        return self.entry["diff"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The oplog records the complete new document."""


REPLACED: Final = Replaced()


class Applied(NamedTuple):
    """The new document, and the change that the oplog records; `change` is None if nothing changed.

    When inserting, `change` is undefined.
    """

    document: dict[str, Any]
    change: Diff | Replaced | None


class Update:
    """A parsed update: by operators, by a pipeline, or a replacement."""

    __slots__ = ()
    kind: ClassVar[UpdateKind]

    @property
    def needs_position(self) -> bool:
        """Whether a path contains `$`, so that `apply` needs `UpdateContext.positional`."""
        return False

    @property
    def fields(self) -> frozenset[str] | None:
        """The top-level fields that the update reads and may change; None if it may use any."""
        return None

    def apply(self, document: dict[str, Any], context: UpdateContext) -> Applied:
        """The document after the update, with `_id` first.

        Raises `CommandError` 2, 14, 28, 34, 40, 66, 15 for a document nested too deeply, and the errors of expressions.
        The caller encodes the new document and checks its size.
        """
        raise NotImplementedError

    def apply_raw(self, document: bytes, context: UpdateContext) -> tuple[bytes, bytes] | None:
        """Return the raw document after the update and the `o` of its entry, which is empty if nothing changes.

        None: `apply` must decide. The rest of the document is copied, and its size is not checked.
        """
        return None


def check_upsert_filter(filter_document: dict[str, Any]) -> None:
    """Raise 224 for `$expr`. Call it for every upsert, after parsing the update, even if the filter matches."""
    if _names_expr(filter_document):
        raise CommandError(224, "$expr is not allowed in the query predicate for an upsert")


def upsert_document(
    update: Update,
    filter_document: dict[str, Any],
    context: UpdateContext,
    *,
    new_id: Callable[[], Any] = ObjectId,
) -> dict[str, Any]:
    """The document to insert, with `_id` first. The `_id` is `new_id()` if neither filter nor update sets it.

    `context.inserting` must be True. Raises 54, 66, 53 for an invalid `_id`, 111, and the errors of applying the
    update.
    """
    document = _from_filter(filter_document, only_id=update.kind == "replacement")
    new = update.apply(document, context).document
    if "_id" not in new:
        return {"_id": new_id(), **new}
    check_id(new["_id"])
    if next(iter(new)) == "_id":
        return new
    return {"_id": new["_id"], **{name: value for name, value in new.items() if name != "_id"}}


def check_id(value: Any) -> None:
    """Raise 53 for an array or a regular expression as `_id`, 52 for an object with a name that begins with `$`."""
    if type(value) is list or type(value) is Regex:
        kind = "array" if type(value) is list else "regex"
        raise CommandError(53, f"The '_id' value cannot be of type {kind}")
    if type(value) is dict:
        for name in value:
            if name.startswith("$"):
                raise CommandError(
                    52, f"The dollar ($) prefixed field '{name}' in '_id.{name}' is not valid for storage."
                )


def _from_filter(filter_document: dict[str, Any], *, only_id: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for path, value in _equalities(filter_document) or ():
        if only_id and path != "_id":
            if path.startswith("_id."):
                raise CommandError(111, f"field at '_id' must be exactly specified, field at sub-path '{path}'found")
            continue
        _check_conflict(fields, path)
        fields[path] = value
    document: dict[str, Any] = {}
    for path in sorted(fields, key=str.encode):
        *above, name = path.split(".")
        container = document
        for step in above:
            container = container.setdefault(step, {})
        container[name] = fields[path]
    return document


def _check_conflict(fields: dict[str, Any], path: str) -> None:
    if path in fields:
        raise CommandError(54, f"cannot infer query fields to set, path '{path}' is matched twice")
    for other in fields:
        if other.startswith(path + ".") or path.startswith(other + "."):
            raise CommandError(54, f"cannot infer query fields to set, both paths '{path}' and '{other}' are matched")


Equalities = list[tuple[str, Any]]


def _equalities(filter_document: dict[str, Any]) -> Equalities | None:
    """Path and value of every equality that the filter implies; None if the filter can never match."""
    equalities: Equalities = []
    for name, value in filter_document.items():
        if name == "$and":
            implied = _all(value)
        elif name == "$or":
            implied = _any(value)
        elif name == "$alwaysFalse":
            implied = None
        elif name.startswith("$") or type(value) is Regex:
            continue
        elif type(value) is dict and next(iter(value), "").startswith("$") and "$ref" not in value:
            implied = _conditions(name, value)
        else:
            implied = [(name, value)]
        if implied is None:
            return None
        equalities += implied
    return equalities


def _all(filters: list[dict[str, Any]]) -> Equalities | None:
    equalities: Equalities = []
    for branch in map(_equalities, filters):
        if branch is None:
            return None
        equalities += branch
    return equalities


def _any(filters: list[dict[str, Any]]) -> Equalities | None:
    """The equalities of an $or: of its only branch that can match; none if several branches can."""
    possible = [branch for branch in map(_equalities, filters) if branch is not None]
    if not possible:
        return None
    return possible[0] if len(possible) == 1 else []


def _conditions(path: str, conditions: dict[str, Any]) -> Equalities | None:
    """The equalities that the conditions on one path imply; None for an empty $in or $all, which never match."""
    equalities: Equalities = []
    for name, value in conditions.items():
        if name == "$eq":
            equalities.append((path, value))
        elif name in ("$all", "$in"):
            if not value:
                return None
            values = value if name == "$all" else _distinct(value)
            if name == "$all" or len(values) == 1:
                equalities += [(path, item) for item in values if type(item) is not Regex and not _is_elem_match(item)]
    return equalities


def _distinct(values: list[Any]) -> list[Any]:
    """The distinct values of an $in. Of equal values the first is kept."""
    distinct: dict[Any, Any] = {}
    for value in values:
        distinct.setdefault(hash_key(value), value)
    return list(distinct.values())


def _is_elem_match(value: Any) -> bool:
    return type(value) is dict and next(iter(value), None) == "$elemMatch"


def _names_expr(filter_document: Any) -> bool:
    """Whether the filter has `$expr` at the top level or under `$and`, `$or`, `$nor`."""
    for name, value in filter_document.items():
        if name == "$expr":
            return True
        branches = value if name in ("$and", "$nor", "$or") and type(value) is list else []
        if any(type(item) is dict and _names_expr(item) for item in branches):
            return True
    return False
