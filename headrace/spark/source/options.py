"""Parses the options of the `headrace` source.

Spark passes every option as text and changes its name to lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson import Timestamp

from headrace.clock import SystemClock
from headrace.errors import CommandError
from headrace.spark.errors import OptionError, nearest, shown
from headrace.spark.masks.mask import parse_mask
from headrace.spark.mongodb.collection_selection import (
    NameNotPossible,
    check_collection_name,
    check_database_name,
    parse_selection,
)
from headrace.spark.mongodb.connection_strings import referred, resolved
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.pipelines.refusals import StageRefused
from headrace.spark.rows.events import REST, SCHEMA, SERVER, TYPED_COLUMNS
from headrace.spark.rows.extjson import loads_strict
from headrace.spark.rows.tokens import Token
from headrace.spark.source.option_table import SOURCE_OPTIONS, STREAM
from headrace.spark.tables.checked_paths import LocationError, check_scheme, checked_path
from headrace.values.token import decode_token

_STREAM_OPTIONS: Final = {name.lower(): name for name, option in SOURCE_OPTIONS.items() if option.group == STREAM}
_BOOLEANS: Final = {"false": False, "true": True}
_NAMES: Final = {name.lower(): name for name in SOURCE_OPTIONS}
_NAME_CHECKS: Final = {"collection": check_collection_name, "database": check_database_name}
_HISTORY: Final = re.compile(r"[0-9a-f]{24}|-")
_FUTURE_SECONDS_MAX: Final = 3600
"""How far a position may be ahead of this machine's clock, because clocks differ."""
_OF_ONE: Final = {
    "archive": "it is a table of one collection's events; give the collection that needs it a job of its own",
    "pipeline": "it could hide a drop or a rename; take a job's [pipeline], which runs in Spark",
}
"""Options that a snapshot of several collections cannot have, and what to do instead."""


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options, as `option_table.py` describes them; raise OptionError, which names the wrong option."""
    options = {name.lower(): value for name, value in given.items()}
    for unknown in sorted(options.keys() - _NAMES.keys()):
        raise OptionError(f"the headrace source has no option {unknown!r}{nearest(unknown, SOURCE_OPTIONS)}", unknown)
    for name, text in options.items():
        check_option(_NAMES[name], text)
    uris = _uris(options)
    _check_together(options, len(uris))
    pipeline, reader = _pipeline(options.get("pipeline", "[]"))
    if "archive" in options and (uris[1:] or any("$changeStreamSplitLargeEvent" in stage for stage in pipeline)):
        raise OptionError("the option 'archive' is for one server, and not for events that are split", "archive")
    mask = parse_mask(options.get("mask", ""), lambda reference: referred(reference, "a key"))
    if mask:
        _check_masked(options, pipeline, reader)
    return SourceOptions(
        mask=mask,
        uri=uris[0],
        others=uris[1:],
        database=options.get("database"),
        collection=options.get("collection"),
        collections=parse_selection(options.get("database"), _names(options, "collections")).patterns,
        capped=_one_of(options, "cappedCollections"),
        also=_names(options, "snapshotAlso"),
        pipeline=pipeline,
        reader=reader,
        stream={
            _STREAM_OPTIONS[name]: _stream_value(value) for name, value in options.items() if name in _STREAM_OPTIONS
        },
        start=parse_position(options.get("startingposition", "latest")),
        end=parse_position(options.get("endingposition", "latest"), "endingPosition"),
        rows_max=_count(options, "maxRowsPerTrigger"),
        bytes_max=_count(options, "maxBytesPerTrigger"),
        documents=_one_of(options, "documents"),
        not_held=_one_of(options, "notHeld"),
        document_schema=options.get("documentschema", "").strip(),
        columns=_columns(options, len(uris)),
        partitions=_count(options, "partitions") or 1,
        partition_by=_one_of(options, "partitionBy"),
        archive=options.get("archive", ""),
        as_of=parse_position(options["asof"], "asOf") if "asof" in options else None,
        on_position_lost=_one_of(options, "onPositionLost"),
        on_server_down=_one_of(options, "onServerDown"),
        histories=_histories(options.get("replicasetid", ""), len(uris)),
        transport=_one_of(options, "transport"),
        batch_rows=_count(options, "batchRows") or 1000,
        await_ms=_count(options, "awaitMs") or 250,
        idle_advance_ms=_count(options, "idleAdvanceMs") or 60_000,
        stage_into=options.get("stageinto", ""),
        stage_slots=options.get("stageslots", ""),
    )


def check_option(name: str, text: str) -> None:
    """Raise OptionError if the option with this documented name cannot have this text."""
    option, plain = SOURCE_OPTIONS[name], text.strip()
    if option.choices:
        # MongoDB accepts the values of its options in one case only.
        exact = option.group == STREAM and option.choices != ("true", "false")
        if plain not in option.choices and (exact or plain.lower() not in option.choices):
            near = nearest(plain, option.choices)
            raise OptionError(f"the option {name!r} is {option.allowed}, not {shown(text)}{near}", name)
    if option.most and not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= option.most):
        raise OptionError(f"the option {name!r} is {option.allowed}, not {shown(text)}", name)
    if name in _NAME_CHECKS and text:
        try:
            _NAME_CHECKS[name](text)
        except NameNotPossible as error:
            raise OptionError(f"the option {name!r} {error}", name) from None
    if option.is_path:
        try:
            checked_path(text)
        except LocationError as error:
            raise OptionError(f"the option {name!r} {error}", name) from None
    if name == "archive":
        try:
            check_scheme(text)
        except LocationError as error:
            raise OptionError(f"the option {name!r} is a table: {error}", name) from None
    if option.is_position:
        position = parse_position(text, name)
        time = position.time or (position.token.time if position.token else None)
        # An end may be in the future: no events exist yet between now and then.
        if name != "endingPosition" and time and time.time > SystemClock().now_ms() / 1000 + _FUTURE_SECONDS_MAX:
            raise OptionError(f"the option {name!r} is in the future: {time.as_datetime():%Y-%m-%dT%H:%M:%SZ}", name)


def _check_masked(options: Mapping[str, str], pipeline: Any, reader: Any) -> None:
    """Raise OptionError for options that could move masked values to other paths."""
    if reader or any("$match" not in stage for stage in pipeline):
        raise OptionError(
            "the option 'mask' allows no stages in 'pipeline' but $match: they could move what is masked", "pipeline"
        )
    if "archive" in options or "asof" in options:
        raise OptionError(
            "the option 'mask' goes with neither 'archive' nor 'asOf': what is archived is masked already", "mask"
        )


def _uris(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the servers' connection strings; for a data directory, that of the server started for it."""
    if ("uri" in options) == ("path" in options):
        raise OptionError("the headrace source needs one of the options 'uri' and 'path'", "path")
    if "path" in options:
        from headrace.spark.source.local_server import NotStarted, uri_of

        if "://" in options["path"]:
            raise OptionError(f"the option 'path' is a data directory, not {options['path']!r}", "path")
        try:
            return (uri_of(options["path"]),)
        except NotStarted as error:
            raise OptionError(f"the option 'path': {error}", "path") from None
    uris = _names(options, "uri", "\n")
    if not uris or not all(isinstance(uri, str) and uri for uri in uris):
        raise OptionError("the option 'uri' is a connection string, or an array of them", "uri")
    uris = tuple(map(resolved, uris))
    if len(uris) > 1 and len(set(map(server_name, uris))) < len(uris):
        raise OptionError("the option 'uri' names a server twice", "uri")
    return uris


