"""Replies: what a client unpacks is what was encoded, in every envelope."""

from __future__ import annotations

import struct
import zlib

import bson
import pytest

from headrace.wire.compression import NAMES, decompress
from headrace.wire.reply_message import encode_reply

BODY = bson.encode({"ok": 1.0})


def test_a_reply_is_an_op_msg_with_one_section() -> None:
    data = encode_reply(5, 7, BODY, flags=2)
    assert struct.unpack_from("<iiiiIB", data) == (len(data), 5, 7, 2013, 2, 0)
    assert data[21:] == BODY


def test_a_legacy_reply_carries_one_document() -> None:
    data = encode_reply(5, 7, BODY, legacy=True)
    assert struct.unpack_from("<iiiiiqii", data) == (len(data), 5, 7, 1, 8, 0, 0, 1)
    assert data[36:] == BODY


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("compressor", sorted([*NAMES.values(), 0]))
def test_a_compressed_reply_is_the_plain_one_inside(compressor: int, legacy: bool) -> None:
    plain = encode_reply(5, 7, BODY, legacy=legacy)
    data = encode_reply(5, 7, BODY, legacy=legacy, compressor=compressor)
    opcode = struct.unpack_from("<i", plain, 12)[0]
    assert struct.unpack_from("<iiiiiiB", data) == (len(data), 5, 7, 2012, opcode, len(plain) - 16, compressor)
    assert decompress(compressor, data[25:], len(plain) - 16) == plain[16:]


def test_zlib_is_plain_zlib() -> None:
    data = encode_reply(5, 7, BODY, compressor=NAMES["zlib"])
    assert zlib.decompress(data[25:])[5:] == BODY
