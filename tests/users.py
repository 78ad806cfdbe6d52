"""A server with authorization for tests, and connections of several users to it, driven command by command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pytest

from headrace.auth.names import UserName
from headrace.dispatch.request import ClientInfo
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

HERE: Final = frozenset({
    "$_internalUnpackBucket", "$addFields", "$bucket", "$bucketAuto", "$changeStreamSplitLargeEvent", "$count",
    "$densify", "$fill", "$geoNear",
    "$group", "$limit", "$match", "$project", "$rankFusion", "$redact", "$replaceRoot", "$replaceWith", "$sample",
    "$score", "$scoreFusion", "$set",
    "$setWindowFields", "$skip", "$sort", "$sortByCount", "$unset", "$unwind",
})  # fmt: skip
"""The stages that require only `find` on the collection, because they work on their input."""


class Users:
    """A server and a connection for each of its users."""

    def __init__(self, server: DrivenServer) -> None:
        self.server = server
        self._numbers = count(2)
        self.connections: dict[str, ClientInfo] = {}
        self.run("localhost", "admin", {"createUser": "root", "pwd": "x", "roles": ["root"]})
        self.server.must("admin", {"ping": 1})

    def connection(self, name: str) -> ClientInfo:
        client = self.connections.get(name)
        if client is None:
            number = next(self._numbers)
            client = self.connections[name] = ClientInfo(number, f"127.0.0.1:{number}", ("127.0.0.1", 27017))
        if client.grants is None and name not in ("localhost", "nobody"):
            self.server.engine.access.log_in(client, UserName(name, "admin"))
        return client

    def run(self, name: str, db: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a user; raises what it was answered."""
        self.server.client = self.connection(name)
        return self.server.must(db, body)

    def answer(self, name: str, db: str, body: dict[str, Any]) -> dict[str, Any] | Wait:
        """The reply to a user, whatever it is, on the connection that it has, if only as nobody."""
        self.server.client = self.connections.get(name) or self.connection(name)
        return self.server.run(db, body)

    def refused(self, name: str, db: str, body: dict[str, Any]) -> str:
        """The text of the error 13 that a user is answered."""
        with pytest.raises(CommandError) as failed:
            self.run(name, db, body)
        assert failed.value.code == 13, failed.value
        return failed.value.message

    def create(self, name: str, *roles: Any) -> None:
        self.run("root", "admin", {"createUser": name, "pwd": "x", "roles": list(roles), "mechanisms": ["SCRAM-SHA-1"]})

    def role(self, name: str, *privileges: tuple[dict[str, Any], list[str]], roles: list[Any] | None = None) -> None:
        listed = [{"resource": resource, "actions": actions} for resource, actions in privileges]
        self.run("root", "admin", {"createRole": name, "privileges": listed, "roles": roles or []})


@contextmanager
def shop_users() -> Iterator[Users]:
    """`reader` and `writer` of the database `shop`, which has 300 `orders`, as has `other`; and `root`."""
    with DrivenServer(auth=True) as server:
        made = Users(server)
        for database in ("shop", "other"):
            documents = [{"_id": number} for number in range(300)]
            made.run("root", database, {"insert": "orders", "documents": documents})
        made.create("reader", {"role": "read", "db": "shop"})
        made.create("writer", {"role": "readWrite", "db": "shop"})
        yield made
