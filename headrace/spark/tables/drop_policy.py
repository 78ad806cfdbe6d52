"""The policies of a table for a drop, a rename or an invalidate of its collection."""

from __future__ import annotations

from typing import Final

POLICIES: Final = ("fail", "follow", "keep")
"""`fail`: stop before writing anything of the batch. `follow`: do as the collection did. `keep`: keep the rows."""


class CollectionGone(RuntimeError):
    """The collection was dropped or renamed, and the policy is `fail`. Nothing of the batch was written."""


def checked_policy(policy: str) -> str:
    """Return `policy`; raise ValueError if it is unknown."""
    if policy not in POLICIES:
        raise ValueError(f"the policy for a drop or a rename is one of {', '.join(POLICIES)}, not {policy!r}")
    return policy
