"""Parses the options of the `headrace` source.

Spark passes every option as text and changes its name to lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bson import Timestamp

from headrace.errors import CommandError
from headrace.spark.errors import OptionError
from headrace.spark.masks.mask import parse_mask
from headrace.spark.mongodb.collection_selection import parse_selection
from headrace.spark.mongodb.connection_strings import resolved, resolved_secret
from headrace.spark.mongodb.source_options import SourceOptions, StreamPosition, server_name
from headrace.spark.pipelines.refusals import StageRefused
from headrace.spark.rows.extjson import loads_strict
from headrace.spark.rows.tokens import Token
from headrace.spark.source.option_table import SOURCE_OPTIONS, STREAM

_STREAM_OPTIONS: Final = {name.lower(): name for name, option in SOURCE_OPTIONS.items() if option.group == STREAM}
_BOOLEANS: Final = {"false": False, "true": True}
_OF_ONE: Final = {
    "archive": "it is a table of one collection's events; give the collection that needs it a job of its own",
    "pipeline": "it could hide a drop or a rename; take a job's [pipeline], which runs in Spark",
}
"""Options that a snapshot of several collections cannot have, and what to do."""
_SOURCE_NAMES: Final = frozenset(name.lower() for name in SOURCE_OPTIONS) - _STREAM_OPTIONS.keys()


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options, as `option_table.py` describes them; raises OptionError naming the one that is wrong."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _SOURCE_NAMES - _STREAM_OPTIONS.keys())
    if unknown:
        raise OptionError(f"the headrace source has no option {unknown[0]!r}")
    uris = _uris(options)
    _check_together(options, len(uris))
    pipeline, reader = _pipeline(options.get("pipeline", "[]"))
    if "archive" in options and (uris[1:] or any("$changeStreamSplitLargeEvent" in stage for stage in pipeline)):
        raise OptionError("the option 'archive' is for one server, and not for events that are split")
    mask = parse_mask(options.get("mask", ""), resolved_secret)
    if mask:
        _check_masked(options, pipeline, reader)
    return SourceOptions(
        mask=mask,
        uri=uris[0],
        others=uris[1:],
        database=options.get("database"),
        collection=options.get("collection"),
        collections=parse_selection(options.get("database"), _names(options, "collections")).patterns,
        capped=_one_of(options, "cappedCollections", "read", "skip"),
        also=_names(options, "snapshotAlso"),
        pipeline=pipeline,
        reader=reader,
        stream={
            _STREAM_OPTIONS[name]: _stream_value(value) for name, value in options.items() if name in _STREAM_OPTIONS
        },
        start=parse_position(options.get("startingposition", "latest")),
        end=parse_position(options.get("endingposition", "latest")),
        rows_max=_count(options, "maxRowsPerTrigger"),
        bytes_max=_count(options, "maxBytesPerTrigger"),
        documents=_one_of(options, "documents", "extjson", "bson", "columns"),
        document_schema=options.get("documentschema", "").strip(),
        columns=_columns(options.get("columns", "")),
        partitions=_count(options, "partitions") or 1,
        partition_by=_one_of(options, "partitionBy", "document", "time"),
        archive=options.get("archive", ""),
        as_of=parse_position(options["asof"]) if "asof" in options else None,
        on_position_lost=_one_of(options, "onPositionLost", "fail", "resnapshot"),
        on_server_down=_one_of(options, "onServerDown", "stall", "skip"),
        histories=_histories(options.get("replicasetid", ""), len(uris)),
        transport=_one_of(options, "transport", "auto", "arrow", "bson"),
        batch_rows=_count(options, "batchRows") or 1000,
        await_ms=_count(options, "awaitMs") or 250,
        idle_advance_ms=_count(options, "idleAdvanceMs") or 60_000,
        stage_into=options.get("stageinto", ""),
    )


def _check_masked(options: Mapping[str, str], pipeline: Any, reader: Any) -> None:
    """Raises OptionError for options by which values would be read that no path names any more."""
    if reader or any("$match" not in stage for stage in pipeline):
        raise OptionError("the option 'mask' allows no stages in 'pipeline' but $match: they could move what is masked")
    if "archive" in options or "asof" in options:
        raise OptionError(
            "the option 'mask' goes with neither 'archive' nor 'asOf': what is archived is masked already"
        )


def _uris(options: Mapping[str, str]) -> tuple[str, ...]:
    """The servers' connection strings; for a data directory, that of the server that is started for it."""
    if ("uri" in options) == ("path" in options):
        raise OptionError("the headrace source needs one of the options 'uri' and 'path'")
    if "path" in options:
        from headrace.spark.source.local_server import uri_of

        if "://" in options["path"]:
            raise OptionError(f"the option 'path' is a data directory, not {options['path']!r}")
        return (uri_of(options["path"]),)
    text = options["uri"].strip()
    try:
        uris = (
            loads_strict(text) if text.startswith("[") else [line.strip() for line in text.splitlines() if line.strip()]
        )
    except ValueError as error:
        raise OptionError(f"the option 'uri' is not a JSON array: {error}") from None
    if not isinstance(uris, list) or not uris or not all(isinstance(uri, str) and uri for uri in uris):
        raise OptionError("the option 'uri' is a connection string, or an array of them")
    uris = [resolved(uri) for uri in uris]
    if len(uris) > 1 and len(set(map(server_name, uris))) < len(uris):
        raise OptionError("the option 'uri' names a server twice")
    return tuple(uris)


