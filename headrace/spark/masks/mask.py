"""Masks: values at named paths are hashed, redacted, truncated or omitted before anything is written.

A rule names a path and masks every value at or below it. Objects and arrays remain, and each value in them is masked
separately. Paths go through arrays, as in MongoDB: `items.card` is the field of each item. So masking and updating can
be done in either order: the masked update of a masked document gives the masked document.

A mask fails closed. If a document has a plain value where a path expects an object, that value is masked, too. It is
hashed if all rules below would hash, null if all are null or omit, and otherwise redacted.

    hash       HMAC-SHA-256 of the value with the job's key, as 64 digits; values equal in MongoDB have the same hash
    null       null
    omit       the field is left out
    redact     "***"
    truncate   the first characters of a string; any other value is null

A rule that masks a document's key also masks it in resume tokens, which are readable.

A null is left unchanged. A name that is a number may be an index, and a name with dots may be a path: both are masked
in either meaning.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CommandError
from headrace.spark.columns.column_types import SchemaError, parse_path
from headrace.spark.rows.extjson import dumps, loads
from headrace.spark.rows.key_identity import key_identity
from headrace.spark.rows.not_held import NOT_HELD, held_or_marked
from headrace.spark.rows.tokens import Token, with_masked_key
from headrace.values.bson import decode, encode
from headrace.values.keystring.encoding import encode_fields
from headrace.values.token import decode_token

ACTIONS: Final = ("hash", "null", "omit", "redact", "truncate")
REDACTED: Final = "***"
_KEY_LENGTH_MIN: Final = 16
_OPTION_NAMES: Final = frozenset({*ACTIONS, "key"})

_IN_BACKTICKS: Final = re.compile(r"`(?:[^`]|``)*`")
_WILDCARD: Final = re.compile(r"([*\[\]]|(?<![^.])\$(?![^.]))")

Document = dict[str, Any]
Action = Callable[[Any], Any]


class MaskError(ValueError):
    """A mask is invalid. The message has nothing of its key."""


class _Omitted:
    """The stand-in for an omitted value."""


_OMITTED: Final = _Omitted()


@dataclass(slots=True)
class _MaskNode:
    """A name on a path to masked values; `action` masks all values at and below it."""

    names: dict[str, _MaskNode] = field(default_factory=dict)
    action: Action | None = None
    instead: Action | None = None
    """The action for a plain value here, where an object was expected."""


class Mask:
    """The rules of a job. A mask has the key, so it must not be written as text."""

    def __init__(
        self, rules: Mapping[tuple[str, ...], Action], fingerprint: str = "", *, in_tokens: bool = True
    ) -> None:
        self.fingerprint = fingerprint
        """The fingerprint, which differs for another mask or another key, and reveals nothing of the key."""
        self._in_tokens = in_tokens
        self._root = _MaskNode()
        for path, action in rules.items():
            node = self._root
            for name in ".".join(path).split("."):
                node = node.names.setdefault(name, _MaskNode())
            node.action = action
        _set_instead(self._root)
        self._hex_names = [name.encode().hex().upper() for name in self._root.names]

    def __repr__(self) -> str:
        return "Mask(...)"

    def document(self, document: Document) -> Document:
        """Return the document, or document key, with its values masked."""
        masked: Document = _walk(document, self._root)
        return masked

    def update(self, description: Document) -> Document:
        """Return an `updateDescription`, or the oplog's diff (`$v: 2`), with its values masked."""
        if "$v" in description:
            return {**description, "diff": _diff(description.get("diff", {}), self._root)}
        masked = dict(description)
        if "updatedFields" in masked:
            masked["updatedFields"] = _fields(masked["updatedFields"] or {}, self._root)
        if "removedFields" in masked:
            masked["removedFields"] = [path for path in masked["removedFields"] or [] if not self._omits(path)]
        if "truncatedArrays" in masked:
            masked["truncatedArrays"] = [each for each in masked["truncatedArrays"] if not self._omits(each["field"])]
        if "disambiguatedPaths" in masked:
            paths = masked["disambiguatedPaths"] or {}
            masked["disambiguatedPaths"] = {path: steps for path, steps in paths.items() if not self._omits(path)}
        return masked

    def token(self, text: str) -> str:
        """Return a resume token with the masked documentKey, if the mask changes the key; see `rows/tokens.py`."""
        if not self._in_tokens or not any(name in text for name in self._hex_names) or Token(text).is_masked:
            return text
        try:
            key = decode(decode_token({"_data": text}).document_key or encode({}))
        except CommandError:
            return with_masked_key(text, b"")
        masked = encode(self.document(key))
        return text if masked == encode(key) else with_masked_key(text, encode_fields(masked)[:-1])

    def event(self, event: Document) -> Document:
        """Return a change event, or the fields of a row of the source, with its documents and its token masked."""
        masked = dict(event)
        if isinstance(masked.get("_id"), dict) and isinstance(text := masked["_id"].get("_data"), str):
            token = self.token(text)
            masked["_id"] = masked["_id"] if token == text else {"_data": token}
        for name, function in self.columns.items():
            if isinstance(masked.get(name), dict):
                masked[name] = function(masked[name])
        return masked

    @property
    def columns(self) -> dict[str, Callable[[Document], Document]]:
        """The functions that mask each part of an event that holds documents, by the part's name."""
        documents = ("documentKey", "fullDocument", "fullDocumentBeforeChange")
        updates = ("rawUpdateDescription", "updateDescription")
        return dict.fromkeys(documents, self.document) | dict.fromkeys(updates, self.update)

    @property
    def hashes_keys(self) -> bool:
        """Whether `_id`, or a value in it, is hashed: the server finds no document by such a key."""
        return "_id" in self._root.names

    def _omits(self, path: str) -> bool:
        node = _at(self._root, path)
        return node.action is _omit if node else False


