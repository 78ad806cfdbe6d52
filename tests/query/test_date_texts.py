"""$dateFromString reads the dates that MongoDB reads, and refuses what MongoDB refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CommandError
from headrace.query.expressions.date_format import iso_text
from headrace.query.expressions.date_parse import parse_date, parse_formatted_date

NOON = "2017-07-14T12:02:44.771"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2017-02-08", "2017-02-08T00:00:00.000Z"),
        ("2017-07-04T11:56.02.81", "2017-07-04T11:56:02.810Z"),
        ("July 4th, 2017", "2017-07-04T00:00:00.000Z"),
        ("July 4th, 2017 12:39:30 BST", "2017-07-04T11:39:30.000Z"),
        ("July 4th, 2017 11am", "2017-07-04T11:00:00.000Z"),
        ("July 4th, 2017 12pm", "2017-07-04T12:00:00.000Z"),
        ("7/4/17", "2017-07-04T00:00:00.000Z"),
        ("2017/7/4", "2017-07-04T00:00:00.000Z"),
        ("2017/07/4 10:30", "2017-07-04T10:30:00.000Z"),
        ("04-07-2017", "2017-07-04T00:00:00.000Z"),
        ("2017-Jul-04 noon", "2017-07-04T12:00:00.000Z"),
        ("oct 20 2020", "2020-10-20T00:00:00.000Z"),
        ("WED jan 31 12:05:28 +03:30 1996", "1996-01-31T08:35:28.000Z"),
        ("Mon, 15 Aug 2005 15:52:01 +0000", "2005-08-15T15:52:01.000Z"),
        ("Fri Feb 02 2024 10:11:12 GMT+0100", "2024-02-02T09:11:12.000Z"),
        ("10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36.000Z"),
        ("2017-07-04 12:48:07 GMT+0545", "2017-07-04T07:03:07.000Z"),
        ("2017-07-04 11:56:02 PM", "2017-07-04T23:56:02.000Z"),
        ("20170708T101112", "2017-07-08T10:11:12.000Z"),
        ("2017-02-08A", "2017-02-07T23:00:00.000Z"),
        (f"{NOON} CEST", "2017-07-14T10:02:44.771Z"),
        (f"{NOON} PDT", "2017-07-14T19:02:44.771Z"),
        (f"{NOON} L", "2017-07-14T01:02:44.771Z"),
        (f"{NOON} P", "2017-07-14T15:02:44.771Z"),
    ],
)
def test_a_date_in_words_is_read(text: str, expected: str) -> None:
    assert iso_text(parse_date(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "bad", "now", "July 4th", "12:50:53", "2017, 12:50:53", "60.Monday1770/06:59", "2017-13-01", "2017-02-30",
        "2017/1/32", "2017/13/1",
        "1900-02-29", "2020-01-01T25:00:00", f"{NOON} Europe/Amsterdam", f"{NOON} XYZW", "2017-02-08 2017-02-09",
    ],
)  # fmt: skip
def test_a_text_that_is_no_whole_date_is_refused(text: str) -> None:
    with pytest.raises(CommandError) as raised:
        parse_date(text)
    assert raised.value.code == 241


@pytest.mark.parametrize(
    ("text", "layout", "expected"),
    [
        (f"{NOON} GMT+02:00", "%Y-%m-%dT%H:%M:%S.%L%z", "2017-07-14T10:02:44.771Z"),
        (f"{NOON} A", "%Y-%m-%dT%H:%M:%S.%L%z", "2017-07-14T11:02:44.771Z"),
        ("4/26/1992:+0445", "%m/%d/%Y:%z", "1992-04-25T19:15:00.000Z"),
        ("2017, Day 5", "%G, Day %u", "2017-01-06T00:00:00.000Z"),
        ("2024 167", "%Y %j", "2024-06-16T00:00:00.000Z"),
        ("ISO Day 6", "ISO Day %u", 241),
        ("12/31/2018", "%m/%d/%G", 241),
        ("ISO Week 1, 2018", "ISO Week %V, %Y", 241),
    ],
)
def test_a_date_of_a_format_is_read(text: str, layout: str, expected: Any) -> None:
    if expected == 241:
        with pytest.raises(CommandError) as raised:
            parse_formatted_date(text, layout)
        assert raised.value.code == 241
    else:
        assert iso_text(parse_formatted_date(text, layout)) == expected
