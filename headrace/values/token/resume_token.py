"""Resume tokens from clients: decoded to their fields, or refused with MongoDB's code.

Rule: any token that a MongoDB client may have is accepted: lower-case digits, a missing end byte, bytes after the end,
more fields than `_data`, missing type bits, versions 0 to 2. `make_token.py` makes tokens.

This module does not check whether the event exists: reading the stream shows it (`changes/resume.py`). Numbers 6189500
to 6189505 are MongoDB's for invalid identifiers. The meaning of each number is our guess.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import CommandError
from headrace.values.bson import find_element, first_element
from headrace.values.bson.to_string import to_compact_string
from headrace.values.keystring import decode_all
from headrace.values.token.make_token import (
    EVENT,
    HIGH_WATER_MARK,
    VERSION_LATEST,
    assemble,
    event_bits,
)

_STRING, _OBJECT, _BINARY, _BOOL, _DATE, _NULL, _INT, _TIMESTAMP = 0x02, 0x03, 0x05, 0x08, 0x09, 0x0A, 0x10, 0x11
_UUID_HEAD: Final = b"\x10\0\0\0\x04"


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A decoded token. `event_identifier` is raw BSON. It is None only in high-water marks and old drops."""

    cluster_time: int
    version: int
    token_type: int
    txn_op_index: int
    from_invalidate: bool
    uuid: bytes | None
    event_identifier: bytes | None
    fragment: int | None
    given: str
    type_bits: bytes | None

    @property
    def is_high_water_mark(self) -> bool:
        """Whether the token is a position between events instead of an event's token."""
        return self.token_type == HIGH_WATER_MARK

    @property
    def operation_type(self) -> str | None:
        """The event's operationType if the token contains it (always in version 2), otherwise None."""
        if not _is_named(self.event_identifier, self.version):
            return None
        return _name_of(self.event_identifier)

    @property
    def document_key(self) -> bytes | None:
        """The raw documentKey; None if the event has none."""
        if not _is_named(self.event_identifier, self.version):
            return self.event_identifier
        return _object_in(self.event_identifier, b"documentKey")

    def text(self, *, fragment: bool = True, version: int | None = None) -> str:
        """The token in canonical form, as Headrace makes it. Without `fragment`, the token of the unsplit event.

        For a token of version 0, `version` 1 gives the text for comparisons in a stream that answers with version 1.
        """
        return assemble(
            self.cluster_time,
            self.token_type,
            self.txn_op_index,
            self.from_invalidate,
            self.uuid,
            self.event_identifier,
            self.fragment if fragment else None,
            self.version if version is None else version,
        )

    def unsplit_event(self) -> dict[str, Any]:
        """The canonical token document of the unsplit event, if this is the token of a fragment."""
        bits = event_bits(self.event_identifier, None, self.version)
        return {"_data": self.text(fragment=False)} | ({} if bits is None else {"_typeBits": bits})

    def document(self) -> dict[str, Any]:
        """The token document as the client sent it, without fields that do not belong to a token."""
        return {"_data": self.given} | ({} if self.type_bits is None else {"_typeBits": self.type_bits})


def decode_token(document: Mapping[str, Any]) -> ResumeToken:
    """The token `{_data[, _typeBits]}`. Raises 9, 40647 to 40649 and the codes of the reference, section 2.2."""
    data = document.get("_data")
    if type(data) is not str:
        raise CommandError(
            40647,
            f"Bad resume token: _data of missing or of wrong type. Expected string, got {to_compact_string(document)}",
        )
    type_bits = document.get("_typeBits")
    if "_typeBits" in document and type(type_bits) is not bytes:
        raise CommandError(40648, f"Bad resume token: _typeBits of wrong type {to_compact_string(document)}")
    try:
        key = unhexlify(data)
    except ValueError:
        raise CommandError(9, "resume token string was not a valid hex string") from None
    values = decode_all(key, type_bits)
    if not values:
        raise CommandError(40649, "invalid empty resume token")
    return _TokenReader(values).token(data, type_bits)


