"""One engine, one set of behaviours: each case of the table gives the same result by wire and embedded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

import headrace

from .contract_cases import CASES

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client() -> Iterator[MongoClient[Any]]:
    connected: MongoClient[Any]
    with headrace.Server() as server, MongoClient(server.uri) as connected:
        yield connected


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    with headrace.open() as opened:
        yield opened


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_case_is_the_same_by_wire_and_embedded(client: MongoClient[Any], store: Any, name: str) -> None:
    database = "contract"
    client.drop_database(database)
    store.drop_database(database)
    by_wire = CASES[name](client[database])
    assert CASES[name](store[database]) == by_wire
