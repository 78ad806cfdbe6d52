"""Both kinds of table keep the same contract: rows and state in one commit, or neither."""

from __future__ import annotations

import os
import random
from pathlib import Path
from zlib import crc32

import pyarrow.parquet as pq
import pytest

from headrace import limits
from headrace.spark.tables.delta_files import FileWriter, stored_files
from headrace.spark.tables.fold import MirrorChanges, MirrorRow, MirrorState
from headrace.spark.tables.mirror_table import KINDS, MirrorTable, open_mirror_table, stored_rows
from headrace.spark.tables.progress import NotAMirror, Progress

pytestmark = pytest.mark.long


@pytest.fixture(params=["delta large", *sorted(KINDS)])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorTable:
    kind, _, large = request.param.partition(" ")
    if large:
        monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", -1)  # no file is small
    return open_mirror_table(tmp_path / "mirror", kind)


def put(
    table: MirrorTable,
    token: str,
    *,
    clear: bool = False,
    deletes: tuple[str, ...] = (),
    stale_before: str = "",
    **documents: str,
) -> None:
    upserts = {key: MirrorRow(document, token) for key, document in documents.items()}
    batch = table.position().batch + 1
    state = MirrorState(token, query="q", batch=batch)
    table.commit(MirrorChanges(state, clear, upserts, set(deletes), stale_before=stale_before))


def contents(table: MirrorTable) -> dict[str, str]:
    return {key: row.document for key, row in stored_rows(table.read()).items()}


def test_a_table_that_is_not_there_yet_has_the_first_state_and_no_rows(table: MirrorTable) -> None:
    assert table.position() == MirrorState()
    assert table.rows(["a"]) == {}


def test_a_commit_inserts_updates_and_deletes_at_once(table: MirrorTable) -> None:
    put(table, "1", a="A", b="B", c="C")
    put(table, "2", b="BB", d="D", deletes=("c",))
    assert contents(table) == {"a": "A", "b": "BB", "d": "D"}
    assert table.rows(["a", "b", "c"]) == {"a": MirrorRow("A", "1"), "b": MirrorRow("BB", "2")}
    assert table.position() == MirrorState("2", query="q", batch=1)


def test_a_clearing_commit_leaves_only_what_it_brings(table: MirrorTable) -> None:
    put(table, "1", a="A", b="B")
    put(table, "2", clear=True, c="C")
    assert contents(table) == {"c": "C"}


def test_rows_that_are_stale_go_unless_the_commit_brings_them_again(table: MirrorTable) -> None:
    put(table, "1", a="A", b="B", c="C")
    put(table, "2", d="D")
    put(table, "3", stale_before="2", a="AA", deletes=("c",))
    assert contents(table) == {"a": "AA", "d": "D"}
    put(table, "4", stale_before="3")
    assert contents(table) == {"a": "AA"}


def test_a_commit_without_rows_still_keeps_its_state(table: MirrorTable) -> None:
    put(table, "1", a="A")
    put(table, "2")
    assert (table.position().token, contents(table)) == ("2", {"a": "A"})


def test_only_deletes_make_a_commit(table: MirrorTable) -> None:
    put(table, "1", a="A", b="B")
    put(table, "2", deletes=("a", "b"))
    assert contents(table) == {}


def test_an_empty_first_commit_makes_a_table(table: MirrorTable) -> None:
    put(table, "1", clear=True)
    assert contents(table) == {}
    put(table, "2", a="A")
    assert contents(table) == {"a": "A"}


def test_keys_and_documents_may_be_any_text(table: MirrorTable) -> None:
    odd = {'{"x":"\' or 1=1 --"}': "Ä\n\u2028", "": '{"a":null}'}
    put(table, "1", **odd)
    put(table, "2", **odd)
    assert contents(table) == odd


def test_many_commits_stay_readable(table: MirrorTable) -> None:
    for number in range(52):
        put(table, f"{number:03}", **{f"k{number % 5}": str(number)})
    assert contents(table) == {"k0": "50", "k1": "51", "k2": "47", "k3": "48", "k4": "49"}
    assert table.position().batch == 51


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="delta, parquet"):
        open_mirror_table(tmp_path, "csv")


