"""Writes the tables of docs/security.md from the declarations of the code: python docs/reference/security_tables.py

The text before and between the tables stays as it is; a table stands between `<!-- made: name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headrace.auth import builtin_roles
from headrace.auth.names import RoleName, UserName
from headrace.auth.roles import resolve
from headrace.commands.table import COMMANDS
from headrace.dispatch.access import Grants
from headrace.dispatch.command import Command
from headrace.dispatch.engine import Engine
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.request import ClientInfo, Request
from headrace.errors import CommandError
from headrace.values.bson import encode

PAGE: Final = Path(__file__).resolve().parents[1] / "security.md"
_OF_CLUSTERS: Final = frozenset({"__system", "directShardOperations", "enableSharding"})
ROLES: Final = tuple(name for name in builtin_roles.ROLES if name not in _OF_CLUSTERS)
"""The columns; a role of a database is that of `shop`."""
_FIND: Final = {"query": {"_id": 1}, "update": {"$set": {"a": 1}}}
_PRIVILEGE: Final = {"resource": {"db": "shop", "collection": "orders"}, "actions": ["find"]}
_STATEMENT: Final = {"q": {"_id": 1}, "u": {"$set": {"a": 1}}}
_MERGE: Final = {"tempUsersCollection": "admin.tempusers", "db": "shop"}
_QUERY: Final = {"find": "orders", "filter": {"a": 1}, "$db": "shop"}
EXAMPLES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "_mergeAuthzCollections": ("admin", {"_mergeAuthzCollections": 1, **_MERGE}),
    "aggregate": ("shop", {"aggregate": "orders", "pipeline": [], "cursor": {}}),
    "applyOps": ("admin", {"applyOps": [{"op": "i", "ns": "shop.orders", "o": {"_id": 2}}]}),
    "autoCompact": ("admin", {"autoCompact": True}),
    "bulkWrite": ("admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "shop.orders"}]}),
    "cloneCollectionAsCapped": ("shop", {"cloneCollectionAsCapped": "orders", "toCollection": "copy", "size": 4096}),
    "collMod": ("shop", {"collMod": "orders"}),
    "convertToCapped": ("shop", {"convertToCapped": "orders", "size": 4096}),
    "count": ("shop", {"count": "orders"}),
    "create": ("shop", {"create": "fresh"}),
    "createIndexes": ("shop", {"createIndexes": "orders", "indexes": [{"key": {"a": 1}, "name": "a"}]}),
    "createRole": ("shop", {"createRole": "made", "privileges": [], "roles": []}),
    "createUser": ("shop", {"createUser": "made", "pwd": "x", "roles": ["read"], "mechanisms": ["SCRAM-SHA-1"]}),
    "currentOp": ("admin", {"currentOp": 1}),
    "dataSize": ("shop", {"dataSize": "shop.orders"}),
    "delete": ("shop", {"delete": "orders", "deletes": [{"q": {"_id": 1}, "limit": 1}]}),
    "distinct": ("shop", {"distinct": "orders", "key": "_id"}),
    "drop": ("shop", {"drop": "spare"}),
    "dropConnections": ("admin", {"dropConnections": 1, "hostAndPort": []}),
    "dropIndexes": ("shop", {"dropIndexes": "orders", "index": "none"}),
    "explain": ("shop", {"explain": {"find": "orders"}}),
    "find": ("shop", {"find": "orders"}),
    "findAndModify": ("shop", {"findAndModify": "orders", **_FIND}),
    "getClusterParameter": ("admin", {"getClusterParameter": "*"}),
    "getLog": ("admin", {"getLog": "*"}),
    "getMore": ("shop", {"getMore": 1, "collection": "orders"}),
    "getParameter": ("admin", {"getParameter": "*"}),
    "grantPrivilegesToRole": ("shop", {"grantPrivilegesToRole": "clerk", "privileges": [_PRIVILEGE]}),
    "grantRolesToRole": ("shop", {"grantRolesToRole": "clerk", "roles": ["read"]}),
    "grantRolesToUser": ("shop", {"grantRolesToUser": "ann", "roles": ["read"]}),
    "headraceChanges": ("shop", {"headraceChanges": "orders", "after": {}}),
    "insert": ("shop", {"insert": "orders", "documents": [{}]}),
    "killCursors": ("shop", {"killCursors": "orders", "cursors": []}),
    "killOp": ("admin", {"killOp": 1, "op": 999}),
    "listCollections": ("shop", {"listCollections": 1}),
    "logApplicationMessage": ("admin", {"logApplicationMessage": "hello"}),
    "renameCollection": ("admin", {"renameCollection": "shop.spare", "to": "shop.renamed"}),
    "removeQuerySettings": ("admin", {"removeQuerySettings": _QUERY}),
    "revokePrivilegesFromRole": ("shop", {"revokePrivilegesFromRole": "clerk", "privileges": [_PRIVILEGE]}),
    "revokeRolesFromRole": ("shop", {"revokeRolesFromRole": "clerk", "roles": ["read"]}),
    "revokeRolesFromUser": ("shop", {"revokeRolesFromUser": "ann", "roles": ["read"]}),
    "rolesInfo": ("shop", {"rolesInfo": 1}),
    "setClusterParameter": ("admin", {"setClusterParameter": {"changeStreamOptions": {}}}),
    "setFeatureCompatibilityVersion": ("admin", {"setFeatureCompatibilityVersion": "0"}),
    "setQuerySettings": ("admin", {"setQuerySettings": _QUERY, "settings": {"reject": True}}),
    "setUserWriteBlockMode": ("admin", {"setUserWriteBlockMode": 1, "global": False}),
    "update": ("shop", {"update": "orders", "updates": [_STATEMENT]}),
    "updateRole": ("shop", {"updateRole": "clerk", "roles": ["read"]}),
    "updateUser": ("shop", {"updateUser": "ann", "customData": {"a": 1}}),
    "usersInfo": ("shop", {"usersInfo": 1}),
    "validate": ("shop", {"validate": "orders"}),
    "validateDBMetadata": ("shop", {"validateDBMetadata": 1, "db": "shop", "apiParameters": {}}),
}
"""The request of each command that the tables are about; of the others it is `{command: 1}`."""
OF_COLLECTION: Final = frozenset({"collStats", "compact", "listIndexes", "mapReduce", "reIndex"})
_OF_DATABASE: Final = frozenset({
    "dbHash", "dbStats", "dropAllRolesFromDatabase", "dropAllUsersFromDatabase", "dropDatabase", "profile",
})  # fmt: skip
_NAMED: Final = {"dropRole": "clerk", "dropUser": "ann"}
_LISTS: Final = frozenset(
    {"endSessions", "killAllSessions", "killAllSessionsByPattern", "killSessions", "refreshSessions"}
)


def commands() -> list[Command]:
    """All commands, by name."""
    by_name = {command.name: command for command in COMMANDS.values()}
    return [by_name[name] for name in sorted(by_name)]


def example(name: str) -> tuple[str, dict[str, Any]]:
    """The database and the request of a command."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    if name in OF_COLLECTION:
        return "shop", {name: "orders"}
    if name in _NAMED:
        return "shop", {name: _NAMED[name]}
    if name in _LISTS:
        return "admin", {name: []}
    return "shop" if name in _OF_DATABASE else "admin", {name: 1}


