"""Commits that a server's thread has synced and that wait, not yet published, for the test."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from headrace.store.store import Store
from headrace.store.write_transaction import WriteTransaction


@dataclass(frozen=True)
class HeldCommits:
    """`synced` is set once a commit waits; it goes on when `go_on` is set."""

    synced: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hold all commits from now on; each is made by the server's thread for slow ones."""
        sync = Store.sync

        def held(store: Store, txn: WriteTransaction) -> None:
            sync(store, txn)
            if threading.current_thread().name.startswith("headrace-commit"):
                self.synced.set()
                assert self.go_on.wait(60)

        monkeypatch.setattr(Store, "sync", held)
        monkeypatch.setattr("headrace.server.writer.SLOW_COMMIT_MS", -1.0)
