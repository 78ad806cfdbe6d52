"""A standby: a directory that follows an archive or a server. No server opens it until it is promoted.

    meta   "standby"   → the archive or server that is followed, as text
           "gaps"      → (after, until) of each promotion: positions between may be another history's; 16 bytes each

The followed server may have given out positions after the last one that arrived here. So a promotion begins its own
positions a second later and notes the gap. A token inside a gap belongs to no event of this history: error 280.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.store.data_file import UnusableDirectory
from headrace.store.kv import Table, Transaction
from headrace.values.position import position, seconds

if TYPE_CHECKING:
    from headrace.store.write_transaction import WriteTransaction

PROMOTED: Final = "promoted"
"""The message of the first entry in a promoted directory's own history."""
_STANDBY: Final = b"standby"
_GAPS: Final = b"gaps"
_GAP: Final = Struct(">QQ")

Gaps = tuple[tuple[int, int], ...]


def followed(kv: Transaction, meta: Table) -> str | None:
    """Return the archive or server that a directory follows; None if it is no standby."""
    archive = kv.get(_STANDBY, db=meta)
    return None if archive is None else archive.decode()


def require_promoted(path: object, kv: Transaction, meta: Table) -> None:
    """Raise `UnusableDirectory` for a standby."""
    archive = followed(kv, meta)
    if archive is not None:
        raise UnusableDirectory(
            f"{path} is a standby, which follows {archive} and takes no clients: `headrace promote {path}` ends that"
        )


def follow(txn: WriteTransaction, archive: str | None) -> None:
    """Make the directory a standby of an archive or a server; None ends that."""
    meta = txn.tables["meta"]
    if archive is not None:
        txn.kv.put(_STANDBY, archive.encode(), db=meta)
    elif followed(txn.kv, meta) is not None:
        txn.kv.delete(_STANDBY, db=meta)


def gaps(kv: Transaction, meta: Table) -> Gaps:
    """Return the gaps in the positions of a directory's history, both ends exclusive."""
    return tuple((after, until) for after, until in _GAP.iter_unpack(kv.get(_GAPS, db=meta) or b""))


def add_gap(txn: WriteTransaction, after: int, until: int) -> None:
    """Note that the positions between these two belong to another history."""
    meta = txn.tables["meta"]
    txn.kv.put(_GAPS, (txn.kv.get(_GAPS, db=meta) or b"") + _GAP.pack(after, until), db=meta)


def promote(txn: WriteTransaction) -> int:
    """Make a standby a server's directory; return the first position of its own history."""
    last = txn.state.last_position
    txn.clock_position = max(last, position(max(txn.wall_ms // 1000, seconds(last)) + 1, 0))
    begins = txn.store.log_noop(txn, PROMOTED)
    add_gap(txn, last, begins)
    follow(txn, None)
    return begins
