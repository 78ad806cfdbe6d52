"""Updates by operators: results, errors, and what the log keeps."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.query.diff import identical
from headrace.query.update.update import Applied, Diff, Replaced, UpdateContext, upsert_document
from headrace.query.update.update_parser import parse_update

Document = dict[str, Any]


def applied(update: Any, document: Document, **options: Any) -> Applied:
    positional = options.pop("positional", None)
    return parse_update(update, **options).apply(document, UpdateContext(5, Timestamp(9, 1), positional))


def diff(update: Any, document: Document, **options: Any) -> Any:
    change = applied(update, document, **options).change
    return change.diff if isinstance(change, Diff) else change


def code(update: Any, document: Document, **options: Any) -> int:
    with pytest.raises(CommandError) as caught:
        applied(update, document, **options)
    return caught.value.code


@pytest.mark.parametrize(
    ("update", "before", "after"),
    [
        ({"$set": {"b": 1, "a": 2}}, {"_id": 1}, {"_id": 1, "a": 2, "b": 1}),
        ({"$set": {"a.b.c": 1}}, {"_id": 1}, {"_id": 1, "a": {"b": {"c": 1}}}),
        ({"$set": {"a.10": 1, "a.9": 2}}, {"a": {}}, {"a": {"9": 2, "10": 1}}),
        ({"$set": {"a.3": 1}}, {"a": [0]}, {"a": [0, None, None, 1]}),
        ({"$set": {"a.1.b": 1}}, {"a": []}, {"a": [None, {"b": 1}]}),
        ({"$unset": {"a.1": ""}}, {"a": [1, 2]}, {"a": [1, None]}),
        ({"$unset": {"a.b.c": ""}}, {"a": 5}, {"a": 5}),
        ({"$inc": {"a": 1}}, {"a": 2147483647}, {"a": Int64(2147483648)}),
        ({"$inc": {"a": Int64(1)}}, {"a": 1}, {"a": Int64(2)}),
        ({"$inc": {"a": 0.5}}, {"a": 1}, {"a": 1.5}),
        ({"$inc": {"a": 0.5}}, {"a": Decimal128("1.50")}, {"a": Decimal128("2.000000000000000")}),
        ({"$mul": {"a": Decimal128("2")}}, {"a": 3}, {"a": Decimal128("6")}),
        ({"$mul": {"a": 1.5}}, {}, {"a": 0.0}),
        ({"$mul": {"a": 2147483647}}, {"a": 2147483647}, {"a": Int64(4611686014132420609)}),
        ({"$min": {"a": None}}, {"a": 1}, {"a": None}),
        ({"$max": {"a": "x"}}, {"a": 1}, {"a": "x"}),
        ({"$rename": {"a": "b"}}, {"b": 1, "a": 2}, {"b": 2}),
        ({"$rename": {"a": "b.c"}, "$set": {"b.d": 1}}, {"a": 2}, {"b": {"c": 2, "d": 1}}),
        ({"$rename": {"a.x": "a.y"}, "$set": {"a.z": 1, "a.b": 0}}, {"a": {"x": 1}}, {"a": {"b": 0, "y": 1, "z": 1}}),
        ({"$rename": {"no": "b"}}, {"b": 1}, {"b": 1}),
        ({"$currentDate": {"a": True, "b": {"$type": "timestamp"}}}, {}, {"a": DatetimeMS(5), "b": Timestamp(9, 1)}),
        ({"$setOnInsert": {"a.b": 1}}, {"a": 5}, {"a": 5}),
        ({"$push": {"a": {"$each": [3, 1], "$sort": -1, "$slice": 2}}}, {"a": [2]}, {"a": [3, 2]}),
        ({"$push": {"a": {"$each": [9], "$position": -1}}}, {"a": [1, 2]}, {"a": [1, 9, 2]}),
        ({"$push": {"a": {"$each": [], "$slice": -1}}}, {"a": [1, 2]}, {"a": [2]}),
        (
            {"$push": {"a": {"$each": [{"k": 1}], "$sort": {"k": 1}}}},
            {"a": [{"k": 2}, 5]},
            {"a": [5, {"k": 1}, {"k": 2}]},
        ),
        ({"$addToSet": {"a": {"$each": [1.0, 2, 2, "x"]}}}, {"a": [1]}, {"a": [1, 2, "x"]}),
        ({"$pop": {"a": -1}}, {"a": [1, 2]}, {"a": [2]}),
        ({"$pull": {"a": {"$gt": 1}}}, {"a": [1, 2, [5]]}, {"a": [1]}),
        ({"$pull": {"a": {"b": 1}}}, {"a": [1, {"b": 1, "c": 2}, {"b": 2}]}, {"a": [1, {"b": 2}]}),
        ({"$pullAll": {"a": [1, {"b": 1}]}}, {"a": [1.0, {"b": 1, "c": 2}, {"b": 1}]}, {"a": [{"b": 1, "c": 2}]}),
        ({"$bit": {"a": {"and": 6, "or": 1}}}, {"a": 12}, {"a": 5}),
        ({"$bit": {"a": {"xor": Int64(1)}}}, {}, {"a": Int64(1)}),
        ({"$set": {}}, {"a": 1}, {"a": 1}),
    ],
)
def test_what_operators_make_of_documents(update: Any, before: Document, after: Document) -> None:
    assert identical(applied(update, before).document, after)


@pytest.mark.parametrize(
    ("update", "before", "logged"),
    [
        (
            {"$set": {"a": 1, "b": 2}, "$unset": {"c": 1}},
            {"c": 1, "b": 1},
            {"d": {"c": False}, "u": {"b": 2}, "i": {"a": 1}},
        ),
        ({"$set": {"a.b": 1, "a.c": 2}}, {}, {"i": {"a": {"b": 1, "c": 2}}}),
        ({"$set": {"a.b.c": 1}}, {"a": {}}, {"sa": {"i": {"b": {"c": 1}}}}),
        ({"$set": {"a.2.x": 1}}, {"a": [0, 0, {"x": 0}]}, {"sa": {"a": True, "s2": {"u": {"x": 1}}}}),
        ({"$push": {"a": {"$each": [1, 2]}}}, {"a": [0]}, {"sa": {"a": True, "u1": 1, "u2": 2}}),
        ({"$push": {"a": {"$each": [1, 2]}}}, {"a": []}, {"u": {"a": [1, 2]}}),
        ({"$push": {"a.b": 1}}, {"a": {"b": []}}, {"sa": {"u": {"b": [1]}}}),
        ({"$push": {"a": {"$each": [1], "$slice": 9}}}, {"a": [0]}, {"sa": {"a": True, "u1": 1}}),
        ({"$push": {"a": {"$each": [1], "$slice": -1}}}, {"a": [0]}, {"u": {"a": [1]}}),
        ({"$push": {"a.b": {"$each": [1], "$position": 0}}}, {"a": {"b": [0]}}, {"sa": {"u": {"b": [1, 0]}}}),
        ({"$addToSet": {"a": 2}}, {"a": [1]}, {"sa": {"a": True, "u1": 2}}),
        ({"$addToSet": {"a": 2}}, {"a": []}, {"u": {"a": [2]}}),
        ({"$pop": {"a": 1}}, {"a": [1, 2]}, {"u": {"a": [1]}}),
        ({"$rename": {"a.x": "b"}}, {"a": {"x": 1}}, {"i": {"b": 1}, "sa": {"d": {"x": False}}}),
        ({"$set": {"a": 1}}, {"a": 1}, None),
        ({"$inc": {"a": 0}}, {"a": 1}, None),
        ({"$set": {"a": 1}}, {"a": 1.0}, {"u": {"a": 1}}),
    ],
)
def test_what_operators_log(update: Any, before: Document, logged: Any) -> None:
    result = diff(update, before)
    assert result == logged
    assert result is None or list(result) == list(logged)


@pytest.mark.parametrize(
    ("update", "before", "expected"),
    [
        ({"$set": {"a.b": 1}}, {"a": 5}, 28),
        ({"$set": {"a.b": 1}}, {"a": [1]}, 28),
        ({"$pop": {"a.b": 1}}, {"a": 5}, 28),
        ({"$set": {"a": 1, "a.b": 2}}, {}, 40),
        ({"$set": {"a": 1}, "$inc": {"a": 2}}, {}, 40),
        ({"$rename": {"a": "b"}, "$set": {"a": 1}}, {}, 40),
        ({"$set": {"_id": 2}}, {"_id": 1}, 66),
        ({"$unset": {"_id": 1}}, {"_id": 1}, 66),
        ({"$set": {"_id.a": 2}}, {"_id": {"a": 1}}, 66),
        ({"$set": {"_id.b": 2}}, {"_id": {"a": 1}}, 66),
        ({"$rename": {"_id": "b"}}, {"_id": 1}, 66),
        ({"_id": 2}, {"_id": 1}, 66),
        ({"$set": {"": 1}}, {}, 56),
        ({"$set": {"a..b": 1}}, {}, 56),
        ({"$set": {"$a": 1}}, {}, 52),
        ({"a": 1, "$set": {}}, {}, 52),
        ({"$set": {"a": 1}, "b": 1}, {}, 9),
        ({"$what": {"a": 1}}, {}, 9),
        ({"$set": 5}, {}, 9),
        ({"$set": {"a.1500001": 1}}, {"a": []}, 34),
        ({"$inc": {"a": Int64(1)}}, {"a": Int64(2**63 - 1)}, 2),
        ({"$inc": {"a": "x"}}, {}, 14),
        ({"$inc": {"a": 1}}, {"a": "x"}, 14),
        ({"$rename": {"a": 1}}, {}, 2),
        ({"$rename": {"a.0": "b"}}, {"a": [1]}, 2),
        ({"$rename": {"b": "a.0"}}, {"a": [1], "b": 2}, 2),
        ({"$rename": {"a.b": "c"}}, {"a": 1}, 28),
        ({"$push": {"a": {"$each": 1}}}, {}, 2),
        ({"$push": {"a": {"$each": [], "$what": 1}}}, {}, 2),
        ({"$addToSet": {"a": {"$each": 1}}}, {}, 14),
        ({"$pop": {"a": 2}}, {}, 9),
        ({"$pop": {"a": 1}}, {"a": 1}, 14),
        ({"$pullAll": {"a": 1}}, {}, 2),
        ({"$pull": {"a": 1}}, {"a": 1}, 2),
        ({"$bit": {"a": 1}}, {}, 2),
        ({"$bit": {"a": {}}}, {}, 2),
        ({"$bit": {"a": {"and": 1.0}}}, {}, 2),
        ({"$currentDate": {"a": {"$type": "x"}}}, {}, 2),
        ({"$pull": {"a": {"$expr": True}}}, {"a": [{}]}, 224),
        ({"$pull": {"a": {"b": 1, "$or": [{"$jsonSchema": {}}]}}}, {"a": [{}]}, 224),
        ({"$pull": {"a": {"$elemMatch": {"$jsonSchema": {}}}}}, {"a": [{}]}, 224),
        ({"$set": {"a": {}}}, {}, 0),
    ],
)
def test_error_codes(update: Any, before: Document, expected: int) -> None:
    if not expected:
        applied(update, before)
    else:
        assert code(update, before) == expected


def test_an_id_may_change_its_type_but_not_its_value() -> None:
    assert identical(applied({"$set": {"_id": 1.0}}, {"_id": 1}).document, {"_id": 1.0})
    assert identical(applied({"_id": Int64(1), "a": 1}, {"_id": 1}).document, {"_id": Int64(1), "a": 1})


def test_a_document_may_not_nest_deeper_than_180_levels() -> None:
    deep: Any = 1
    for _ in range(179):
        deep = {"a": deep}
    assert applied({"$set": {"a": deep}}, {}).change is not None
    assert code({"$set": {"a.b": deep}}, {"a": {"b": 1}}) == 15
    assert code({"$set": {"a": {"a": deep}}}, {}) == 15
    assert code({"$rename": {"x": "y.z"}}, {"x": {"a": deep}}) == 15


@pytest.mark.parametrize(
    ("update", "before", "positional", "after"),
    [
        ({"$set": {"a.$": 9}}, {"a": [1, 2]}, "1", {"a": [1, 9]}),
        ({"$set": {"a.$.b": 9, "a.0.c": 8}}, {"a": [{}, {}]}, "1", {"a": [{"c": 8}, {"b": 9}]}),
        ({"$set": {"a.$.b": 9, "a.1.c": 8}}, {"a": [{}, {}]}, "1", {"a": [{}, {"b": 9, "c": 8}]}),
        ({"$inc": {"a.$[]": 1}}, {"a": [1, 2]}, None, {"a": [2, 3]}),
        ({"$inc": {"a.$[].b.$[]": 1}}, {"a": [{"b": [1]}, {"b": []}]}, None, {"a": [{"b": [2]}, {"b": []}]}),
    ],
)
def test_positional_paths(update: Any, before: Document, positional: str | None, after: Document) -> None:
    assert identical(applied(update, before, positional=positional).document, after)


def test_array_filters_choose_elements() -> None:
    update, filters = {"$set": {"a.$[i].x": 1, "a.$[j].y": 2}}, [{"i.n": {"$gt": 1}}, {"j.n": 3}]
    before = {"a": [{"n": 1}, {"n": 2}, {"n": 3}]}
    result = applied(update, before, array_filters=filters)
    assert result.document == {"a": [{"n": 1}, {"n": 2, "x": 1}, {"n": 3, "x": 1, "y": 2}]}
    assert result.change == Diff({"$v": 2, "diff": {"u": {"a": result.document["a"]}}})


@pytest.mark.parametrize(
    "update",
    [
        {"$inc": {"a.$[i].n": 1, "a.$[i].in.m": 2}},
        {"$set": {"a.$[i].in.m": 1}, "$unset": {"a.$[i].n": 1}},
        {"$push": {"a.$[i].l": 3}},
        {"$setOnInsert": {"a.$[i].n": 1}},
        {"$set": {"a.$[i].l.0": 5}},
    ],
)
def test_many_elements_change_as_few_do(update: Any) -> None:
    elements = [{"n": key, "in": {"m": key}, "l": [key]} for key in range(6)]
    elements += [{"n": 7}, {"n": 7, "in": {}}, {"in": {"m": 9}, "n": Int64(8)}, {"n": 1}]
    options: Document = {"array_filters": [{"i.n": {"$gt": 0}}]}
    few = [applied(update, {"a": [element]}, **options).document["a"][0] for element in elements]
    before = {"_id": 1, "a": [dict(element) for element in elements]}
    assert identical(applied(update, before, **options).document["a"], few)
    assert before["a"] == elements


def test_one_of_many_elements_that_fails_is_named() -> None:
    elements: list[Document] = [*({"n": 1} for _ in range(9)), {"n": "x"}]
    with pytest.raises(CommandError) as caught:
        applied({"$inc": {"a.$[].n": 1}}, {"_id": 1, "a": elements})
    assert caught.value.code == 14
    with pytest.raises(CommandError) as of_one:
        applied({"$inc": {"a.9.n": 1}}, {"_id": 1, "a": elements})
    assert caught.value.message == of_one.value.message


def test_one_of_many_elements_that_changes_is_logged_alone() -> None:
    before = {"a": [{"n": 1}] * 9 + [{"n": 2}]}
    assert diff({"$set": {"a.$[].n": 1}}, before) == {"sa": {"a": True, "u9": {"n": 1}}}


def test_one_changed_element_is_logged_alone() -> None:
    assert diff({"$set": {"a.$[]": 1}}, {"a": [1, 2]}) == {"sa": {"a": True, "u1": 1}}
    filters = [{"i": {"$gt": 1}}]
    assert diff({"$inc": {"a.$[i]": 1}}, {"a": [1, 2]}, array_filters=filters) == {"sa": {"a": True, "u1": 3}}
    filters = [{"i.b": 1}]
    logged = {"sa": {"a": True, "s0": {"i": {"c": 1}}}}
    assert diff({"$set": {"a.$[i].c": 1}}, {"a": [{"b": 1}]}, array_filters=filters) == logged


@pytest.mark.parametrize(
    ("update", "filters", "before", "expected"),
    [
        ({"$set": {"a.$": 1}}, None, {"a": [1]}, 2),
        ({"$set": {"$.a": 1}}, None, {}, 2),
        ({"$set": {"a.$.$": 1}}, None, {}, 2),
        ({"$set": {"$[i]": 1}}, [{"i": 1}], {}, 2),
        ({"$set": {"a.$[i]": 1}}, None, {"a": []}, 2),
        ({"$set": {"a.$[]": 1}}, None, {"a": 5}, 2),
        ({"$set": {"a.$[]": 1}}, None, {}, 2),
        ({"$set": {"a": 1}}, [{"i": 1}], {}, 9),
        ({"$set": {"a.$[i]": 1}}, [{"i": 1}, {"i": 2}], {}, 9),
        ({"$set": {"a.$[i]": 1}}, [{"i": 1, "j": 2}], {}, 9),
        ({"$set": {"a.$[I]": 1}}, [{"I": 1}], {}, 2),
        ({"a": 1}, [{"i": 1}], {}, 9),
        ({"$set": {"a.$[i]": 1}}, [{"i": 1, "$expr": True}], {"a": [1]}, 224),
        ({"$set": {"a.$[i]": 1}}, [{"$jsonSchema": {}}], {"a": [1]}, 224),
        ({"$set": {"a.$[]": 1, "a.0": 2}}, None, {}, 40),
        ({"$set": {"a.$[i]": 1, "a.$[]": 2}}, [{"i": 1}], {"a": [1]}, 40),
    ],
)
def test_errors_of_positional_paths(update: Any, filters: Any, before: Document, expected: int) -> None:
    assert code(update, before, array_filters=filters) == expected


def test_the_message_of_a_conflict_has_the_path_of_the_element() -> None:
    def message(update: Any, **options: Any) -> str:
        with pytest.raises(CommandError) as caught:
            applied(update, {"a": [{"b": [1, 2]}]}, **options)
        assert caught.value.code == 40
        return caught.value.message

    filters = [{"i": 2}, {"j": {"$gt": 1}}]
    leaves = {"$set": {"a.0.b.$[i]": 1, "a.0.b.$[j]": 2}}
    assert message(leaves, array_filters=filters) == "Update created a conflict at 'a.0.b.1'"
    filters = [{"i.b": 1}, {"j.b": 2}, {"k": 1}]
    below = {"$set": {"a.$[i].b.$[k]": 1, "a.$[j].b.$[k]": 2}}
    assert message(below, array_filters=filters) == "Update created a conflict at 'a.0.b.$[k]'"
    update = {"$set": {"a.0.b": 1, "a.$.b": 2}}
    assert message(update, positional="0") == "Update created a conflict at 'a.0.b'"


def test_replacements_retain_the_id_and_are_logged_completely() -> None:
    result = applied({"b": 1}, {"_id": 1, "a": 2})
    assert list(result.document.items()) == [("_id", 1), ("b", 1)]
    assert isinstance(result.change, Replaced)
    assert list(applied({"b": 1, "_id": 1}, {"_id": 1}).document) == ["_id", "b"]
    assert applied({"_id": 1, "a": 2}, {"_id": 1, "a": 2}).change is None
    assert isinstance(applied({"a": 2}, {"_id": 1, "a": 2}).change, Replaced)
    assert applied({"t": Timestamp(0, 0)}, {"_id": 1}).document["t"] == Timestamp(9, 1)
    assert code({"a": 1}, {}, multi=True) == 9


def test_pipelines_are_diffed_or_replace() -> None:
    long = "x" * 50
    result = applied([{"$set": {"a": "$b"}}], {"_id": 1, "b": 2, "c": long})
    assert result.change == Diff({"$v": 2, "diff": {"i": {"a": 2}}})
    assert isinstance(applied([{"$set": {"a": "$b"}}], {"_id": 1, "b": 2}).change, Replaced)
    assert applied([{"$set": {"a": "$$NOW"}}], {"_id": 1}).document == {"_id": 1, "a": DatetimeMS(5)}
    assert applied([], {"_id": 1}).change is None
    assert applied([{"$replaceWith": {"b": 1}}], {"_id": 1}).document == {"_id": 1, "b": 1}
    assert code([{"$replaceWith": {"_id": 2}}], {"_id": 1}) == 66
    assert code([{"$match": {}}], {}) == 72


def test_an_update_may_be_used_again() -> None:
    update = parse_update({"$push": {"a.b": 1}, "$set": {"c": {"d": []}}, "$rename": {"x": "y.z"}})
    for _ in range(2):
        result = update.apply({"x": 1}, UpdateContext(0, Timestamp(1, 1)))
        assert result.document == {"a": {"b": [1]}, "c": {"d": []}, "y": {"z": 1}}


DOLLAR_NAMED: list[tuple[Any, Document, Document | int]] = [
    ({"$inc": {"p.$n": 1}}, {"p": {}}, {"p": {"$n": 1}}),
    ({"$rename": {"$k": "p.$each"}}, {"$k": 1}, {"p": {"$each": 1}}),
    ({"$set": {"$k.a": 2}}, {"$k": {"a": 1}}, {"$k": {"a": 2}}),
    ({"$set": {"$k": 1}}, {"$k": 1}, {"$k": 1}),
    ({"$set": {"a.$[].$x": 1}}, {"a": [{}]}, {"a": [{"$x": 1}]}),
    ({"$set": {"p.$each": 2}}, {"p": {"$each": 1}}, {"p": {"$each": 2}}),
    ({"$set": {"p.$x.y": 2}}, {}, {"p": {"$x": {"y": 2}}}),
    ({"$setOnInsert": {"$k": 1}}, {}, {}),
    ({"$unset": {"$k": 1, "p.$n": 1}}, {"$k": 1, "p": {"$n": 1}}, {"p": {}}),
    ({"$inc": {"$k": 1}}, {"$k": 1}, 52),
    ({"$push": {"$k": 1}}, {}, 52),
    ({"$rename": {"p": "$k"}}, {"p": 1}, 52),
    ({"$set": {"$k.a": 1}}, {}, 52),
    ({"$set": {"$k": 1}}, {}, 52),
    ({"$set": {"$k": 2}}, {"$k": 1}, 52),
    ({"$set": {"_id.$k": 2}}, {"_id": {}}, 52),
    ({"$set": {"a.$x": 2}}, {"a": [1]}, 28),
]


@pytest.mark.parametrize(("update", "before", "after"), DOLLAR_NAMED)
def test_an_update_sets_names_with_a_dollar_sign_below_the_top_level_only(
    update: Any, before: Document, after: Document | int
) -> None:
    if type(after) is int:
        assert code(update, before) == after
    else:
        assert applied(update, before).document == after


@pytest.mark.parametrize("operator", ["$inc", "$max", "$set", "$setOnInsert"])
def test_an_upsert_inserts_names_with_a_dollar_sign(operator: str) -> None:
    update, context = parse_update({operator: {"$k": 1, "p.$n": 2}}), UpdateContext(5, Timestamp(9, 1), inserting=True)
    assert upsert_document(update, {"_id": 3}, context) == {"_id": 3, "$k": 1, "p": {"$n": 2}}
