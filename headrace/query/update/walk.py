"""An update's tree applied to a document: finds each field, asks its leaf, puts the answer in, writes the log.

Rule: the document given is not changed. Containers on a touched path are copied before they are entered (all of them
at once if a $rename may come back to one); everything else is shared between the old and the new document.

A path that leads nowhere is made, objects all the way, if a leaf wants to put something there; in an array it
may begin past the end, with nulls between. Where a scalar stands in the way that is error 28 (PathNotViable).
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import CommandError
from headrace.query.update.diff_log import DiffLog
from headrace.query.update.leaf_node import KEEP, Appended, Leaf, Moment, Path
from headrace.query.update.message_text import element_text, value_text
from headrace.query.update.rename import Rename
from headrace.query.update.update_tree import Elements, Fields
from headrace.values.bson import MISSING
from headrace.values.order import equal

ARRAY_PADDING_MAX: Final = 1_500_000
"""How far past its end an array may be written to."""

DOCUMENT_DEPTH_MAX: Final = 180
"""How deep users' documents may nest; MongoDB keeps 20 of its 200 levels for what it wraps around them."""


class Walk:
    """One run over one document. `document` is the new one; `log` is None while nobody writes down."""

    __slots__ = ("_moved", "copies", "document", "log", "moment", "positional")

    def __init__(self, document: dict[str, Any], moment: Moment, positional: str | None, has_rename: bool) -> None:
        self.copies = not has_rename
        self.document = copied(document) if has_rename else dict(document)
        self.log: DiffLog | None = None if moment.inserting else DiffLog()
        self.moment = moment
        self.positional = positional
        self._moved: list[Rename] = []

    def fields(self, node: Fields, container: Any, path: Path) -> bool:
        """Apply a node to an object or array that may be written to; whether anything changed."""
        changed = False
        for name, child in node.in_order(self.positional):
            if type(container) is dict:
                part: str | int = name
                old = container.get(name, MISSING)
            else:
                index = _index(name)
                part = name if index is None else index
                old = container[index] if index is not None and index < len(container) else MISSING
            if old is MISSING:
                changed |= self._create(child, container, part, name, path)
            else:
                changed |= self._existing(child, container, part, old, path)
        return changed

    # ---------------------------------------------------------------- what is there

    def _existing(self, node: Any, container: Any, part: Any, old: Any, path: Path) -> bool:
        here = (*path, part)
        if isinstance(node, Leaf):
            return self._change(node, container, part, old, here)
        if type(node) is Elements:
            if type(old) is not list:
                raise CommandError(2, f"Cannot apply array updates to non-array element {element_text(str(part), old)}")
            return self._elements(node, self._writable(container, part, old), here)
        if type(old) is dict or type(old) is list:
            return self.fields(node, self._writable(container, part, old), here)
        for name, child in node.in_order(self.positional):
            self._made(child, old, here, (name,))
        return False

    def _writable(self, container: Any, part: Any, old: Any) -> Any:
        if not self.copies:
            return old
        container[part] = fresh = old.copy()
        return fresh

    def _change(self, leaf: Leaf, container: Any, part: Any, old: Any, here: Path) -> bool:
        moment = self.moment
        if leaf.insert_only and not moment.inserting:
            return False
        if type(leaf) is Rename:
            return self._rename_over(leaf, container, part, old, here)
        new = leaf.change(old, moment, here)
        if new is KEEP:
            return False
        self._check_depth(leaf, here)
        if new is MISSING:
            self._remove(container, part, old, here)
            return True
        if type(new) is Appended:
            self._append(container, part, new, here)
            return True
        self._put(container, part, old, new, here)
        return True

    def _put(self, container: Any, part: Any, old: Any, new: Any, here: Path) -> None:
        _check_immutable(here, old, new)
        container[part] = new
        if self.log is not None:
            self.log.updated(here, new)

    def _append(self, container: Any, part: Any, new: Appended, here: Path) -> None:
        _check_immutable(here, container[part], new.array)
        array = container[part] = new.array
        if self.log is not None:
            for index in range(len(array) - new.count, len(array)):
                self.log.updated((*here, index), array[index])

    def _remove(self, container: Any, part: Any, old: Any, here: Path) -> None:
        if type(container) is list:
            self._put(container, part, old, None, here)
            return
        _check_immutable(here, old, MISSING)
        del container[part]
        if self.log is not None:
            self.log.deleted(here)

    def _elements(self, node: Elements, array: list[Any], path: Path) -> bool:
        """Apply to the elements that match; with several, the log has the one that changed, or the whole array."""
        found = [(index, child) for index, child in enumerate(map(node.matching, array)) if child is not None]
        if len(found) == 1:
            index, child = found[0]
            return self._existing(child, array, index, array[index], path)
        log, self.log = self.log, None
        changed = [index for index, child in found if self._existing(child, array, index, array[index], path)]
        self.log = log
        if log is not None and len(changed) == 1:
            log.updated((*path, changed[0]), array[changed[0]])
        elif log is not None and changed:
            log.updated(path, array)
        return bool(changed)

    # ---------------------------------------------------------------- what is to be made

    def _create(self, node: Any, container: Any, part: Any, name: str, path: Path) -> bool:
        """Make the missing field `part` of a container if a leaf below wants it; whether one did."""
        value = self._made(node, container, path, (name,))
        if value is MISSING:
            return False
        if type(container) is list:
            if part > ARRAY_PADDING_MAX:
                raise CommandError(34, f"can't backfill more than {ARRAY_PADDING_MAX} elements")
            container.extend([None] * (part - len(container)))
            container.append(value)
        else:
            container[part] = value
        if path and path[0] == "_id":
            raise _immutable((*path, part))
        if self.log is not None:
            here = (*path, part)
            if type(container) is list:
                self.log.updated(here, value)
            else:
                self.log.inserted(here, value)
        while self._moved:
            self._remove_source(self._moved.pop(0))
        return True

    def _made(self, node: Any, container: Any, path: Path, rest: tuple[str, ...]) -> Any:
        """The new value for `rest` below an existing container of any type, or MISSING if nothing is to be made."""
        if type(node) is Fields:
            children: dict[str, Any] = {}
            for name, child in node.in_order(self.positional):
                value = self._made(child, container, path, (*rest, name))
                if value is not MISSING:
                    children[name] = value
            return children or MISSING
        if type(node) is Elements:
            raise CommandError(
                2,
                f"The path '{_dotted((*path, *rest))}' must exist in the document in order to apply array updates.",
            )
        if node.insert_only and not self.moment.inserting:
            return MISSING
        if not node.creates:
            if not node.lenient and not _viable(container, rest[0]):
                raise _not_traversable(container, path, rest)
            return MISSING
        if type(node) is Rename:
            value = self._renamed(node, container, path)
        else:
            value = node.change(MISSING, self.moment, (*path, *rest))
        if value is MISSING:
            return MISSING
        if not _viable(container, rest[0]):
            raise _not_creatable(container, path, rest)
        self._check_depth(node, (*path, *rest))
        return value

    # ---------------------------------------------------------------- $rename

    def _renamed(self, leaf: Rename, container: Any, path: Path) -> Any:
        """The value to put at a target that does not exist, or MISSING if there is no source."""
        value = leaf.value(self.document)
        if value is not MISSING:
            leaf.check_target(self.document, path, type(container) is list)
            leaf.check_depth(value, DOCUMENT_DEPTH_MAX)
            self._moved.append(leaf)
        return value

    def _rename_over(self, leaf: Rename, container: Any, part: Any, old: Any, here: Path) -> bool:
        value = leaf.value(self.document)
        if value is MISSING:
            return False
        leaf.check_target(self.document, here, False)
        leaf.check_depth(value, DOCUMENT_DEPTH_MAX)
        self._put(container, part, old, value, here)
        self._remove_source(leaf)
        return True

    def _remove_source(self, leaf: Rename) -> None:
        container: Any = self.document
        for name in leaf.source[:-1]:
            container = container[name]
        self._remove(container, leaf.source[-1], container[leaf.source[-1]], leaf.source)

    def _check_depth(self, leaf: Leaf, here: Path) -> None:
        if leaf.depth + len(here) > DOCUMENT_DEPTH_MAX:
            raise CommandError(15, f"Document exceeds maximum nesting depth of {DOCUMENT_DEPTH_MAX}")


