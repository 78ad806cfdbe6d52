"""Random filters, sorts, projections, questions and changes."""

from __future__ import annotations

from typing import Any, Final

from bson import Regex

from tests.differential.documents import FIELDS, PATHS, Values
from tests.differential.indexes import COLLATIONS

Document = dict[str, Any]

_PATTERNS: Final = ["^a", "^ab", "^a.*", "b", "^ab?", "^a|b", "^x", "^A", "^", "a\\0", "^$"]
_TYPES: Final[list[Any]] = [
    "number", "string", "null", "array", "object", "date", "regex", "bool", "minKey", "maxKey", "int", "long", "double",
    "decimal", "binData", "objectId", "timestamp", "javascript", ["int", "string"], ["null", "array"], 16,
]  # fmt: skip


def condition(values: Values) -> Document:
    """Return the operators of one field."""
    random = values.random
    made: Document = {}
    for _ in range(random.choice([1, 1, 2])):
        dice = random.random()
        if dice < 0.18:
            made[random.choice(["$gt", "$gte"])] = values.scalar_of_order()
            made[random.choice(["$lt", "$lte"])] = values.scalar_of_order()
        elif dice < 0.46:
            operand = values.value(1)
            if type(operand) is Regex:
                operand = "a"
            made[random.choice(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"])] = operand
        elif dice < 0.62:
            items = [values.value(1) for _ in range(random.choice([0, 1, 2, 2, 3]))]
            made[random.choice(["$in", "$in", "$nin"])] = items
        elif dice < 0.70:
            made["$exists"] = random.choice([True, False])
        elif dice < 0.77:
            made["$type"] = random.choice(_TYPES)
        elif dice < 0.83:
            made["$regex"] = random.choice(_PATTERNS)
            made.update({"$options": "i"} if random.random() < 0.2 else {})
        elif dice < 0.87:
            made["$mod"] = random.choice([[2, 1], [2, 0], [3, -1]])
        elif dice < 0.90:
            made["$size"] = random.choice([0, 1, 2])
        elif dice < 0.94:
            made["$all"] = [values.value(1) for _ in range(random.choice([1, 2]))]
        elif dice < 0.97:
            made["$bitsAllSet"] = random.choice([1, 2, 0])
        else:
            made["$all"] = [{"$elemMatch": element(values)} for _ in range(random.choice([1, 2]))]
    return made


def element(values: Values) -> Document:
    """Return the operand of an `$elemMatch`."""
    random = values.random
    if random.random() < 0.4:
        return condition(values)
    return {name: field(values) for name in random.sample(["b", "c"], random.choice([1, 2]))}


def field(values: Values) -> Any:
    """Return the condition of one field: a value, or operators."""
    dice = values.random.random()
    if dice < 0.35:
        return values.value(1)
    if dice < 0.75:
        return condition(values)
    if dice < 0.87:
        return {"$not": condition(values) if dice < 0.85 else Regex("^a")}
    return {"$elemMatch": element(values)}


def expression(values: Values) -> Document:
    """Return an `$expr` that fails for no document."""
    random = values.random
    operator = random.choice(["$eq", "$eq", "$gt", "$gte", "$lt", "$lte", "$ne"])
    sides: list[Any] = [f"${values.path()}", {"$literal": values.scalar()}]
    if random.random() < 0.2:
        sides = [f"${values.path()}", f"${values.path()}"]
    elif random.random() < 0.2:
        sides.reverse()
    made: Document = {operator: sides}
    if random.random() < 0.3:
        made = {random.choice(["$and", "$or"]): [made, {"$gte": [f"${values.path()}", values.random.choice([0, 1])]}]}
    return {"$expr": made}


def filter_of(values: Values, depth: int = 2) -> Document:
    """Return a filter."""
    random = values.random
    made: Document = {}
    for _ in range(random.choice([0, 1, 1, 2, 2, 3] if depth == 2 else [1, 1, 2])):
        made[values.path()] = field(values)
    if not depth:
        return made
    dice = random.random()
    if dice < 0.18:
        made["$or"] = [filter_of(values, depth - 1) for _ in range(random.choice([1, 2, 2, 3]))]
    elif dice < 0.24:
        made["$and"] = [filter_of(values, depth - 1) for _ in range(2)]
    elif dice < 0.28:
        made["$nor"] = [filter_of(values, depth - 1) for _ in range(random.choice([1, 2]))]
    elif dice < 0.34:
        made.update(expression(values))
    return made


def sort_of(values: Values) -> Document | None:
    """Return a sort, or None."""
    random = values.random
    if random.random() < 0.4:
        return None
    made = {values.path(): random.choice([1, -1]) for _ in range(random.choice([1, 1, 2, 3]))}
    if random.random() < 0.3:
        made["_id"] = random.choice([1, -1])
    return made


def projection_of(values: Values) -> Document | None:
    """Return a projection that an index may cover, or None."""
    random = values.random
    if random.random() < 0.5:
        return None
    names = list(
        {values.path() if random.random() < 0.7 else random.choice(FIELDS) for _ in range(random.choice([1, 1, 2]))}
    )
    names = [name for name in names if "." not in name or name.split(".")[0] not in names]
    names = sorted({name.split(".")[0]: name for name in names if "0" not in name}.values()) or ["a"]
    made: Document = dict.fromkeys(names, 1)
    if random.random() < 0.75:
        made["_id"] = 0
    if random.random() < 0.1:
        made = {"_id": 1}
    return made


def aimed_filter(values: Values, index: Document) -> Document:
    """Return a filter on the fields of an index, and on those of the documents that it covers."""
    random = values.random
    wildcard = [path.removesuffix("$**") for path in index["key"] if path.endswith("$**")]
    paths = [path for path in index["key"] if not path.endswith("$**")]
    paths += [f"{prefix}{random.choice(['b', 'c'])}" if prefix else values.path() for prefix in wildcard]
    made: Document = {path: field(values) for path in random.sample(paths, random.randrange(1, len(paths) + 1))}
    for path in index.get("partialFilterExpression", ()):
        if not path.startswith("$") and random.random() < 0.7:
            some = [values.scalar() for _ in range(2)]
            made[path] = random.choice([{"$in": some}, some[0], {"$gte": values.scalar_of_order()}])
    return made


def aimed_question(values: Values, index: Document, *, reads_only: bool) -> Document:
    """Return a question that an index answers by itself: a count, distinct values, a seek in its last field, or an
    update that moves its keys."""
    random, paths = values.random, [path for path in index["key"] if "$" not in path] or ["a"]
    above = {paths[0]: {"$gte": values.scalar_of_order()}}
    made: list[Document] = [
        {"kind": "count", "filter": above},
        {"kind": "distinct", "filter": random.choice([{}, above]), "path": paths[0]},
        {"kind": "count", "filter": {paths[-1]: values.scalar()}},
    ]
    if not reads_only:
        made.append({"kind": "change", "filter": above, "update": {"$inc": {"times": 1, paths[0]: 1}}})
    return random.choice(made)


def question(values: Values, indexes: list[Document], *, reads_only: bool = False) -> Document:
    """Return what is asked by every access path: the kind, and what it needs. `reads_only`: what a transaction can."""
    random, places = values.random, values.places
    if places is not None:
        indexes = [index for index in indexes if "at" not in index["key"]] or [{"key": {"a": 1}}]
        if not reads_only and places.random.random() < 0.3:
            limit = places.random.choice([0, 1, 3, 10])
            spec = filter_of(values, 1) if places.random.random() < 0.3 else {}
            return {"kind": "near", "filter": spec, "near": places.near(), "limit": limit}
    kinds = ["find"] * 8 + ["count"] * 5 + ["distinct"] * 3 + ["aggregate"] * 2
    kinds += ["group", "first", "lookup", "lookup", "view", "range", "take", "remove", "change", "range", "output"]
    if reads_only:
        kinds = ["find", "find", "count", "distinct", "aggregate", "group"]
    if random.random() < 0.2:
        return aimed_question(values, random.choice(indexes), reads_only=reads_only)
    is_aimed = random.random() < 0.5
    spec = aimed_filter(values, random.choice(indexes)) if is_aimed else filter_of(values)
    if places is not None and places.random.random() < 0.5:
        spec = {**spec, "at": places.condition()}
    asked: Document = {"kind": random.choice(kinds), "filter": spec}
    kind = asked["kind"]
    if kind in ("find", "aggregate", "view", "take") and (sort := sort_of(values)) is not None:
        asked["sort"] = sort
    if kind in ("find", "aggregate", "view") and (projection := projection_of(values)) is not None:
        asked["projection"] = projection
    if kind in ("find", "aggregate", "view", "count") and random.random() < 0.3:
        asked["skip"] = random.choice([0, 1, 2, 5])
    if kind in ("find", "aggregate", "view", "count") and random.random() < 0.3:
        asked["limit"] = random.choice([1, 2, 3, 10, 2**63 - 1])
    if kind in ("distinct", "group", "first"):
        asked["path"] = values.path()
    if kind == "lookup":
        asked.update(local=values.path(), foreign=values.path(), form=random.choice(["equal", "let", "both", "graph"]))
    if kind == "view":
        asked["of"] = filter_of(values, 1)
    if kind == "range":
        asked["ends"] = [[values.scalar() for _ in range(3)] for _ in range(2)]
        if random.random() < 0.3:
            asked["ends"] = [[random.choice(["x" * 600, "x" * 600 + "y", "x"]) for _ in range(3)] for _ in range(2)]
    if kind in ("change", "take"):
        asked["update"] = update_of(values)
    if random.random() < values.collated:
        asked["collation"] = random.choice(COLLATIONS)
    if random.random() < 0.25:
        asked["batch"] = random.choice([1, 2, 3])
    return asked


REFUSED: Final[list[Document]] = [
    {"createIndexes": "z", "indexes": [{"key": {"a": 1}, "name": "i"}, {"key": {"b": 1}, "name": "i"}]},
    {"createIndexes": "z", "indexes": [{"key": {"a": 1}, "name": "i"}, {"key": {"a": 1}, "name": "j"}]},
    {"createIndexes": "z", "indexes": [{"key": {"a": "other"}, "name": "i"}]},
    {"create": "z", "viewOn": "c", "pipeline": [{"$other": 1}]},
    {"insert": "z", "documents": [{"_id": [1]}]},
    {"findAndModify": "z", "query": {}, "update": {"$other": 1}, "upsert": True},
]  # fmt: skip
"""Commands that fail, and that must not make the collection that they name."""


def update_of(values: Values) -> Any:
    """Return an update that, applied twice, differs from one applied once."""
    random = values.random
    path = random.choice([*PATHS, *4 * values.paths])
    dice = random.random()
    once: Document = {"$inc": {"times": 1}}
    if dice < 0.35:
        return {**once, "$set": {path: values.value()}}
    if dice < 0.45:
        return {**once, "$unset": {path: ""}}
    if dice < 0.6:
        return {"$inc": {"times": 1, path: 1}}
    if dice < 0.67:
        return {**once, "$push": {path: values.value(1)}}
    if dice < 0.7:
        return {**once, "$pull": {path: values.scalar()}}
    if dice < 0.75:
        return {**once, "$rename": {path: "b" if path.startswith("c") else "c"}}
    more: Document = {"times": {"$add": [{"$ifNull": ["$times", 0]}, 1]}}
    return [{"$set": {path: {"$literal": values.value()}, **more}}]


def change(values: Values, number: int) -> Document:
    """Return a write of any kind as a command."""
    random = values.random
    dice = random.random()
    if dice < 0.3:
        documents = [values.document(number + more) for more in range(random.choice([1, 1, 2, 5]))]
        return {"insert": "c", "documents": documents, "ordered": False}
    collation = {"collation": random.choice(COLLATIONS)} if random.random() < values.collated else {}
    if dice < 0.7:
        statement = {"q": filter_of(values), "u": update_of(values), **collation}
        return {"update": "c", "updates": [{**statement, "multi": random.random() < 0.7}]}
    if dice < 0.85:
        return {"delete": "c", "deletes": [{"q": filter_of(values), "limit": random.choice([0, 1, 1]), **collation}]}
    taken: Document = {"findAndModify": "c", "query": filter_of(values), **collation}
    taken.update({"remove": True} if random.random() < 0.4 else {"update": update_of(values)})
    sort = sort_of(values)
    return taken if sort is None else {**taken, "sort": sort}