def parse_mask(text: str, secret: Callable[[str], str], *, in_tokens: bool = True) -> Mask | None:
    """Return the mask that an option describes as JSON; None if it masks nothing. `secret` resolves the key's
    reference.

    `in_tokens`: mask resume tokens as well. Raise MaskError.
    """
    given = _parsed(text)
    rules: dict[tuple[str, ...], Action] = {}
    for name in ACTIONS:
        paths = given.get(name, {} if name == "truncate" else [])
        if not isinstance(paths, Mapping if name == "truncate" else list):
            raise MaskError(
                f"mask: {name} is {'a table of lengths by paths' if name == 'truncate' else 'an array of paths'}"
            )
        for path in paths:
            steps = _path(path)
            if steps in rules:
                raise MaskError(f"mask: {path} is masked twice")
            if steps[0] == "_id" and name != "hash":
                raise MaskError(f"mask: {path} is in the key of a document, which can be hashed only")
            rules[steps] = _omit if name == "omit" else _REPLACING.get(name) or _truncating(path, paths)
    _check_numbers(rules)
    described = json.dumps({name: given[name] for name in sorted(given.keys() - {"key"})})
    if given.get("hash"):
        hashing = _hashing(given, secret)
        rules |= {steps: hashing for path in given["hash"] if (steps := _path(path))}
        described += str(hashing(described))
    return Mask(rules, sha256(described.encode()).hexdigest()[:16], in_tokens=in_tokens) if rules else None


def _check_numbers(rules: Mapping[tuple[str, ...], Action]) -> None:
    """Raise MaskError if one path has a number, which may be an index, where another has a name."""
    names: dict[tuple[str, ...], set[bool]] = {}
    for path in rules:
        for depth, step in enumerate(path):
            names.setdefault(path[:depth], set()).add(step.isdigit())
    if mixed := next((".".join(path) for path, kinds in names.items() if path and len(kinds) > 1), ""):
        raise MaskError(f"mask: below {mixed} one path has a number, which may be an index, and another a name")


