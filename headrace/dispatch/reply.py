"""Replies as BSON bytes: a command's answer closed with `ok`, `$clusterTime` and `operationTime`; batches; errors.

A hot command answers with raw elements and never builds a dict; the rest answers with a dict, encoded here.
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
"""From here on a batch is long."""
_KEYS: list[bytes] = [b"\x03" + str(number).encode() + b"\x00" for number in range(1024)]


_closings: dict[int, bytes] = {}
"""The last `closing` that was made: all replies between two commits have the same."""


def closing(position: int | None) -> bytes:
    """`ok: 1`, and unless `position` is None the two times, and the document's end."""
    if position is None:
        return OK + b"\x00"
    made = _closings.get(position)
    if made is None:
        _closings.clear()
        stamp = _UINT64(position)
        made = _closings[position] = b"".join((_OK_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))
    return made


def times(position: int) -> bytes:
    """`$clusterTime` and `operationTime` at `position`, and the document's end."""
    stamp = _UINT64(position)
    return b"".join((_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))


def answered(elements: bytes, position: int) -> bytes:
    """`document` of the elements and `closing(position)`, in one call: of most replies."""
    end = _closings.get(position) or closing(position)
    return b"".join((_INT32(4 + len(elements) + len(end)), elements, end))


_WRITTEN_BYTES: Final = 4 + len(_OK_CLUSTER_HEAD) + 8 + len(_BETWEEN) + 8 + 1


def written(elements: bytes, position: int) -> bytes:
    """As `answered`, of a write, whose position no other reply has."""
    stamp = _UINT64(position)
    size = _INT32(len(elements) + _WRITTEN_BYTES)
    return b"".join((size, elements, _OK_CLUSTER_HEAD, stamp, _BETWEEN, stamp, b"\x00"))


def document(elements: bytes, end: bytes) -> bytes:
    """One BSON document of raw elements and the `closing` that ends it."""
    return b"".join((_INT32(4 + len(elements) + len(end)), elements, end))


def answer_elements(answer: dict[str, Any]) -> bytes:
    """The elements of an answer. When the messages of its `writeErrors` have exceeded a mebibyte, those that follow are
    empty, as MongoDB's are."""
    errors = answer.get("writeErrors")
    if errors is not None and len(errors) > 1:
        size = 0
        for number, error in enumerate(errors):
            if size >= ERROR_BYTES_MAX:
                errors[number] = {**error, "errmsg": ""}
            size += len(error["errmsg"])
    return encode(answer)[4:-1]


def error_reply(error: AnsweredError, labels: Sequence[str], position: int | None, element: bytes = b"") -> bytes:
    """The reply to a command that failed. `element`: one more raw element."""
    fields: dict[str, Any] = {"ok": 0.0, "errmsg": error.message, "code": error.code, "codeName": error.code_name}
    fields.update(error.extra)
    if labels:
        fields["errorLabels"] = list(labels)
    body = encode(fields)[4:-1] + element
    return document(body, b"\x00" if position is None else times(position))


def has_failed(answer: bytes) -> bool:
    """Whether a reply is that of a failed command."""
    return answer.startswith(_FAILED, 4)


def array(documents: Sequence[bytes]) -> bytes:
    """A BSON array of raw documents."""
    if len(documents) == 1:
        return b"".join((_INT32(len(documents[0]) + 8), b"\x030\x00", documents[0], b"\x00"))
    while len(_KEYS) < len(documents):
        _KEYS.append(b"\x03" + str(len(_KEYS)).encode() + b"\x00")
    size = sum(map(len, documents)) + sum(map(len, _KEYS[: len(documents)])) + 5
    if (size > _LONG_BYTES or len(documents) > _LONG_COUNT) and (turn := running_command()) is not None:
        turn.goes_first = size > _LONG_BYTES  # a reply is copied some times: not many at once
        turn.returned_count = len(documents)
    pieces = [_INT32(size)]
    pieces += [part for pair in zip(_KEYS, documents) for part in pair]
    pieces.append(b"\x00")
    return b"".join(pieces)


def cursor_elements(batch_name: bytes, batch: bytes, cursor_id: int, namespace: bytes, token: bytes | None) -> bytes:
    """The `cursor` element of a find, aggregate or getMore reply.

    `batch_name` is `firstBatch` or `nextBatch`, `batch` a raw array, `namespace` UTF-8, `token` the raw
    document of `postBatchResumeToken` or None. Change streams put the token before the id, as MongoDB does.
    """
    before, behind = cursor_envelope(batch_name, batch, namespace, token)
    return b"".join((before, _INT64(cursor_id), behind))


def cursor_envelope(
    batch_name: bytes, batch: bytes, namespace: bytes, token: bytes | None, *, invalidated: bool = False
) -> tuple[bytes, bytes]:
    """`cursor_elements` without the cursor's id, which belongs between: what replies to several cursors share.

    `invalidated`: the stream ended with this batch, which MongoDB reports next to the token.
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
    """As `cursor_elements`, in the order in which MongoDB answers lists, and a find where there is no collection."""
    pieces = (
        b"\x12id\x00", _INT64(cursor_id), b"\x02ns\x00", _INT32(len(namespace) + 1), namespace, b"\x00\x04",
        batch_name, b"\x00", batch, b"\x00",
    )  # fmt: skip
    body = b"".join(pieces)
    return b"\x03cursor\x00" + _INT32(len(body) + 4) + body


def document_halves(before: bytes, behind: bytes, end: bytes) -> tuple[bytes, bytes]:
    """A `cursor_envelope` with what `document` puts around it: together with an id between them, a document."""
    size = _INT32(4 + len(before) + 8 + len(behind) + len(end))
    return size + before, behind + end


def write_errors(failures: Sequence[tuple[int, CommandError]]) -> list[dict[str, Any]]:
    """The `writeErrors` of a reply: (index of the statement, what went wrong) in order."""
    return [{"index": index, "code": error.code, **error.extra, "errmsg": error.message} for index, error in failures]