def _check_together(options: Mapping[str, str], servers: int) -> None:
    """Raise OptionError for options that require another one, and for empty names."""
    for name in ("database", "collection"):
        if options.get(name) == "":
            raise OptionError(f"the option {name!r} is a name, and empty; without the option all are read", name)
    if "collection" in options and "database" not in options:
        raise OptionError("the option 'collection' needs the option 'database'", "collection")
    if {"collection", "collections"} <= options.keys():
        raise OptionError(
            "the options 'collection' and 'collections' are for one collection and for several: give one", "collections"
        )
    from_snapshot = options.get("startingposition", "").strip() == "snapshot"
    if from_snapshot and "collection" not in options:
        _check_several(options)
    if (options.get("documents", "").lower() == "columns") != ("documentschema" in options):
        given = "documentSchema" if "documentschema" in options else "documents"
        raise OptionError("documents 'columns' and the option 'documentSchema' go together", given)
    again = options.get("onpositionlost", "").lower() == "resnapshot"
    if again and "collection" not in options and not from_snapshot:
        raise OptionError(
            "onPositionLost 'resnapshot' needs a collection, or startingPosition 'snapshot'", "onPositionLost"
        )
    if "asof" in options and "collection" not in options:
        raise OptionError("the option 'asOf' needs a collection", "asOf")


def _check_several(options: Mapping[str, str]) -> None:
    """Raise OptionError for options that a snapshot of several collections cannot have."""
    for name, reason in _OF_ONE.items():
        if name in options:
            raise OptionError(f"the option {name!r} is not for a snapshot of several collections: {reason}", name)


def _one_of(options: Mapping[str, str], name: str) -> str:
    return options.get(name.lower(), SOURCE_OPTIONS[name].choices[0]).strip().lower()