def omitting(paths: list[str]) -> Mask | None:
    """Return the mask that omits these paths, in documents only. Raise MaskError."""
    return parse_mask(json.dumps({"omit": paths}), lambda _: "", in_tokens=False) if paths else None


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        raise MaskError("mask: this is no JSON") from None
    if not isinstance(given, dict):
        raise MaskError("mask: this is no document")
    if unknown := sorted(given.keys() - _OPTION_NAMES):
        raise MaskError(f"mask: there is no {unknown[0]!r}; there are {', '.join(sorted(_OPTION_NAMES))}")
    return given


def check_path(path: str) -> None:
    """Raise MaskError for a path with a wildcard or an index in brackets: as a name it would mask nothing."""
    plain = _IN_BACKTICKS.sub("", path)
    if found := _WILDCARD.search(plain):
        raise MaskError(
            f"has {path!r}, in which {found[1]!r} is no wildcard and no index: a path goes through arrays, and masks "
            "all that is below it; a name with such a character is written in backticks"
        )
    if "\0" in path:
        raise MaskError(f"has {path!r}, and no field's name has a NUL character")


def _path(path: Any) -> tuple[str, ...]:
    try:
        steps = parse_path(path if isinstance(path, str) else "")
    except SchemaError as error:
        raise MaskError(f"mask: {path!r} is no path: {error}") from None
    try:
        check_path(path)
    except MaskError as error:
        raise MaskError(f"mask: it {error}") from None
    return steps


def _hashing(given: Mapping[str, Any], secret: Callable[[str], str]) -> Action:
    reference = given.get("key")
    if not isinstance(reference, str) or reference.partition(":")[0] not in {"env", "file"}:
        raise MaskError("mask: hash needs key = 'env:NAME' or 'file:PATH', which hold the key")
    key = secret(reference).encode()
    if len(key) < _KEY_LENGTH_MIN:
        raise MaskError(f"mask: the key in {reference} is shorter than {_KEY_LENGTH_MIN} characters: it can be guessed")
    return _Hashing(key)


class _Hashing:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, value: Any) -> str:
        return hmac.digest(self._key, key_identity(dumps(value)).encode(), "sha256").hex()


class _Truncating:
    def __init__(self, length: int) -> None:
        self._length = length

    def __call__(self, value: Any) -> Any:
        return value[: self._length] if type(value) is str else None


def _truncating(path: str, lengths: Any) -> Action:
    length = lengths[path] if isinstance(lengths, Mapping) else None
    if type(length) is not int or length < 0:
        raise MaskError(f"mask: truncate has the number of characters that remain of {path}")
    return _Truncating(length)


def _omit(_: Any) -> Any:
    return _OMITTED


def _null(_: Any) -> None:
    return None


def _redact(_: Any) -> str:
    return REDACTED


_REPLACING: Final[dict[str, Action]] = {"hash": _redact, "null": _null, "redact": _redact}
"""The actions but for truncate and omit; `hash` gets its function with the key."""


def _at(node: _MaskNode, name: str) -> _MaskNode | None:
    """Return the node at the name or path; None if nothing at or below it is masked."""
    if node.action is not None:
        return node
    for step in name.split("."):
        if step in node.names:
            node = node.names[step]
        elif not step.isdigit():
            return None
        if node.action is not None:
            return node
    return node


def _walk(value: Any, node: _MaskNode) -> Any:
    if node.action is not None:
        return _masked(value, node.action)
    if type(value) is list:
        return [_walk(item, _of_item(node, str(index))) for index, item in enumerate(value)]
    if type(value) is dict:
        return _fields(value, node)
    assert node.instead is not None
    return None if value is None else node.instead(value)


def _of_item(node: _MaskNode, index: str) -> _MaskNode:
    """Return the node of an array's item: the node of its index, if a path names it, otherwise the array's node."""
    return node.names.get(index, node)


