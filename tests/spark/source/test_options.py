"""The source's options: what they mean, and what is refused with the option's name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bson import Timestamp

from headrace.spark.errors import OptionError
from headrace.spark.mongodb.source_options import StreamPosition
from headrace.spark.rows.tokens import Token
from headrace.spark.source.options import parse_options, parse_position

MASKED = (
    "82635019A0000000012B042C0100296E5A1004AB1154ACACD849A48C61756D70D3B21F463C6F7065726174696F6E54797065003C69"
    "6E736572740046646F63756D656E744B657900460A000A000004"
)
HIGH_WATER = "8263515EAC000000022B0429296E1404"
FUTURE = "82FFFFFF00000000022B0429296E1404"
PAST = {"database": "d", "collection": "c"}
URI = {"uri": "mongodb://h/"}


def test_the_case_of_a_name_does_not_matter_and_stream_options_get_theirs_back() -> None:
    options = parse_options(
        URI | {"DATABASE": "d", "collection": "c", "fulldocument": "whenAvailable", "showExpandedEvents": "true"}
    )
    assert (options.database, options.collection) == ("d", "c")
    assert options.stream == {"fullDocument": "whenAvailable", "showExpandedEvents": True}


def test_a_pipeline_is_extended_json() -> None:
    options = parse_options(URI | {"pipeline": '[{"$match": {"fullDocument.n": {"$numberLong": "5"}}}]'})
    assert options.pipeline == ({"$match": {"fullDocument.n": 5}},)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("latest", StreamPosition("latest")),
        ("earliest", StreamPosition("earliest")),
        (HIGH_WATER, StreamPosition("token", token=Token(HIGH_WATER))),
        (HIGH_WATER.lower(), StreamPosition("token", token=Token(HIGH_WATER))),
        (f'{{"_data": "{HIGH_WATER}"}}', StreamPosition("token", token=Token(HIGH_WATER))),
        ("2013-01-01T00:00:00Z", StreamPosition("time", time=Timestamp(1356998400, 0))),
        ("2013-01-01T01:00:00+01:00", StreamPosition("time", time=Timestamp(1356998400, 0))),
    ],
)
def test_a_position_is_a_word_a_token_or_a_time(text: str, position: StreamPosition) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "'uri'"),
        (URI | {"collecton": "c"}, "'collecton'"),
        (URI | {"collection": "c"}, "'database'"),
        (URI | {"startingPosition": "snapshot", "database": "d", "archive": "x"}, "several collections: .* a job of"),
        (
            URI | {"startingPosition": "snapshot", "database": "d", "pipeline": "[]"},
            r"several collections: .*\[pipeline",
        ),
        (URI | {"startingPosition": "yesterday"}, "'yesterday'"),
        (URI | {"database": ""}, "'database' is a name, and empty"),
        (URI | {"database": "d", "collection": ""}, "'collection' is a name, and empty"),
        (URI | {"startingPosition": '{"_dat": 1}'}, "not a resume token"),
        (URI | {"startingPosition": MASKED}, "masked row.* give its time, 2022-10-19T15:37:04Z"),
        (URI | {"endingPosition": f'{{"_data": "{MASKED}"}}'}, "masked row"),
        (URI | PAST | {"asOf": "2099-01-01T00:00:00Z"}, "'asOf' is in the future: 2099-01-01T00:00:00Z"),
        (URI | PAST | {"asOf": FUTURE}, "'asOf' is in the future: 2106-"),
        (URI | {"endingPosition": "earliest"}, "'endingPosition' is latest, a resume token or an ISO time"),
        (URI | PAST | {"asOf": "snapshot"}, "'asOf' is latest, a resume token or an ISO time, not 'snapshot'"),
        (URI | {"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        (URI | {"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger"),
        (URI | {"pipeline": "{}"}, "'pipeline'"),
        (URI | {"pipeline": "["}, "'pipeline'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_options(given)


def test_a_token_has_its_time_and_its_type_bits() -> None:
    token = Token.of({"_data": HIGH_WATER, "_typeBits": b"\x82\x80\x00"})
    assert token.time == Timestamp(1666277036, 2)
    assert token.document() == {"_data": HIGH_WATER, "_typeBits": b"\x82\x80\x00"}
    with pytest.raises(ValueError, match="not a resume token"):
        _ = Token("6100").time


def test_a_reader_on_a_worker_imports_nothing_that_only_the_driver_needs() -> None:
    """Workers get the package as a zip, and may have no table format, no pydantic and no store."""
    code = (
        "import sys, headrace.spark.source.data_source\nprint({'deltalake', 'pydantic', 'lmdb'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
