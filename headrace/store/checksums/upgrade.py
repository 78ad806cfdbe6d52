"""The format of a data directory, and the conversion of a directory that an earlier version wrote.

    meta   "format"    → b"3"                        without a checksum, as in every format
           "upgrade"   → name of a table 00 last key that has a checksum; only while the tables are converted

    format 1   values without checksums
    format 2   every value but these two is followed by its checksum (`transaction.py`)
    format 3   all indexes have entries, not only unique ones (`store/indexes/index_builds.py`)

The conversion goes table by table, a bounded number of bytes in each transaction. The first transaction writes the new
format, so that no earlier version opens the directory from then on. `upgrade` records where the next transaction
continues, in this process or after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace import limits
from headrace.store.checksums.transaction import with_checksum
from headrace.store.data_file import UnusableDirectory
from headrace.store.kv import Transaction

if TYPE_CHECKING:
    from headrace.store.lmdb import LmdbEnvironment

LOG = logging.getLogger("headrace.store")
FORMAT: Final = b"3"
WITHOUT_CHECKSUMS: Final = b"1"
WITHOUT_ENTRIES: Final = b"2"
FORMATS: Final = (WITHOUT_CHECKSUMS, WITHOUT_ENTRIES, FORMAT)
"""The formats that can be opened."""
FORMAT_KEY: Final = b"format"
UPGRADE_KEY: Final = b"upgrade"
PLAIN_KEYS: Final = frozenset({FORMAT_KEY, UPGRADE_KEY})
"""Keys of `meta` whose values have no checksum."""


class IncompatibleFormat(UnusableDirectory):
    """The data directory was written by a version whose format this version does not know."""


def stored_format(environment: LmdbEnvironment) -> bytes | None:
    """Return the format of an open directory; None for a new one."""
    transaction = environment.begin_plain()
    try:
        return transaction.get(FORMAT_KEY, db=environment.tables["meta"])
    finally:
        transaction.abort()


def open_format(environment: LmdbEnvironment) -> None:
    """Open a directory of any known format, and add missing checksums.

    Raises `IncompatibleFormat`, and the errors of a failing disk. Converted values then stay converted, and the next
    call continues.
    """
    version = stored_format(environment)
    if version is not None and version not in FORMATS:
        raise IncompatibleFormat(
            f"{environment.path} has format {version.decode(errors='replace')}, and this version of Headrace knows "
            f"{FORMATS[0].decode()} to {FORMAT.decode()}"
        )
    if version != FORMAT:
        convert = version == WITHOUT_CHECKSUMS
        _in_transaction(environment, lambda kv: _begin(environment, kv, convert=convert))
    if not _is_converting(environment):
        return
    LOG.warning("%s gets checksums; no earlier version opens it from now on", environment.path)
    while _in_transaction(environment, lambda kv: _convert(environment, kv)):
        pass
    LOG.warning("%s has checksums now", environment.path)


def _is_converting(environment: LmdbEnvironment) -> bool:
    transaction = environment.begin_plain()
    try:
        return transaction.get(UPGRADE_KEY, db=environment.tables["meta"]) is not None
    finally:
        transaction.abort()


def _in_transaction(environment: LmdbEnvironment, change: Callable[[Transaction], bool]) -> bool:
    """Commit a change of stored values; return the change's result."""
    kv = environment.begin_plain(write=True)
    try:
        result = change(kv)
        kv.commit()
    except BaseException:
        kv.abort()
        raise
    return result


def _begin(environment: LmdbEnvironment, kv: Transaction, *, convert: bool) -> bool:
    meta = environment.tables["meta"]
    kv.put(FORMAT_KEY, FORMAT, db=meta)
    if convert:
        kv.put(UPGRADE_KEY, _order(environment)[0].encode() + b"\0", db=meta)
    return convert


def _order(environment: LmdbEnvironment) -> list[str]:
    """Return the tables in the order of their conversion. `meta` is last, because it records the progress."""
    return sorted(environment.tables, key=lambda name: (name == "meta", name))


def _convert(environment: LmdbEnvironment, kv: Transaction) -> bool:
    """Convert the next piece; return False if there is none."""
    meta = environment.tables["meta"]
    at = kv.get(UPGRADE_KEY, db=meta)
    assert at is not None
    name, _, last = at.partition(b"\0")
    items: dict[bytes, bytes] = {}
    size = 0
    with kv.cursor(environment.tables[name.decode()]) as cursor:
        if cursor.set_range(last + b"\0"):
            for key, value in cursor.iternext():
                last = key
                if name != b"meta" or key not in PLAIN_KEYS:
                    items[key] = with_checksum(key, value)
                    size += len(value)
                if size >= limits.CONVERT_BYTES or len(items) >= limits.CONVERT_COUNT:
                    break
    for key, stored in items.items():
        kv.put(key, stored, db=environment.tables[name.decode()])
    order = _order(environment)
    following = order.index(name.decode()) + 1
    if items:
        kv.put(UPGRADE_KEY, name + b"\0" + last, db=meta)
    elif following < len(order):
        kv.put(UPGRADE_KEY, order[following].encode() + b"\0", db=meta)
    else:
        kv.delete(UPGRADE_KEY, db=meta)
        return False
    return True