def copied(value: Any) -> Any:
    """The value with every object and array in it copied."""
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


def _index(name: str) -> int | None:
    """The place in an array that a part of an update's path means; leading zeros are let pass."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 20 else None


def _viable(container: Any, name: str) -> bool:
    return type(container) is dict or (type(container) is list and _index(name) is not None)


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _shown(container: Any, path: Path) -> str:
    return element_text(str(path[-1]), container) if path else value_text(container)


def _not_creatable(container: Any, path: Path, rest: tuple[str, ...]) -> CommandError:
    return CommandError(28, f"Cannot create field '{rest[0]}' in element {{{_shown(container, path)}}}")


def _not_traversable(container: Any, path: Path, rest: tuple[str, ...]) -> CommandError:
    return CommandError(
        28,
        f"Cannot use the part ({rest[0]}) of ({_dotted((*path, *rest))}) "
        f"to traverse the element ({{{_shown(container, path)}}})",
    )


def _check_immutable(here: Path, old: Any, new: Any) -> None:
    """`_id` may change its type as long as it stays equal; nothing inside it may change."""
    if here[0] == "_id" and (len(here) > 1 or new is MISSING or not equal(old, new)):
        raise _immutable(here)


def _immutable(here: Path) -> CommandError:
    return CommandError(
        66, f"Performing an update on the path '{_dotted(here)}' would modify the immutable field '_id'"
    )
