"""The options of the sink `kafka`, the options that Spark's writer gets, and a check that a broker answers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.clock import SystemClock
from headrace.spark.errors import OptionError
from headrace.spark.mongodb.connection_strings import referred

FORMATS: Final = ("canonical", "relaxed")
"""Formats of values. Canonical Extended JSON keeps each type; most readers of JSON expect relaxed Extended JSON."""
PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""The class of Spark's Kafka writer, which is in a jar of its own."""
PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_PLACEHOLDER: Final = re.compile(r"\{(database|collection)\}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_TOPIC_LENGTH_MAX: Final = 249
_SERVER: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]/]+):(?P<port>\d{1,5})")
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The sink's options. `client` has the options of Kafka's clients without `kafka.`; a value may be a reference."""

    servers: str
    topic: str
    format: str = "canonical"
    tombstones: bool = False
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    def topic_of(self, database: str | None, collection: str | None) -> str | None:
        """Return the topic of an event of this namespace; None if the topic needs a name that the event lacks."""
        names = {"database": database, "collection": collection}
        if any(not names[name] for name in _PLACEHOLDER.findall(self.topic)):
            return None
        return _PLACEHOLDER.sub(lambda name: _in_topic(names[name.group(1)] or ""), self.topic)

    def writer_options(self) -> dict[str, str]:
        """Return the options of Spark's writer. Raise OptionError if a referenced value cannot be read."""
        client = {f"kafka.{name}": referred(value, f"the option {name}") for name, value in self.client.items()}
        return {"kafka.bootstrap.servers": self.servers, **client}


def kafka_options(given: Mapping[str, Any]) -> KafkaOptions:
    """Return the options of a sink's table in a job file. Raise OptionError."""
    servers = given["servers"]
    servers = ",".join(map(str, servers)) if isinstance(servers, list) else str(servers)
    if not all(_port_fits(server) for server in servers.split(",")):
        raise OptionError(f"'servers' are brokers as 'host:port', with commas between them, not {servers!r}", "servers")
    topic, name = str(given["topic"]), given.get("format", "canonical")
    plain = _PLACEHOLDER.sub("x", topic)
    if not _TOPIC.fullmatch(plain) or len(plain) > _TOPIC_LENGTH_MAX or plain in {".", ".."}:
        raise OptionError(
            "'topic' has letters, digits, '.', '_', '-', and {database} and {collection} where these names belong, not "
            f"{topic!r}",
            "topic",
        )
    client = dict(_flat(given.get("kafka", {})))
    if "bootstrap.servers" in client:
        raise OptionError("the brokers are the option 'servers'", "kafka")
    return KafkaOptions(servers, topic, name, given.get("tombstones", False), client)


def unreachable(servers: str, seconds: float) -> str:
    """Return why no broker accepts a connection within `seconds`; empty if one does."""
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + seconds * 1000
    reason = ""
    each = servers.split(",")
    for number, server in enumerate(each):
        host, port = _address(server)
        left_s = max(until_ms - clock.monotonic_ms(), 1) / 1000 / (len(each) - number)
        try:
            socket.create_connection((host, port), left_s).close()
        except OSError as error:
            reason = f"{server.strip()}: {error.strerror or error}"
            continue
        return ""
    return reason


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the options with their dotted names. TOML reads `kafka.security.protocol` as nested tables."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _in_topic(name: str) -> str:
    """Return the name with each character that a topic cannot have as `_` and two hexadecimal digits per byte."""
    return "".join(
        character if _TOPIC.fullmatch(character) else "".join(f"_{byte:02x}" for byte in character.encode())
        for character in name
    )


def _port_fits(server: str) -> bool:
    matched = _SERVER.fullmatch(server.strip())
    return matched is not None and 0 < int(matched["port"]) <= _PORT_MAX


def _address(server: str) -> tuple[str, int]:
    matched = _SERVER.fullmatch(server.strip())
    assert matched is not None
    return matched["host"].strip("[]"), int(matched["port"])
