"""A random case from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.differential.comparison import Case
from tests.differential.documents import Values
from tests.differential.indexes import random_index
from tests.differential.paths import LIMITS
from tests.differential.queries import REFUSED, change, filter_of, question, update_of

Document = dict[str, Any]


def random_case(seed: int) -> Case:
    """Return the case of a seed."""
    random = Random(seed)
    arrays = random.random() < 0.5
    values = Values(random, arrays=arrays, nested=random.random() < 0.7, rare=random.choice([0.05, 0.2, 0.5]))
    steps: list[Document] = []
    count = random.choice([3, 8, 15, 30])
    built_first = random.random() < 0.5
    indexes = [random_index(random, number) for number in range(random.choice([1, 1, 2, 3, 4, 5]))]
    builds = [{"do": {"createIndexes": "c", "indexes": [index]}} for index in indexes]
    fill = {"do": {"insert": "c", "documents": [values.document(at) for at in range(count)], "ordered": False}}
    steps += [*builds, fill] if built_first else [fill, *builds]
    asked: list[Document] = []
    inside = False
    for number in range(random.choice([6, 10, 16])):
        dice = random.random()
        if dice < 0.62:
            again = asked and random.random() < 0.15
            asked.append(random.choice(asked) if again else question(values))
            steps.append({"ask": asked[-1]})
        elif dice < 0.78:
            name = "outside" if inside and random.random() < 0.3 else "do"
            steps.append({name: change(values, 100 * number)})
        elif dice < 0.81:
            steps.append(_paged(values, indexes, 100 * number))
        elif dice < 0.84:
            steps.append(_turned(values, indexes, 100 * number))
        elif dice < 0.86:
            steps.append({"refused": random.choice(REFUSED)})
        elif dice < 0.91:
            inside = not inside
            steps.append({"begin": 1} if inside else {random.choice(["commit", "commit", "abort"]): 1})
        else:
            steps.append({"do": _index_change(random, indexes)})
    lowered = {name: random.choice(values) for name, (_, _, values) in LIMITS.items() if random.random() < 0.35}
    return Case(steps, lowered)


def _paged(values: Values, indexes: list[Document], number: int) -> Document:
    asked = {"kind": "find", **{
        name: value for name, value in question(values).items() if name in ("filter", "sort", "batch", "collation")
    }}  # fmt: skip
    if values.random.random() < 0.6:
        whole = [index["name"] for index in indexes if not index.get("sparse")]
        asked["hint"] = values.random.choice([*whole, {"$natural": 1}])
    between = _between(values, indexes, number)
    return {"paged": asked, "between": between, **({"turns": True} if values.random.random() < 0.4 else {})}


def _turned(values: Values, indexes: list[Document], number: int) -> Document:
    random = values.random
    if random.random() < 0.4:
        command = _index_change(random, indexes, only="create")
    elif random.random() < 0.7:
        command = {"update": "c", "updates": [{"q": filter_of(values), "u": update_of(values), "multi": True}]}
    else:
        command = {"delete": "c", "deletes": [{"q": filter_of(values), "limit": 0}]}
    return {"turned": command, "between": _between(values, indexes, number)}


def _between(values: Values, indexes: list[Document], number: int) -> list[Document]:
    """Return steps that are taken while a command has paused."""
    random, steps = values.random, []
    for at in range(random.choice([0, 1, 2, 4, 8])):
        dice = random.random()
        if dice < 0.6:
            steps.append({"do": change(values, number + at)})
        elif dice < 0.8:
            steps.append({"ask": question(values)})
        else:
            steps.append({"do": _index_change(random, indexes)})
    return steps


def _index_change(random: Random, indexes: list[Document], only: str = "") -> Document:
    dice = random.random()
    if dice < 0.4 or only == "create":
        indexes.append(random_index(random, len(indexes)))
        return {"createIndexes": "c", "indexes": [indexes[-1]]}
    name = random.choice(indexes)["name"]
    if dice < 0.7:
        return {"dropIndexes": "c", "index": name}
    return {"collMod": "c", "index": {"name": name, "hidden": random.choice([True, False])}}
