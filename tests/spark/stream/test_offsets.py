"""Planning the snapshots of several collections, without a server."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from headrace import limits
from headrace.spark.mongodb.collection_selection import CollectionSelection
from headrace.spark.rows.tokens import Token
from headrace.spark.stream.offsets import ALL, RunningSnapshot, ServerOffset, SnapshotPiece, planned
from headrace.spark.timetravel.snapshot import Chunk

SELECTION = CollectionSelection("d", ("a", "log_*"))


class Collections:
    """Collections whose keys are numbers; the first is a chunk by itself."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes

    def count(self, name: str) -> int:
        return self.sizes[name]

    def next_chunk(self, name: str, after: str, rows_max: int) -> Chunk | None:
        if not after:
            return Chunk("1") if self.sizes[name] else None
        upto = min(int(after) + rows_max, self.sizes[name])
        return Chunk(str(upto), after) if upto > int(after) else None


def test_an_offset_is_read_back_as_it_was() -> None:
    piece = SnapshotPiece("d.a", Token("8201", "AA=="), True, (Chunk("k", "j"), ALL), False)
    offset = ServerOffset(
        Token("8202"), SELECTION, ("d.b",), RunningSnapshot("d.a", Token("8201", "AA=="), "k"), ("d.c",), (piece,), True
    )
    assert ServerOffset.of(json.loads(json.dumps(offset.document()))) == offset
    plain = ServerOffset(Token("8202"), SELECTION)
    assert plain.document() == {"token": "8202", "selection": '["d", "a", "log_*"]'}
    assert not plain.in_snapshot and offset.in_snapshot


@pytest.mark.parametrize("seed", range(30))
def test_every_key_is_planned_once_and_each_snapshot_has_one_beginning_and_one_end(seed: int) -> None:
    choose = random.Random(seed)
    sizes = {f"d.{number}": choose.choice([0, 1, 2, 7, 40]) for number in range(choose.randrange(20))}
    offset, rows = ServerOffset(Token("00"), SELECTION, tuple(sizes)), choose.randrange(1, 30)
    source = Collections(sizes)
    read: dict[str, list[int]] = {}
    order: list[str] = []
    for number in range(1000):
        offset = planned(offset, Token(f"{number:02}"), rows, source)
        if not offset.snapshots:
            break
        for piece in offset.snapshots:
            keys = read.setdefault(piece.name, [])
            assert piece.first == (piece.name not in order)
            assert not piece.first or piece.begun.text == f"{number:02}"
            order += [piece.name] if piece.first else []
            for chunk in piece.chunks:
                if chunk == ALL:
                    keys += range(1, sizes[piece.name] + 1)
                else:
                    keys += range(int(chunk.after or 0) + 1, int(chunk.upto) + 1)
            if piece.last:
                assert keys == list(range(1, sizes[piece.name] + 1))
                keys.append(-1)
    assert not offset.in_snapshot and order == list(sizes)
    assert all(keys[-1] == -1 and keys.count(-1) == 1 for keys in read.values())


def test_the_chunk_with_the_greatest_key_ends_a_snapshot_although_keys_are_added() -> None:
    class Growing(Collections):
        def next_chunk(self, name: str, after: str, rows_max: int) -> Chunk | None:
            chunk = super().next_chunk(name, after, rows_max)
            last = chunk is not None and bool(after) and chunk.upto == str(self.sizes[name])
            self.sizes[name] += 3
            return replace(chunk, last=last) if chunk else None

    offset, source = ServerOffset(Token("00"), SELECTION, ("d.a",)), Growing({"d.a": 40})
    for _ in range(20):
        offset = planned(offset, Token("01"), 10, source)
        if not offset.in_snapshot:
            break
    (piece,) = offset.snapshots
    assert piece.last and piece.chunks[-1].upto == "58"


def test_a_batch_has_so_many_collections() -> None:
    sizes = {f"d.{number}": 1 for number in range(2 * limits.SNAPSHOT_COLLECTION_COUNT_MAX)}
    offset = planned(ServerOffset(Token("00"), SELECTION, tuple(sizes)), Token("00"), 10_000, Collections(sizes))
    assert len(offset.snapshots) == limits.SNAPSHOT_COLLECTION_COUNT_MAX
    assert len(offset.waiting) == limits.SNAPSHOT_COLLECTION_COUNT_MAX


def test_a_collection_that_is_renamed_to_while_it_is_read_is_read_again() -> None:
    running = RunningSnapshot("d.a", Token("01"), "5")
    offset = ServerOffset(Token("02"), SELECTION, ("d.b",), running, ("d.c",))
    again = offset.with_waiting(["d.a", "d.b", "d.c"])
    assert again.waiting == ("d.b", "d.a", "d.c") and again.reading is None and not again.skipped
