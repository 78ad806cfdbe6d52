"""Replies as BSON bytes: a command's answer followed by `ok`, `$clusterTime` and `operationTime`; batches; errors.

Frequent commands answer with raw elements and never build a dict. Others answer with a dict, which is encoded here.
Source of field order: MongoDB's replies as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from headrace.errors import AnsweredError, CommandError
from headrace.limits import ERROR_BYTES_MAX
from headrace.running_command import running_command
from headrace.values.bson import encode

_INT32 = Struct("<i").pack
_INT64 = Struct("<q").pack
_UINT64 = Struct("<Q").pack

OK: Final = b"\x01ok\x00" + Struct("<d").pack(1.0)
_FAILED: Final = b"\x01ok\x00" + Struct("<d").pack(0.0)
_SIGNATURE: Final = (
    b"\x03signature\x00" + _INT32(4 + 11 + 20 + 15 + 1) + b"\x05hash\x00" + _INT32(20) + b"\x00" + bytes(20)
    + b"\x12keyId\x00" + bytes(8) + b"\x00"
)  # fmt: skip
_CLUSTER_TIME: Final = b"\x11clusterTime\x00"
_CLUSTER_DOCUMENT_BYTES: Final = 4 + len(_CLUSTER_TIME) + 8 + len(_SIGNATURE) + 1
_CLUSTER_HEAD: Final = b"\x03$clusterTime\x00" + _INT32(_CLUSTER_DOCUMENT_BYTES) + _CLUSTER_TIME
_OPERATION_TIME: Final = b"\x11operationTime\x00"
_OK_CLUSTER_HEAD: Final = OK + _CLUSTER_HEAD
_BETWEEN: Final = _SIGNATURE + b"\x00" + _OPERATION_TIME

_LONG_BYTES: Final = 256 * 1024
_LONG_COUNT: Final = 64
"""A batch with more documents, or more bytes than `_LONG_BYTES`, is long."""
_KEYS: list[bytes] = [b"\x03" + str(number).encode() + b"\x00" for number in range(1024)]


_closings: dict[int, bytes] = {}
"""The last result of `closing`: all replies between two commits share it."""


def closing(position: int | None) -> bytes:
    """Return `ok: 1`, the two times unless `position` is None, and the document's end."""
    if position is None:
        return OK + b"\x00"
    made = _closings.get(position)
    if made is None:
        _closings.clear()
        stamp = _UINT64(position)
        made = _closings[position] = b"".join((_OK_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))
    return made


def times(position: int) -> bytes:
    """Return `$clusterTime` and `operationTime` at `position`, and the document's end."""
    stamp = _UINT64(position)
    return b"".join((_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))


def answered(elements: bytes, position: int) -> bytes:
    """Return `document(elements, closing(position))`, which most replies need, in one call."""
    end = _closings.get(position) or closing(position)
    return b"".join((_INT32(4 + len(elements) + len(end)), elements, end))


_WRITTEN_BYTES: Final = 4 + len(_OK_CLUSTER_HEAD) + 8 + len(_BETWEEN) + 8 + 1


def written(elements: bytes, position: int) -> bytes:
    """Return the reply of a write, like `answered`, without the cache: no other reply has a write's position."""
    stamp = _UINT64(position)
    size = _INT32(len(elements) + _WRITTEN_BYTES)
    return b"".join((size, elements, _OK_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))


def document(elements: bytes, end: bytes) -> bytes:
    """Return one BSON document from raw elements and their `closing`."""
    return b"".join((_INT32(4 + len(elements) + len(end)), elements, end))


def answer_elements(answer: dict[str, Any]) -> bytes:
    """Return the raw elements of an answer. After a mebibyte of messages in `writeErrors`, the other messages are
    empty, as in MongoDB."""
    errors = answer.get("writeErrors")
    if errors is not None and len(errors) > 1:
        size = 0
        for number, error in enumerate(errors):
            if size >= ERROR_BYTES_MAX:
                errors[number] = {**error, "errmsg": ""}
            size += len(error["errmsg"])
    return encode(answer)[4:-1]


