"""Text indexes of versions 1 and 2: languages, letters beyond ASCII, marks, paths and weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

Json = dict[str, Any]


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer() as server:
        yield server


def indexed(at: DrivenServer, version: int, *documents: Any, key: Json | None = None, **options: Any) -> None:
    spec = {"key": key or {"t": "text"}, "name": "i", "textIndexVersion": version, **options}
    at.must("t", {"createIndexes": "c", "indexes": [spec]})
    made = [item if type(item) is dict else {"t": item} for item in documents]
    at.must("t", {"insert": "c", "documents": [{"_id": number, **item} for number, item in enumerate(made)]})


def found(at: DrivenServer, search: str, **more: Any) -> list[int]:
    text = {"$search": search, **{f"${name}": value for name, value in more.items()}}
    batch = at.must("t", {"find": "c", "filter": {"$text": text}})["cursor"]["firstBatch"]
    return sorted(item["_id"] for item in batch)


@pytest.mark.parametrize("version", [1, 2])
def test_only_ascii_has_a_lower_case_and_marks_count(at: DrivenServer, version: int) -> None:
    indexed(at, version, "Café BAKING", "cafe", "ÉCOLE", "école", "one–two", "over-load")
    assert [found(at, word) for word in ("cafe", "CAFÉ", "café", "bake")] == [[1], [], [0], [0]]
    assert [found(at, word) for word in ("École", "ÉCOLE", "école")] == [[2], [2], [3]]
    assert [found(at, word) for word in ("two", "one–two", "load")] == [[], [4], [5]]
    assert found(at, '"Café"') == [0] and found(at, '"cafe"') == [1]
    assert found(at, "Café", caseSensitive=True) == [0] and found(at, "bake", caseSensitive=True) == []
    assert found(at, "cafe", diacriticSensitive=True) == [1]
    explained = at.must("t", {"explain": {"find": "c", "filter": {"$text": {"$search": "cafe"}}}})
    assert explained["queryPlanner"]["winningPlan"]["textIndexVersion"] == version


def test_version_2_knows_the_languages_of_version_3(at: DrivenServer) -> None:
    indexed(at, 2, {"t": "the running dog", "in": {"t": "x"}}, {"t": "les chats", "language": "FR"})
    assert found(at, "the") == [] and found(at, "runs dogs") == [0] and found(at, "chat", language="fr") == [1]
    with pytest.raises(CommandError, match='unsupported language: "eng" for text index version 2') as refused:
        found(at, "x", language="eng")
    assert refused.value.code == 2
    with pytest.raises(CommandError) as refused:
        at.must("t", {"insert": "c", "documents": [{"t": "x", "language": "xx"}]})
    assert refused.value.code == 17262
    with pytest.raises(CommandError) as refused:
        at.must("t", {"createIndexes": "d", "indexes": [
            {"key": {"t": "text"}, "name": "i", "textIndexVersion": 2, "default_language": "eng"},
        ]})  # fmt: skip
    assert refused.value.code == 67


def test_version_1_takes_any_language_by_its_exact_name(at: DrivenServer) -> None:
    indexed(at, 1, "the running", {"t": "running the", "language": "eng"}, {"t": "the running", "language": "klingon"})
    assert found(at, "the", language="none") == [1, 2] and found(at, "run") == [0, 1]
    assert found(at, "running", language="ENGLISH") == [2] and found(at, "running", language="none") == [2]
    assert found(at, "the runs", language="en") == [0, 1, 2]


def test_an_alias_as_the_default_language_of_version_1_has_stems_and_no_stop_words(at: DrivenServer) -> None:
    indexed(at, 1, "running", "the", default_language="eng")
    assert found(at, "run") == [0] and found(at, "the") == [1]


def test_version_1_has_one_language_a_document(at: DrivenServer) -> None:
    indexed(at, 1, {"language": "none", "a": {"language": "english", "b": "the"}}, key={"a.b": "text"})
    assert found(at, "the", language="none") == [0]


def test_paths_of_version_1_enter_one_array(at: DrivenServer) -> None:
    documents: list[Json] = [
        {"a": [{"b": "lamp"}, {"b": ["lamp"]}]}, {"a": {"b": ["lamp", "oil"]}}, {"a": [{"b": ["lamp"]}]}, {"a": "lamp"},
    ]  # fmt: skip
    indexed(at, 1, *documents, key={"a.b": "text"})
    assert found(at, "lamp") == [0, 1] and found(at, "oil") == [1]


def test_weights_of_a_wildcard_of_version_1_are_by_names(at: DrivenServer) -> None:
    document = {"x": {"b": "lamp", "language": "lamp"}, "c": ["oil", ["wick"]]}
    indexed(at, 1, document, key={"$**": "text"}, weights={"b": 10, "x.b": 3})
    scores = [
        at.must("t", {
            "find": "c", "filter": {"$text": {"$search": word}}, "projection": {"s": {"$meta": "textScore"}},
        })["cursor"]["firstBatch"][0]["s"] for word in ("lamp", "oil", "wick")
    ]  # fmt: skip
    assert scores == [11.0, 1.1, 1.1]


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 2), (2, 1)])
def test_specifications_that_differ_in_the_version_are_alike(at: DrivenServer, first: int, second: int) -> None:
    indexed(at, first, "x")
    spec = {"key": {"t": "text"}, "name": "i", "textIndexVersion": second}
    assert at.must("t", {"createIndexes": "c", "indexes": [spec]})["note"] == "all indexes already exist"
    listed = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    assert [item.get("textIndexVersion") for item in listed] == [None, first]
    assert at.must("t", {"validate": "c"})["valid"]
