"""`encrypt` and `encryptMetadata` in `$jsonSchema`: which values pass, what is refused, which validators have them."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Binary

from headrace.errors import CommandError
from headrace.query.match import parse_filter
from headrace.testing.driven import DrivenServer

Json = dict[str, Any]
STRING = Binary(b"\x01" + bytes(16) + b"\x02" + b"secret", 6)
DATE = Binary(b"\x02" + bytes(16) + b"\x09" + b"secret", 6)
PLAIN = Binary(bytes(STRING), 0)
RANDOM = "AEAD_AES_256_CBC_HMAC_SHA_512-Random"
UUID = Binary(bytes(16), 4)


def of_field(encrypt: Any) -> Json:
    return {"$jsonSchema": {"properties": {"a": {"encrypt": encrypt}}}}


@pytest.mark.parametrize(
    ("argument", "passing", "failing"),
    [
        ({}, [STRING, DATE, Binary(b"", 6)], [PLAIN, b"x", "x", {}, None, [STRING]]),
        ({"bsonType": "string"}, [STRING], [DATE, PLAIN, Binary(b"\x01" + bytes(16), 6)]),
        ({"bsonType": ["int", "date"], "algorithm": RANDOM, "keyId": [UUID]}, [DATE], [STRING]),
        ({"keyId": "/pointer"}, [STRING], [PLAIN]),
    ],
)  # fmt: skip
def test_values_that_a_client_has_encrypted_pass(argument: Json, passing: list[Any], failing: list[Any]) -> None:
    test = parse_filter(of_field(argument))
    assert test({}) and all(test({"a": value}) for value in passing)
    assert not any(test({"a": value}) for value in failing)


def test_elements_and_a_whole_document() -> None:
    items = parse_filter({"$jsonSchema": {"properties": {"a": {"type": "array", "items": {"encrypt": {}}}}}})
    assert items({"a": [STRING, DATE]}) and not items({"a": [STRING, PLAIN]})
    assert not parse_filter({"$jsonSchema": {"encrypt": {}}})({"a": STRING})
    assert parse_filter({"$jsonSchema": {"encryptMetadata": {"algorithm": RANDOM}}})({"a": 1})


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"encrypt": 12}, 14), ({"encrypt": {}, "type": "object"}, 9), ({"encrypt": {}, "bsonType": "binData"}, 9),
        ({"encrypt": {}, "encryptMetadata": {"algorithm": RANDOM}}, 9), ({"encrypt": {"bsonType": 5}}, 14),
        ({"encrypt": {"bsonType": "Stringx"}}, 2), ({"encrypt": {"keyIdx": "/x"}}, 40415),
        ({"encrypt": {"algorithm": "x"}}, 2), ({"encrypt": {"keyId": "x"}}, 51065),
        ({"encrypt": {"keyId": ["x"]}}, 51088), ({"encrypt": {"keyId": [UUID, Binary(bytes(16), 6)]}}, 51084),
        ({"encryptMetadata": {}}, 9), ({"encryptMetadata": {"bsonType": "int"}}, 40415), ({"encryptMetadata": 1}, 14),
    ],
)  # fmt: skip
def test_what_the_keywords_cannot_have_is_refused(schema: Json, code: int) -> None:
    for spec in (schema, {"properties": {"a": schema}}):
        with pytest.raises(CommandError) as refused:
            parse_filter({"$jsonSchema": spec})
        assert refused.value.code == code


def test_a_validator_of_encrypted_fields_is_strict() -> None:
    nested = {"$and": [{"x": 1}, {"$jsonSchema": {"properties": {"u": {"properties": {"a": {"encrypt": {}}}}}}}]}
    metadata = {"$jsonSchema": {"encryptMetadata": {"algorithm": RANDOM}}}
    other = {"$jsonSchema": {"properties": {"encrypt": {"type": "string"}}, "required": ["encrypt"]}}
    with DrivenServer() as at:
        for validator in (of_field({}), nested, metadata):
            for more in ({"validationAction": "warn"}, {"validationLevel": "moderate"}):
                with pytest.raises(CommandError) as refused:
                    at.must("t", {"create": "c", "validator": validator, **more})
                assert refused.value.code == 224
        at.must("t", {"create": "other", "validator": other, "validationAction": "warn"})
        with pytest.raises(CommandError) as refused:
            at.must("t", {"collMod": "other", "validator": nested})
        assert refused.value.code == 224
        at.must("t", {"create": "c", "validator": of_field({"bsonType": "string"})})
        for more in ({"validationAction": "warn"}, {"validationLevel": "off"}):
            with pytest.raises(CommandError) as refused:
                at.must("t", {"collMod": "c", **more})
            assert refused.value.code == 224
        reply = at.run("t", {"insert": "c", "documents": [{"a": PLAIN}, {"a": DATE}, {"a": STRING}], "ordered": False})
        assert isinstance(reply, dict) and reply["n"] == 1
        reasons = [
            error["errInfo"]["details"]["schemaRulesNotSatisfied"][0]["propertiesNotSatisfied"][0]["details"]
            for error in reply["writeErrors"]
        ]
        assert reasons == [
            [{"operatorName": "encrypt", "reason": "value was not encrypted"}],
            [{"operatorName": "encrypt", "reason": "encrypted value has wrong type"}],
        ]
