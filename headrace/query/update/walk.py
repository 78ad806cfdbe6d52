"""Applies an update tree to a document: finds each field, calls its leaf, stores the result and records the diff.

Rule: the given document is not changed. Containers on an updated path are copied before they are entered. A $rename may
reach any container, so then all are copied in advance. The old and the new document share all other values.

If a leaf creates a field, the missing part of its path is created as nested objects. An index past the end of an array
pads the array with nulls. A scalar on the path is error 28 (PathNotViable).

Rule of the $v: 2 diff (reference: change-streams.md §3.4): a changed field goes to section `u`, a new field to `i` at
its first created component, a removed field to `d`. Changes within arrays are recorded by index. Fields are in the
order in which they changed, sections in the order d, u, i, sub-diffs. There are no empty sub-diffs.
"""

from __future__ import annotations

from typing import Any

from headrace import limits
from headrace.errors import CommandError
from headrace.query.update.update_tree import (
    NO_OP,
    Appended,
    ApplyParams,
    FieldRef,
    RenameNode,
    UpdateArrayNode,
    UpdateLeafNode,
    UpdateObjectNode,
    dotted,
    element_text,
)
from headrace.values.bson import MISSING, to_string
from headrace.values.order import equal


class DiffLog:
    """Collects the changes of a document, by path. An int in a path is an index in an array."""

    __slots__ = ("children", "sections")

    def __init__(self) -> None:
        self.sections: dict[str, dict[Any, Any]] = {}
        self.children: dict[Any, Any] = {}

    def updated(self, path: FieldRef, value: Any) -> None:
        """Record a new value of an existing field or array index."""
        self._section(path, "u")[path[-1]] = value

    def inserted(self, path: FieldRef, value: Any) -> None:
        """Record a new field. `value` may still be extended until the diff is read."""
        self._section(path, "i")[path[-1]] = value

    def deleted(self, path: FieldRef) -> None:
        """Record the removal of a field of an object."""
        self._section(path, "d")[path[-1]] = False

    def _section(self, path: FieldRef, section: str) -> dict[Any, Any]:
        node: Any = self
        for at, component in enumerate(path[:-1]):
            child = node.children.get(component)
            if child is None:
                child = node.children[component] = _ArrayLog() if type(path[at + 1]) is int else DiffLog()
            node = child
        return node.values if type(node) is _ArrayLog else node.sections.setdefault(section, {})

    def diff(self) -> dict[str, Any]:
        """The diff recorded so far; {} if nothing changed."""
        sections = self.sections
        diff: dict[str, Any] = {section: sections[section] for section in ("d", "u", "i") if section in sections}
        for name, child in self.children.items():
            diff["s" + name] = child.diff()
        return diff


class _ArrayLog:
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.children: dict[Any, Any] = {}

    def diff(self) -> dict[str, Any]:
        diff: dict[str, Any] = {"a": True}
        for index in sorted({*self.values, *self.children}):
            if index in self.values:
                diff[f"u{index}"] = self.values[index]
            else:
                diff[f"s{index}"] = self.children[index].diff()
        return diff


