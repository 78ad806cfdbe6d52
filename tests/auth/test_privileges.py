"""Which privileges cover what, and what roles come to."""

from __future__ import annotations

import pytest

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName
from headrace.auth.privileges import (
    ACTIONS,
    ANY,
    ANY_NORMAL,
    CLUSTER,
    allowed,
    documents_of,
    merged,
    parse_privilege,
    parse_resource,
    resource_document,
)
from headrace.auth.restrictions import check_restrictions, permitted
from headrace.auth.roles import inherits, resolve
from headrace.errors import CommandError

FIND = frozenset({"find"})


@pytest.mark.parametrize(
    ("held", "wanted", "covers"),
    [
        ("shop.orders", "shop.orders", True),
        ("shop.orders", "shop.other", False),
        ("shop.", "shop.orders", True),
        ("shop.", "shop.system.users", False),
        ("shop.", "shopping.orders", False),
        ("shop.", "shop.a.b", True),
        (".orders", "shop.orders", True),
        (".orders", "shop.", False),
        (ANY_NORMAL, "shop.orders", True),
        (ANY_NORMAL, "shop.", True),
        (ANY_NORMAL, "local.oplog.rs", False),
        (ANY_NORMAL, "config.transactions", False),
        (ANY_NORMAL, "admin.system.users", False),
        (ANY_NORMAL, CLUSTER, False),
        ("local.", "local.oplog.rs", True),
        ("local.", "local.replset.election", False),
        (ANY, "admin.system.users", True),
        (ANY, CLUSTER, True),
        (CLUSTER, CLUSTER, True),
        (CLUSTER, "shop.orders", False),
        ("shop.orders", "shop.", False),
        (ANY_NORMAL, ANY_NORMAL, True),
        ("shop.", ANY_NORMAL, False),
    ],
)
def test_which_resource_covers_which(held: str, wanted: str, covers: bool) -> None:
    assert allowed({held: FIND}, wanted, FIND) is covers


def test_actions_may_come_from_several_privileges() -> None:
    held = {"shop.": FIND, "shop.orders": frozenset({"insert"})}
    assert allowed(held, "shop.orders", frozenset({"find", "insert"}))
    assert not allowed(held, "shop.others", frozenset({"find", "insert"}))


@pytest.mark.parametrize(
    "document",
    [{"cluster": True}, {"anyResource": True}, {"db": "a", "collection": "b"}, {"db": "", "collection": ""},
     {"db": "a", "collection": ""}, {"db": "", "collection": "b"}, {"db": "a", "system_buckets": "b"}],
)  # fmt: skip
def test_resources_are_read_and_shown(document: dict[str, object]) -> None:
    assert resource_document(parse_resource(document)) == document


@pytest.mark.parametrize(
    "document",
    [{}, {"cluster": False}, {"cluster": True, "db": "a"}, {"db": "a"}, {"db": 1, "collection": "b"}, {"other": 1},
     {"db": "a.b", "collection": "c"}, {"db": "a", "collection": "b", "system_buckets": "c"}],
)  # fmt: skip
def test_what_is_no_resource_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(CommandError) as refused:
        parse_resource(document)
    assert refused.value.code == 9


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(CommandError, match="Unrecognized action privilege strings: fly"):
        parse_privilege({"resource": {"cluster": True}, "actions": ["find", "fly"]})


def test_any_action_is_every_action() -> None:
    resource, actions = parse_privilege({"resource": {"anyResource": True}, "actions": ["anyAction"]})
    assert (resource, actions) == (ANY, ACTIONS)
    assert documents_of({resource: actions}) == [{"resource": {"anyResource": True}, "actions": ["anyAction"]}]


def test_every_action_of_a_built_in_role_is_one() -> None:
    for role in builtin_roles.ROLES:
        privileges = builtin_roles.privileges_of(RoleName(role, "admin"))
        assert privileges
        assert all(actions <= ACTIONS for actions in privileges.values())


def test_only_admin_has_the_roles_of_all_databases() -> None:
    assert builtin_roles.privileges_of(RoleName("readAnyDatabase", "shop")) is None
    assert builtin_roles.privileges_of(RoleName("read", "shop")) is not None
    assert RoleName("root", "admin") in builtin_roles.names_in("admin")
    assert RoleName("root", "shop") not in builtin_roles.names_in("shop")


def test_roles_inherit_and_a_circle_ends() -> None:
    stored = {
        RoleName("a", "shop"): {"privileges": [], "roles": [{"role": "b", "db": "shop"}]},
        RoleName("b", "shop"): {
            "privileges": [{"resource": {"db": "shop", "collection": "x"}, "actions": ["insert"]}],
            "roles": [{"role": "a", "db": "shop"}, {"role": "read", "db": "shop"}, {"role": "gone", "db": "shop"}],
        },
    }
    resolved = resolve([RoleName("a", "shop")], stored.get)
    assert resolved.roles == (RoleName("a", "shop"), RoleName("b", "shop"), RoleName("read", "shop"))
    assert allowed(resolved.privileges, "shop.x", frozenset({"insert", "find"}))
    assert inherits(RoleName("a", "shop"), RoleName("b", "shop"), stored.get)


def test_what_is_stored_wrongly_grants_nothing() -> None:
    stored = {RoleName("a", "shop"): {"privileges": [{"resource": 1, "actions": ["find"]}, 5], "roles": [7, {}]}}
    assert resolve([RoleName("a", "shop")], stored.get).privileges == {}


def test_privileges_on_one_resource_are_added_up() -> None:
    assert merged([("a.b", FIND), ("a.b", frozenset({"insert"}))]) == {"a.b": frozenset({"find", "insert"})}


@pytest.mark.parametrize(
    ("restriction", "client", "server", "met"),
    [
        ({"clientSource": ["10.0.0.0/8"]}, "10.1.2.3", "127.0.0.1", True),
        ({"clientSource": ["10.0.0.0/8"]}, "11.1.2.3", "127.0.0.1", False),
        ({"clientSource": "10.1.2.3"}, "10.1.2.3", "127.0.0.1", True),
        ({"clientSource": ["10.0.0.0/8"]}, "::ffff:10.1.2.3", "127.0.0.1", True),
        ({"clientSource": ["10.0.0.0/8"], "serverAddress": ["127.0.0.1"]}, "10.1.2.3", "127.0.0.2", False),
        ({"clientSource": ["10.0.0.0/8"]}, "", "", False),
        ({}, "", "", True),
    ],
)
def test_restrictions_by_address(restriction: dict[str, object], client: str, server: str, met: bool) -> None:
    assert permitted([[restriction]], client, server) is met


def test_one_of_a_list_must_be_met_and_all_lists() -> None:
    home, away = [{"clientSource": "10.0.0.1"}, {"clientSource": "10.0.0.2"}], [{"clientSource": "10.0.0.2"}]
    assert permitted([home, away], "10.0.0.2", "127.0.0.1")
    assert not permitted([home, away], "10.0.0.1", "127.0.0.1")


def test_what_is_no_restriction_is_refused() -> None:
    for listed, code in (
        ([1], 14),
        ([{"from": "x"}], 40415),
        ([{"clientSource": ["x"]}], 2),
        ([{"clientSource": 1}], 2),
    ):
        with pytest.raises(CommandError) as refused:
            check_restrictions(listed)
        assert refused.value.code == code