def _names(options: Mapping[str, str], name: str, separator: str = ",") -> tuple[str, ...]:
    """Return an array of names, from JSON or separated."""
    text = options.get(name.lower(), "").strip()
    try:
        names = (
            loads_strict(text) if text.startswith("[") else list(filter(None, map(str.strip, text.split(separator))))
        )
    except ValueError as error:
        raise OptionError(f"the option {name!r} is not a JSON array: {error}", name) from None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise OptionError(f"the option {name!r} is an array of names", name)
    return tuple(names)


def _histories(text: str, servers: int) -> tuple[str, ...]:
    ids = text.split()
    for one in ids:
        if not _HISTORY.fullmatch(one):
            problem = f"the option 'replicaSetId' is 24 hexadecimal digits, or '-', for each server, not {one!r}"
            raise OptionError(problem, "replicaSetId")
    if ids and len(ids) != servers:
        raise OptionError(
            f"the option 'replicaSetId' has an id for each server, {servers}, not {len(ids)}", "replicaSetId"
        )
    return tuple("" if one == "-" else one for one in ids)


def _columns(options: Mapping[str, str], servers: int) -> tuple[str, ...]:
    names = _names(options, "columns")
    known = [column.partition(" ")[0] for column in SCHEMA.split(", ")]
    typed = [name + REST for name in TYPED_COLUMNS] if _one_of(options, "documents") == "columns" else []
    for name in names:
        if name not in {*known, *typed, *([SERVER] if servers > 1 else [])}:
            there_are = f"there are {', '.join(known)}"
            problem = f"the option 'columns' has {name!r}, which is no column; {there_are}{nearest(name, known)}"
            raise OptionError(problem, "columns")
        if name in typed and name.removesuffix(REST) not in names:
            raise OptionError(f"the column {name!r} is given only with {name.removesuffix(REST)!r}", "columns")
    if len(set(names)) < len(names):
        raise OptionError("the option 'columns' names a column twice", "columns")
    return names


def parse_position(text: str, name: str = "startingPosition") -> StreamPosition:
    """Return the position that the option `name` gives. Raise OptionError."""
    plain = text.strip()
    words = ("latest", "earliest", "snapshot") if name == "startingPosition" else ("latest",)
    if plain in words:
        return StreamPosition(plain)
    if plain.startswith("{") or (plain[:2] == "82" and all(digit in "0123456789abcdefABCDEF" for digit in plain)):
        return _at(plain, name)
    try:
        moment = datetime.fromisoformat(plain)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return StreamPosition("time", time=Timestamp(int(moment.timestamp()), 0))
    except (OverflowError, ValueError):
        raise OptionError(
            f"the option {name!r} is {', '.join(words)}, a resume token or an ISO time, not {shown(text)}"
            f"{nearest(plain, words)}", name
        ) from None  # fmt: skip


def _at(text: str, name: str) -> StreamPosition:
    """Return the position of a token. Raise OptionError if the token is damaged, cut off or masked."""
    try:
        token = Token.of(loads_strict(text)) if text.startswith("{") else Token(text.upper())
        if not token.is_masked:
            decode_token(token.document())
    except CommandError as error:
        raise OptionError(
            f"the option {name!r} has a resume token that is damaged or cut off ({error.message}): {shown(text)}", name
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OptionError(f"the option {name!r} is not a resume token: {shown(text)}: {error}", name) from None
    if token.is_masked:
        raise OptionError(
            f"the token {token.text} is of a masked row, and lacks the key of its event: no stream opens at it; "
            f"give its time, {token.time.as_datetime():%Y-%m-%dT%H:%M:%SZ}", name
        )  # fmt: skip
    return StreamPosition("token", token=token)


def _pipeline(text: str) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """Return the stages for the server, and the later stages for the source's reader."""
    try:
        stages = loads_strict(text)
    except ValueError as error:
        raise OptionError(f"the option 'pipeline' is not JSON: {error}", "pipeline") from None
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise OptionError("the option 'pipeline' is an array of stages", "pipeline")
    if not stages:
        return (), ()
    try:
        # Imported here: it imports the server's stages, which most streams do not need.
        from headrace.spark.pipelines.reader import split_stages

        return split_stages(stages)
    except (CommandError, StageRefused) as error:
        raise OptionError(f"the option 'pipeline': {error}", "pipeline") from None


def _stream_value(value: str) -> Any:
    return _BOOLEANS.get(value.lower(), value)


def _count(options: Mapping[str, str], name: str) -> int | None:
    return int(options[name.lower()]) if name.lower() in options else None
