"""Policies of a table whose collection is dropped, renamed or invalidated: one of three."""

from __future__ import annotations

from typing import Final

POLICIES: Final = ("fail", "follow", "keep")
"""Stop before anything of the batch is written; do as the collection did; leave the rows as they are."""


class CollectionGone(RuntimeError):
    """The collection was dropped or renamed, and the policy is `fail`; nothing of the batch was written."""


def checked_policy(policy: str) -> str:
    """Returns `policy`; raises ValueError if there is none of that name."""
    if policy not in POLICIES:
        raise ValueError(f"the policy for a drop or a rename is one of {', '.join(POLICIES)}, not {policy!r}")
    return policy
