"""The memory that the stages of one operation may hold, and the disk for the rest.

    with operation.stage("$sort") as memory:      one run of a blocking stage
        memory.add(size)
        if memory.is_over: stream = memory.spill_stream(); stream.append(record) ...; memory.spilled(records, size)

Sizes are estimates: the bytes of BSON, or a flat amount for a value. Rule: a stage calls `add` at least once for each
megabyte that it takes, so that the account of the process stays up to date. Source: MongoDB's limit of 100 MB for a
stage, `allowDiskUse` and the counters of serverStatus; messages and codes are the server's.

Values whose parts are shared: a stage that refers to a field twice takes no memory, but its result is twice as large
once it is encoded. After thirty such stages it is a thousand million times as large. Rule: the value of each
expression of a stage, and each document that is encoded, is measured. Each shared part is measured once, so the time
depends on the memory, not on the encoded size. A size is a lower bound of the BSON: a document that fits is never
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import chain
from typing import Any, Final, Protocol

from bson import Decimal128, Int64, ObjectId, Timestamp
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.errors import CommandError
from headrace.memory_budget import UNLIMITED, Account
from headrace.values.bson import Missing, decode, encode, encode_in_order

_STEP_BYTES: Final = 1024 * 1024


class RecordStream(Protocol):
    """Records on disk, in the order in which they were appended."""

    def append(self, record: bytes) -> None:
        """Add a record. Raises 14031 if the disk is full."""

    def records(self) -> Iterator[bytes]:
        """All records, from the first."""


class RecordFile(Protocol):
    """A temporary file of one stage."""

    def stream(self) -> RecordStream:
        """A new sequence of records in the file."""

    def close(self) -> None:
        """Remove the file."""


class OperationMemory:
    """The limits of one operation, which all its stages share. `account` is its part of the process's memory budget."""

    __slots__ = ("_metrics", "_open_file", "account", "bytes_max", "may_spill", "spills")

    def __init__(
        self, bytes_max: Callable[[str], int] = lambda stage: UNLIMITED, *, account: Account | None = None,
        open_file: Callable[[], RecordFile] | None = None, may_spill: bool = True,
        metrics: MutableMapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """`bytes_max` returns the limit of a stage by its name. `open_file` makes a temporary file; None if there is no
        disk. `may_spill` is the operation's `allowDiskUse`. `metrics` are the counters of serverStatus by dotted name;
        a missing counter starts at 0."""
        self.bytes_max = bytes_max
        self.account = account
        self.may_spill = may_spill and open_file is not None
        self.spills: dict[str, dict[str, int]] = {}
        """Counters of spills by the name of the stage, for explain."""
        self._open_file = open_file
        self._metrics = metrics

    def stage(self, name: str) -> StageMemory:
        """The memory of one run of a stage, by the stage's name."""
        return StageMemory(self, name)

    def add(self, size: int) -> None:
        """Count memory that the operation holds outside of its stages until it ends."""
        if self.account is not None:
            self.account.add(size)

    def when_needed(self, release: Callable[[], object]) -> None:
        """From now on call `release` when the process needs the memory."""
        if self.account is not None:
            self.account.when_needed(release)

    def close(self) -> None:
        """End the operation: close its account, which returns its remaining memory."""
        if self.account is not None:
            self.account.close()

    @property
    def has_disk(self) -> bool:
        """Whether temporary files can be made."""
        return self._open_file is not None

    def open_file(self) -> RecordFile:
        """A new temporary file. Requires `has_disk`."""
        assert self._open_file is not None
        return self._open_file()

    def count_spill(self, name: str, records: int, size: int) -> None:
        """Count the records and bytes that a stage has spilled."""
        counters = self.spills.setdefault(name, {"spills": 0, "spilledRecords": 0, "spilledBytes": 0})
        counters["spills"] += 1
        counters["spilledRecords"] += records
        counters["spilledBytes"] += size
        metrics = self._metrics
        if metrics is None:
            return
        metric = f"query.{name.lstrip('$')}"
        if name == "$sort":
            metrics[f"{metric}.spillToDisk"] += 1
            metrics[f"{metric}.spillToDiskBytes"] += size
            return
        metrics[f"{metric}.spills"] += 1
        metrics[f"{metric}.spilledBytes"] += size
        metrics[f"{metric}.spilledRecords"] += records


class StageMemory:
    """The memory of one run of a stage: a context manager that returns the memory at its end."""

    __slots__ = ("_file", "_name", "_operation", "bytes_max", "step", "used")

    def __init__(self, operation: OperationMemory, name: str) -> None:
        self._operation = operation
        self._name = name
        self._file: RecordFile | None = None
        self.bytes_max = operation.bytes_max(name)
        self.step = max(1, min(_STEP_BYTES, self.bytes_max // 16))
        """The bytes that a stage may take between two calls of `add`."""
        self.used = 0

    def __enter__(self) -> StageMemory:
        return self

    def __exit__(self, *failure: object) -> None:
        self.add(-self.used)
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, size: int) -> None:
        """Take `size` bytes; a negative size returns them. Raises 146 if the process has no memory left."""
        self.used += size
        account = self._operation.account
        if account is not None:
            account.add(size)

    @property
    def is_over(self) -> bool:
        """Whether the stage holds more than its limit."""
        return self.used > self.bytes_max

    def check(self, code: int, message: Callable[[int], str]) -> None:
        """Raise `code` if the stage, which cannot spill, holds more than its limit. `message` receives the limit."""
        if self.used > self.bytes_max:
            raise CommandError(code, message(self.bytes_max))

    def spill_stream(self, *, without_asking: bool = False) -> RecordStream:
        """A new sequence of records on disk. Raises 292 without `allowDiskUse` (`without_asking`: only without a
        disk)."""
        if not (self._operation.has_disk if without_asking else self._operation.may_spill):
            raise _no_disk_use(self._name, self.bytes_max)
        if self._file is None:
            self._file = self._operation.open_file()
        return self._file.stream()

    def spilled(self, records: int, size: int) -> None:
        """Count the records and bytes of one spill."""
        self._operation.count_spill(self._name, records, size)


UNBOUNDED: Final = OperationMemory()


def _no_disk_use(name: str, bytes_max: int) -> CommandError:
    """Error 292 (QueryExceededMemoryLimitNoDiskUseAllowed), with the message of the stage."""
    if name in ("$bucketAuto", "$sort"):
        return CommandError(
            292, f"Sort exceeded memory limit of {bytes_max} bytes, but did not opt in to external sorting."
        )
    return CommandError(
        292, f"Exceeded memory limit for {name}, but didn't allow external spilling; pass allowDiskUse:true to opt in"
    )


# The size of a value.

_NUMBER: Final = 32
_TEXT: Final = 56
_ARRAY: Final = 64
_ELEMENT: Final = 8
_DOCUMENT: Final = 200
_FIELD: Final = 56
_MANY: Final = 16
"""The number of values from which a check whether all have the same type pays off."""
_FLAT: Final[dict[type, int]] = {
    bool: 0, int: _NUMBER, Int64: 2 * _NUMBER, float: _NUMBER, type(None): 0, ObjectId: 88, DatetimeMS: 64,
    Missing: 0, Timestamp: 96, Decimal128: 128,
}  # fmt: skip


def size_of(value: Any) -> int:
    """About how many bytes a value takes in memory, including everything inside documents and arrays."""
    kind = type(value)
    if kind in _FLAT:
        return _FLAT[kind]
    if kind is str:
        return _TEXT + len(value)
    if kind is dict:
        size, items = _DOCUMENT + _FIELD * len(value), value.values()
    elif kind is list:
        size, items = _ARRAY + _ELEMENT * len(value), value
    else:
        return _TEXT + len(value) if isinstance(value, bytes) else _DOCUMENT
    if len(value) < _MANY:
        return size + sum(map(size_of, items)) if value else size
    kinds = set(map(type, items))
    size_of_each = _FLAT.get(kinds.pop()) if len(kinds) == 1 else None
    return size + (sum(map(size_of, items)) if size_of_each is None else size_of_each * len(value))


class Tape:
    """All documents of an iterator, read at once when the tape is made."""

    def __init__(
        self, documents: Iterable[dict[str, Any] | bytes], memory: StageMemory, *, without_asking: bool = False
    ) -> None:
        """`documents` may be decoded or raw. `without_asking`: use the disk even without `allowDiskUse`.

        Raises 292 if the disk may not be used.
        """
        self._records: list[bytes] = []
        self._stream: RecordStream | None = None
        count = size = 0
        for document in documents:
            record = document if isinstance(document, bytes) else encoded_between(document)
            if self._stream is not None:
                self._stream.append(record)
                count, size = count + 1, size + len(record)
                continue
            self._records.append(record)
            size += len(record)
            if size >= memory.step:
                memory.add(size)
                size = 0
                if memory.is_over:
                    self._stream = memory.spill_stream(without_asking=without_asking)
        if count:
            memory.spilled(count, size)

    def documents(self) -> Iterator[dict[str, Any]]:
        """All documents, from the first."""
        for record in chain(self._records, () if self._stream is None else self._stream.records()):
            yield decode(record)


# The size of values whose parts are shared.


CONTAINERS: Final = frozenset({dict, list})
_ELEMENT_LEAST: Final = 3  # a type, the end of a name, and at least one byte of name or value
_ELEMENT_HELD: Final = 24  # about the memory of a short value
_SMALL: Final = 64 * 1024  # measured without looking for shared parts
_SHORT: Final = 16  # up to this many values are measured one by one; more are first checked for any sized value
_SIZED: Final = frozenset({Binary, bytes, dict, list, str})


def size_above(most: int, value: Any, element: int = _ELEMENT_LEAST) -> int:
    """Return the size of a document or an array if it exceeds `most` bytes, otherwise 0. `element`: the size of each
    value without its text."""
    if _left_of(min(_SMALL, most), value, element) >= 0:
        return 0
    size = _size(value, {}, element)
    return size if size > most else 0


def _left_of(left: int, value: Any, element: int) -> int:
    """Return the rest of `left` bytes after the value. The result is negative as soon as they do not suffice."""
    left -= element * len(value)
    items = value if type(value) is list else value.values()
    if left < 0 or (len(items) > _SHORT and _SIZED.isdisjoint(map(type, items))):
        return left
    for item in items:
        kind = type(item)
        if kind is str:
            left -= len(item)
        elif kind is dict or kind is list:
            left = _left_of(left, item, element)
            if left < 0:
                return left
        elif kind in _SIZED:
            left -= len(item)
    return left


def _size(value: Any, sizes: dict[int, int], element: int) -> int:
    """Return the size of the value. `sizes` has the sizes of parts that were already measured, by identity."""
    size = element * len(value)
    items = value if type(value) is list else value.values()
    for item in items:
        kind = type(item)
        if kind is dict or kind is list:
            part = sizes.get(id(item))
            if part is None:
                part = sizes[id(item)] = _size(item, sizes, element)
            size += part
        elif kind in _SIZED:
            size += len(item)
    return size


def check(value: Any) -> Any:
    """Return the document or array. Raises 146 if it is larger than `EXPRESSION_BYTES_MAX`."""
    if size_above(limits.EXPRESSION_BYTES_MAX, value, _ELEMENT_HELD):
        raise CommandError(146, f"an expression makes a value of more than {limits.EXPRESSION_BYTES_MAX} bytes")
    return value


def encoded_between(document: dict[str, Any]) -> bytes:
    """Encode a document between two stages. It may be larger than a stored one. Raises 146."""
    return encode_in_order(check(document))


def encoded(document: dict[str, Any]) -> bytes:
    """Encode a computed document as BSON, its fields in order. Raises 10334 if it is too large."""
    if _left_of(_SMALL, document, _ELEMENT_LEAST) < 0:
        _check_document(document)
    return encode_in_order(document)


def encoded_for_storage(document: dict[str, Any]) -> bytes:
    """Encode a computed document as BSON, with `_id` first. Raises as `encoded`."""
    if _left_of(_SMALL, document, _ELEMENT_LEAST) < 0:
        _check_document(document)
    return encode(document)


def _check_document(document: dict[str, Any]) -> None:
    most = limits.INTERNAL_DOCUMENT_BYTES_MAX
    size = size_above(most, document)
    if size:
        raise CommandError(
            10334, f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and {most}(16MB)"
        )
