"""The options of a sink whose table has typed columns: `schema`, and how it is made and grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.spark.columns.column_types import SchemaError, parse_path
from headrace.spark.columns.infer import ColumnRules
from headrace.spark.columns.schema_text import parse_schema
from headrace.spark.tables.table_location import is_url
from headrace.spark.tables.typed.partition_columns import parse_partition
from headrace.spark.tables.typed.table_schema import INFER, TypedOptions

TYPED_OPTIONS: Final = frozenset({"cluster", "evolve", "flatten", "partition", "rename", "schema", "schema_file"})


def typed_options(options: Mapping[str, Any], path: str) -> TypedOptions | None:
    """Return the options of a table at `path`; None if it has no typed columns. Raise SchemaError."""
    given = {name: value for name, value in options.items() if name in TYPED_OPTIONS}
    if not given:
        return None
    if "schema" not in given:
        keys = sorted(given)
        raise SchemaError(f"{', '.join(keys)}: a table with typed columns needs schema = 'infer', or a schema", keys[0])
    schema = given["schema"].strip()
    file = str(given.get("schema_file", "" if is_url(path) or schema != INFER else _next_to(path)))
    evolve = given.get("evolve", "widen" if schema == INFER else "none")
    with _of_key("rename"):
        rename = {parse_path(path): name for path, name in given.get("rename", {}).items()}
    with _of_key("flatten"):
        rules = ColumnRules(evolve, _flattened(given.get("flatten", False)), rename)
    with _of_key("partition"):
        partitions = tuple(map(parse_partition, _texts(given.get("partition", []))))
    parsed = TypedOptions(schema, file, rules, partitions, _texts(given.get("cluster", [])))
    if schema != INFER:
        with _of_key("schema"):
            parse_schema(schema, parsed.rules.reserved)
    return parsed


@contextmanager
def _of_key(key: str) -> Iterator[None]:
    """Raise a SchemaError of the block with the key of the option that it is about."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"{key}: {error}", key) from None


def schema_file(options: Mapping[str, Any], path: str, folder: Path) -> str:
    """Return the path of the schema file; relative paths are in `folder`. The file of a table in an object store is
    local."""
    if "schema_file" in options:
        return str(folder / str(options["schema_file"]))
    return str(folder / f"_{path.partition('://')[2].replace('/', '-')}.columns") if is_url(path) else _next_to(path)


def _next_to(path: str) -> str:
    """Return the file next to a table's folder. No table of another collection has a name that begins with `_`."""
    return str(Path(path).with_name(f"_{Path(path).name}.columns"))


def _flattened(given: bool | str | list[str]) -> frozenset[tuple[str, ...]] | None:
    if isinstance(given, bool):
        return None if given else frozenset()
    paths = list(map(parse_path, _texts(given)))
    # Flattening an object also flattens the objects around it.
    return frozenset(path[: depth + 1] for path in paths for depth in range(len(path)))


def _texts(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