class Walk:
    """One run over one document. `document` is the new document. `log` is None while changes are not recorded."""

    __slots__ = ("_moved", "copies", "document", "log", "params", "positional")

    def __init__(self, document: dict[str, Any], params: ApplyParams, has_rename: bool) -> None:
        self.copies = not has_rename
        self.document = copied(document) if has_rename else dict(document)
        self.log: DiffLog | None = None if params.context.inserting else DiffLog()
        self.params = params
        self.positional = params.context.positional
        self._moved: list[RenameNode] = []

    def fields(self, node: UpdateObjectNode, container: Any, path: FieldRef) -> bool:
        """Apply a node to an object or array that may be modified. Return whether anything changed."""
        changed = False
        for name, child in node.in_order(self.positional, path):
            if type(container) is dict:
                component: str | int = name
                old = container.get(name, MISSING)
            else:
                index = _index(name)
                component = name if index is None else index
                old = container[index] if index is not None and index < len(container) else MISSING
            if old is MISSING:
                changed |= self._create(child, container, component, name, path)
            elif isinstance(child, UpdateLeafNode):
                changed |= self._change(child, container, component, old, (*path, component))
            else:
                changed |= self._existing(child, container, component, old, path)
        return changed

    # ---------------------------------------------------------------- existing fields

    def _existing(self, node: Any, container: Any, component: Any, old: Any, path: FieldRef) -> bool:
        here = (*path, component)
        if isinstance(node, UpdateLeafNode):
            return self._change(node, container, component, old, here)
        if type(node) is UpdateArrayNode:
            if type(old) is not list:
                raise CommandError(
                    2, f"Cannot apply array updates to non-array element {element_text(str(component), old)}"
                )
            return self._elements(node, self._writable(container, component, old), here)
        if type(old) is dict or type(old) is list:
            return self.fields(node, self._writable(container, component, old), here)
        for name, child in node.in_order(self.positional, here):
            self._made(child, old, here, (name,))
        return False

    def _writable(self, container: Any, component: Any, old: Any) -> Any:
        if not self.copies:
            return old
        container[component] = fresh = old.copy()
        return fresh

    def _change(self, leaf: UpdateLeafNode, container: Any, component: Any, old: Any, here: FieldRef) -> bool:
        params = self.params
        if leaf.insert_only and not params.context.inserting:
            return False
        if type(leaf) is RenameNode:
            return self._rename_over(leaf, container, component, old, here)
        new = leaf.change(old, params, here)
        if new is NO_OP:
            return False
        self._check_depth(leaf, here)
        if new is MISSING:
            self._remove(container, component, old, here)
            return True
        if type(new) is Appended:
            self._append(container, component, new, here)
            return True
        self._put(container, component, old, new, here)
        return True

    def _put(self, container: Any, component: Any, old: Any, new: Any, here: FieldRef) -> None:
        if here[0] == "_id":
            _check_immutable(here, old, new)
        container[component] = new
        if self.log is not None:
            self.log.updated(here, new)

    def _append(self, container: Any, component: Any, new: Appended, here: FieldRef) -> None:
        _check_immutable(here, container[component], new.array)
        array = container[component] = new.array
        if self.log is not None:
            for index in range(len(array) - new.count, len(array)):
                self.log.updated((*here, index), array[index])

    def _remove(self, container: Any, component: Any, old: Any, here: FieldRef) -> None:
        if type(container) is list:
            self._put(container, component, old, None, here)
            return
        _check_immutable(here, old, MISSING)
        del container[component]
        if self.log is not None:
            self.log.deleted(here)

    def _elements(self, node: UpdateArrayNode, array: list[Any], path: FieldRef) -> bool:
        """Apply to the matching elements. If several of them change, the diff has the complete array."""
        matching = node.all_matching(array, path)
        if len(matching) == 1:
            index, child = matching[0]
            return self._existing(child, array, index, array[index], path)
        log, self.log = self.log, None
        changed = [index for index, child in matching if self._existing(child, array, index, array[index], path)]
        self.log = log
        if log is not None and len(changed) == 1:
            log.updated((*path, changed[0]), array[changed[0]])
        elif log is not None and changed:
            log.updated(path, array)
        return bool(changed)

    # ---------------------------------------------------------------- missing fields

    def _create(self, node: Any, container: Any, component: Any, name: str, path: FieldRef) -> bool:
        """Create the missing field `component` of a container if a leaf below creates it. Return whether one did."""
        value = self._made(node, container, path, (name,))
        if value is MISSING:
            return False
        if type(container) is list:
            if component > limits.ARRAY_PADDING_MAX:
                raise CommandError(34, f"can't backfill more than {limits.ARRAY_PADDING_MAX} elements")
            container.extend([None] * (component - len(container)))
            container.append(value)
        else:
            container[component] = value
        if path and path[0] == "_id":
            raise _immutable((*path, component))
        if self.log is not None:
            here = (*path, component)
            if type(container) is list:
                self.log.updated(here, value)
            else:
                self.log.inserted(here, value)
        while self._moved:
            self._remove_source(self._moved.pop(0))
        return True

    def _made(self, node: Any, container: Any, path: FieldRef, rest: tuple[str, ...]) -> Any:
        """The new value for `rest` below an existing container of any type, or MISSING if nothing is created."""
        if type(node) is UpdateObjectNode:
            children: dict[str, Any] = {}
            for name, child in node.in_order(self.positional, (*path, *rest)):
                value = self._made(child, container, path, (*rest, name))
                if value is not MISSING:
                    children[name] = value
            return children or MISSING
        if type(node) is UpdateArrayNode:
            raise CommandError(
                2,
                f"The path '{dotted((*path, *rest))}' must exist in the document in order to apply array updates.",
            )
        if node.insert_only and not self.params.context.inserting:
            return MISSING
        if not node.creates:
            if not node.lenient and not _viable(container, rest[0]):
                raise _not_traversable(container, path, rest)
            return MISSING
        if type(node) is RenameNode:
            value = self._renamed(node, container, path)
        else:
            value = node.change(MISSING, self.params, (*path, *rest))
        if value is MISSING:
            return MISSING
        if not _viable(container, rest[0]):
            raise _not_creatable(container, path, rest)
        self._check_depth(node, (*path, *rest))
        return value

    # ---------------------------------------------------------------- $rename

    def _renamed(self, leaf: RenameNode, container: Any, path: FieldRef) -> Any:
        """The value for a target that does not exist, or MISSING if there is no source."""
        value = leaf.value(self.document)
        if value is not MISSING:
            leaf.check_target(self.document, path, type(container) is list)
            leaf.check_depth(value, limits.NESTING_MAX)
            self._moved.append(leaf)
        return value

    def _rename_over(self, leaf: RenameNode, container: Any, component: Any, old: Any, here: FieldRef) -> bool:
        value = leaf.value(self.document)
        if value is MISSING:
            return False
        leaf.check_target(self.document, here, False)
        leaf.check_depth(value, limits.NESTING_MAX)
        self._put(container, component, old, value, here)
        self._remove_source(leaf)
        return True

    def _remove_source(self, leaf: RenameNode) -> None:
        container: Any = self.document
        for name in leaf.source[:-1]:
            container = container[name]
        self._remove(container, leaf.source[-1], container[leaf.source[-1]], leaf.source)

    def _check_depth(self, leaf: UpdateLeafNode, here: FieldRef) -> None:
        if leaf.depth + len(here) > limits.NESTING_MAX:
            raise CommandError(15, f"Document exceeds maximum nesting depth of {limits.NESTING_MAX}")


