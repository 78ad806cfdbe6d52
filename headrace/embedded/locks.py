"""Release the engine's lock for a while, and take it again whatever happens meanwhile.

    with Released(lock):
        ...                  others may have it; Ctrl-C may end this, also while the lock is waited for

Rule: after the `with` the caller has the lock, so that its own `finally` releases no other thread's.
"""

from __future__ import annotations

import threading


class Released:
    """Releases a lock that the caller holds, for the length of a `with`."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        retake(self._lock)


def retake(lock: threading.Lock) -> None:
    """Acquire a lock. What interrupts the wait (Ctrl-C) is raised when the lock is held."""
    is_held, interruption = False, None
    while not is_held:
        try:
            for is_held in iter(lock.acquire, None):  # noqa: B007  (acquired and noted in one step of the interpreter)
                break
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
