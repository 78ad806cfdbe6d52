"""The memory budget of a process: an account for each holder of memory, and the release of the largest account.

    account = memory.account("cursors of 127.0.0.1:50100", release)     for each holder that a client can make grow
    account.add(65536); account.add(-65536); account.close()

Rule: when the sum of all accounts exceeds the budget, `release` of the largest account is called, then of the next,
until the rest fits. It frees the memory of the account: a cursor is closed, a transaction aborted, a connection cut
off. If nothing was freed, the account is closed, and the next `add` of its holder raises an error. Amounts are
estimates (bytes of BSON, a flat amount per object), never measured.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace import limits
from headrace.errors import CommandError
from headrace.log_lines import RepeatedLine

LOG = logging.getLogger("headrace.memory")
UNLIMITED: Final = 1 << 62


class Account:
    """The memory account of one holder. `bytes` is never below zero."""

    __slots__ = ("_error", "_memory", "_release", "bytes", "closed", "may_close", "name")

    def __init__(
        self, memory: Memory, name: str, release: Callable[[], object] | None,
        error: Callable[[], CommandError] | None, may_close: bool,
    ) -> None:  # fmt: skip
        self.may_close = may_close
        """Whether the account is closed if its holder frees nothing. Otherwise it stays open."""
        self._memory = memory
        self._release = release
        self._error = error
        self.name = name
        self.bytes = 0
        self.closed = False

    def add(self, size: int) -> None:
        """Take `size` more bytes, or give them back (negative). Raises the account's error if it was closed for its
        memory. An account without `may_close` is only closed by its holder, and then raises nothing."""
        if self.closed:
            if size > 0 and self.may_close:
                raise self._failure()
            return
        self.bytes += size
        memory = self._memory
        memory.used += size
        if memory.used <= memory.bytes_max:
            memory.tries_above = 0
        elif size > 0 and memory.used > memory.tries_above:
            memory.make_room(self)
            if self.closed and self.may_close:
                raise self._failure()

    def _failure(self) -> CommandError:
        """Return a new error for each refusal, because its traceback refers to the refused data."""
        return exceeded(self._memory.bytes_max) if self._error is None else self._error()

    def set(self, size: int) -> None:
        """Take or give back bytes so that the account has `size`. Raises the errors of `add`."""
        self.add(size - self.bytes)

    def close(self) -> None:
        """Give all bytes back and close the account."""
        if not self.closed:
            self.closed = True
            self._release = None  # it may refer to the holder, which refers to this account
            self._memory.forget(self)

    def release(self) -> None:
        """Make the holder free memory. If it frees nothing, close the account."""
        before = self.bytes
        if self._release is not None:
            self._release()
        if self.bytes >= before and self.may_close:
            self.close()

    def when_needed(self, release: Callable[[], object]) -> None:
        """Call `release` from now on when the account's memory is needed."""
        self._release = release


class Memory:
    """The budget and all open accounts. One thread uses it."""

    def __init__(self, bytes_max: int = UNLIMITED) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.tries_above = 0
        """After no account could free anything, the use above which accounts are released again. Saves an attempt per
        byte."""
        self.used_max = 0
        """The highest use at which a client was cut off."""
        self.released = 0
        """The number of released accounts."""
        self._accounts: dict[Account, None] = {}
        self._line = RepeatedLine(LOG)

    def account(
        self, name: str, release: Callable[[], object] | None = None,
        error: Callable[[], CommandError] | None = None, *, may_close: bool = True,
    ) -> Account:  # fmt: skip
        """Open an account. `name`: its holder, for the log. `release`: called when its memory is needed. `error` makes
        the error of a closed account (None: 146)."""
        account = Account(self, name, release, error, may_close)
        self._accounts[account] = None
        return account

    def forget(self, account: Account) -> None:
        """Remove a closed account."""
        del self._accounts[account]
        self.used -= account.bytes
        account.bytes = 0

    def accounts(self) -> list[Account]:
        """Return all open accounts."""
        return list(self._accounts)

    def largest(self, count: int) -> list[Account]:
        """Return the largest accounts, at most `count`, without empty ones."""
        accounts = heapq.nlargest(count, self._accounts, key=lambda account: account.bytes)
        return [account for account in accounts if account.bytes]

    def make_room(self, growing: Account) -> None:
        """Release accounts, the largest first, until the rest fits. Among equals `growing` is first."""
        stuck: set[Account] = set()
        while self.used > self.bytes_max:
            candidates = [account for account in self._accounts if account.bytes and account not in stuck]
            if not candidates:
                self.tries_above = self.used + limits.COUNTED_STEP_BYTES
                return
            largest = max(candidates, key=lambda account: (account.bytes, account is growing))
            stuck.add(largest)
            self._cut_off(largest, self.used)
        self.tries_above = 0

    def release_largest(self, resident: int) -> bool:
        """Release the largest account that frees something, because the process has too much memory, `resident` bytes.
        Return whether an account freed memory."""
        before = self.used
        for account in self.largest(len(self._accounts)):
            self._cut_off(account, resident)
            if self.used < before:
                return True
        return False

    def _cut_off(self, account: Account, used: int) -> None:
        self.note_cut_off(used, f"most, {account.bytes} bytes, are of: {account.name}. It is cut off")
        account.release()

    def note_cut_off(self, used: int, consequence: str) -> None:
        """Count and log that a client is cut off at `used` bytes."""
        self.used_max = max(self.used_max, used)
        self.released += 1
        self._line.log(f"memory: {used} bytes are in use and {self.bytes_max} allowed (--memoryLimit); {consequence}")


def default_bytes_max() -> int:
    """Return a quarter of the machine's memory or of its control group's limit, whichever is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(Path(path).read_text(encoding="ascii")))
    return max(int(total * limits.MEMORY_SHARE_DEFAULT), limits.MEMORY_BYTES_MIN)


def exceeded(bytes_max: int) -> CommandError:
    """Return error 146 for an operation that was ended for its memory."""
    return CommandError(
        146, f"the server's memory limit of {bytes_max} bytes is exceeded, and this operation holds most"
    )
