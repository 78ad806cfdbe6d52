"""The document after an event, computed from the document before it. So a mirror stays equal without asking the server.

Why not `updateLookup`: the server returns the current document, which differs at each read and is missing after a
delete. A mirror built so is valid at no single token. An event applied to the right document always gives the right
document.

Three ways, in order of preference: the event's `fullDocument`; the raw difference (`$v: 2`), which is exact in
everything; `updateDescription`, which is exact with one exception: a pipeline update that only moves a field within its
document is described like one that sets the field in place. So a mirror requests the raw difference where the server
has it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.query.diff import apply_diff

_RAW_VERSION: Final = 2

Document = dict[str, Any]


class CannotApply(ValueError):
    """An update's description does not fit the document, or is ambiguous."""


def apply_update(document: Document, description: Document) -> Document:
    """Return a changed copy of `document`; the description may have either form. Raise CannotApply."""
    if "$v" in description:
        return _apply_raw(document, description)
    ambiguous = description.get("disambiguatedPaths")
    changed: Document = _copied(document)
    for path in description.get("removedFields") or ():
        _remove(changed, _components(changed, path, ambiguous))
    for truncated in description.get("truncatedArrays") or ():
        _truncate(changed, _components(changed, truncated["field"], ambiguous), int(truncated["newSize"]))
    for path, value in (description.get("updatedFields") or {}).items():
        _set(changed, _components(changed, path, ambiguous), value)
    return changed


def _apply_raw(document: Document, description: Document) -> Document:
    if description["$v"] != _RAW_VERSION or "diff" not in description:
        raise CannotApply(f"an update entry of version {description['$v']} is not known")
    return apply_diff(document, description["diff"])


def _components(document: Document, path: str, ambiguous: Document | None) -> list[str | int]:
    """Return the steps of a path: from `disambiguatedPaths`, otherwise split at its dots. Raise CannotApply if a field
    on the path may have a dot in its name.

    The document decides whether a number is an index or a field's name: see `_step`.
    """
    if ambiguous and path in ambiguous:
        return [step if isinstance(step, str) else int(step) for step in ambiguous[path]]
    steps = path.split(".")
    if ambiguous is None and _dotted_name_possible(document, steps):
        raise CannotApply(f"the path {path!r} can be read in two ways; the stream needs showExpandedEvents")
    return list(steps)


def _dotted_name_possible(document: Any, steps: list[str]) -> bool:
    for depth, step in enumerate(steps):
        if isinstance(document, dict):
            rest = steps[depth:]
            if any("." in name and name.split(".") == rest[: name.count(".") + 1] for name in document):
                return True
            document = document.get(step)
        elif isinstance(document, list):
            document = document[int(step)] if step.isdigit() and int(step) < len(document) else None
    return False


def _parent(document: Any, steps: list[str | int]) -> Any:
    for step in steps[:-1]:
        try:
            document = document[_step(document, step)]
        except (IndexError, KeyError, TypeError, ValueError):
            raise CannotApply(f"the document has nothing at {steps!r} to change") from None
    if not isinstance(document, dict | list):
        raise CannotApply(f"the document has nothing at {steps!r} to change")
    return document


def _step(container: Any, step: str | int) -> Any:
    """Return the step as a key of this container: an index into an array, or a name in a document."""
    return int(step) if isinstance(container, list) else str(step)


def _set(document: Document, steps: list[str | int], value: Any) -> None:
    parent = _parent(document, steps)
    step = _step(parent, steps[-1])
    if isinstance(parent, list):
        # An index beyond the end fills the elements between with null, as the server does.
        parent.extend([None] * (step + 1 - len(parent)))
    parent[step] = value


def _remove(document: Document, steps: list[str | int]) -> None:
    parent = _parent(document, steps)
    step = _step(parent, steps[-1])
    if not isinstance(parent, dict) or step not in parent:
        raise CannotApply(f"the document has no field {steps!r} to remove")
    del parent[step]


def _truncate(document: Document, steps: list[str | int], size: int) -> None:
    parent = _parent(document, steps)
    try:
        array = parent[_step(parent, steps[-1])]
    except (IndexError, KeyError):
        array = None
    if not isinstance(array, list) or len(array) < size:
        raise CannotApply(f"the document has no array of {size} elements at {steps!r}")
    del array[size:]


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
