"""Release the engine's lock for a while, and take it again whatever happens meanwhile.

    with Released(lock):
        ...                  other threads may take it; Ctrl-C may end the body or the wait for the lock

Rule: after the `with` the caller holds the lock, so that its `finally` never releases another thread's lock.
"""

from __future__ import annotations

import threading


class Released:
    """Releases a lock of the caller for the length of a `with`."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.release()

    def __exit__(self, *_: object) -> None:
        retake(self._lock)


def retake(lock: threading.Lock) -> None:
    """Acquire a lock. An exception during the wait (Ctrl-C) is raised once the lock is held."""
    is_held, interruption = False, None
    while not is_held:
        try:
            for is_held in iter(lock.acquire, None):  # noqa: B007  (acquired and noted in one step of the interpreter)
                break
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption
