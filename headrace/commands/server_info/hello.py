"""hello and its old form isMaster: a driver's first command, which it repeats to monitor the server.

Rule: `me`, `hosts` and `primary` are the address at which this client has reached the server, because the driver will
connect to it next, whatever other names the machine has.

A driver may send the `topologyVersion` that it knows, with `maxAwaitTimeMS`, to get the answer when the topology has
changed. In a set of one, it changes with a `replSetStepDown` and its end; otherwise hello waits until its time is up. A
restarted server has another process id and answers at once. `dispatch/exhaust.py` has the streaming form.

Source: the drivers' specification of server discovery and monitoring.
"""

from __future__ import annotations

from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from headrace import limits
from headrace.commands.users.logging_in import speculative, supported_mechanisms
from headrace.dispatch.arguments import Field, Fields, array, boolean, document, number, string, without_effect
from headrace.dispatch.command import Command
from headrace.dispatch.context import CommandContext
from headrace.dispatch.primacy import TOPOLOGY
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.requirement import ANYONE
from headrace.dispatch.server_info import ELECTION_ID, host_of, op_time, topology_version
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.values.bson import encode

COMPRESSORS: Final = frozenset({"snappy", "zlib", "zstd"})
"""The compressors of `wire/compression.py`."""
WIRE_VERSION_MIN: Final = 0
WIRE_VERSION_MAX: Final = 27
"""The wire version of MongoDB 8.2."""

COMPRESSION: Final = array("compression")
HELLO_OK: Final = boolean("helloOk")
MAX_AWAIT_TIME_MS: Final = number("maxAwaitTimeMS")
SPECULATIVE: Final = document("speculativeAuthenticate")
SUPPORTED_MECHANISMS: Final = string("saslSupportedMechs")
_FIELDS: Final = Fields(
    COMPRESSION, HELLO_OK, MAX_AWAIT_TIME_MS, document("client"),
    document("topologyVersion", Fields(
        Field("processId", "objectId", None, required=True), number("counter", required=True), strict=False
    )),
    *without_effect("bool", "loadBalanced"), SPECULATIVE, SUPPORTED_MECHANISMS, strict=False,
)  # fmt: skip


def run(context: CommandContext, request: Request) -> dict[str, Any] | Wait:
    """hello, isMaster: describe the server, or wait if the client awaits a change of the topology."""
    body = request.body
    topology = topology_version(context.engine)
    counter = int(topology["counter"])
    wait_ms = _wait_ms(context, body, counter)
    if wait_ms and not request.time_is_up:
        return Wait(wait_ms, TOPOLOGY)
    is_first = request.client.metadata is None
    _remember_client(request.client, body)
    if is_first and request.client.metadata is not None:
        context.engine.shell.client_introduced(request.client)
    reply: dict[str, Any] = {"helloOk": True} if HELLO_OK.of(body) else {}
    reply["topologyVersion"] = topology
    primary_field = "isWritablePrimary" if request.name == "hello" else "ismaster"
    if context.engine.options.oplog:
        reply |= _in_a_set(context, request.client, primary_field)
    else:
        reply[primary_field] = True
    reply |= _for_anybody(context, request.client)
    if request.client.compressors and "compression" in body:
        reply["compression"] = request.client.compressors
    if asked := SUPPORTED_MECHANISMS.of(body):
        reply["saslSupportedMechs"] = supported_mechanisms(context, asked)
    if begun := SPECULATIVE.of(body):
        answer = speculative(context, request, begun)
        if answer is not None:
            reply["speculativeAuthenticate"] = answer
    return reply


