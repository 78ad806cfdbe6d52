"""The load generator's bytes are the protocol: what it encodes ahead is what a server reads."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest

from headrace.wire.connection import Connection, Message
from headrace.wire.reply_message import encode_reply

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.fixture(autouse=True)
def _bench_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


def test_a_command_with_documents_is_read_back() -> None:
    import messages

    documents = [messages.document(number) for number in range(3)]
    connection = Connection()
    connection.receive(messages.command({"insert": "c"}, documents=documents))
    message = connection.next_event()
    assert isinstance(message, Message)
    assert bson.decode(message.body) == {"insert": "c", "$db": messages.DATABASE}
    assert [bson.decode(raw) for raw in message.sequences["documents"]] == documents


def test_documents_have_the_size_they_are_said_to_have() -> None:
    import messages

    assert len(bson.encode(messages.document(bson.ObjectId()))) == 300


def test_a_reply_is_good_or_refused() -> None:
    import loops

    loops.check(encode_reply(1, 1, bson.encode({"n": 1, "ok": 1.0})))
    for reply in ({"ok": 0.0}, {"n": 0, "writeErrors": [{"code": 11000}], "ok": 1.0}):
        with pytest.raises(RuntimeError):
            loops.check(encode_reply(1, 1, bson.encode(reply)))


def test_scenarios_are_named_once() -> None:
    import scenarios

    names = [scenario.name for scenario in scenarios.SCENARIOS]
    assert len(set(names)) == len(names)


def test_each_ratio_to_the_floor_is_measured_once() -> None:
    import floor_ratios
    import scenarios
    import streams

    names = [ratio.name for ratio in floor_ratios.RATIOS]
    assert len(set(names)) == len(names)
    known = {scenario.name for scenario in (*scenarios.SCENARIOS, *streams.STREAMS)}
    assert known >= {*floor_ratios._BOTH, "find by _id", "update by _id, 16 connections", "backlog"}
