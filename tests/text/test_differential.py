"""Searches by a text index against an evaluation of their own over a list: the same documents with the same scores."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer
from tests.text.plain_evaluation import score

Json = dict[str, Any]
WORDS = (
    "lamp lamps Lamp oil oils the and running runs ran coffee Café cafe naïve don't desk's red-green Zürich été a_b "
    "Straße blue blueberry blueberries 42 3.14 «quoted» “curly” été's"
).split()
INDEXES: list[tuple[Json, Json]] = [
    ({"t": "text"}, {}),
    ({"t": "text", "u.v": "text"}, {"weights": {"t": 3, "u.v": 10}}),
    ({"$**": "text"}, {"weights": {"u.w": 7}}),
    ({"$**": "text"}, {"default_language": "french"}),
    ({"t": "text"}, {"weights": {"u": 2}, "default_language": "none"}),
]
SCORED = {"score": {"$meta": "textScore"}}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def _text(random: Random) -> str:
    words = [random.choice(WORDS) for _ in range(random.randrange(6))]
    return random.choice([" ", ", ", " - "]).join(words)


def _document(random: Random, number: int) -> Json:
    document: Json = {"_id": number}
    if random.random() < 0.9:
        document["t"] = random.choice([_text(random), [_text(random), _text(random)], 5])
    if random.random() < 0.7:
        inner: Json = {"v": _text(random), "w": [{"x": _text(random)}, [_text(random)]]}
        if random.random() < 0.4:
            inner["language"] = random.choice(["french", "none", "english"])
        document["u"] = random.choice([inner, [inner, {"v": _text(random)}], _text(random)])
    if random.random() < 0.3:
        document["language"] = random.choice(["english", "german", "none"])
    return document


def _search(random: Random) -> tuple[str, Json]:
    words = [random.choice(WORDS) for _ in range(random.randrange(1, 4))]
    negated = [random.choice(WORDS) for _ in range(random.choice([0, 0, 1]))]
    phrases = [_text(random) for _ in range(random.choice([0, 0, 1]))]
    negated_phrases = [_text(random) for _ in range(random.choice([0, 0, 0, 1]))]
    pieces = [*words, *(f"-{word}" for word in negated), *(f'"{phrase}"' for phrase in phrases)]
    pieces += [f'-"{phrase}"' for phrase in negated_phrases]
    random.shuffle(pieces)
    given = {"words": words, "negated": negated, "phrases": phrases, "negated_phrases": negated_phrases}
    return " ".join(pieces), given


def _check(at: DrivenServer, documents: list[Json], weights: Json, language: str, random: Random) -> None:
    search, given = _search(random)
    case, marks = random.random() < 0.3, random.random() < 0.3
    text = {"$search": search, "$caseSensitive": case, "$diacriticSensitive": marks}
    wanted = {}
    for document in documents:
        found = score(document, weights, language, **given, case=case, marks=marks)
        if found is not None:
            wanted[document["_id"]] = found
    command = {"find": "c", "filter": {"$text": text}, "batchSize": 1000}
    answered = at.must("t", {**command, "projection": SCORED, "sort": SCORED})["cursor"]["firstBatch"]
    assert {item["_id"]: pytest.approx(item["score"]) for item in answered} == wanted, search
    assert [item["score"] for item in answered] == sorted([item["score"] for item in answered], reverse=True)
    few = at.must("t", {**command, "projection": SCORED, "sort": SCORED, "skip": 1, "limit": 3})["cursor"]["firstBatch"]
    assert [item["score"] for item in few] == [item["score"] for item in answered[1:4]]
    odd = {"$and": [{"$text": text}, {"_id": {"$mod": [2, 1]}}]}
    rest = at.must("t", {**command, "filter": odd, "projection": SCORED})["cursor"]["firstBatch"]
    assert {item["_id"]: item["score"] for item in rest} == {
        item["_id"]: item["score"] for item in answered if item["_id"] % 2
    }
    unsorted = at.must("t", command)["cursor"]["firstBatch"]
    assert sorted(item["_id"] for item in unsorted) == sorted(wanted)
    assert all(item == documents[item["_id"]] for item in unsorted)
    assert at.must("t", {"count": "c", "query": {"$text": text}})["n"] == len(wanted)


@pytest.mark.parametrize("number", range(len(INDEXES)))
def test_searches_find_what_the_documents_say(at: DrivenServer, number: int) -> None:
    random = Random(number)
    key, options = INDEXES[number]
    weights = dict.fromkeys(key, 1) | options.get("weights", {})
    language = options.get("default_language", "english")
    documents = [_document(random, position) for position in range(60)]
    at.must("t", {"insert": "c", "documents": documents[:30]})
    at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": "i", **options}]})
    at.must("t", {"insert": "c", "documents": documents[30:]})
    for _ in range(25):
        _check(at, documents, weights, language, random)
    for position in range(0, 60, 3):
        documents[position] = _document(random, position)
        update = {"q": {"_id": position}, "u": documents[position]}
        at.must("t", {"update": "c", "updates": [update]})
    for _ in range(10):
        _check(at, documents, weights, language, random)
    assert at.must("t", {"validate": "c", "full": True})["valid"]