def _check_together(options: Mapping[str, str], servers: int) -> None:
    """Raises OptionError for options that need another one."""
    if "collection" in options and "database" not in options:
        raise OptionError("the option 'collection' needs the option 'database'")
    if {"collection", "collections"} <= options.keys():
        raise OptionError("the options 'collection' and 'collections' are for one collection and for several: give one")
    from_snapshot = options.get("startingposition", "").strip() == "snapshot"
    if from_snapshot and "collection" not in options:
        _check_several(options)
    if (options.get("documents", "").lower() == "columns") != ("documentschema" in options):
        raise OptionError("documents 'columns' and the option 'documentSchema' go together")
    again = options.get("onpositionlost", "").lower() == "resnapshot"
    if again and "collection" not in options and not from_snapshot:
        raise OptionError("onPositionLost 'resnapshot' needs a collection, or startingPosition 'snapshot'")
    if "asof" in options and "collection" not in options:
        raise OptionError("the option 'asOf' needs a collection")


def _check_several(options: Mapping[str, str]) -> None:
    """Raises OptionError for what a snapshot of several collections cannot have."""
    for name, reason in _OF_ONE.items():
        if name in options:
            raise OptionError(f"the option {name!r} is not for a snapshot of several collections: {reason}")


def _one_of(options: Mapping[str, str], name: str, *values: str) -> str:
    value = options.get(name.lower(), values[0]).strip().lower()
    if value not in values:
        raise OptionError(f"the option {name!r} is one of {', '.join(values)}, not {value!r}")
    return value


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """An array of names, as JSON or separated by commas."""
    text = options.get(name.lower(), "").strip()
    try:
        names = loads_strict(text) if text.startswith("[") else [one.strip() for one in text.split(",") if one.strip()]
    except ValueError as error:
        raise OptionError(f"the option {name!r} is not a JSON array: {error}") from None
    if not isinstance(names, list):
        raise OptionError(f"the option {name!r} is an array of names")
    return tuple(names)


def _histories(text: str, servers: int) -> tuple[str, ...]:
    ids = text.split()
    if ids and len(ids) != servers:
        raise OptionError(f"the option 'replicaSetId' has an id for each server, {servers}, not {len(ids)}")
    return tuple("" if one == "-" else one for one in ids)


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) < len(names):
        raise OptionError("the option 'columns' names a column twice")
    return names


def parse_position(text: str) -> StreamPosition:
    """A position as options give it; raises OptionError."""
    text = text.strip()
    if text in {"earliest", "latest", "snapshot"}:
        return StreamPosition(text)
    if text.startswith("{"):
        return _at(_token(text))
    if text[:2] == "82" and all(digit in "0123456789abcdefABCDEF" for digit in text):
        return _at(Token(text.upper()))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{text!r} is not latest, earliest, snapshot, a resume token or an ISO time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return StreamPosition("time", time=Timestamp(int(moment.timestamp()), 0))


def _token(text: str) -> Token:
    try:
        return Token.of(loads_strict(text))
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(f"{text!r} is not a resume token: {error}") from None


def _at(token: Token) -> StreamPosition:
    """The position of a token. Raises OptionError for a masked one."""
    if token.is_masked:
        raise OptionError(
            f"the token {token.text} is of a masked row, and lacks the key of its event: no stream opens at it; "
            f"give its time, {token.time.as_datetime():%Y-%m-%dT%H:%M:%SZ}"
        )
    return StreamPosition("token", token=token)


def _pipeline(text: str) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """The stages for the server, and those after them for the source's reader."""
    try:
        stages = loads_strict(text)
    except ValueError as error:
        raise OptionError(f"the option 'pipeline' is not JSON: {error}") from None
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise OptionError("the option 'pipeline' is an array of stages")
    try:
        # It imports the server's stages, which most streams do not need.
        from headrace.spark.pipelines.reader import split_stages

        return split_stages(stages) if stages else ((), ())
    except (CommandError, StageRefused) as error:
        raise OptionError(f"the option 'pipeline': {error}") from None


def _stream_value(value: str) -> Any:
    return _BOOLEANS.get(value.lower(), value)


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"the option {name!r} is a whole number above 0, not {text!r}")
    return int(text)