def error_reply(error: AnsweredError, labels: Sequence[str], position: int | None, element: bytes = b"") -> bytes:
    """Return the reply to a failed command. `element`: one more raw element."""
    fields: dict[str, Any] = {"ok": 0.0, "errmsg": error.message, "code": error.code, "codeName": error.code_name}
    fields.update(error.extra)
    if labels:
        fields["errorLabels"] = list(labels)
    body = encode(fields)[4:-1] + element
    return document(body, b"\x00" if position is None else times(position))


def has_failed(answer: bytes) -> bool:
    """Whether a reply reports a failed command."""
    return answer.startswith(_FAILED, 4)


def array(documents: Sequence[bytes]) -> bytes:
    """Return a BSON array of raw documents."""
    if len(documents) == 1:
        return b"".join((_INT32(len(documents[0]) + 8), b"\x030\x00", documents[0], b"\x00"))
    while len(_KEYS) < len(documents):
        _KEYS.append(b"\x03" + str(len(_KEYS)).encode() + b"\x00")
    size = sum(map(len, documents)) + sum(map(len, _KEYS[: len(documents)])) + 5
    if (size > _LONG_BYTES or len(documents) > _LONG_COUNT) and (turn := running_command()) is not None:
        turn.goes_first = size > _LONG_BYTES  # a reply is copied several times: finish it before others begin
        turn.returned_count = len(documents)
    pieces = [_INT32(size)]
    pieces += [part for pair in zip(_KEYS, documents) for part in pair]
    pieces.append(b"\x00")
    return b"".join(pieces)


def cursor_elements(batch_name: bytes, batch: bytes, cursor_id: int, namespace: bytes, token: bytes | None) -> bytes:
    """Return the `cursor` element of a find, aggregate or getMore reply.

    `batch_name` is `firstBatch` or `nextBatch`, `batch` a raw array, `namespace` UTF-8, `token` the raw
    document of `postBatchResumeToken` or None. Change streams put the token before the id, as MongoDB does.
    """
    before, behind = cursor_envelope(batch_name, batch, namespace, token)
    return b"".join((before, _INT64(cursor_id), behind))


def cursor_envelope(
    batch_name: bytes, batch: bytes, namespace: bytes, token: bytes | None, *, invalidated: bool = False
) -> tuple[bytes, bytes]:
    """Return the parts of `cursor_elements` before and after the cursor's id, which replies to several cursors share.

    `invalidated`: the stream ended with this batch. MongoDB reports this next to the token.
    """
    shown = b"" if token is None else b"\x03postBatchResumeToken\x00" + token
    if invalidated:
        shown += b"\x08invalidated\x00\x01"
    behind = b"\x02ns\x00" + _INT32(len(namespace) + 1) + namespace + b"\x00\x00"
    size = _INT32(4 + 3 + len(batch_name) - 1 + len(batch) + len(shown) + 4 + 8 + len(behind))
    pieces = (b"\x03cursor\x00", size, b"\x04", batch_name, b"\x00", batch, shown, b"\x12id\x00")
    return b"".join(pieces), behind


def cursor_elements_id_first(
    batch_name: bytes, batch: bytes, cursor_id: int, namespace: bytes, token: bytes | None
) -> bytes:
    """Return the `cursor` element in MongoDB's order for list commands, and for a find on a missing collection."""
    pieces = (
        b"\x12id\x00", _INT64(cursor_id), b"\x02ns\x00", _INT32(len(namespace) + 1), namespace, b"\x00\x04",
        batch_name, b"\x00", batch, b"\x00",
    )  # fmt: skip
    body = b"".join(pieces)
    return b"\x03cursor\x00" + _INT32(len(body) + 4) + body


def document_halves(before: bytes, behind: bytes, end: bytes) -> tuple[bytes, bytes]:
    """Return the two halves of a reply document: with a cursor id between them, they form a whole document."""
    size = _INT32(4 + len(before) + 8 + len(behind) + len(end))
    return size + before, behind + end


def write_errors(failures: Sequence[tuple[int, CommandError]]) -> list[dict[str, Any]]:
    """Return the `writeErrors` of a reply from (index of the statement, error) in order."""
    return [{"index": index, "code": error.code, **error.extra, "errmsg": error.message} for index, error in failures]
