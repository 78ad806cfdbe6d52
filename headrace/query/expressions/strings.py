"""String operators: concatenation, substrings, search, trim, replace, case, regular expressions.

Rule: positions are UTF-8 bytes for the operators named Bytes, otherwise code points. Case conversion affects ASCII
letters only. A constant regular expression is compiled when the pipeline is parsed, and an invalid one is an error
then. The call itself is never evaluated at parse time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pcre2
from bson import Binary, Regex

from headrace import limits
from headrace.errors import CommandError
from headrace.query.expressions.arrays import search_bound
from headrace.query.expressions.expression import (
    Call,
    Constant,
    Env,
    Evaluate,
    Expression,
    Operator,
    ParseContext,
    parse_operand,
)
from headrace.query.expressions.numbers import coerced_to_long, is_nullish
from headrace.query.expressions.operator_parser import (
    NamedArguments,
    OperatorParser,
    binary,
    checked_int32,
    combining,
    of_type,
    of_values,
    positional,
    single,
)
from headrace.query.expressions.value_text import as_text, check_text_length, checked_text, coerced_text
from headrace.query.options import check_options
from headrace.query.patterns import Pattern, compile_pattern
from headrace.values.bson import type_name
from headrace.values.order import regex_options

_WHITESPACE: Final = "\0 \t\n\v\f\r\u00a0\u1680" + "".join(chr(code) for code in range(0x2000, 0x200B))
_FEW_CHARACTERS: Final = 32  # to be stripped: Python compares each character of the text with each of these


def _joined(strings: list[str]) -> str:
    check_text_length(sum(map(len, strings)))
    return checked_text("".join(strings))


def _compare_ignoring_case(left: Any, right: Any) -> int:
    one, other = (coerced_text(value).encode().upper() for value in (left, right))
    return (one > other) - (one < other)


def _length(name: str, code: int, measure: Callable[[str], int]) -> OperatorParser:
    apply = of_type(str, code, f"{name} requires a string argument, found: ", measure, nullable=False)
    return single(name, apply)


def _continues(data: bytes, index: int) -> bool:
    """Whether the byte at `index` continues a character; False past the end."""
    return index < len(data) and data[index] & 0xC0 == 0x80


def _substring_bytes(value: Any, start: Any, length: Any) -> str:
    data = coerced_text(value).encode()
    _check_offset(16034, "starting index", start)
    _check_offset(16035, "length", length)
    first, count = coerced_to_long(start), coerced_to_long(length)
    if first < 0:
        raise CommandError(50752, f"$substrBytes:  starting index must be non-negative (got: {first})")
    count = len(data) if count < 0 else count
    if _continues(data, first):
        raise CommandError(28656, "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.")
    if _continues(data, first + count):
        message = "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character."
        raise CommandError(28657, message)
    return data[first : first + count].decode()


def _check_offset(code: int, what: str, value: Any) -> None:
    if type_name(value) not in ("double", "int", "long"):
        raise CommandError(code, f"$substrBytes:  {what} must be a numeric type (is BSON type {type_name(value)})")


def _substring_points(value: Any, start: Any, length: Any) -> str:
    text = coerced_text(value)
    first, count = _point(34450, "starting index", start), _point(34452, "length", length)
    if count < 0:
        raise CommandError(34454, "$substrCP: length must be a nonnegative integer.")
    if first < 0:
        raise CommandError(34455, "$substrCP: the starting index must be nonnegative integer.")
    return text[first : first + count]


def _point(code: int, what: str, value: Any) -> int:
    beyond = f"$substrCP: {what} cannot be represented as a 32-bit integral value: "
    return checked_int32(value, code, f"$substrCP: {what} must be a numeric type, not ", beyond)


def _searcher(name: str, code: int, find: Callable[[str, str, int, int | None], int]) -> OperatorParser:
    def make(text: Evaluate, token: Evaluate, start: Evaluate | None = None, end: Evaluate | None = None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            within = text(env)
            if is_nullish(within):
                return None
            if type(within) is not str:
                raise CommandError(code, f"{name} requires a string as the first argument, found: {type_name(within)}")
            sought = token(env)
            if type(sought) is not str:
                message = f"{name} requires a string as the second argument, found: {type_name(sought)}"
                raise CommandError(code + 1, message)
            first = 0 if start is None else search_bound(name, start(env), "starting index")
            last = None if end is None else search_bound(name, end(env), "ending index")
            return find(within, sought, first, last)

        return evaluate

    return positional(Operator(name, make), 2, 4)


def _find_bytes(text: str, token: str, first: int, last: int | None) -> int:
    data = text.encode()
    last = len(data) if last is None else min(last, len(data))
    return -1 if first > len(data) or last < first else data.find(token.encode(), first, last)


def _find_points(text: str, token: str, first: int, last: int | None) -> int:
    """The position of a match, or -1. A match must start before `last`, but may end after it. A match starts at the end
    of the text only if text and token are empty."""
    if not text and not token:
        return 0
    last = len(text) if last is None else min(last, len(text))
    return -1 if first >= last else text.find(token, first, last - 1 + len(token))


def _split(text: Any, separator: Any) -> Any:
    if is_nullish(text) or is_nullish(separator):
        return None
    for value, which, code in ((text, "first", 40085), (separator, "second", 40086)):
        if type(value) is not str:
            message = f"$split requires an expression that evaluates to a string as a {which} argument, found: "
            raise CommandError(code, message + type_name(value))
    if not separator:
        raise CommandError(40087, "$split requires a non-empty separator")
    if text.count(separator) >= limits.EXPRESSION_ARRAY_LENGTH_MAX:
        raise CommandError(146, "$split would use too much memory")
    return text.split(separator)


def _trim(name: str, *, left: bool, right: bool) -> OperatorParser:
    def make(source: Evaluate, characters: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            text = source(env)
            if is_nullish(text):
                return None
            if type(text) is not str:
                raise _not_text(50699, f"{name} requires its input", text)
            if characters is None:
                return _stripped(text, _WHITESPACE, left=left, right=right)
            chars = characters(env)
            if is_nullish(chars):
                return None
            if type(chars) is not str:
                raise _not_text(50700, f"{name} requires 'chars'", chars)
            return _stripped(text, chars, left=left, right=right) if chars else text

        return evaluate

    return NamedArguments(
        Operator(name, make), ("input", "chars"), {"input": 50695}, not_object=50696, unknown=50694
    ).parse


def _stripped(text: str, characters: str, *, left: bool, right: bool) -> str:
    if len(characters) <= _FEW_CHARACTERS:
        return (str.strip if left and right else str.lstrip if left else str.rstrip)(text, characters)
    of = frozenset(characters)
    start, end = 0, len(text)
    while left and start < end and text[start] in of:
        start += 1
    while right and start < end and text[end - 1] in of:
        end -= 1
    return text[start:end]


def _not_text(code: int, what: str, value: Any) -> CommandError:
    return CommandError(code, f"{what} to be a string, got {as_text(value)} (of type {type_name(value)}) instead.")


def _replacer(name: str, count: int) -> OperatorParser:
    def replace(text: Any, find: Any, replacement: Any) -> Any:
        for value, what, code in ((text, "input", 51746), (find, "find", 51745), (replacement, "replacement", 51744)):
            if type(value) is not str and not is_nullish(value):
                raise CommandError(code, f"{name} requires that '{what}' be a string, found: {as_text(value)}")
        if is_nullish(text) or is_nullish(find) or is_nullish(replacement):
            return None
        growth = len(replacement) - len(find)
        if growth > 0:
            check_text_length(len(text) + growth * (text.count(find) if count < 0 else 1))
        return checked_text(text.replace(find, replacement, count))

    required = {"input": 51749, "find": 51748, "replacement": 51747}
    operator = Operator(name, of_values(replace), folds=False)
    return NamedArguments(operator, ("input", "find", "replacement"), required, not_object=51751, unknown=51750).parse


def _lower(value: Any) -> str:
    return coerced_text(value).encode().lower().decode()


def _upper(value: Any) -> str:
    return coerced_text(value).encode().upper().decode()


_SUBSTRING_BYTES: Final = positional(Operator("$substrBytes", of_values(_substring_bytes)), 3)


# Regular expressions.


Apply = Callable[[Pattern | None, str | None], Any]


def _compile(name: str, pattern: Any, options: Any) -> Pattern | None:
    """The pattern, or None if none is given. The options are checked in both cases."""
    if not is_nullish(pattern) and type(pattern) not in (str, Regex):
        raise CommandError(51105, f"{name} needs 'regex' to be of type string or regex")
    if not is_nullish(options) and type(options) is not str:
        raise CommandError(51106, f"{name} needs 'options' to be of type string")
    flags = "" if is_nullish(options) else options
    if type(pattern) is Regex:
        pattern_options = regex_options(pattern)
        if pattern_options and not is_nullish(options):
            message = f"{name}: found regex option(s) specified in both 'regex' and 'option' fields"
            raise CommandError(51107, message)
        flags, pattern = pattern_options or flags, pattern.pattern
    text = "" if is_nullish(pattern) else pattern
    if "\0" in text:
        raise CommandError(51109, f"{name}: regular expression cannot contain an embedded null byte")
    if "\0" in flags:
        raise CommandError(51110, f"{name}: regular expression options cannot contain an embedded null byte")
    compiled = _compiled(name, text, flags)
    return None if is_nullish(pattern) else compiled


def _compiled(name: str, text: str, flags: str) -> Pattern:
    try:
        return compile_pattern(text, flags)
    except CommandError as error:
        if error.code == 51091:
            raise CommandError(51111, f"Invalid Regex in {name}: {error.message}") from error
        raise


def _operator(name: str, apply: Apply) -> Operator:
    def make(source: Evaluate, pattern: Evaluate, options: Evaluate | None) -> Evaluate:
        def evaluate(env: Env) -> Any:
            text, regex = source(env), pattern(env)
            flags = None if options is None else options(env)
            return apply_checked(_compile(name, regex, flags) if _is_text(name, text) else None, text)

        return evaluate

    def make_compiled(compiled: Pattern | None) -> Callable[[Evaluate], Evaluate]:
        def make_constant(source: Evaluate) -> Evaluate:
            def evaluate(env: Env) -> Any:
                text = source(env)
                _is_text(name, text)
                return apply_checked(compiled, text)

            return evaluate

        return make_constant

    def apply_checked(compiled: Pattern | None, text: Any) -> Any:
        return apply(compiled, None if is_nullish(text) else text)

    def simplify(call: Call) -> Expression:
        source, pattern, options = call.operands
        if type(pattern) is not Constant or not (options is None or type(options) is Constant):
            return call
        compiled = _compile(name, pattern.value, options.value if type(options) is Constant else None)
        return Call(Operator(name, make_compiled(compiled), folds=False), [source])

    return Operator(name, make, folds=False, simplify=simplify)


def _is_text(name: str, text: Any) -> bool:
    """Return True. Raises 51104 for a value that is neither text nor null."""
    if type(text) is not str and not is_nullish(text):
        raise CommandError(51104, f"{name} needs 'input' to be of type string")
    return True


def _match(match: pcre2.Match) -> dict[str, Any]:
    return {"match": match.group(), "idx": match.start(), "captures": list(match.groups())}


def _find(pattern: Pattern | None, text: str | None) -> Any:
    if pattern is None or text is None:
        return None
    match = pattern.find(text)
    return None if match is None else _match(match)


def _find_all(pattern: Pattern | None, text: str | None) -> list[Any]:
    """All matches without overlaps. An empty match moves on by one character. None is sought at the very end."""
    if pattern is None or text is None:
        return []
    matches, start = [], 0
    while start < len(text) or start == 0:
        match = pattern.find(text, start)
        if match is None:
            break
        matches.append(_match(match))
        start = match.end() if match.group() else match.start() + 1
    return matches


def _matches(pattern: Pattern | None, text: str | None) -> bool:
    return pattern is not None and text is not None and pattern.matches(text)


def _named(name: str, apply: Apply) -> OperatorParser:
    required = {"input": 31022, "regex": 31023}
    names = ("input", "regex", "options")
    return NamedArguments(_operator(name, apply), names, required, not_object=51103, unknown=31024).parse


# Encrypted strings. A driver replaces the text in {$encStrStartsWith: {input: "$name", prefix: "Ad"}} by an encrypted
# payload before it sends the command. A text that arrives as it is cannot be looked for: the result is null for a
# missing input, otherwise an error, as in MongoDB. A payload is refused.


_ENCRYPTED_NAMES: Final = {
    "$encStrContains": ("substring", 10208801),
    "$encStrEndsWith": ("suffix", 10120901),
    "$encStrNormalizedEq": ("string", 10255700),
    "$encStrStartsWith": ("prefix", 10111808),
}
"""The field of the text, and the error of one that is not encrypted, by operator."""
UNSUPPORTED: Final = dict.fromkeys(
    _ENCRYPTED_NAMES, (115, "{} searches encrypted fields, and Headrace does not read their encrypted payloads")
)


def _encrypted(name: str) -> OperatorParser:
    field, code = _ENCRYPTED_NAMES[name]

    def make(value: Evaluate) -> Evaluate:
        def evaluate(env: Env) -> Any:
            if is_nullish(value(env)):
                return None
            raise CommandError(code, f"Expression{name[1].upper()}{name[2:]} can't be evaluated without binary payload")

        return evaluate

    def parse(argument: Any, context: ParseContext) -> Expression:
        payload = type(argument) is dict and type(argument.get(field)) is Binary
        types = {"input": "string", field: "binData" if payload else "string"}
        check_options(name, argument, types, types, not_object=14)
        if payload:
            refused, message = UNSUPPORTED[name]
            raise CommandError(refused, message.format(name))
        return Call(Operator(name, make, folds=False), [parse_operand(argument["input"], context)])

    return parse


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$concat": combining("$concat", [str], 16702, "$concat only supports strings, not ", _joined),
    "$indexOfBytes": _searcher("$indexOfBytes", 40091, _find_bytes),
    "$indexOfCP": _searcher("$indexOfCP", 40093, _find_points),
    "$ltrim": _trim("$ltrim", left=True, right=False),
    "$regexFind": _named("$regexFind", _find),
    "$regexFindAll": _named("$regexFindAll", _find_all),
    "$regexMatch": _named("$regexMatch", _matches),
    "$replaceAll": _replacer("$replaceAll", -1),
    "$replaceOne": _replacer("$replaceOne", 1),
    "$rtrim": _trim("$rtrim", left=False, right=True),
    "$split": positional(Operator("$split", binary(_split)), 2),
    "$strLenBytes": _length("$strLenBytes", 34473, lambda text: len(text.encode())),
    "$strLenCP": _length("$strLenCP", 34471, len),
    "$strcasecmp": positional(Operator("$strcasecmp", binary(_compare_ignoring_case)), 2),
    "$substr": _SUBSTRING_BYTES,
    "$substrBytes": _SUBSTRING_BYTES,
    "$substrCP": positional(Operator("$substrCP", of_values(_substring_points)), 3),
    "$toLower": single("$toLower", _lower),
    "$toUpper": single("$toUpper", _upper),
    "$trim": _trim("$trim", left=True, right=True),
    **{name: _encrypted(name) for name in _ENCRYPTED_NAMES},
}
