"""Checks of a data file's pages without LMDB, which trusts the pages and may end the process if they are damaged.

Every page that the newest transaction uses is read once. The page must be in the file and have the number that its
parent names. Its nodes must lie within the page, and its keys must ascend within its parent's bounds. Each table must
have as many pages and items as it records. No page may be used twice, or be used and free.

Stored values are not checked: `directory.py` does that once the pages are sound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.store.data_file import BIG, BRANCH, LEAF, NO_PAGE, NODE, PAGE, TABLE, DataFile, FileProblem

_OVERFLOW: Final = 4
_DEPTH_MAX: Final = 32  # LMDB's cursors have no more levels
_TREE: Final = struct.Struct("=IHHQQQQQ")
_NUMBER: Final = struct.Struct("=Q")
_COUNT: Final = struct.Struct("=I")
_HEADER_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class _Tree:
    """The description of one table in the file."""

    name: str
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    items: int
    root: int

    @classmethod
    def parsed(cls, name: str, data: bytes) -> _Tree:
        """Parse 48 bytes of a meta page or of the list of tables."""
        _, _, depth, branch, leaf, overflow, items, root = _TREE.unpack(data)
        return cls(name, depth, branch, leaf, overflow, items, root)


class _Pages:
    """The pages of all trees of a file."""

    def __init__(self, file: DataFile, advance: Callable[[str, int, int], object]) -> None:
        self.file = file
        self._advance = advance
        self.used: set[int] = {0, 1}
        self.free: list[int] = []
        """The page numbers in the list of free pages."""
        self.tables: list[tuple[str, bytes]] = []
        """Names and descriptions of the tables in the list of tables."""

    def take(self, number: int, count: int = 1) -> bytes:
        """Return a page, the first of `count`. Raises `FileProblem` if another page has already named it."""
        if not 1 < number <= number + count - 1 <= self.file.meta.last_page:
            raise FileProblem(f"names page {number}, which it does not have")
        page = self.file.page(number, count)
        numbers = range(number, number + count)
        if not self.used.isdisjoint(numbers):
            raise FileProblem(f"uses page {number} twice")
        self.used.update(numbers)
        self._advance("pages", len(self.used), self.file.meta.last_page + 1)
        if _NUMBER.unpack_from(page)[0] != number:
            raise FileProblem(f"has another page where page {number} should be")
        return page


def page_problems(file: DataFile, advance: Callable[[str, int, int], object]) -> Iterator[str]:
    """Yield the faults of the file's pages, one sentence each; none for a sound file. `advance`: see `check`."""
    pages = _Pages(file, advance)
    yield from _tree_problems(pages, _Tree.parsed("the list of free pages", file.meta.free), integer_keys=True)
    yield from _tree_problems(pages, _Tree.parsed("the list of tables", file.meta.main))
    for name, data in pages.tables:
        if len(data) != _TREE.size:
            yield f"the list of tables is damaged at {name}"
        else:
            yield from _tree_problems(pages, _Tree.parsed(f"the table {name}", data))
    both = pages.used.intersection(pages.free)
    if both:
        yield f"{len(both)} pages are in use and listed as free, the first is page {min(both)}"
    if len(set(pages.free)) != len(pages.free):
        yield "a page is listed as free more than once"


def _tree_problems(pages: _Pages, tree: _Tree, *, integer_keys: bool = False) -> Iterator[str]:
    """Yield the faults of one tree of pages."""
    if tree.root == NO_PAGE:
        if tree.items or tree.depth:
            yield f"{tree.name} has {tree.items} items and no pages"
        return
    walk = _Walk(pages, tree, integer_keys)
    try:
        walk.page(tree.root, 1, None, None)
    except FileProblem as problem:
        yield f"{tree.name}: the file {problem}"
        return
    except (struct.error, IndexError):
        yield f"{tree.name}: a page is damaged"
        return
    counted = (walk.branch_pages, walk.leaf_pages, walk.overflow_pages, walk.items)
    if counted != (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.items):
        yield f"{tree.name} has {walk.items} items, and says that it has {tree.items}, or other pages than it says"


