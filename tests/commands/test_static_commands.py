"""The commands that tell about the server, run as plain functions against info."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bson import Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS

from headrace.commands.server_info.hello import COMPRESSORS
from headrace.commands.server_info.parameters import PARAMETERS, first_parameters
from headrace.commands.server_info.refused import REFUSED
from headrace.commands.table import COMMANDS, STATIC_COMMANDS
from headrace.commands.users import changing_roles, changing_users, showing
from headrace.dispatch.context import CommandContext
from headrace.dispatch.options import ServerOptions
from headrace.dispatch.primacy import TOPOLOGY, Primacy
from headrace.dispatch.profiling.usage import Usage
from headrace.dispatch.request import ClientInfo, Request
from headrace.dispatch.shell import Shell
from headrace.dispatch.wait import Wait
from headrace.errors import CommandError
from headrace.memory_budget import Memory
from headrace.testing.driven import DrivenServer
from headrace.values.bson import encode
from headrace.wire.compression import NAMES

OPTIONS = ServerOptions(dbpath=Path("data"))


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_100_000

    def monotonic_ms(self) -> float:
        return 5.0


class FakeAccess:
    """No user has logged in."""

    counts: dict[str, Any] = {}  # noqa: RUF012

    def grants(self, client: ClientInfo) -> None:
        return None

    def invalidate(self) -> None:
        pass

    def log_out(self, *details: object) -> None:
        pass

    def note(self, *details: object) -> None:
        pass


@dataclass
class FakeShell(Shell):
    shut_down: Any = None
    log_lines: tuple[str, ...] = ("a line", "another")
    startup_warnings: tuple[str, ...] = ()


@dataclass
class FakeStore:
    """`history_id` is None in a directory of an earlier version."""

    history_id: bytes | None = None


@dataclass
class FakeServer:
    store: FakeStore = field(default_factory=FakeStore)
    options: ServerOptions = OPTIONS
    clock: FixedClock = field(default_factory=FixedClock)
    process_id: ObjectId = field(default_factory=lambda: ObjectId("64b000000000000000000001"))
    started_ms: int = 1_700_000_000_000
    parameters: dict[str, Any] = field(default_factory=lambda: first_parameters(OPTIONS))
    oplog_bytes_max: int | None = None
    metrics: dict[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    usage: Usage = field(default_factory=lambda: Usage(lambda namespace: False))
    shell: FakeShell = field(default_factory=FakeShell)
    cursors: tuple[Any, ...] = ()
    access: FakeAccess = field(default_factory=FakeAccess)
    authorizes: bool = False
    primacy: Primacy = field(default_factory=lambda: Primacy(FixedClock()))
    connections_open: int = 3
    connections_created: int = 4
    commands: dict[str, Any] = field(default_factory=lambda: STATIC_COMMANDS)

    ended: list[Any] = field(default_factory=list)

    def restricts(self, client: Any) -> bool:
        return self.authorizes

    def end_sessions(self, sessions: list[bytes] | None) -> None:
        self.ended.append(sessions)

    def last_write(self) -> tuple[Timestamp, int]:
        return Timestamp(1_700_000_050, 2), 1_700_000_050_123


def ask(
    body: dict[str, Any], info: FakeServer | None = None, client: ClientInfo | None = None, time_is_up: bool = False
) -> Any:
    name = next(iter(body))
    by_alias = {alias: command for command in STATIC_COMMANDS.values() for alias in command.aliases}
    client = client or ClientInfo(9, "127.0.0.1:5000", ("127.0.0.1", 27018))
    request = Request(name, "admin", encode({**body, "$db": "admin"}), {}, client)
    request.time_is_up = time_is_up
    command = STATIC_COMMANDS.get(name) or by_alias[name]
    command.arguments.check(command.name, request.body)
    return command.run(CommandContext(info or FakeServer()), request)


def refused(body: dict[str, Any], info: FakeServer | None = None, client: ClientInfo | None = None) -> int:
    with pytest.raises(CommandError) as caught:
        ask(body, info, client)
    return caught.value.code


def test_the_table_is_sorted_and_no_name_is_there_twice() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
    aliases = [alias for command in STATIC_COMMANDS.values() for alias in command.aliases]
    assert len({*STATIC_COMMANDS, *aliases}) == len(STATIC_COMMANDS) + len(aliases)


def test_hello_reports_a_primary_at_the_address_the_client_reached() -> None:
    reply = ask({"hello": 1})
    assert list(reply) == [
        "topologyVersion", "hosts", "setName", "setVersion", "isWritablePrimary", "secondary", "primary", "me",
        "electionId", "lastWrite", "maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize", "localTime",
        "logicalSessionTimeoutMinutes", "connectionId", "minWireVersion", "maxWireVersion", "readOnly",
    ]  # fmt: skip
    assert reply["hosts"] == ["127.0.0.1:27018"] and reply["me"] == reply["primary"] == "127.0.0.1:27018"
    assert reply["lastWrite"]["opTime"] == {"ts": Timestamp(1_700_000_050, 2), "t": Int64(1)}
    assert reply["connectionId"] == 9 and reply["setName"] == "rs0" and reply["maxWireVersion"] >= 25


@pytest.mark.parametrize(
    ("local", "address"),
    [(("::1", 27017), "[::1]:27017"), ("/run/mongodb-27017.sock", "/run/mongodb-27017.sock")],
)
def test_hello_writes_addresses_as_drivers_do(local: Any, address: str) -> None:
    assert ask({"hello": 1}, client=ClientInfo(1, "x", local))["me"] == address


def test_an_advertised_host_is_reported_instead() -> None:
    info = FakeServer(options=replace(OPTIONS, advertised_host="db.example:1"))
    assert ask({"hello": 1}, info)["hosts"] == ["db.example:1"]


@pytest.mark.parametrize("name", ["isMaster", "ismaster"])
def test_the_old_hello_says_ismaster_and_that_the_new_one_is_known(name: str) -> None:
    reply = ask({name: 1, "helloOk": True})
    assert next(iter(reply)) == "helloOk" and reply["ismaster"] is True and "isWritablePrimary" not in reply


def test_without_an_oplog_hello_is_a_standalones() -> None:
    reply = ask({"hello": 1}, FakeServer(options=replace(OPTIONS, oplog=False)))
    assert reply["isWritablePrimary"] is True
    assert not {"setName", "hosts", "lastWrite"} & set(reply)


def test_hello_agrees_on_compressors_in_the_clients_order() -> None:
    client = ClientInfo(1, "x", ("h", 1))
    reply = ask({"hello": 1, "compression": ["zstd", "lz4", 3, "snappy"]}, client=client)
    assert reply["compression"] == client.compressors == ["zstd", "snappy"]
    assert "compression" not in ask({"hello": 1, "compression": ["lz4"]}, client=ClientInfo(1, "x", ("h", 1)))


def test_the_compressors_of_hello_are_those_of_the_wire() -> None:
    assert set(NAMES) == COMPRESSORS


def test_a_client_says_who_it_is_once() -> None:
    client = ClientInfo(1, "x", ("h", 1))
    ask({"hello": 1, "client": {"driver": {"name": "d"}}}, client=client)
    assert client.metadata == {"driver": {"name": "d"}}
    ask({"hello": 1}, client=client)
    assert refused({"hello": 1, "client": {"driver": {"name": "e"}}}, client=client) == 186


def test_an_awaitable_hello_waits_out_its_time_when_nothing_changed() -> None:
    body = {"hello": 1, "topologyVersion": ask({"hello": 1})["topologyVersion"], "maxAwaitTimeMS": Int64(10_000)}
    assert ask(body) == Wait(10_000, TOPOLOGY)
    assert ask(body, time_is_up=True)["isWritablePrimary"] is True


def test_an_awaitable_hello_answers_at_once_after_a_restart() -> None:
    known = {"processId": ObjectId(), "counter": Int64(6)}
    assert ask({"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": 10_000})["isWritablePrimary"] is True


def test_a_malformed_awaitable_hello_is_refused() -> None:
    known = ask({"hello": 1})["topologyVersion"]
    assert refused({"hello": 1, "topologyVersion": known}) == 31368
    assert refused({"hello": 1, "maxAwaitTimeMS": 5}) == 31368
    assert refused({"hello": 1, "topologyVersion": known, "maxAwaitTimeMS": -1}) == 31373
    assert refused({"hello": 1, "topologyVersion": {**known, "counter": Int64(-1)}, "maxAwaitTimeMS": 5}) == 31372
    assert refused({"hello": 1, "topologyVersion": {**known, "counter": Int64(99)}, "maxAwaitTimeMS": 5}) == 31382
    assert refused({"hello": 1, "topologyVersion": 5, "maxAwaitTimeMS": 5}) == 14


def test_build_info_says_which_mongodb_it_follows_and_what_it_is() -> None:
    reply = ask({"buildInfo": 1})
    assert reply["version"].split(".")[:2] == [str(part) for part in reply["versionArray"][:2]]
    assert "version" in reply["headrace"]
    assert reply == ask({"buildinfo": 1})


def test_parameters_are_got_by_name_or_all() -> None:
    assert ask({"getParameter": 1, "featureCompatibilityVersion": 1}) == {
        "featureCompatibilityVersion": {"version": "8.2"}
    }
    assert set(ask({"getParameter": "*"})) == set(PARAMETERS)
    shown = ask({"getParameter": {"showDetails": True}, "quiet": 1})
    assert shown == {"quiet": {"value": False, "settableAtRuntime": True, "settableAtStartup": False}}
    shown = ask({"getParameter": {"showDetails": True}, "ttlMonitorSleepSecs": 1})["ttlMonitorSleepSecs"]
    assert shown == {"value": 60, "settableAtRuntime": True, "settableAtStartup": True}
    assert refused({"getParameter": 1, "nosuch": 1}) == 72


def test_set_parameter_replies_with_the_old_value() -> None:
    info = FakeServer()
    assert ask({"setParameter": 1, "oplogEntriesMax": 500}, info) == {"was": None}
    assert ask({"setParameter": 1, "oplogEntriesMax": 600.0}, info) == {"was": 500}
    assert info.parameters["oplogEntriesMax"] == 600


def test_parameters_are_set_all_or_none() -> None:
    info = FakeServer()
    assert refused({"setParameter": 1, "oplogEntriesMax": 5, "nosuch": 1}, info) == 72
    assert info.parameters["oplogEntriesMax"] is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 72), ({"nosuch": 1}, 72), ({"enableTestCommands": 1}, 20), ({"oplogEntriesMax": 0}, 2),
        ({"oplogEntriesMax": 1.5}, 2), ({"oplogSizeMB": "x"}, 2), ({"oplogMinRetentionHours": -1}, 2),
        ({"oplogSizeMB": float("nan")}, 2), ({"quiet": "x"}, 2),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_refused(change: dict[str, Any], code: int) -> None:
    assert refused({"setParameter": 1, **change}) == code


def test_the_oplog_is_resized_by_repl_set_resize_oplog() -> None:
    info = FakeServer()
    assert ask({"replSetResizeOplog": 1, "size": 2000.0, "minRetentionHours": 1.5}, info) == {}
    assert info.parameters["oplogSizeMB"] == 2000.0 and info.parameters["oplogMinRetentionHours"] == 1.5
    assert refused({"replSetResizeOplog": 1}) == 2


def test_the_set_is_initiated_with_this_server_as_its_primary() -> None:
    status = ask({"replSetGetStatus": 1})
    assert status["set"] == "rs0" and status["myState"] == 1 and len(status["members"]) == 1
    member = status["members"][0]
    assert member["self"] is True and member["stateStr"] == "PRIMARY" and member["name"] == "127.0.0.1:27018"
    assert member["uptime"] == 100 and member["optimeDate"] == DatetimeMS(1_700_000_050_000)
    assert refused({"replSetInitiate": {}}) == 23


def test_the_configuration_has_one_member_and_a_lasting_id() -> None:
    config = ask({"replSetGetConfig": 1})["config"]
    assert config["_id"] == "rs0" and [member["host"] for member in config["members"]] == ["127.0.0.1:27018"]
    assert (
        config["settings"]["replicaSetId"]
        == ask({"replSetGetConfig": 1}, FakeServer())["config"]["settings"]["replicaSetId"]
    )
    stored = FakeServer(store=FakeStore(history_id=b"twelve bytes"))
    assert ask({"replSetGetConfig": 1}, stored)["config"]["settings"]["replicaSetId"] == ObjectId(b"twelve bytes")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"replSetFreeze": 1}, 95), ({"replSetMaintenance": True}, 95), ({"replSetSyncFrom": "x"}, 95),
        ({"replSetReconfig": {}}, 103), ({"replSetStepDown": 60}, 262), ({"replSetStepDown": -1}, 2),
        ({"replSetStepDown": 10}, 2), ({"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": -1}, 2),
        ({"replSetStepDown": 5, "force": True, "secondaryCatchUpPeriodSecs": 5}, 2),
    ],
)  # fmt: skip
def test_what_would_change_the_set_is_refused(body: dict[str, Any], code: int) -> None:
    assert refused(body) == code


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - {"mapReduce"}))  # that one needs a store: `test_coll_mod.py`
def test_a_command_of_the_refused_says_why(name: str) -> None:
    assert refused({name: 1}) == REFUSED[name][0]


@pytest.mark.parametrize("name", ["createSearchIndexes", "dropSearchIndex", "updateSearchIndex"])
def test_commands_of_search_indexes_name_atlas(name: str) -> None:
    assert REFUSED[name][0] == 31082 and "Atlas" in REFUSED[name][1]


def test_server_status_counts_commands_under_mongodbs_names() -> None:
    counts = {"commands.find.total": 5, "commands.find.failed": 1, "commands.ping.total": 2, "document.inserted": 7}
    counts["operations.insert"] = 7
    reply = ask({"serverStatus": 1}, FakeServer(metrics={**counts, "network.bytesIn": 99}))
    assert reply["opcounters"] == {"insert": 7, "query": 5, "update": 0, "delete": 0, "getmore": 0, "command": 2}
    assert reply["metrics"]["commands"]["find"] == {"failed": 1, "total": 5}
    assert reply["metrics"]["document"] == {"inserted": 7} and "network" not in reply["metrics"]
    assert reply["network"]["bytesIn"] == 99 and reply["network"]["numRequests"] == 7
    assert reply["connections"]["current"] == 3 and reply["uptime"] == 100.0


def test_the_uptime_is_in_whole_seconds() -> None:
    reply = ask({"serverStatus": 1}, FakeServer(started_ms=1_699_999_999_001))
    assert (reply["uptime"], type(reply["uptime"]), reply["uptimeMillis"]) == (100.0, float, 100_999)


def test_sections_of_server_status_can_be_left_out() -> None:
    reply = ask({"serverStatus": 1, "metrics": 0, "repl": False}, FakeServer(metrics={"network.bytesIn": 1}))
    assert "metrics" not in reply and "repl" not in reply and "network" in reply
    assert "repl" not in ask({"serverStatus": 1}, FakeServer(options=replace(OPTIONS, oplog=False)))


def test_sessions_start_with_an_id_and_end_from_a_list() -> None:
    reply = ask({"startSession": 1})
    assert reply["timeoutMinutes"] == 30 and reply["id"]["id"].subtype == 4
    assert ask({"endSessions": [reply["id"]]}) == {}
    info = FakeServer()
    for name, listed in (("endSessions", [reply["id"]]), ("killSessions", []), ("killAllSessions", [])):
        assert ask({name: listed}, info) == {}
    assert info.ended == [[bytes(reply["id"]["id"])], [], None]
    assert refused({"endSessions": 5}) == 14 and refused({"endSessions": [5]}) == 14


def test_the_small_ones_answer_in_mongodbs_form() -> None:
    assert ask({"ping": 1}) == b""  # raw elements: none of its own
    assert ask({"whatsmyuri": 1}) == {"you": "127.0.0.1:5000"}
    status = ask({"connectionStatus": 1})
    assert status["authInfo"] == {"authenticatedUsers": [], "authenticatedUserRoles": []}
    assert status["uuid"].subtype == 4 and len(status["uuid"]) == 16
    assert ask({"getLog": "startupWarnings"}) == {"totalLinesWritten": 0, "log": []}
    assert ask({"getLog": "global"}) == {"totalLinesWritten": 2, "log": ["a line", "another"]}
    assert refused({"connectionStatus": 1, "unknown": 1}) == refused({"hostInfo": 1, "unknown": 1}) == 40415
    assert refused({"shutdown": 1}) == 115
    assert refused({"getLog": 5}) == 14 and refused({"getLog": "x"}) == 96
    assert ask({"getCmdLineOpts": 1})["parsed"]["storage"] == {"dbPath": "data"}
    host = ask({"hostInfo": 1})
    assert host["system"]["numCores"] >= host["system"]["numPhysicalCores"] >= host["system"]["numCpuSockets"] >= 1
    assert type(host["system"]["memSizeMB"]) is type(host["system"]["memLimitMB"]) is Int64
    assert host["system"]["numNumaNodes"] >= 1 and host["extra"]["versionString"]
    assert ask({"fsync": 1}) == {"numFiles": 1}
    assert ask({"setFeatureCompatibilityVersion": "8.2", "confirm": True}) == {}
    assert refused({"setFeatureCompatibilityVersion": "7.0"}) == 2
    assert refused({"setFeatureCompatibilityVersion": None}) == 40414
    listed = ask({"listCommands": 1})["commands"]
    assert (listed["hello"]["apiVersions"], listed["top"]["apiVersions"]) == (["1"], [])
    assert listed["hello"]["deprecatedApiVersions"] == []


NEED_A_STORE = frozenset(
    command.name for family in (changing_roles, changing_users, showing) for command in family.COMMANDS
)
"""`test_users.py` runs them."""


def test_every_reply_can_be_encoded() -> None:
    for name in STATIC_COMMANDS.keys() - NEED_A_STORE - {"currentOp", "fsyncUnlock", "setUserWriteBlockMode"}:
        value = {"getParameter": "*", "getLog": "*", "endSessions": []}.get(name, 1)
        try:
            reply = ask({name: value})
        except CommandError:
            continue
        if not isinstance(reply, Wait):  # a login that fails is answered later
            assert reply == b"" if name == "ping" else encode(reply)


def test_the_clients_metadata_is_as_long_as_mongodb_lets_it_be() -> None:
    driver = {"driver": {"name": "x", "version": "1"}, "os": {"type": "Linux"}}
    room = 512 - len(encode({**driver, "platform": ""}))
    assert ask({"hello": 1, "client": {**driver, "platform": "p" * room}})["readOnly"] is False
    assert refused({"hello": 1, "client": {**driver, "platform": "p" * (room + 1)}}) == 185
    assert refused({"hello": 1, "client": {"application": {"name": "\u00e9" * 65}, **driver}}) == 184
    assert ask({"hello": 1, "client": {"application": {"name": "n" * 128}, **driver}})["readOnly"] is False


@pytest.mark.parametrize("command", [{"shutdown": 1}, {"setParameter": 1, "quiet": True}, {"replSetResizeOplog": 1}])
@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        ("10.1.2.3:5000", True), ("2001:db8::7:5000", True), ("::ffff:10.1.2.3:5000", True), ("fe80::1%e0:5000", True),
        ("127.8.8.8:5000", False), ("::1:5000", False), ("::ffff:127.0.0.1:5000", False),
        ("anonymous unix socket", False),
    ],
)  # fmt: skip
def test_commands_that_govern_the_server_are_for_local_clients(
    command: dict[str, Any], address: str, is_refused: bool
) -> None:
    client = ClientInfo(1, address, ("0.0.0.0", 27017))
    info = FakeServer(shell=FakeShell(shut_down=lambda: None))
    try:
        ask(command, info, client)
        code = 0
    except CommandError as error:
        code = error.code
        if is_refused:
            assert error.message.endswith("must run from localhost when running db without auth")
    assert (code == 13) is is_refused


def test_warnings_of_the_start_can_be_asked_for() -> None:
    info = FakeServer(shell=FakeShell(startup_warnings=("a warning",)))
    assert ask({"getLog": "startupWarnings"}, info) == {"totalLinesWritten": 1, "log": ["a warning"]}


@pytest.mark.parametrize(("address", "code"), [("10.1.2.3:5000", 13), ("127.0.0.1:5000", 0)])
def test_cluster_parameters_are_set_by_local_clients(address: str, code: int) -> None:
    with DrivenServer() as at:
        at.client = ClientInfo(1, address, ("0.0.0.0", 27017))
        value = {"preAndPostImages": {"expireAfterSeconds": 5}}
        reply = at.run("admin", {"setClusterParameter": {"changeStreamOptions": value}})
        assert isinstance(reply, dict) and reply.get("code", 0) == code


def test_server_status_has_the_field_by_which_mongostat_knows_a_primary() -> None:
    with DrivenServer() as server:
        assert server.must("admin", {"serverStatus": 1})["repl"]["ismaster"] is True