def _wait_ms(context: CommandContext, body: dict[str, Any], counter: int) -> float:
    """Return how long the client wants to wait for a change, in ms; 0: answer now. Raise 31368, 31372, 31373 or
    31382."""
    known = body.get("topologyVersion")
    wait_ms = MAX_AWAIT_TIME_MS.of(body)
    if known is None:
        if wait_ms is not None:
            raise CommandError(31368, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'")
        return 0
    if wait_ms is None:
        raise CommandError(31368, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'")
    if known["counter"] < 0:
        raise CommandError(31372, "topologyVersion must have a non-negative counter")
    if wait_ms < 0:
        raise CommandError(31373, "maxAwaitTimeMS must be a non-negative integer")
    if known.get("processId") != context.engine.process_id or known["counter"] < counter:
        return 0
    if known["counter"] > counter:
        raise CommandError(
            31382,
            f"Received a topology version with counter: {known['counter']} which is greater than the server "
            f"topology version counter: {counter}",
        )
    left_ms = context.engine.primacy.left_ms
    return float(wait_ms) if left_ms is None else min(float(wait_ms), left_ms)


def _remember_client(info: ClientInfo, body: dict[str, Any]) -> None:
    """Store the client's metadata and compressors.

    Raise 184 or 185 if the metadata is too long, 186 if the client later sends different metadata.
    """
    client = body.get("client")
    if client is not None:
        if info.metadata is not None and client != info.metadata:
            raise CommandError(186, "The client metadata document may only be sent in the first hello")
        if info.metadata is None:
            _check_metadata(client)
        info.metadata = client
    if "compression" in body:
        info.compressors = [name for name in COMPRESSION.of(body) if type(name) is str and name in COMPRESSORS]


def _check_metadata(client: dict[str, Any]) -> None:
    if len(encode(client)) > limits.CLIENT_METADATA_BYTES_MAX:
        raise CommandError(
            185,
            f"The client metadata document must be less then or equal to {limits.CLIENT_METADATA_BYTES_MAX} bytes",
        )
    application = client.get("application")
    name = application.get("name") if type(application) is dict else None
    if type(name) is str and len(name.encode()) > limits.APPLICATION_NAME_BYTES_MAX:
        raise CommandError(
            184,
            f"The 'application.name' field must be less then or equal to {limits.APPLICATION_NAME_BYTES_MAX} bytes in "
            "the client metadata document",
        )


def _in_a_set(context: CommandContext, info: ClientInfo, primary_field: str) -> dict[str, Any]:
    host = host_of(context.engine, info)
    timestamp, wall_ms = context.engine.last_write()
    date = DatetimeMS(wall_ms)
    is_primary = context.engine.primacy.is_primary
    return {
        "hosts": [host],
        "setName": context.engine.options.replica_set,
        "setVersion": 1,
        primary_field: is_primary,
        "secondary": not is_primary,
        **({"primary": host} if is_primary else {}),
        "me": host,
        **({"electionId": ELECTION_ID} if is_primary else {}),
        "lastWrite": {
            "opTime": op_time(timestamp),
            "lastWriteDate": date,
            "majorityOpTime": op_time(timestamp),
            "majorityWriteDate": date,
        },
    }


def _for_anybody(context: CommandContext, info: ClientInfo) -> dict[str, Any]:
    return {
        "maxBsonObjectSize": limits.DOCUMENT_BYTES_MAX,
        "maxMessageSizeBytes": limits.MESSAGE_BYTES_MAX,
        "maxWriteBatchSize": limits.WRITE_BATCH_COUNT_MAX,
        "localTime": DatetimeMS(context.clock.now_ms()),
        "logicalSessionTimeoutMinutes": limits.SESSION_MINUTES,
        "connectionId": info.connection_id,
        "minWireVersion": WIRE_VERSION_MIN,
        "maxWireVersion": WIRE_VERSION_MAX,
        "readOnly": False,
    }


def ping(context: CommandContext, request: Request) -> bytes:
    """ping: answer. A change stream opened now would start at the reply's operationTime."""
    return b""


def whats_my_uri(context: CommandContext, request: Request) -> dict[str, Any]:
    """whatsmyuri: answer the client's address."""
    return {"you": request.client.address}


COMMANDS: Final = (
    Command("hello", run, _FIELDS, requires=ANYONE),
    Command("isMaster", run, _FIELDS, aliases=("ismaster",), requires=ANYONE),
    Command("ping", ping, Fields(), requires=ANYONE),
    Command("whatsmyuri", whats_my_uri, Fields(strict=False), requires=ANYONE),
)
