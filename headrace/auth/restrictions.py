"""`authenticationRestrictions`: the client addresses and server addresses for which a user or a role may be used.

A list is met if one of its documents is. A document is met if its `clientSource`, if it has one, contains the client's
address, and its `serverAddress`, if it has one, the server's. All lists (a user's, each role's) must be met.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import to_string

CLIENT: Final = "clientSource"
SERVER: Final = "serverAddress"


def check_restrictions(listed: list[Any]) -> None:
    """Raise 2, 14 or 40415 if `listed` is not a list of restrictions."""
    for restriction in listed:
        if type(restriction) is not dict:
            raise CommandError(14, "authenticationRestrictions must be an array of documents")
        for name, ranges in restriction.items():
            if name not in (CLIENT, SERVER):
                raise CommandError(40415, f"BSON field 'authenticationRestrictions.{name}' is an unknown field.")
            for text in [ranges] if type(ranges) is str else ranges if type(ranges) is list else [None]:
                _network(text)


def _network(text: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        if type(text) is str:
            return ipaddress.ip_network(text, strict=False)
    except ValueError:
        pass
    raise CommandError(2, f"Invalid CIDR: {text if type(text) is str else to_string(text)}")


def permitted(lists: Iterable[list[dict[str, Any]]], client: str, server: str) -> bool:
    """Return whether all lists permit a client at the numeric address `client` that uses the server's address `server`.

    A Unix socket has no addresses, so it never meets a restriction that requires one. An invalid list, from a stored
    document that was edited by hand, permits no client.
    """
    return all(not listed or _any_met(listed, client, server) for listed in lists)


def _any_met(listed: Any, client: str, server: str) -> bool:
    items = listed if type(listed) is list else ()
    return any(
        type(item) is dict and _within(item.get(CLIENT), client) and _within(item.get(SERVER), server) for item in items
    )


def _within(ranges: Any, address: str) -> bool:
    if ranges is None:
        return True
    try:
        number = ipaddress.ip_address(address.partition("%")[0])
        mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
        return any((mapped or number) in _network(text) for text in ([ranges] if type(ranges) is str else ranges))
    except (CommandError, TypeError, ValueError):
        return False
