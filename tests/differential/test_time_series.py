"""A time series with random sources and any filter: what is read of the buckets and then filtered is what matches."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS

from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer
from tests.differential import model
from tests.differential.documents import Values, raw
from tests.differential.indexes import COLLATIONS
from tests.differential.queries import filter_of

Document = dict[str, Any]
START = 1_700_000_000_000


def compare(seed: int) -> None:
    """Fill a time series whose source is the field `a`, with an index or without, and ask filters of it."""
    random = Random(seed)
    values = Values(random, arrays=random.random() < 0.5, nested=random.random() < 0.7, rare=random.choice([0.1, 0.4]))
    documents = [
        {**values.document(number), "t": DatetimeMS(START + random.randint(0, 9_000_000))} for number in range(30)
    ]
    with DrivenServer() as at:
        at.must("t", {"create": "c", "timeseries": {"timeField": "t", "metaField": "a"}})
        if random.random() < 0.5:
            at.must("t", {"dropIndexes": "c", "index": "*"})
        for first in range(0, 30, size := random.choice([1, 4, 30])):
            at.must("t", {"insert": "c", "documents": documents[first : first + size]})
        for _ in range(12):
            asked: Document = {"filter": filter_of(values)}
            if random.random() < 0.3:
                moment = DatetimeMS(START + random.randint(0, 9_000_000))
                asked["filter"] = {"$and": [asked["filter"], {"t": {random.choice(["$gte", "$lt"]): moment}}]}
            if random.random() < 0.2:
                asked["collation"] = random.choice(COLLATIONS)
            check(at, documents, asked, seed)


def check(at: DrivenServer, documents: list[Document], asked: Document, seed: int) -> None:
    try:
        matches = model.test_of(asked["filter"], model.collation_of(asked))
    except CommandError as error:
        with pytest.raises(CommandError) as refused:
            at.must("t", {"find": "c", **asked})
        assert refused.value.code == error.code, (seed, asked)
        return
    found = at.must("t", {"find": "c", **asked, "batchSize": 1000})["cursor"]["firstBatch"]
    expected = sorted(map(canonical, filter(matches, documents)))
    assert sorted(map(canonical, found)) == expected, (seed, asked)


def canonical(document: Document) -> bytes:
    return raw({name: document[name] for name in sorted(document)})


@pytest.mark.parametrize("seed", range(12))
def test_a_time_series_answers_as_the_list_does(seed: int) -> None:
    compare(seed)
