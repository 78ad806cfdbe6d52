"""Writes docs/unsupported.md from the tables of the code: python docs/unsupported.py

Every module of `headrace` with a table called UNSUPPORTED, REFUSED or REFUSED_FLAGS is found by looking; one that
is new fails here until it is given a title.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any, Final

import headrace
from headrace.errors import code_name

PAGE: Final = Path(__file__).with_name("unsupported.md")
NAMES: Final = ("REFUSED", "REFUSED_FLAGS", "UNSUPPORTED")
TITLES: Final = {
    "cli.serve.REFUSED_FLAGS": "Flags of `headrace serve`",
    "commands.create.UNSUPPORTED": "Options of `create`",
    "commands.find.UNSUPPORTED": "Options of `find`",
    "commands.refused.REFUSED": "Commands",
    "commands.server_stages.UNSUPPORTED": "Options of `$collStats`",
    "query.accumulators.accumulator.UNSUPPORTED": "Accumulators",
    "query.expressions.operator_table.UNSUPPORTED": "Expressions",
    "query.match.field_operators.UNSUPPORTED": "Query operators on a field",
    "query.match.filter_parser.UNSUPPORTED": "Query operators at the top",
    "query.match.json_schema.REFUSED": "Keywords of `$jsonSchema`",
    "query.stages.unsupported.UNSUPPORTED": "Pipeline stages",
}
ROOMS: Final = ("cli", "commands", "query")
HEAD: Final = """\
# What Headrace refuses

Written by `docs/unsupported.py` from the tables that the code itself uses; a test checks that it is so. What is
here answers the error beside it. A name that is in no table gets MongoDB's error for an unknown name. Where
Headrace answers, but otherwise than MongoDB, see [differences](differences.md).
"""


def tables() -> dict[str, Any]:
    """Every table of refusals in the code, by the name of its module and its own."""
    found = {}
    for room in ROOMS:
        package = importlib.import_module(f"headrace.{room}")
        for info in pkgutil.walk_packages(package.__path__, f"headrace.{room}."):
            module = importlib.import_module(info.name)
            for name in NAMES:
                if name in vars(module) and not _imported(module, name):
                    found[f"{info.name.removeprefix('headrace.')}.{name}"] = getattr(module, name)
    return found


def _imported(module: Any, name: str) -> bool:
    """Whether the module has the table from another one."""
    text = Path(module.__file__).read_text("utf-8")
    return not any(line.startswith((f"{name}:", f"{name} =")) for line in text.splitlines())


def page() -> str:
    """The whole page. Raises KeyError for a table without a title."""
    by_title = {TITLES[name]: table for name, table in tables().items()}
    return HEAD + "".join(section(title, by_title[title]) for title in sorted(by_title))


def section(title: str, table: Any) -> str:
    if not isinstance(table, dict):
        return f"\n## {title}\n\n{', '.join(f'`{name}`' for name in sorted(table))}\n"
    if all(isinstance(answer, str) for answer in table.values()):
        rows = [f"| `{name}` | {answer} |" for name, answer in sorted(table.items())]
        return f"\n## {title}\n\n| Name | Why |\n|---|---|\n" + "\n".join(rows) + "\n"
    rows = [
        f"| `{name}` | {code} {code_name(code)} | {message.format(name)} |"
        for name, (code, message) in sorted(table.items())
    ]
    return f"\n## {title}\n\n| Name | Error | Message |\n|---|---|---|\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"{PAGE.name} is written, by headrace {headrace.__version__}")
