"""The id of a history of documents, stored with them."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.store.store import Store


def id_of(path: Path) -> bytes | None:
    store = Store(path)
    try:
        return store.history_id
    finally:
        store.close()


def test_a_history_has_an_id_that_restarts_and_copies_keep_and_a_new_directory_has_not(tmp_path: Path) -> None:
    first = id_of(tmp_path / "one")
    assert first is not None and len(first) == 12
    assert id_of(tmp_path / "one") == first
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert id_of(tmp_path / "copy") == first
    shutil.rmtree(tmp_path / "one")
    assert id_of(tmp_path / "one") != first
