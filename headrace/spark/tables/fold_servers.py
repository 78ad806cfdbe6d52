"""What a batch of rows of several servers does to one mirror: what those of each do to its own rows.

Each server's rows are folded by themselves (`fold.py`), since its tokens say nothing of another's. A drop takes away
the rows of that server only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.spark.rows.events import Row
from headrace.spark.rows.server_keys import of_server, rows_by_server, server_key
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState, fold, keys_to_read
from headrace.spark.tables.table_owner import NotOurTable

_ALL: Final = "~"
"""Greater than every token."""


def server_keys_to_read(rows: Iterable[Row]) -> set[str]:
    """The keys whose rows `fold_servers` needs."""
    return {server_key(server, key) for server, some in rows_by_server(rows).items() for key in keys_to_read(some)}


def fold_servers(
    rows: list[Row], state: MirrorState, existing: Mapping[str, MirrorRow], *, clearing: bool = True
) -> MirrorChanges:
    """As `fold`, of one server or of several. Raises MirrorDiverged."""
    each = rows_by_server(rows)
    if "" in each:
        return fold(rows, state, existing, clearing=clearing)
    combined = MirrorChanges(state)
    for server, some in each.items():
        changes = fold(some, state.of_server(server), of_server(server, existing), clearing=clearing)
        combined.state = combined.state.with_server(server, changes.state)
        combined.upserts |= {server_key(server, key): row for key, row in changes.upserts.items()}
        combined.deletes |= {server_key(server, key) for key in changes.deletes}
        combined.event_count += changes.event_count
        combined.absolute &= changes.absolute
        if stale := _ALL if changes.clear else changes.stale_before:
            combined.stale_of_servers[server] = stale
    return combined


def check_servers(*, has_several: bool, has_rows: bool, reads_several: bool, table: object) -> None:
    """Raises NotOurTable if the table has the rows of one server and the source those of several, or the reverse."""
    if has_rows and has_several != reads_several:
        before, now = ("several", "one") if has_several else ("one", "several")
        raise NotOurTable(
            f"{table} has the rows of {before} server{'s' * has_several}, and the job reads {now}: give it a "
            "checkpoint and tables of its own, or begin again with `headrace pipeline reset --data`"
        )
