"""`store.serve` with users and TLS: clients log in, the program is asked for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

import headrace
from headrace.cli.tls_dev import make_certificates
from headrace.embedded.open_store import EmbeddedStore
from headrace.server.protection import UnprotectedAddress

READER = {"pwd": "r", "roles": [{"role": "read", "db": "shop"}]}
USERS = {"ann": {"pwd": "a", "roles": ["root"]}, "rob": READER}


@pytest.fixture(name="store")
def _store() -> Iterator[EmbeddedStore]:
    with headrace.open() as store:
        store.shop.orders.insert_many([{"_id": number} for number in range(10)])
        yield store


def client_of(uri: str, name: str | None = None, password: str = "", **options: Any) -> MongoClient[Any]:
    return MongoClient(uri, username=name, password=password if name else None, **options)


def test_users_may_do_what_their_roles_permit(store: EmbeddedStore) -> None:
    with store.serve(users=USERS) as served:
        with client_of(served.uri) as nobody, pytest.raises(OperationFailure) as refused:
            nobody.shop.orders.find_one()
        assert refused.value.code == 13
        with client_of(served.uri, "rob", "wrong") as wrong, pytest.raises(OperationFailure) as failed:
            wrong.shop.orders.find_one()
        assert failed.value.code == 18
        with client_of(served.uri, "rob", "r") as rob:
            assert rob.shop.orders.count_documents({}) == 10
            with pytest.raises(OperationFailure) as not_permitted:
                rob.shop.orders.insert_one({})
            assert not_permitted.value.code == 13
        with client_of(served.uri, "ann", "a") as ann:
            ann.shop.orders.insert_one({"_id": 10})
    assert store.shop.orders.count_documents({}) == 11


def test_the_program_is_asked_for_nothing(store: EmbeddedStore) -> None:
    orders = store.shop.orders
    opened_before, stream = orders.find(batch_size=2), orders.watch()
    next(opened_before)
    with store.serve(users=USERS):
        assert len(list(opened_before)) == 9
        orders.insert_one({"_id": 10})
        orders.update_one({"_id": 10}, {"$set": {"n": 1}})
        assert [stream.next(timeout=60).operation_type for _ in range(2)] == ["insert", "update"]
        assert {"admin", "shop"} <= set(store.list_database_names())
        assert "orders" in store.shop.list_collection_names(authorizedCollections=True)
        cursor = orders.find(batch_size=2)
        next(cursor)
        store.admin.command("createUser", "eve", pwd="e", roles=[])  # the users are others from here on
        assert len(list(cursor)) == 10
        events: list[Any] = []
        waiting = threading.Thread(target=lambda: events.append(stream.next(timeout=60)))
        waiting.start()
        store.admin.command("dropUser", "eve")
        orders.insert_one({"_id": 11})
        waiting.join(60)
        assert [event.document_id for event in events] == [11]
        with store.start_session() as session, session.start_transaction():
            orders.insert_one({"_id": 12}, session=session)


def test_a_user_cannot_read_the_cursors_of_the_program(store: EmbeddedStore) -> None:
    cursor = store.shop.orders.find(batch_size=2)
    next(cursor)
    with store.serve(users=USERS) as served, client_of(served.uri, "rob", "r") as rob:
        with pytest.raises(OperationFailure) as refused:
            rob.shop.command("getMore", cursor.cursor_id, collection="orders")
        assert refused.value.code == 13
        assert len(list(cursor)) == 9


def test_users_stay_and_a_later_serve_gives_them_new_passwords(store: EmbeddedStore) -> None:
    with store.serve(users=USERS):
        pass
    with store.serve(users={"rob": {**READER, "pwd": "new"}}) as served, client_of(served.uri, "rob", "new") as rob:
        assert rob.shop.orders.count_documents({}) == 10
    with store.serve(auth=True) as served:
        with client_of(served.uri, "ann", "a") as ann:
            assert len(ann.admin.command("usersInfo", 1)["users"]) == 2
        with client_of(served.uri) as nobody, pytest.raises(OperationFailure, match="requires authentication"):
            nobody.shop.orders.find_one()
    with store.serve() as served, client_of(served.uri) as anybody:
        assert anybody.shop.orders.count_documents({}) == 10


def test_without_users_it_is_not_exposed(store: EmbeddedStore) -> None:
    with pytest.raises(UnprotectedAddress):
        store.serve(host="0.0.0.0")
    with (
        store.serve(host="0.0.0.0", users=USERS) as served,
        client_of(f"mongodb://127.0.0.1:{served.port}", directConnection=True) as nobody,
        pytest.raises(OperationFailure, match="requires authentication"),
    ):
        nobody.shop.orders.find_one()


def test_a_user_that_cannot_be_created_is_an_error_and_nothing_listens(store: EmbeddedStore) -> None:
    with pytest.raises(OperationFailure, match="Could not find role: nothing@admin"):
        store.serve(users={"ann": {"pwd": "a", "roles": ["nothing"]}})
    with store.serve() as served, client_of(served.uri) as anybody:
        assert anybody.shop.orders.count_documents({}) == 10


def test_clients_speak_tls(store: EmbeddedStore, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    with store.serve(users=USERS, tls=tmp_path) as served:
        assert "tls=true&tlsCAFile=" in served.uri
        with client_of(served.uri, "rob", "r") as rob:
            assert rob.shop.orders.count_documents({}) == 10
        plain = f"mongodb://127.0.0.1:{served.port}/?directConnection=true"
        with (
            client_of(plain, serverSelectionTimeoutMS=500) as unencrypted,
            pytest.raises(ServerSelectionTimeoutError),
        ):
            unencrypted.admin.command("ping")


def test_a_unix_socket_alone_has_an_uri_too(store: EmbeddedStore, tmp_path: Path) -> None:
    with store.serve(host=None, unix_socket_prefix=tmp_path) as served, client_of(served.uri) as client:
        assert client.shop.orders.count_documents({}) == 10
    with headrace.Server(host=None, unix_socket_prefix=tmp_path) as server, client_of(server.uri) as other:
        assert other.shop.orders.count_documents({}) == 0


def test_commits_of_the_program_itself_are_counted(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "data") as store:
        orders = store["shop"]["orders"]
        orders.insert_one({})

        def commits() -> dict[str, Any]:
            counted: dict[str, Any] = store["admin"].command("serverStatus")["metrics"]["commits"]
            return counted

        before = commits()
        orders.insert_one({})
        orders.insert_many([{} for _ in range(10)])
        orders.update_one({}, {"$set": {"n": 1}})
        assert commits() == {"total": before["total"] + 3, "writes": before["writes"] + 3}
