"""$regexFind, $regexFindAll and $regexMatch.

Rule: a constant pattern is compiled when the pipeline is parsed, and an invalid one is an error then. The call itself
is never evaluated at parse time. Positions are code points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pcre2
from bson import Regex

from headrace.errors import CommandError
from headrace.query.expressions.expression import Call, Constant, Env, Evaluate, Expression, Operator
from headrace.query.expressions.numbers import is_nullish
from headrace.query.expressions.operator_parser import NamedArguments, OperatorParser
from headrace.query.patterns import Pattern, compile_pattern
from headrace.values.order import regex_options

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


OPERATORS: Final[dict[str, OperatorParser]] = {
    "$regexFind": _named("$regexFind", _find),
    "$regexFindAll": _named("$regexFindAll", _find_all),
    "$regexMatch": _named("$regexMatch", _matches),
}
