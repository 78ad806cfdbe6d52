"""The variables of a command: its `let`, and MongoDB's own, such as `$$NOW`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bson.datetime_ms import DatetimeMS

from headrace.dispatch.context import CommandContext
from headrace.dispatch.generic_arguments import LET
from headrace.dispatch.request import ClientInfo, Request
from headrace.errors import CommandError
from headrace.query.expressions import Env, ParseContext, parse_expression
from headrace.query.expressions.expression import check_variable_name
from headrace.values.bson import MISSING

if TYPE_CHECKING:
    from headrace.dispatch.access import Access


def _roles(context: CommandContext, client: ClientInfo | None) -> list[dict[str, Any]]:
    access: Access = context.engine.access
    return [] if client is None else access.shown_roles(client)


_OWN: Final[dict[str, Callable[[CommandContext, ClientInfo | None], Any]]] = {
    "NOW": lambda context, client: DatetimeMS(context.clock.now_ms()),
    "CLUSTER_TIME": lambda context, client: context.engine.last_write()[0],
    "USER_ROLES": _roles,
}


_INTERNAL: Final = frozenset({"IS_MR", "JS_SCOPE", "SEARCH_META"})


class CommandVariables(dict[str, Any]):
    """Variables by name, each with one value for the whole command. MongoDB's own are evaluated at first access."""

    __slots__ = ("_context", "client")

    def __init__(self, context: CommandContext, client: ClientInfo | None = None) -> None:
        self._context, self.client = context, client

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in _OWN

    def __missing__(self, name: str) -> Any:
        value = self[name] = _OWN[name](self._context, self.client)
        return value

    def all_values(self) -> dict[str, Any]:
        """Return the values of all variables, including MongoDB's own."""
        return {name: self[name] for name in (*self, *_OWN)}

    def __bool__(self) -> bool:
        return True


class FilterVariables(CommandVariables):
    """The variables of the filter of `count`, `distinct` or a list. As in MongoDB, `$$NOW` and `$$CLUSTER_TIME` have no
    value there."""

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        if name != "USER_ROLES":
            raise CommandError(51144, f"Builtin variable '$${name}' is not available")
        return super().__missing__(name)


def variables_of(context: CommandContext, request: Request, body: dict[str, Any] | None = None) -> CommandVariables:
    """Return the variables, with the `let` of the request or of another `body`. Each `let` expression is evaluated
    once, without a document, and may refer to those before it. Raise the errors of an invalid expression."""
    variables = CommandVariables(context, request.client)
    for name, value in LET.of(request.body if body is None else body).items():
        if name in _OWN or name in _INTERNAL:
            raise CommandError(4738901, f"Attempt to set internal constant: {name}")
        check_variable_name(name, for_writing=True)
        if type(value) in (dict, list) or (type(value) is str and value.startswith("$")):
            expression = parse_expression(value, ParseContext(dict(variables)))
            if expression.fields() != set():
                raise CommandError(4890500, "Command let Expression tried to access a field, but this is not allowed")
            value = expression.evaluate(Env({}))
        if value is not MISSING:
            variables[name] = value
    return variables
