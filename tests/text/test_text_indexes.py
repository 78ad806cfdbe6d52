"""Text indexes: specifications, what is refused, keys, builds, languages of documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.store.check.directory import check
from headrace.store.indexes import text_keys
from headrace.testing.clock import FakeClock
from headrace.testing.driven import DrivenServer

Json = dict[str, Any]
PLAIN = {"default_language": "english", "language_override": "language", "textIndexVersion": 3}


@pytest.fixture
def at() -> Iterator[DrivenServer]:
    with DrivenServer(clock=FakeClock()) as server:
        yield server


def create(at: DrivenServer, key: Json, name: str = "i", **options: Any) -> Json:
    return at.must("t", {"createIndexes": "c", "indexes": [{"key": key, "name": name, **options}]})


def insert(at: DrivenServer, *documents: Json) -> None:
    reply = at.must("t", {"insert": "c", "documents": list(documents)})
    assert "writeErrors" not in reply, reply


def refused(at: DrivenServer, command: Json) -> int:
    with pytest.raises(CommandError) as error:
        at.must("t", command)
    code: int = error.value.code
    return code


def find(at: DrivenServer, search: str, **more: Any) -> list[Any]:
    reply = at.must("t", {"find": "c", "filter": {"$text": {"$search": search}}, "batchSize": 1000, **more})
    return sorted(document["_id"] for document in reply["cursor"]["firstBatch"])


def listed(at: DrivenServer) -> Json:
    indexes: list[Json] = at.must("t", {"listIndexes": "c"})["cursor"]["firstBatch"]
    return indexes[1]


def key_count(at: DrivenServer) -> int:
    reply = at.must("t", {"validate": "c", "full": True})
    assert reply["valid"], reply
    count: int = reply["keysPerIndex"]["i"]
    return count


@pytest.mark.parametrize(
    ("key", "options", "stored"),
    [
        ({"t": "text"}, {}, {"key": {"_fts": "text", "_ftsx": 1}, "weights": {"t": 1}, **PLAIN}),
        (
            {"u": "text", "t": "text"},
            {"weights": {"t": 5.7, "s": 2}, "default_language": "fr", "language_override": "l"},
            {
                "key": {"_fts": "text", "_ftsx": 1}, "weights": {"s": 2, "t": 5, "u": 1}, "default_language": "fr",
                "language_override": "l", "textIndexVersion": 3,
            },
        ),
        (
            {"a": 1, "t": "text", "b": -1}, {},
            {"key": {"a": 1, "_fts": "text", "_ftsx": 1, "b": -1}, "weights": {"t": 1}, **PLAIN},
        ),
        ({"$**": "text"}, {}, {"key": {"_fts": "text", "_ftsx": 1}, "weights": {"$**": 1}, **PLAIN}),
    ],
)  # fmt: skip
def test_an_index_is_stored_as_mongodb_stores_it(at: DrivenServer, key: Json, options: Json, stored: Json) -> None:
    create(at, key, **options)
    spec = listed(at)
    assert list(spec["key"].items()) == list(stored["key"].items())
    assert spec == {"v": 2, "name": "i", **stored}
    assert create(at, key, **options)["numIndexesAfter"] == 2
    assert at.must("t", {"createIndexes": "c", "indexes": [spec]})["note"] == "all indexes already exist"
    at.must("t", {"createIndexes": "d", "indexes": [spec]})


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ({"t": "text"}, {"weights": {"t": 0}}), ({"t": "text"}, {"weights": {"t": 100_000}}),
        ({"t": "text"}, {"weights": {"t": "x"}}), ({"t": "text"}, {"weights": {"$a": 1}}),
        ({"t": "text"}, {"default_language": "klingon"}), ({"t": "text"}, {"language_override": ""}),
        ({"t": "text"}, {"language_override": "$a"}), ({"t": "text"}, {"textIndexVersion": 4}),
        ({"t": "text"}, {"unique": True}), ({"t": "text"}, {"expireAfterSeconds": 5}),
        ({"t": "text", "a": 1, "u": "text"}, {}), ({"t": "text", "at": "2dsphere"}, {}),
        ({"t": "text", "a": "hashed"}, {}), ({"_fts": "text"}, {}), ({"_fts": "text", "_ftsx": 1}, {}),
        ({"a.$**": "text"}, {}), ({"t": "text"}, {"collation": {"locale": "en"}}),
    ],
)  # fmt: skip
def test_what_a_text_index_cannot_be_is_refused(at: DrivenServer, key: Json, options: Json) -> None:
    assert refused(at, {"createIndexes": "c", "indexes": [{"key": key, "name": "i", **options}]}) == 67


def test_a_collection_has_one_text_index(at: DrivenServer) -> None:
    create(at, {"t": "text"})
    assert refused(at, {"createIndexes": "c", "indexes": [{"key": {"u": "text"}, "name": "j"}]}) == 85
    assert refused(at, {"createIndexes": "c", "indexes": [{"key": {"a": 1, "u": "text"}, "name": "j"}]}) == 67
    assert refused(at, {"createIndexes": "c", "indexes": [{"key": {"u": "text"}, "name": "i"}]}) == 85
    at.must("t", {"dropIndexes": "c", "index": "i"})
    create(at, {"u": "text"}, "j")
    insert(at, {"_id": 1, "t": "lamp"}, {"_id": 2, "u": "lamp"})
    assert find(at, "lamp") == [2]


def test_an_index_in_a_collection_with_a_collation_names_the_simple_one(at: DrivenServer) -> None:
    at.must("t", {"create": "c", "collation": {"locale": "en"}})
    assert refused(at, {"createIndexes": "c", "indexes": [{"key": {"t": "text"}, "name": "i"}]}) == 67
    create(at, {"a": 1, "t": "text"}, collation={"locale": "simple"})
    insert(at, {"_id": 1, "a": 5, "t": "lamp"}, {"_id": 2, "a": "x", "t": "lamp"})
    spec = {"a": 5, "$text": {"$search": "lamp"}}
    assert len(at.must("t", {"find": "c", "filter": spec})["cursor"]["firstBatch"]) == 1
    strings = {"a": "x", "$text": {"$search": "lamp"}}
    assert refused(at, {"find": "c", "filter": strings}) == 291
    simple = {"find": "c", "filter": strings, "collation": {"locale": "simple"}}
    assert len(at.must("t", simple)["cursor"]["firstBatch"]) == 1


def test_an_index_is_built_over_what_is_there_and_kept(at: DrivenServer) -> None:
    insert(at, *({"_id": n, "t": f"lamp number{n}"} for n in range(50)), {"_id": 99}, {"_id": 98, "t": "the"})
    create(at, {"t": "text"})
    assert key_count(at) == 100 and find(at, "number7 number8") == [7, 8]
    at.must("t", {"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$set": {"t": "number8"}}}]})
    at.must("t", {"delete": "c", "deletes": [{"q": {"_id": 8}, "limit": 1}]})
    assert key_count(at) == 97 and find(at, "number7 number8") == [7]


def test_texts_in_arrays_and_documents_are_in_the_index(at: DrivenServer) -> None:
    create(at, {"a.b": "text"})
    insert(
        at, {"_id": 1, "a": {"b": "lamp"}}, {"_id": 2, "a": [{"b": "lamp"}, {"b": ["oil", ["lamp"]]}]},
        {"_id": 3, "a": {"b": {"c": "lamp"}}}, {"_id": 4, "a": "lamp"}, {"_id": 6, "a": {"b": 5}},
    )  # fmt: skip
    assert find(at, "lamp") == [1, 2] and find(at, "oil") == [2]


def test_a_wildcard_has_all_texts_but_the_names_of_languages(at: DrivenServer) -> None:
    create(at, {"$**": "text"})
    insert(at, {"_id": 1, "language": "french", "a": {"b": ["lamp"]}}, {"_id": "french", "x": {"y": {"z": "french"}}})
    assert find(at, "lamp") == [1] and find(at, "french") == ["french"]


def test_a_document_names_its_language(at: DrivenServer) -> None:
    create(at, {"t": "text", "u.t": "text"})
    insert(
        at, {"_id": 1, "language": "french", "t": "les chevaux", "u": {"language": "en", "t": "the horses"}},
        {"_id": 2, "t": "les", "u": [{"language": "none", "t": "horses"}]},
    )  # fmt: skip
    assert find(at, "horse") == [1] and find(at, "les") == [2]
    french = {"$text": {"$search": "cheval", "$language": "french"}}
    assert [d["_id"] for d in at.must("t", {"find": "c", "filter": french})["cursor"]["firstBatch"]] == [1]


@pytest.mark.parametrize(("language", "code"), [("klingon", 17262), (5, 17261), (None, 17261)])
def test_a_document_in_no_language_is_refused(at: DrivenServer, language: Any, code: int) -> None:
    create(at, {"t": "text"})
    assert refused(at, {"insert": "c", "documents": [{"t": "lamp", "language": language}]}) == code
    insert(at, {"_id": 1, "u": 1})
    set_language = {"q": {"_id": 1}, "u": {"$set": {"language": language}}}
    assert refused(at, {"update": "c", "updates": [set_language]}) == code
    at.must("t", {"insert": "d", "documents": [{"t": "lamp", "language": language}]})
    assert refused(at, {"createIndexes": "d", "indexes": [{"key": {"t": "text"}, "name": "i"}]}) == code


def test_fields_before_the_text_need_one_value_each(at: DrivenServer) -> None:
    create(at, {"a": 1, "b": -1, "t": "text", "z": 1})
    insert(at, *({"_id": n, "a": n % 2, "b": n % 3, "t": "lamp oil", "z": n} for n in range(60)))
    search = {"$search": "lamp"}
    for spec in ({"$text": search}, {"$text": search, "a": 1}, {"$text": search, "a": 1, "b": {"$gt": 0}}):
        assert refused(at, {"find": "c", "filter": spec}) == 291
    both = {"$text": search, "a": 1, "b": 2, "z": {"$lt": 30}}
    plan = at.must("t", {"explain": {"find": "c", "filter": both}, "verbosity": "executionStats"})
    assert plan["executionStats"]["nReturned"] == 5 and plan["executionStats"]["totalDocsExamined"] == 5
    for document in ({"a": [1], "t": "x"}, {"a": [1]}, {"a": 1, "t": "x", "z": [1]}):
        assert refused(at, {"insert": "c", "documents": [document]}) == 16675


def test_only_searches_use_a_text_index(at: DrivenServer) -> None:
    create(at, {"a": 1, "t": "text", "z": 1})
    insert(at, {"_id": 1, "a": 5, "t": "lamp", "z": 1}, {"_id": 2, "a": 5}, {"_id": 3, "_fts": "lamp", "_ftsx": 1})
    for spec, count in (({"a": 5}, 2), ({"_fts": "lamp"}, 1), ({}, 3), ({"a": {"$gt": 1}, "z": None}, 1)):
        assert len(at.must("t", {"find": "c", "filter": spec})["cursor"]["firstBatch"]) == count
        assert at.must("t", {"count": "c", "query": spec})["n"] == count
        assert refused(at, {"find": "c", "filter": spec, "hint": "i"}) == 291
    assert at.must("t", {"distinct": "c", "key": "a"})["values"] == [5]
    assert [d["_id"] for d in at.must("t", {"find": "c", "sort": {"a": 1, "_id": 1}})["cursor"]["firstBatch"]] == [
        3,
        1,
        2,
    ]
    spec = {"a": 5, "_fts": "x", "$text": {"$search": "lamp"}}
    assert at.must("t", {"count": "c", "query": spec})["n"] == 0
    group = {"aggregate": "c", "pipeline": [{"$group": {"_id": "$a"}}, {"$sort": {"_id": 1}}], "cursor": {}}
    assert at.must("t", group)["cursor"]["firstBatch"] == [{"_id": None}, {"_id": 5}]


def test_a_partial_index_answers_what_it_has(at: DrivenServer) -> None:
    create(at, {"t": "text"}, partialFilterExpression={"a": {"$gt": 5}})
    insert(at, {"_id": 1, "a": 3, "t": "lamp"}, {"_id": 2, "a": 7, "t": "lamp"})
    assert refused(at, {"find": "c", "filter": {"$text": {"$search": "lamp"}}}) == 291
    found = at.must("t", {"find": "c", "filter": {"a": 7, "$text": {"$search": "lamp"}}})["cursor"]["firstBatch"]
    assert [document["_id"] for document in found] == [2]


def test_a_hidden_index_answers_nothing(at: DrivenServer) -> None:
    create(at, {"t": "text"}, hidden=True)
    assert refused(at, {"find": "c", "filter": {"$text": {"$search": "lamp"}}}) == 291


def test_long_words_and_long_values_are_found(at: DrivenServer) -> None:
    create(at, {"a": 1, "t": "text"})
    words = ["x" * 400, "x" * 399 + "y", "é" * 100, "z" * 64]
    insert(
        at, *({"_id": n, "a": "v" * length, "t": word} for length in (1, 480) for n, word in enumerate(words, length))
    )
    for length in (1, 480):
        for number, word in enumerate(words, length):
            spec = {"a": "v" * length, "$text": {"$search": word}}
            found = at.must("t", {"find": "c", "filter": spec})["cursor"]["firstBatch"]
            assert [document["_id"] for document in found] == [number]
    assert at.must("t", {"validate": "c", "full": True})["valid"]


def test_a_document_with_too_many_terms_is_refused(at: DrivenServer) -> None:
    create(at, {"t": "text"})
    text = " ".join(f"n{number}" for number in range(10_001))
    assert refused(at, {"insert": "c", "documents": [{"t": text}]}) == 201


def test_keys_of_other_stemmers_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(text_keys, "text_format", lambda: "text 0")
        earlier.setattr(text_keys, "term_in_index", lambda term: "x" + term)
        with DrivenServer(tmp_path, clock=FakeClock()) as at:
            create(at, {"t": "text"})
            insert(at, *({"_id": n, "t": "oil lamps"} for n in range(5)))
    with DrivenServer(tmp_path, clock=FakeClock()) as at:
        assert "the index i of t.c is built" in caplog.text
        assert find(at, "lamp") == list(range(5)) and key_count(at) == 10
    assert check(tmp_path).problems == []
