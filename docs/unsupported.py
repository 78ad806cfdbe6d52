"""Writes docs/unsupported.md from the tables of the code: python docs/unsupported.py

It looks for tables called UNSUPPORTED, REFUSED or REFUSED_FLAGS in the server's modules. A new one fails until it has a
title here.
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
    "accumulator.UNSUPPORTED": "Accumulators",
    "strings.UNSUPPORTED": "Expressions with an encrypted payload",
    "filter_parser.UNSUPPORTED": "Query operators at the top level",
    "find.UNSUPPORTED": "Options of `find`",
    "json_schema.REFUSED": "Keywords of `$jsonSchema`",
    "operator_table.UNSUPPORTED": "Expressions",
    "refused.REFUSED": "Commands",
    "serve.REFUSED_FLAGS": "Flags of `headrace serve`",
    "server_stages.UNSUPPORTED": "Options of `$collStats`",
    "pipeline.UNSUPPORTED": "Pipeline stages",
    "time_series.UNSUPPORTED": "Indexes on measurements of a time series",
}
"""By file and table."""
OTHERS: Final = {"headrace.demo", "headrace.spark", "headrace.testing"}
HEAD: Final = """\
# What Headrace refuses

Whatever is listed here answers the error beside it. A name that is not listed gets MongoDB's error for an unknown name.
`docs/unsupported.py` writes this page from the tables that the code uses, and a test checks that it is up to date. What
Headrace answers in another way than MongoDB is in [differences](differences.md).
"""


def tables() -> dict[str, Any]:
    """Every table of refusals in the code, by the names of its file and of the table."""
    refusals = {}
    for package in pkgutil.iter_modules(headrace.__path__, "headrace."):
        if not package.ispkg or package.name in OTHERS:
            continue
        for info in pkgutil.walk_packages(importlib.import_module(package.name).__path__, f"{package.name}."):
            module = importlib.import_module(info.name)
            for name in NAMES:
                if name in vars(module) and not _imported(module, name):
                    refusals[f"{info.name.rpartition('.')[2]}.{name}"] = getattr(module, name)
    return refusals


def _imported(module: Any, name: str) -> bool:
    """Whether the module imports the table from another one."""
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
