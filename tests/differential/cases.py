"""A random case from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.differential.comparison import Case
from tests.differential.documents import Values
from tests.differential.indexes import random_index
from tests.differential.paths import LIMITS
from tests.differential.places import SHARE, Places
from tests.differential.queries import REFUSED, change, filter_of, question, update_of
from tests.differential.series import series_steps

Document = dict[str, Any]


def random_case(seed: int) -> Case:
    """Return the case of a seed. Each has a theme, so that what is rare comes often in some cases."""
    if Random(f"series {seed}").random() < 0.15:
        return _series_case(Random(f"series {seed} steps"))
    random = Random(seed)
    theme = random.choice(["read"] * 5 + ["write"] * 2 + ["pause"] * 3 + ["transaction"] * 2)
    arrays = random.random() < (0.25 if theme == "transaction" else 0.5)
    values = Values(random, arrays=arrays, nested=random.random() < 0.6, rare=random.choice([0.05, 0.4]))
    own = Random(hash(random.getstate()[1][:3]))  # so that other cases are what they were
    if own.random() < SHARE:
        values.places = Places(own)
    count = random.choice([3, 8, 8, 15, 30] if theme == "read" else [3, 6, 12])
    built_first = random.random() < 0.5
    indexes = [random_index(values, number) for number in range(random.choice([1, 2, 3, 4]))]
    builds = [{"do": {"createIndexes": "c", "indexes": [index]}} for index in indexes]
    fill = {"do": {"insert": "c", "documents": [values.document(at) for at in range(count)], "ordered": False}}
    steps: list[Document] = [*builds, fill] if built_first else [fill, *builds]
    make = {"read": _read, "write": _write, "pause": _pause, "transaction": _transaction}[theme]
    for number in range(1, 20 if theme == "read" else 8):
        steps += make(values, indexes, 100 * number)
    share = 0.6 if theme == "pause" else 0.3
    lowered = {name: random.choice(some) for name, (_, _, some) in LIMITS.items() if random.random() < share}
    if Random(f"clustered {seed}").random() < 0.25:
        steps.insert(0, {"do": {"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": True}}})
    return Case(steps, lowered)


def _series_case(random: Random) -> Case:
    lowered = {name: random.choice(some) for name, (_, _, some) in LIMITS.items() if random.random() < 0.3}
    return Case(series_steps(random), lowered)


def _read(values: Values, indexes: list[Document], number: int) -> list[Document]:
    asked = {"ask": question(values, indexes)}
    return [asked, asked] if values.random.random() < 0.1 else [asked]  # the second by the plan cache


def _write(values: Values, indexes: list[Document], number: int) -> list[Document]:
    dice = values.random.random()
    if dice < 0.1:
        return [{"refused": values.random.choice(REFUSED)}]
    if dice < 0.2:
        return [{"do": _index_change(values, indexes)}]
    return [{"do": change(values, number)}, {"ask": question(values, indexes)}]


def _pause(values: Values, indexes: list[Document], number: int) -> list[Document]:
    return [(_paged if values.random.random() < 0.5 else _turned)(values, indexes, number)]


def _transaction(values: Values, indexes: list[Document], number: int) -> list[Document]:
    random = values.random
    steps: list[Document] = [{"begin": 1}]
    if random.random() < 0.2:
        steps.append({"outside": change(values, number)})
    if random.random() < 0.8:
        steps.append({"do": change(values, number + 10)})
    if random.random() < 0.4:
        steps.append({"do": {"delete": "c", "deletes": [{"q": filter_of(values), "limit": 1}]}})
    steps += [{"ask": question(values, indexes, reads_only=True)} for _ in range(random.choice([1, 2, 3]))]
    return [*steps, {random.choice(["commit", "commit", "abort"]): 1}]


def _paged(values: Values, indexes: list[Document], number: int) -> Document:
    names = ("filter", "sort", "batch", "collation")
    asked = {"kind": "find"}
    asked.update({name: value for name, value in question(values, indexes).items() if name in names})
    if values.random.random() < 0.6:
        whole = [index["name"] for index in indexes if not index.get("sparse")]
        asked["hint"] = values.random.choice([*whole, "_id_", {"$natural": 1}])
    between = _between(values, indexes, number)
    if values.random.random() < 0.4:  # a scan that has not begun, whose index goes
        index = values.random.choice(indexes)
        condition = {next(iter(index["key"])): {"$gte": values.scalar_of_order()}}
        spec = condition if values.random.random() < 0.5 else {"$or": [filter_of(values, 0), condition]}
        asked.update(filter=spec, batch=values.random.choice([0, 1]))
        asked.pop("hint", None)
        if spec is condition:
            asked["hint"] = index["name"]
        between = [{"do": {"dropIndexes": "c", "index": index["name"]}}, *between]
    return {"paged": asked, "between": between, **({"turns": True} if values.random.random() < 0.4 else {})}


def _turned(values: Values, indexes: list[Document], number: int) -> Document:
    random = values.random
    if random.random() < 0.5:
        command = _index_change(values, indexes, only="create")
        path = next(iter(command["indexes"][0]["key"]))
        asked = {"kind": "find", "filter": {path: values.scalar()}}
        return {"turned": command, "between": [{"ask": asked}] * 4 + _between(values, indexes, number)}
    if random.random() < 0.7:
        command = {"update": "c", "updates": [{"q": filter_of(values), "u": update_of(values), "multi": True}]}
    else:
        command = {"delete": "c", "deletes": [{"q": filter_of(values), "limit": 0}]}
    return {"turned": command, "between": _between(values, indexes, number)}


def _between(values: Values, indexes: list[Document], number: int) -> list[Document]:
    """Return steps that are taken while a command has paused."""
    random, steps = values.random, []
    for at in range(random.choice([0, 1, 2, 4, 8])):
        dice = random.random()
        if dice < 0.5:
            steps.append({"do": change(values, number + at)})
        elif dice < 0.8:
            steps.append({"ask": question(values, indexes)})
        else:
            steps.append({"do": _index_change(values, indexes)})
    return steps


def _index_change(values: Values, indexes: list[Document], only: str = "") -> Document:
    random = values.random
    dice = random.random()
    if dice < 0.4 or only == "create":
        indexes.append(random_index(values, len(indexes)))
        return {"createIndexes": "c", "indexes": [indexes[-1]]}
    name = random.choice(indexes)["name"]
    if dice < 0.7:
        return {"dropIndexes": "c", "index": name}
    return {"collMod": "c", "index": {"name": name, "hidden": random.choice([True, False])}}