def role_name(role: str) -> RoleName:
    """The role that a column stands for."""
    return RoleName(role, "shop" if role in builtin_roles.EVERYWHERE else "admin")


def is_allowed(engine: Engine, command: Command, role: str | None) -> bool:
    """What the declaration of a command says of a user with one role; None: of nobody."""
    if role is None:
        return not command.requires.login
    if command.requires.needs is None:
        return True
    grants = Grants(UserName("somebody", "admin"), {}, resolve([role_name(role)], lambda name: None), 0)
    db, body = example(command.name)
    client = ClientInfo(1, "127.0.0.1:1", ("127.0.0.1", 27017))
    request = Request(command.name, db, encode({**body, "$db": db}), {}, client)
    try:
        return all(grants.permits(*wanted) for wanted in command.requires.needs(engine, request, grants))
    except CommandError:
        return False


def engine_for_tables() -> Engine:
    """An engine on an empty store."""
    from headrace.commands.server_info.parameters import first_parameters
    from headrace.store.store import Store

    options = ServerOptions(dbpath=Path("/nowhere"), auth=True)
    return Engine(Store(None), options, COMMANDS, first_parameters(options))


def pairs(engine: Engine) -> str:
    """The table of commands by roles."""
    short = [f"`{role}`" for role in ROLES]
    lines = ["| Command | nobody | " + " | ".join(short) + " |", "|---|" + ":-:|" * (len(ROLES) + 1)]
    for command in commands():
        cells = ["●" if is_allowed(engine, command, role) else "" for role in (None, *ROLES)]
        lines.append(f"| `{command.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def requirements(engine: Engine) -> str:
    """The table of what each command requires."""
    rows = [f"| `{command.name}` | {command.requires.text} |" for command in commands()]
    return "\n".join(("| Command | Requires |", "|---|---|", *rows)) + "\n"


MADE: Final = {"pairs": pairs, "requirements": requirements}


def page(text: str, tables: Mapping[str, str]) -> str:
    """The text with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n\n{tables[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- made: (\w+) -->.*?<!-- end -->", made, text, flags=re.DOTALL)


def current_page() -> str:
    """The page as it should be."""
    engine = engine_for_tables()
    try:
        return page(PAGE.read_text("utf-8"), {name: make(engine) for name, make in MADE.items()})
    finally:
        engine.store.close()


if __name__ == "__main__":
    PAGE.write_text(current_page(), "utf-8")
    print(f"{PAGE.name} is written")
