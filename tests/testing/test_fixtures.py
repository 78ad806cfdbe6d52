"""The pytest plugin that Headrace ships."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_finds_the_server_empty(headrace_client: MongoClient[dict[str, Any]], number: int) -> None:
    assert headrace_client.shop.list_collection_names() == []
    with headrace_client.shop.orders.watch() as stream:
        headrace_client.shop.orders.insert_one({"_id": number})
        assert next(stream)["documentKey"] == {"_id": number}
