"""The specification of a text index: as clients send it, and as it is stored.

    {a: 1, t: "text", u: "text"}   →   key {a: 1, _fts: "text", _ftsx: 1}, weights {t: 1, u: 1}, default_language, ...

Source: MongoDB's documentation of text indexes; its codes, all of them 67 (CannotCreateIndex).
"""

from __future__ import annotations

from typing import Any, Final

from bson import Decimal128, Int64

from headrace.errors import CommandError
from headrace.store.indexes.text_keys import SCORE, TERM
from headrace.store.indexes.wildcard_keys import WILDCARD
from headrace.text.analyzer import UNICODE_VERSION, VERSIONS, language_of
from headrace.values.bson import to_string

_WEIGHT_MAX: Final = 100_000
_NUMBERS: Final = (int, Int64, float, Decimal128)
_OWN: Final = ("weights", "default_language", "language_override", "textIndexVersion")


def text_specification(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the specification with the stored key and options. Raise 67 if it is invalid."""
    if spec.get("unique") or spec.get("prepareUnique"):
        raise _refused("Index type 'text' does not support the unique option")
    key, paths = _key(spec["key"])
    version = spec.get("textIndexVersion", UNICODE_VERSION)
    if version not in VERSIONS:
        raise _refused(
            f"unsupported text index version {{ textIndexVersion : {version} }}, only support versions: [1,2,3]"
        )
    language = spec.get("default_language", "english")
    if language is None or language_of(language, int(version)) is None:
        raise _refused("default_language is not valid")
    override = spec.get("language_override", "language")
    if not override or override.startswith("$") or "." in override:
        raise _refused("language_override is not valid")
    return {name: value for name, value in spec.items() if name not in _OWN} | {
        "key": key, "weights": _weights(spec.get("weights"), paths), "default_language": language,
        "language_override": override, "textIndexVersion": int(version),
    }  # fmt: skip


def check_collation(spec: dict[str, Any]) -> None:
    """Raise 67 for a text index with another collation than the simple one."""
    if "collation" in spec:
        raise _refused(f"Index type 'text' does not support collation: {to_string(spec['collation'])}")


def _refused(message: str) -> CommandError:
    return CommandError(67, message)


def _key(key: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the key as it is stored, and the text fields."""
    if TERM in key or SCORE in key:
        names = list(key)
        at = names.index(TERM) if TERM in key else len(names)
        if key.get(TERM) != "text" or names[at + 1 : at + 2] != [SCORE] or list(key.values()).count("text") > 1:
            raise _refused("text index with reserved fields _fts/_ftsx not allowed")
        return {**key, SCORE: 1}, []
    made: dict[str, Any] = {}
    paths = [path for path, kind in key.items() if kind == "text"]
    last = None
    for path, kind in key.items():
        if kind != "text":
            if WILDCARD in path.split("."):
                raise _refused("wildcard indexes do not allow text fields beside them")
            made[path] = kind
        elif last == "text" or TERM not in made:
            made |= {TERM: "text", SCORE: 1}
        else:
            raise _refused("'text' fields in index must all be adjacent")
        if kind == "text" and path != WILDCARD and WILDCARD in path.split("."):
            raise _refused(f"text index on '{path}' is not supported; use '$**'")
        last = kind
    return made, paths


def _weights(given: Any, paths: list[str]) -> dict[str, int]:
    """Return the weight of each field by name; the default is 1."""
    weights = dict.fromkeys(paths, 1)
    if type(given) is str:
        given = {given: 1}
    for path, weight in (given or {}).items():
        if type(weight) not in _NUMBERS:
            raise _refused("weight for text index needs numeric type")
        number = float(str(weight))
        if not 0 < number < _WEIGHT_MAX:
            raise _refused(f"text index weight must be in the exclusive interval (0,{_WEIGHT_MAX}) but found: {weight}")
        if path != WILDCARD and (not path or any(not name or name.startswith("$") for name in path.split("."))):
            raise _refused("weight cannot be on a field name that starts with '$', or is empty")
        weights[path] = max(int(number), 1)
    if not weights:
        raise _refused("a text index has at least one field: 'weights' names none")
    return dict(sorted(weights.items()))