def copied(value: Any) -> Any:
    """A deep copy of the objects and arrays of a value; scalars are shared."""
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value


def _index(name: str) -> int | None:
    """The array index of a path component, or None; leading zeros are allowed."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 20 else None


def _viable(container: Any, name: str) -> bool:
    return type(container) is dict or (type(container) is list and _index(name) is not None)


def _element_message(container: Any, path: FieldRef) -> str:
    return element_text(str(path[-1]), container) if path else to_string(container)


def _not_creatable(container: Any, path: FieldRef, rest: tuple[str, ...]) -> CommandError:
    return CommandError(28, f"Cannot create field '{rest[0]}' in element {{{_element_message(container, path)}}}")


def _not_traversable(container: Any, path: FieldRef, rest: tuple[str, ...]) -> CommandError:
    return CommandError(
        28,
        f"Cannot use the part ({rest[0]}) of ({dotted((*path, *rest))}) "
        f"to traverse the element ({{{_element_message(container, path)}}})",
    )


def _check_immutable(here: FieldRef, old: Any, new: Any) -> None:
    """Raise 66 if `_id` changes. It may change its type if it compares equal. Nothing inside it may change."""
    if here[0] == "_id" and (len(here) > 1 or new is MISSING or not equal(old, new)):
        raise _immutable(here)


def _immutable(here: FieldRef) -> CommandError:
    return CommandError(66, f"Performing an update on the path '{dotted(here)}' would modify the immutable field '_id'")
