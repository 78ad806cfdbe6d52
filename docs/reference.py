"""Writes docs/reference/ from the code: python docs/reference.py

cli.md comes from the argparse parsers, source-options.md and job-file.md from the tables that the code itself uses.
tests/test_docs.py checks that the pages are up to date.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from headrace.cli.main import build_parser
from headrace.demo.__main__ import main as demo
from headrace.spark.jobs.job_model import TABLES, LookupTable, json_schema, option_text
from headrace.spark.mirror import main as mirror
from headrace.spark.sinks.file_values import FileTable, allowed
from headrace.spark.sinks.sink_model import Upkeep
from headrace.spark.sinks.sink_options import KINDS
from headrace.spark.source.option_table import GROUPS, SOURCE_OPTIONS, SourceOption

FOLDER: Final = Path(__file__).with_name("reference")
NOTE: Final = "<!-- Written by docs/reference.py; change the code and run it again. -->\n"


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    return {
        "cli.md": cli(),
        "job-file.md": job_file(),
        "job-file.schema.json": schema(),
        "source-options.md": source_options(),
    }


def cli() -> str:
    head = (
        f"# Command line\n\n{NOTE}\nThe command `headrace` (or `python -m headrace`), and two modules that are run "
        "with `python -m`.\n`-h` or `--help` prints the same. Of mongod's flags, `headrace serve` refuses those in\n"
        "[this list](../unsupported.md#flags-of-headrace-serve).\n"
    )
    parsers = [*commands(build_parser()), built(mirror), built(demo)]
    return head + "".join(command(parser) for parser in parsers)


def built(run: Any) -> argparse.ArgumentParser:
    """The parser with which a program reads its command line."""
    captured: list[argparse.ArgumentParser] = []

    def parse_args(parser: argparse.ArgumentParser, *_: object) -> None:
        captured.append(parser)
        raise SystemExit

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args), suppress(SystemExit):
        run([])
    return captured[0]


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands at the ends of the tree of subcommands, in order."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested or len(parser._actions) > len(nested) + 1:  # more than --help and subcommands
        yield parser
    for action in nested:
        for _, each in sorted(action.choices.items()):
            yield from commands(each)


def command(parser: argparse.ArgumentParser) -> str:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    rows = [
        (label(action), text(action, parser))
        for action in shown
        if "-h" not in action.option_strings and not isinstance(action, argparse._SubParsersAction)
    ]
    about = f"\n{parser.description}\n" if parser.description else ""
    return f"\n## {parser.prog}\n{about}" + (table(("Argument", "Meaning"), rows) if rows else "")


def label(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return ", ".join(f"`{flag}{'' if action.nargs == 0 else f' {value}'}`" for flag in action.option_strings)


def text(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    words = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%").replace("%(prog)s", "")
    default = action.default
    if default not in (None, False, argparse.SUPPRESS) and "default" not in words and "(default" not in words:
        words += f" (default: {default})"
    return (f"{words}; required" if action.option_strings and action.required else words).lstrip("; ")


def source_options() -> str:
    head = (
        f'# Options of the Spark source\n\n{NOTE}\nOptions of `format("headrace")`, of a job\'s `[source]` '
        "([job file](job-file.md)), for batch and streaming reads unless one is named.\n"
        "[Read change events in Spark](../spark/source.md) has examples. Names may be written in any case.\n"
    )
    sections = []
    for group in GROUPS:
        rows = [
            (f"`{name}`", option.allowed, f"`{option.default}`" if option.default else "", example(option), option.text)
            for name, option in SOURCE_OPTIONS.items()
            if option.group == group
        ]
        sections.append(f"\n## {group}\n" + table(("Option", "Value", "Default", "Example", "Meaning"), rows))
    return head + "".join(sections)


def example(option: SourceOption) -> str:
    return f"`{option_text(option.choices[-1] if option.choices else option.example)}`"


def job_file() -> str:
    head = (
        f"# Job file\n\n{NOTE}\nA job is a TOML file that `headrace pipeline run` takes. "
        "[Run a job](../spark/jobs.md) explains how to write one.\nA key that is not listed here is an error, and so "
        "is a value that its key does not allow: the message names the file, the\nline, the key and what is allowed. "
        "Nothing is "
        'converted: `"4"` is no number.\n\nA path is taken as it is written: one with `~` or `$HOME` is refused, since '
        "no "
        "shell expands it.\n\nEditors complete and check a job's file by its JSON schema: [job-file.schema.json]"
        "(job-file.schema.json), which\n`headrace pipeline schema` prints, too. With taplo, or *Even Better TOML*, the "
        "file's first line names it:\n`#:schema job-file.schema.json`.\n"
    )
    sections = [f"\n## {heading(name)}\n" + keys(model) for name, model in TABLES.items()]
    sections.insert(1, "\n## [source]\n\nThe [options of the source](source-options.md), by their names.\n")
    lookups = (
        "\n## [pipeline.tables.NAME]\n\nA table that a `$lookup` reads, as `from = NAME`. `format` or `path` is "
        "required.\n"
    )
    sections.append(lookups + keys(LookupTable))
    for kind, made in KINDS.items():
        about = f"\nSee [the sink `{kind}`](../sinks/{kind}.md).\n"
        sections.append(f'\n## [[sink]] of kind = "{kind}"\n{about}' + keys(made.model))
    about = "\nOf a sink with a Delta table, see [upkeep of tables](../spark/tables-upkeep.md).\n"
    sections.append(f"\n## [sink.upkeep]\n{about}" + keys(Upkeep))
    return head + "".join(sections)


def schema() -> str:
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def heading(name: str) -> str:
    return f"[{name}]" if name else "Top level"


def keys(model: type[FileTable]) -> str:
    schemas = model.schemas()
    rows = [
        (
            f"`{name}`",
            allowed(schemas[name]),
            default_of(field),
            f"`{toml((field.examples or [None])[0])}`",
            field.description or "",
        )
        for name, field in model.keys().items()
        if name != "kind"
    ]
    return table(("Key", "Value", "Default", "Example", "Meaning"), rows)


def default_of(field: Any) -> str:
    if field.json_schema_extra:
        return str(field.json_schema_extra["shown"])
    return "required" if field.is_required() else f"`{toml(field.default)}`"


def toml(value: Any) -> str:
    """The value as TOML has it."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{name if name.isidentifier() else json.dumps(name)} = {toml(each)}" for name, each in value.items()
            )
            + "}"
        )
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n" + "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in pages().items():
        (FOLDER / name).write_text(page, "utf-8")
        print(f"{FOLDER.name}/{name} is written")
