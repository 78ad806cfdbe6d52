"""Users and roles: created, changed, shown and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.auth.names import UserName
from headrace.auth.scram import password_digest
from headrace.errors import CommandError
from headrace.testing.driven import DrivenServer

ALL = [{"resource": {"cluster": True}, "actions": ["top"]}]
READ = {"role": "read", "db": "shop"}


@pytest.fixture
def server() -> Iterator[DrivenServer]:
    with DrivenServer() as driven:
        yield driven


def _stored(server: DrivenServer, collection: str = "system.users") -> list[dict[str, Any]]:
    batch: list[dict[str, Any]] = server.must("admin", {"find": collection})["cursor"]["firstBatch"]
    return batch


def _create(server: DrivenServer, name: str = "ann", db: str = "shop", **more: Any) -> None:
    server.must(db, {"createUser": name, "pwd": "secret", "roles": ["read"], **more})


def _role(server: DrivenServer, name: str = "clerk", **more: Any) -> None:
    server.must("shop", {"createRole": name, "privileges": [], "roles": [], **more})


def _code(server: DrivenServer, db: str, body: dict[str, Any]) -> int:
    with pytest.raises(CommandError) as failed:
        server.must(db, body)
    return failed.value.code


def test_a_user_is_stored_as_mongodb_stores_it(server: DrivenServer) -> None:
    _create(server, customData={"floor": 3})
    user = _stored(server)[0]
    assert list(user) == ["_id", "userId", "user", "db", "credentials", "customData", "roles"]
    assert (user["_id"], user["user"], user["db"], user["roles"]) == ("shop.ann", "ann", "shop", [READ])
    assert user["userId"].subtype == 4
    sha_1, sha_256 = user["credentials"]["SCRAM-SHA-1"], user["credentials"]["SCRAM-SHA-256"]
    assert (sha_1["iterationCount"], len(sha_1["salt"])) == (10000, 24)
    assert (sha_256["iterationCount"], len(sha_256["salt"])) == (15000, 40)
    assert _stored(server, "system.version")[1:] == [{"_id": "authSchema", "currentVersion": 5}]


def test_a_user_of_an_export_works_and_goes_back(server: DrivenServer) -> None:
    _create(server)
    exported = _stored(server)
    server.must("shop", {"dropUser": "ann"})
    server.must("admin", {"insert": "system.users", "documents": exported})
    assert server.must("shop", {"usersInfo": "ann"})["users"][0]["mechanisms"] == ["SCRAM-SHA-1", "SCRAM-SHA-256"]
    assert _stored(server) == exported


MERGE = {
    "_mergeAuthzCollections": 1,
    "tempRolesCollection": "admin.temproles",
    "tempUsersCollection": "admin.tempusers",
}


def _dumped(server: DrivenServer) -> None:
    """Users and roles as mongorestore has inserted them: ann, who is there with other roles, bob and the role clerk."""
    _create(server)
    server.must("shop", {"createRole": "clerk", "privileges": [], "roles": ["read"]})
    server.must("other", {"createUser": "bob", "pwd": "x", "roles": []})
    for source, target in (("system.users", "tempusers"), ("system.roles", "temproles")):
        server.must("admin", {"insert": target, "documents": _stored(server, source)})
    server.must("other", {"dropUser": "bob"})
    server.must("shop", {"dropRole": "clerk"})
    server.must("shop", {"updateUser": "ann", "roles": []})
    server.must("shop", {"createUser": "eve", "pwd": "x", "roles": []})
    server.must("other", {"createRole": "kept", "privileges": [], "roles": []})


def _names(server: DrivenServer, collection: str) -> set[str]:
    return {item["_id"] for item in _stored(server, collection)}


def test_users_and_roles_of_a_dump_are_merged(server: DrivenServer) -> None:
    _dumped(server)
    server.must("admin", {**MERGE, "db": "shop", "drop": False})
    assert (_names(server, "system.users"), _names(server, "system.roles")) == (
        {"shop.ann", "shop.eve"}, {"shop.clerk", "other.kept"},
    )  # fmt: skip
    assert server.engine.access.user(UserName("ann", "shop"))["roles"] == []  # type: ignore[index]
    server.must("admin", {**MERGE, "db": "", "drop": False})
    assert _names(server, "system.users") == {"shop.ann", "shop.eve", "other.bob"}


def test_users_and_roles_of_a_dump_replace_those_of_the_server(server: DrivenServer) -> None:
    _dumped(server)
    server.must("admin", {**MERGE, "db": "shop", "drop": True})
    assert (_names(server, "system.users"), _names(server, "system.roles")) == (
        {"shop.ann"}, {"shop.clerk", "other.kept"},
    )  # fmt: skip
    assert server.engine.access.user(UserName("ann", "shop"))["roles"] == [READ]  # type: ignore[index]
    server.must("admin", {**MERGE, "db": "", "drop": True})
    assert (_names(server, "system.users"), _names(server, "system.roles")) == (
        {"shop.ann", "other.bob"}, {"shop.clerk"},
    )  # fmt: skip


@pytest.mark.parametrize("broken", [{}, {"user": "x", "db": "shop", "roles": []}, {"user": "", "db": "shop"}], ids=str)
def test_a_document_that_is_no_user_is_not_merged(server: DrivenServer, broken: dict[str, Any]) -> None:
    server.must("admin", {"insert": "tempusers", "documents": [{"_id": "shop.x", **broken}]})
    for body in ({**MERGE, "db": ""}, {"_mergeAuthzCollections": 1, "db": ""}):
        assert _code(server, "admin", body) == 2
    assert not _stored(server)


@pytest.mark.parametrize(
    ("db", "body", "code"),
    [
        ("shop", {"createUser": "ann", "roles": []}, 2),
        ("shop", {"createUser": "ann", "pwd": "", "roles": []}, 2),
        ("shop", {"createUser": "", "pwd": "x", "roles": []}, 2),
        ("shop", {"createUser": "ann", "pwd": "x"}, 40414),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": ["none"]}, 31),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": [5]}, 2),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": ["root"]}, 31),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": [], "mechanisms": []}, 2),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": [], "mechanisms": ["PLAIN"]}, 2),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": [], "mechanisms": ["SCRAM-SHA-256"],
                  "digestPassword": False}, 2),
        ("shop", {"createUser": "ann", "pwd": "\u0007", "roles": [], "mechanisms": ["SCRAM-SHA-256"]}, 2),
        ("shop", {"createUser": "ann", "pwd": "x", "roles": [], "authenticationRestrictions": [{"clientSource": "x"}]},
         2),
        ("local", {"createUser": "ann", "pwd": "x", "roles": []}, 2),
        ("$external", {"createUser": "CN=ann", "pwd": "x", "roles": []}, 2),
        ("shop", {"updateUser": "ann"}, 2),
        ("shop", {"updateUser": "ann", "pwd": "x"}, 11),
        ("shop", {"dropUser": "ann"}, 11),
        ("shop", {"grantRolesToUser": "ann", "roles": ["read"]}, 11),
        ("shop", {"revokeRolesFromUser": "ann", "roles": ["read"]}, 11),
        ("shop", {"createRole": "read", "privileges": [], "roles": []}, 2),
        ("shop", {"createRole": "x", "privileges": [], "roles": ["none"]}, 31),
        ("shop", {"createRole": "x", "privileges": [], "roles": ["x"]}, 49),
        ("shop", {"createRole": "x", "roles": [], "privileges": [{"resource": {"cluster": True}, "actions": ["top"]}]},
         49),
        ("shop", {"createRole": "x", "roles": [], "privileges": [{"resource": {}, "actions": ["find"]}]}, 9),
        ("shop", {"createRole": "x", "roles": [{"role": "read", "db": "other"}], "privileges": []}, 49),
        ("shop", {"updateRole": "x"}, 2),
        ("shop", {"updateRole": "x", "roles": []}, 31),
        ("shop", {"dropRole": "x"}, 31),
        ("shop", {"dropRole": "read"}, 2),
        ("shop", {"updateRole": "read", "privileges": []}, 31),
        ("shop", {"grantPrivilegesToRole": "read", "privileges": ALL}, 2),
        ("shop", {"grantPrivilegesToRole": "x", "privileges": ALL}, 49),
        ("shop", {"grantPrivilegesToRole": "x", "privileges": []}, 2),
        ("shop", {"revokePrivilegesFromRole": "x", "privileges": []}, 2),
        ("shop", {"revokePrivilegesFromRole": "read", "privileges": ALL}, 2),
        ("shop", {"grantRolesToRole": "x", "roles": []}, 2),
        ("shop", {"grantRolesToRole": "x", "roles": ["x"]}, 49),
        ("shop", {"grantRolesToRole": "read", "roles": ["readWrite"]}, 2),
        ("shop", {"revokeRolesFromRole": "read", "roles": ["readWrite"]}, 2),
        ("shop", {"grantRolesToUser": "ann", "roles": []}, 2),
        ("shop", {"usersInfo": 1, "showPrivileges": True}, 20),
        ("shop", {"usersInfo": "ann", "showPrivileges": True, "filter": {}}, 20),
        ("shop", {"usersInfo": [{}]}, 2),
        ("shop", {"usersInfo": 2}, 2),
        ("shop", {"usersInfo": {"forAllDBs": False}}, 2),
        ("shop", {"usersInfo": {"user": "ann", "db": "shop", "x": 1}}, 2),
        ("shop", {"rolesInfo": 2}, 2),
        ("shop", {"rolesInfo": "x", "showPrivileges": "x"}, 2),
    ],
)  # fmt: skip
def test_what_is_refused(server: DrivenServer, db: str, body: dict[str, Any], code: int) -> None:
    assert _code(server, db, body) == code
    assert not _stored(server)


def test_a_user_or_role_that_is_there_is_not_created_again(server: DrivenServer) -> None:
    _create(server)
    _role(server)
    assert _code(server, "shop", {"createUser": "ann", "pwd": "x", "roles": []}) == 51003
    assert _code(server, "shop", {"createRole": "clerk", "privileges": [], "roles": []}) == 51002
    assert _code(server, "shop", {"createUser": "ann", "pwd": "x", "roles": ["none"]}) == 31
    assert _code(server, "shop", {"createRole": "clerk", "privileges": [], "roles": ["none"]}) == 31
    _create(server, db="other")


def test_what_is_updated_replaces_what_was_there(server: DrivenServer) -> None:
    _create(server)
    before = _stored(server)[0]
    server.must("shop", {"updateUser": "ann", "pwd": "other", "roles": [], "customData": {"a": 1}})
    after = _stored(server)[0]
    assert after["credentials"] != before["credentials"] and after["userId"] == before["userId"]
    assert (after["roles"], after["customData"]) == ([], {"a": 1})
    server.must("shop", {"updateUser": "ann", "mechanisms": ["SCRAM-SHA-256"]})
    assert list(_stored(server)[0]["credentials"]) == ["SCRAM-SHA-256"]
    assert _code(server, "shop", {"updateUser": "ann", "mechanisms": ["SCRAM-SHA-1"]}) == 2


def test_roles_are_granted_and_revoked(server: DrivenServer) -> None:
    _create(server)
    _role(server)
    server.must("shop", {"grantRolesToUser": "ann", "roles": ["clerk", "read"]})
    assert _stored(server)[0]["roles"] == [READ, {"role": "clerk", "db": "shop"}]
    server.must("shop", {"revokeRolesFromUser": "ann", "roles": ["read", "dbAdmin"]})
    assert _stored(server)[0]["roles"] == [{"role": "clerk", "db": "shop"}]


def test_a_role_that_is_dropped_is_nobody_s_any_more(server: DrivenServer) -> None:
    _role(server)
    _role(server, "chief", roles=["clerk", "read"])
    _create(server, roles=["clerk", "chief"])
    server.must("shop", {"dropRole": "clerk"})
    assert _stored(server)[0]["roles"] == [{"role": "chief", "db": "shop"}]
    assert _stored(server, "system.roles")[0]["roles"] == [READ]
    assert server.must("shop", {"dropAllRolesFromDatabase": 1})["n"] == 1
    assert _stored(server)[0]["roles"] == []


def test_no_role_inherits_itself(server: DrivenServer) -> None:
    _role(server)
    _role(server, "chief", roles=["clerk"])
    assert _code(server, "shop", {"grantRolesToRole": "clerk", "roles": ["chief"]}) == 49
    assert _code(server, "shop", {"grantRolesToRole": "clerk", "roles": ["clerk"]}) == 49
    server.must("shop", {"revokeRolesFromRole": "chief", "roles": ["clerk"]})
    server.must("shop", {"grantRolesToRole": "clerk", "roles": ["chief"]})


def test_privileges_are_granted_and_revoked(server: DrivenServer) -> None:
    _role(server)
    orders = {"db": "shop", "collection": "orders"}
    grant = [{"resource": orders, "actions": ["find", "insert"]}]
    server.must("shop", {"grantPrivilegesToRole": "clerk", "privileges": grant})
    revoke = [{"resource": orders, "actions": ["insert"]}]
    server.must("shop", {"revokePrivilegesFromRole": "clerk", "privileges": revoke})
    shown = server.must("shop", {"rolesInfo": "clerk", "showPrivileges": True})["roles"][0]
    assert shown["privileges"] == shown["inheritedPrivileges"] == [{"resource": orders, "actions": ["find"]}]
    server.must("shop", {"updateRole": "clerk", "privileges": [], "roles": ["read"]})
    shown = server.must("shop", {"rolesInfo": "clerk", "showPrivileges": True})["roles"][0]
    assert shown["privileges"] == [] and shown["inheritedRoles"] == [READ]
    assert {"db": "shop", "collection": ""} in [item["resource"] for item in shown["inheritedPrivileges"]]


def test_users_are_shown_in_every_form(server: DrivenServer) -> None:
    for name, db in (("ann", "shop"), ("bob", "shop"), ("ann", "other")):
        _create(server, name, db)

    def shown(asked: Any, **more: Any) -> list[str]:
        return [user["_id"] for user in server.must("shop", {"usersInfo": asked, **more})["users"]]

    assert shown(1) == ["shop.ann", "shop.bob"]
    assert shown("ann") == ["shop.ann"]
    assert shown("nobody") == []
    assert shown({"user": "ann", "db": "other"}) == ["other.ann"]
    assert shown(["bob", {"user": "ann", "db": "other"}]) == ["shop.bob", "other.ann"]
    assert sorted(shown({"forAllDBs": True})) == ["other.ann", "shop.ann", "shop.bob"]
    assert shown(1, filter={"user": "bob"}) == ["shop.bob"]
    plain = server.must("shop", {"usersInfo": "ann"})["users"][0]
    assert "credentials" not in plain
    full = server.must("shop", {"usersInfo": "ann", "showCredentials": True, "showPrivileges": True})["users"][0]
    assert "SCRAM-SHA-256" in full["credentials"]
    assert full["inheritedRoles"] == [READ] and full["inheritedPrivileges"]


def test_built_in_roles_are_shown_where_asked_for(server: DrivenServer) -> None:
    _role(server)
    assert [role["role"] for role in server.must("shop", {"rolesInfo": 1})["roles"]] == ["clerk"]
    listed = server.must("shop", {"rolesInfo": 1, "showBuiltinRoles": True})["roles"]
    assert [role["role"] for role in listed] == [
        "clerk", "dbAdmin", "dbOwner", "enableSharding", "read", "readWrite", "userAdmin",
    ]  # fmt: skip
    assert listed[-1]["isBuiltin"] is True


def test_roles_are_shown_as_what_a_user_with_them_would_have(server: DrivenServer) -> None:
    _role(server, privileges=[{"resource": {"db": "shop", "collection": "a"}, "actions": ["find"]}], roles=["read"])
    asked = {"rolesInfo": ["clerk", {"role": "read", "db": "other"}], "showPrivileges": "asUserFragment"}
    fragment = server.must("shop", asked)["userFragment"]
    assert fragment["roles"] == [{"role": "clerk", "db": "shop"}, {"role": "read", "db": "other"}]
    assert {"role": "read", "db": "shop"} in fragment["inheritedRoles"] and len(fragment["inheritedRoles"]) == 3
    resources = [item["resource"] for item in fragment["inheritedPrivileges"]]
    assert {"db": "shop", "collection": "a"} in resources and {"db": "other", "collection": ""} in resources
    assert _code(server, "shop", {"rolesInfo": "nothing", "showPrivileges": "asUserFragment"}) == 31


def test_all_users_of_a_database_are_dropped(server: DrivenServer) -> None:
    for name, db in (("ann", "shop"), ("bob", "shop"), ("ann", "other")):
        _create(server, name, db)
    assert server.must("shop", {"dropAllUsersFromDatabase": 1})["n"] == 2
    assert [user["_id"] for user in _stored(server)] == ["other.ann"]


def test_a_role_that_was_put_there_by_hand_grants_what_is_right_in_it(server: DrivenServer) -> None:
    server.must("admin", {"insert": "system.roles", "documents": [
        {"_id": "shop.odd", "role": "odd", "db": "shop"},
        {"_id": "shop.worse", "role": "worse", "db": "shop", "privileges": [1, {"resource": 1}], "roles": "x"},
    ]})  # fmt: skip
    for name in ("odd", "worse"):
        (shown,) = server.must("shop", {"rolesInfo": name, "showPrivileges": True})["roles"]
        assert shown["privileges"] == shown["roles"] == []
    privilege = {"resource": {"db": "shop", "collection": "a"}, "actions": ["find"]}
    server.must("shop", {"grantPrivilegesToRole": "odd", "privileges": [privilege]})
    server.must("shop", {"grantRolesToRole": "worse", "roles": ["odd"]})


def test_no_file_of_the_data_directory_has_a_password(tmp_path: Path) -> None:
    with DrivenServer(tmp_path) as server:
        server.must("admin", {"createUser": "ann", "pwd": "canary-5d1c", "roles": []})
        server.must("admin", {"updateUser": "ann", "pwd": "canary-77ab"})
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"canary" not in content and password_digest("ann", "canary-77ab").encode() not in content


def test_passwords_are_shown_to_nobody(server: DrivenServer) -> None:
    from headrace.dispatch.request import shown_body

    request = server.request("shop", {"createUser": "ann", "pwd": "secret", "roles": []})
    assert shown_body(request)["pwd"] == "xxx"
    hello = server.request("shop", {"hello": 1, "speculativeAuthenticate": {"payload": b"n,,n=ann,r=x"}})
    assert "speculativeAuthenticate" not in shown_body(hello)