def _set_instead(node: _MaskNode) -> set[Action]:
    """Set `instead` of the node and of all nodes below it; return their actions."""
    if node.action is not None:
        return {node.action}
    actions = set[Action]().union(*map(_set_instead, node.names.values()))
    if len(actions) == 1 and isinstance(hashing := next(iter(actions)), _Hashing):
        node.instead = hashing
    else:
        node.instead = _null if actions <= {_null, _omit} else _redact
    return actions


def _fields(document: Document, node: _MaskNode) -> Document:
    """Return the fields, whose names may be paths, masked by the node."""
    masked: Document = {}
    for name, value in document.items():
        below = _at(node, name)
        if below is None:
            masked[name] = value
        elif below.action is not _omit:
            masked[name] = _walk(value, below)
    return masked


def _masked(value: Any, action: Action) -> Any:
    if value is None:
        return None
    if type(value) is list:
        return [_masked(item, action) for item in value]
    if type(value) is dict:
        return {name: _masked(item, action) for name, item in value.items()}
    return (
        None if action is _omit else action(value)
    )  # an item of an array is not omitted, so that the other items keep their index


def _diff(diff: Document, node: _MaskNode) -> Document:
    """Return the masked diff of the object or the array at the node."""
    if diff.get("a") is True:
        return _array_diff(diff, node)
    masked: Document = {}
    for section, content in diff.items():
        if section in {"i", "u"}:
            masked[section] = _fields(content, node)
        elif section == "d":
            masked[section] = {name: each for name, each in content.items() if not _is_omitted(_at(node, name))}
        elif not _is_omitted(below := _at(node, section[1:])):
            masked[section] = content if below is None else _diff(content, below)
    return {section: content for section, content in masked.items() if content or section not in {"d", "i", "u"}}


def _array_diff(diff: Document, node: _MaskNode) -> Document:
    masked: Document = {}
    for section, content in diff.items():
        if section[:1] == "u" and section[1:].isdigit():
            masked[section] = _walk(content, _of_item(node, section[1:]))
        elif section[:1] == "s" and section[1:].isdigit():
            masked[section] = _diff(content, _of_item(node, section[1:]))
        else:
            masked[section] = content
    return masked


def _is_omitted(node: _MaskNode | None) -> bool:
    return node is not None and node.action is _omit


_OTHER: Final = "other"
_TOKEN: Final = "token"


def masked_bson(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """Return the batch of BSON columns with values and tokens masked; a mark replaces a document that is not held."""

    def changed(column: pa.Array, function: Callable[[Document], Document]) -> pa.Array:
        return pa.array([None if data is None else one(data, function) for data in column.to_pylist()], column.type)

    def one(data: bytes, function: Callable[[Document], Document]) -> bytes:
        document = held_or_marked(data)
        return encode(document if NOT_HELD in document else function(document))

    for name, function in _functions(mask).items():
        number = batch.schema.get_field_index(name)
        if number >= 0:
            batch = batch.set_column(number, batch.schema.field(number), changed(batch.column(number), function))
    if (number := batch.schema.get_field_index(_TOKEN)) >= 0:
        field = batch.schema.field(number)
        tokens = [mask.token(text) for text in batch.column(number).to_pylist()]
        batch = batch.set_column(number, field, pa.array(tokens, field.type))
    return batch


def masked_texts(table: pa.Table, mask: Mask) -> pa.Table:
    """Return the table of Extended JSON columns with its values masked."""
    for name, function in _functions(mask).items():
        if name in table.column_names:
            texts = [None if text is None else dumps(function(loads(text))) for text in table.column(name).to_pylist()]
            number = table.schema.get_field_index(name)
            field = table.schema.field(number)
            table = table.set_column(number, field, pa.array(texts, pa.string()).cast(field.type))
    return table


def _functions(mask: Mask) -> dict[str, Callable[[Document], Any]]:
    """Return the mask of each column. `other` has fields without a column, or with another type than their column's."""
    return {**mask.columns, _OTHER: mask.event}