class _Walk:
    """A walk through one tree from its root."""

    def __init__(self, pages: _Pages, tree: _Tree, integer_keys: bool) -> None:
        self._pages = pages
        self._tree = tree
        self._integer_keys = integer_keys
        self.branch_pages = self.leaf_pages = self.overflow_pages = self.items = 0

    def page(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        """Check a page and the pages below it. Its keys are from `low`, inclusive, to `high`, exclusive."""
        page = self._pages.take(number)
        flags, lower, upper = PAGE.unpack_from(page)
        is_leaf = depth == self._tree.depth
        if flags & (BRANCH | LEAF) != (LEAF if is_leaf else BRANCH) or depth > min(self._tree.depth, _DEPTH_MAX):
            raise FileProblem(f"has a page of the wrong kind, page {number}")
        if not _HEADER_BYTES < lower <= upper <= len(page) or lower % 2:
            raise FileProblem(f"is damaged in page {number}")
        offsets = [offset for (offset,) in struct.iter_unpack("=H", page[_HEADER_BYTES:lower])]
        if min(offsets) < upper or max(offsets) + NODE.size > len(page):
            raise FileProblem(f"is damaged in page {number}")
        if is_leaf:
            self.leaf_pages += 1
            self._leaf(number, page, offsets, low, high)
        else:
            self.branch_pages += 1
            self._branch(number, page, offsets, depth, low, high)

    def _key(self, key: bytes) -> bytes:
        """Return a key in the form in which it sorts."""
        return _NUMBER.unpack(key)[0].to_bytes(8, "big") if self._integer_keys else key

    def _branch(
        self, number: int, page: bytes, offsets: list[int], depth: int, low: bytes | None, high: bytes | None
    ) -> None:
        """Check a branch page. Its first key is not used: the first child's keys begin at the page's lower bound."""
        children: list[int] = []
        bounds: list[bytes | None] = []
        for index, offset in enumerate(offsets):
            low_bits, middle_bits, high_bits, key_bytes = NODE.unpack_from(page, offset)
            start = offset + NODE.size
            if start + key_bytes > len(page):
                raise FileProblem(f"is damaged in page {number}")
            children.append(low_bits | middle_bits << 16 | high_bits << 32)
            bounds.append(low if index == 0 else self._key(page[start : start + key_bytes]))
        for child, first, end in zip(children, bounds, [*bounds[1:], high]):
            if first is not None and end is not None and first >= end:
                raise FileProblem(f"has keys out of order in page {number}")
            self.page(child, depth + 1, first, end)

    def _leaf(self, number: int, page: bytes, offsets: list[int], low: bytes | None, high: bytes | None) -> None:
        before = None
        for offset in offsets:
            low_bits, high_bits, flags, key_bytes = NODE.unpack_from(page, offset)
            start = offset + NODE.size + key_bytes
            size = low_bits | high_bits << 16
            end = start + (_NUMBER.size if flags & BIG else size)
            if end > len(page) or flags & ~(BIG | TABLE):
                raise FileProblem(f"is damaged in page {number}")
            name, data = page[start - key_bytes : start], page[start:end]
            key = self._key(name)
            is_out = (low is not None and key < low) or (high is not None and key >= high)
            if is_out or (before is not None and key <= before):
                raise FileProblem(f"has keys out of order in page {number}")
            before = key
            self.items += 1
            if flags & BIG:
                data = self._overflow(number, _NUMBER.unpack(data)[0], size)
            if self._integer_keys:
                self._pages.free += [item for (item,) in _NUMBER.iter_unpack(data)][1:]
            elif flags & TABLE:
                self._pages.tables.append((name.decode(errors="replace"), data))

    def _overflow(self, number: int, first: int, size: int) -> bytes:
        """Return the data of a node that has pages of its own. Only the data of the list of free pages is read."""
        needed = -(-(size + _HEADER_BYTES) // self._pages.file.meta.page_bytes)
        head = self._pages.file.page(first, needed)
        count = _COUNT.unpack_from(head, 12)[0]
        if not PAGE.unpack_from(head)[0] & _OVERFLOW or count < needed:
            raise FileProblem(f"is damaged in page {number}")
        self._pages.take(first, count)
        self.overflow_pages += count
        return self._pages.file.data(first, size) if self._integer_keys else b""