def test_a_parquet_commit_interrupted_before_its_rename_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_mirror_table(tmp_path, "parquet")
    put(table, "1", a="A")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            put(table, "2", a="B")
    assert (contents(table), table.position().token) == ({"a": "A"}, "1")
    put(table, "2", a="C")
    assert pq.read_table(tmp_path).column("document").to_pylist() == ["C"]


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    put(open_mirror_table(tmp_path / "other", "parquet"), "1", a="A")
    rows = open_mirror_table(tmp_path / "other", "parquet").read()
    write_deltalake(tmp_path / "d", rows)
    pq.write_table(rows, tmp_path / "mirror.parquet")
    for path, kind in ((tmp_path / "d", "delta"), (tmp_path, "parquet")):
        with pytest.raises(NotAMirror):
            open_mirror_table(path, kind).position()


def test_a_small_commit_to_a_mirror_in_buckets_rewrites_the_files_of_its_buckets_only(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = open_mirror_table(tmp_path, "delta", buckets=8)
    put(table, "1", **{f"k{number}": "x" for number in range(400)})
    before = DeltaTable(tmp_path).file_uris()
    assert len(before) == 8
    put(table, "2", k7="y", deletes=("k8",))
    after = set(DeltaTable(tmp_path).file_uris())
    gone = {uri.rpartition("/")[0].rpartition("/")[2] for uri in before if uri not in after}
    touched = {f"bucket={crc32(key) % 8}" for key in (b"k7", b"k8")}
    assert gone == touched and len(touched) == 2
    new = [file for file in stored_files(DeltaTable(tmp_path)) if f"{tmp_path}/{file.name}" not in before]
    assert sum(pq.read_metadata(tmp_path / file.name).num_rows for file in new) < 400 / 3


def test_a_small_file_takes_new_rows_and_a_larger_one_is_written_anew_where_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    def files() -> set[str]:
        return set(DeltaTable(tmp_path).file_uris())

    table, large_text = open_mirror_table(tmp_path, "delta"), random.Random(1).randbytes(50_000).hex()
    put(table, "1", **{f"k{number}": "x" for number in range(40)})
    monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", DeltaTable(tmp_path).get_add_actions()["size_bytes"][0].as_py())
    put(table, "2", k7=large_text, deletes=("k8",))
    (large,) = files()
    monkeypatch.setattr(limits, "REWRITTEN_BYTES_MAX", 8000)
    for number in range(3):
        put(table, "3", **{f"m{number}": "z"})
        assert large in files() and len(files()) == 2
    put(table, "4", m0="zz", deletes=("m1",))
    assert large in files()
    put(table, "5", k9="z")
    assert large not in files()
    kept = {f"k{number}": "x" for number in range(40) if number != 8}
    assert contents(table) == kept | {"k7": large_text, "k9": "z", "m0": "zz", "m2": "z"}


def test_a_constraint_of_the_tables_owner_is_checked(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = open_mirror_table(tmp_path, "delta")
    put(table, "1", a="A", b="B")
    DeltaTable(tmp_path).alter.add_constraint({"no_long": "document <> 'too long'"})
    put(table, "2", a="AA", c="C", deletes=("b",))
    with pytest.raises(Exception, match="too long"):
        put(table, "3", d="too long")
    assert contents(open_mirror_table(tmp_path, "delta")) == {"a": "AA", "c": "C"}


def test_who_compacts_a_table_meanwhile_takes_no_rows_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    table = open_mirror_table(tmp_path, "delta")
    put(table, "1", a="A", b="B")
    finish = FileWriter.finish

    def finish_and_delete(writer: FileWriter) -> object:
        DeltaTable(tmp_path).delete("_id = 'b'")
        return finish(writer)

    monkeypatch.setattr(FileWriter, "finish", finish_and_delete)
    with pytest.raises(CommitFailedError):
        put(table, "2", a="AA")
    monkeypatch.undo()
    assert contents(table) == {"a": "A"}


def test_positions_of_earlier_versions_are_read_and_those_of_other_sinks_refused() -> None:
    mirror = '{"token": "5", "snapshot_token": "4", "query": "q", "batch": 3, "begun": "", "owner": ""}'
    assert MirrorState.of(mirror) == MirrorState("5", "4", query="q", batch=3)
    log = '{"token": "5", "begun": "1", "ended": "2", "batch": 3, "earlier": [["0", "1"]], '
    log += '"servers": {"a": {"token": "5"}}}'
    read = Progress("5", "1", "2", batch=3, earlier=(("0", "1"),), servers={"a": Progress("5")})
    assert Progress.of(log) == Progress.of(read.text()) == read
    for kind, text in ((Progress, mirror), (MirrorState, log)):
        with pytest.raises(NotAMirror, match="another sink's"):
            kind.of(text)