class _TokenReader:
    """Reads the values of a token one by one. Raises the codes for missing and invalid values."""

    def __init__(self, values: list[tuple[int, bytes]]) -> None:
        self._values = values
        self._at = 0

    def token(self, given: str, type_bits: bytes | None) -> ResumeToken:
        cluster_time = self._cluster_time()
        version = self._int("version", 50796, 50854)
        if version not in (0, 1, 2):
            raise CommandError(50795, "Invalid Resume Token: only supports version 0, 1 and 2")
        token_type = self._token_type() if version else EVENT
        txn_op_index = self._int("txnOpIndex", 50793, 50855)
        if txn_op_index < 0:
            raise CommandError(50794, "Invalid Resume Token: txnOpIndex should be non-negative")
        from_invalidate = self._from_invalidate() if version else False
        uuid = self._uuid(version)
        identifier = self._identifier(version, token_type, uuid)
        fragment = self._fragment()
        if self._more():
            raise CommandError(40646, "invalid oversized resume token")
        if not version and uuid is None:
            token_type = HIGH_WATER_MARK  # Version 0 has no token types: its high-water marks are a bare time.
        return ResumeToken(
            cluster_time,
            version,
            token_type,
            txn_op_index,
            from_invalidate,
            uuid,
            identifier,
            fragment,
            given,
            type_bits,
        )

    def _more(self) -> bool:
        return self._at < len(self._values)

    def _next(self, name: str, missing: int) -> tuple[int, bytes]:
        if not self._more():
            raise CommandError(missing, f"Resume Token does not contain {name}")
        self._at += 1
        return self._values[self._at - 1]

    def _cluster_time(self) -> int:
        """The cluster time as MongoDB reads it: a timestamp, or a date's 64 bits. Any other value counts as time 0."""
        kind, value = self._next("clusterTime", 40649)
        return int.from_bytes(value, "little") if kind in (_TIMESTAMP, _DATE) else 0

    def _int(self, name: str, missing: int, wrong_type: int) -> int:
        kind, value = self._next(name, missing)
        if kind != _INT:
            raise CommandError(wrong_type, f"Invalid resume token: wrong type for {name}")
        return int.from_bytes(value, "little", signed=True)

    def _token_type(self) -> int:
        token_type = self._int("tokenType", 51055, 51056)
        if token_type not in (HIGH_WATER_MARK, EVENT):
            raise CommandError(51057, f"Invalid resume token: unknown tokenType {token_type}")
        return token_type

    def _from_invalidate(self) -> bool:
        kind, value = self._next("fromInvalidate", 50872)
        if kind != _BOOL:
            raise CommandError(50870, "Resume Token fromInvalidate is not a boolean.")
        return value != b"\0"

    def _uuid(self, version: int) -> bytes | None:
        if version < VERSION_LATEST and not self._more():
            return None
        kind, value = self._next("a UUID, or null", 6189500)
        if kind == _NULL and version == VERSION_LATEST:
            return None
        if kind != _BINARY or value[:5] != _UUID_HEAD:
            raise CommandError(6189501, "Resume Token does not contain a valid UUID")
        return value[5:]

    def _identifier(self, version: int, token_type: int, uuid: bytes | None) -> bytes | None:
        if not self._more():
            if version == VERSION_LATEST and token_type == EVENT:
                raise CommandError(6189502, "Resume Token of an event does not contain an eventIdentifier")
            return None
        if token_type == HIGH_WATER_MARK:
            raise CommandError(6189505, "Resume Token of a high water mark contains an eventIdentifier")
        kind, identifier = self._next("eventIdentifier", 6189502)
        if kind != _OBJECT:
            raise CommandError(6189503, "Resume Token eventIdentifier is not an object")
        if version == VERSION_LATEST and _name_of(identifier) is None:
            raise CommandError(6189504, "Resume Token eventIdentifier does not contain an operationType")
        return identifier

    def _fragment(self) -> int | None:
        if not self._more():
            return None
        kind, value = self._next("fragmentNum", 7182501)
        fragment = int.from_bytes(value, "little", signed=True) if kind == _INT else -1
        if fragment < 0:
            raise CommandError(7182501, "Resume token 'fragmentNum' must be a non-negative integer.")
        return fragment


def _is_named(identifier: bytes | None, version: int) -> bool:
    """Whether the identifier begins with an operationType. Otherwise it is the documentKey itself."""
    if identifier is None:
        return False
    first = first_element(identifier)
    return version == VERSION_LATEST or (first is not None and first[:2] == (_STRING, b"operationType"))


def _name_of(identifier: bytes | None) -> str | None:
    element = None if identifier is None else find_element(identifier, b"operationType")
    if identifier is None or element is None or element[0] != _STRING:
        return None
    return identifier[element[1] + 4 : element[2] - 1].decode(errors="replace")


def _object_in(identifier: bytes | None, name: bytes) -> bytes | None:
    element = None if identifier is None else find_element(identifier, name)
    if identifier is None or element is None or element[0] != _OBJECT:
        return None
    return identifier[element[1] : element[2]]
