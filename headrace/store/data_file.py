"""Checks of a data directory before LMDB opens it. LMDB maps a file unchecked, and a file that is too short ends the
process.

Rule: a refused directory stays unchanged. Nothing is locked, written or created here.

    page 0, 1   16 bytes of header · uint32 magic · uint32 version · 16 bytes · two tables of 48 bytes (free pages,
                tables by name) · uint64 last page · uint64 transaction; the greater transaction counts
    page        uint64 number · uint16 · uint16 flags · uint16 end of the offsets · uint16 · uint16 offset of each node
    node        uint16 low · uint16 high · uint16 flags · uint16 key size · key · data
    table       40 bytes · uint64 root page

Most pages are only checked to exist. The tree is walked if the file is shorter than its last page requires: LMDB never
writes pages at the end that one transaction both takes and frees.

Source: the layout of LMDB 0.9's file, in the machine's byte order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DATA_FILE: Final = "data.mdb"
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
NO_PAGE: Final = (1 << 64) - 1
BRANCH: Final = 1
LEAF: Final = 2
BIG: Final = 1
TABLE: Final = 2
_META = struct.Struct("=II16xI36xQ40xQQQ")
PAGE: Final = struct.Struct("=8x2xHHH")
NODE: Final = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")


class UnusableDirectory(Exception):
    """The data directory cannot be opened: its file is damaged, belongs to another program, or cannot be written."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """The contents of a meta page. Roots are page numbers; `free` and `main` are the raw descriptions of two tables."""

    page_bytes: int
    free_root: int
    main_root: int
    last_page: int
    transaction: int
    free: bytes
    main: bytes


def check_directory(path: Path, tables: tuple[str, ...], *, used: bool) -> None:
    """Raise `UnusableDirectory` unless the directory has no data or holds a complete file with these tables.

    `used`: a server has opened the directory before, so an empty file is not a new one.
    """
    if not (path / DATA_FILE).exists():
        if (path / "WiredTiger").exists() or (path / "storage.bson").exists():
            raise UnusableDirectory(f"{path} holds the data of a MongoDB server; give another --dbpath")
        return
    file = path / DATA_FILE
    for item in (path, file):
        if not os.access(item, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise UnusableDirectory(f"{item} is read-only for this user")
    file_bytes = file.stat().st_size
    if file_bytes == 0:
        if used:
            raise UnusableDirectory(f"{file} is empty, though the directory has held data; restore it from a copy")
        return
    with file.open("rb") as opened:
        try:
            _check_file(DataFile(opened.fileno(), file_bytes), tables)
        except FileProblem as problem:
            raise UnusableDirectory(f"{file} {problem}") from None
        except (struct.error, UnicodeDecodeError, RecursionError):
            raise UnusableDirectory(f"{file} is damaged; restore it from a copy") from None


class FileProblem(Exception):
    """A fault of a file. The message continues a sentence that begins with the file's name."""


class DataFile:
    """A data file whose pages are read one at a time."""

    def __init__(self, descriptor: int, file_bytes: int) -> None:
        self._descriptor = descriptor
        self.file_bytes = file_bytes
        self.meta = self._newest_meta()

    def _newest_meta(self) -> _Meta:
        first = self._meta(0)
        second = self._meta(first.page_bytes)
        return max(first, second, key=lambda meta: meta.transaction)

    def _meta(self, offset: int) -> _Meta:
        data = os.pread(self._descriptor, 16 + _META.size, offset)
        if len(data) < 16 + _META.size:
            raise FileProblem("is truncated or no data file of Headrace; restore it from a copy")
        magic, version, page_bytes, free_root, main_root, last_page, transaction = _META.unpack_from(data, 16)
        if magic != _MAGIC or page_bytes not in _PAGE_SIZES:
            raise FileProblem("is no data file of Headrace, or damaged")
        if version != _VERSION:
            raise FileProblem(f"was written by an LMDB with format {version}, not {_VERSION}")
        return _Meta(page_bytes, free_root, main_root, last_page, transaction, data[40:88], data[88:136])

    @property
    def needed_bytes(self) -> int:
        """The size of the file if all its pages are written."""
        return (self.meta.last_page + 1) * self.meta.page_bytes

    def page(self, number: int, count: int = 1) -> bytes:
        """Return a page. Raises `FileProblem` if the page, or the last of `count` pages from it on, is beyond the
        end."""
        size = self.meta.page_bytes
        if (number + count) * size > self.file_bytes:
            raise FileProblem(
                f"is truncated: it has {self.file_bytes} bytes and needs {self.needed_bytes}; restore it from a copy"
            )
        return os.pread(self._descriptor, size, number * size)

    def data(self, first: int, size: int) -> bytes:
        """Return data that begins on a page and continues on the following pages."""
        return os.pread(self._descriptor, size, first * self.meta.page_bytes + 16)

    def nodes(self, root: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (key, flags, data) of each leaf node below a page. For large data, yield the 8 bytes that name its
        page."""
        if root == NO_PAGE:
            return
        page = self.page(root)
        flags, lower, _ = PAGE.unpack_from(page)
        for (offset,) in struct.iter_unpack("=H", page[16:lower]):
            low, high, node_flags, key_bytes = NODE.unpack_from(page, offset)
            if flags & BRANCH:
                yield from self.nodes(low | high << 16 | node_flags << 32)
            elif flags & LEAF:
                data_bytes = low | high << 16
                at = offset + NODE.size + key_bytes
                if node_flags & BIG:
                    (number,) = _NUMBER.unpack_from(page, at)
                    self.page(number, -(-(data_bytes + 16) // self.meta.page_bytes))
                yield page[at - key_bytes : at], node_flags, page[at : at + data_bytes]
            else:
                raise FileProblem("is damaged; restore it from a copy")


def _check_file(file: DataFile, tables: tuple[str, ...]) -> None:
    is_short = file.file_bytes < file.needed_bytes
    if is_short:
        for _ in file.nodes(file.meta.free_root):
            pass
    for name, flags, data in file.nodes(file.meta.main_root):
        if flags & TABLE == 0 or name.decode() not in tables:
            raise FileProblem("is an LMDB file of another program; give another --dbpath")
        if is_short:
            for _ in file.nodes(_NUMBER.unpack_from(data, 40)[0]):
                pass
