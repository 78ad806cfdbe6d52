"""mongosh finds an initiated set of one member, shows databases, writes, watches, and logs in.

mongosh is what is on the path, or is installed from npm into the user's cache when it is first wanted
(`tests/node.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.drivers.login_server import PASSWORD, SUBJECT, login_server
from tests.node import node_modules

pytestmark = pytest.mark.network

SCRIPT = """
const answers = {};
const record = (name, ask) => { try { answers[name] = ask(); } catch (error) { answers[name] = {code: error.code}; } };
record('initiate', () => rs.initiate());
record('status', () => { const all = rs.status(); return [all.set, all.myState, all.members.map(m => m.stateStr)]; });
record('conf', () => { const all = rs.conf(); return [all._id, all.members.length, all.members[0].host]; });
record('before', () => db.getMongo().getDBNames());
record('insert', () => db.orders.insertOne({_id: 1, item: 'ice'}).acknowledged);
record('after', () => db.getMongo().getDBNames());
record('watch', () => {
  const stream = db.orders.watch([], {startAtOperationTime: db.hello().lastWrite.opTime.ts});
  db.orders.updateOne({_id: 1}, {$set: {qty: 5}});
  const seen = [];
  while (seen.length < 2) { const change = stream.tryNext(); if (change) seen.push(change.operationType); }
  stream.close();
  return seen;
});
record('collections', () => db.getCollectionNames());
print(EJSON.stringify(answers));
"""


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, Any]:
    """What mongosh received from a new server, by name."""
    mongosh = shutil.which("mongosh") or str(node_modules("mongosh") / ".bin" / "mongosh")
    with headrace.Server() as server:
        run = subprocess.run(
            [mongosh, "--quiet", "--norc", f"mongodb://{server.address}/shop", "--eval", SCRIPT],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        answer: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
        return answer | {"address": server.address}


def test_it_finds_a_set_that_is_initiated_and_can_be_watched(answers: dict[str, Any]) -> None:
    assert answers["initiate"] == {"code": 23}
    assert answers["status"] == ["rs0", 1, ["PRIMARY"]]
    assert answers["conf"] == ["rs0", 1, answers["address"]]
    assert "shop" not in answers["before"] and "shop" in answers["after"]
    assert answers["insert"] is True
    assert answers["watch"] == ["insert", "update"]
    assert answers["collections"] == ["orders"]


def test_mongosh_logs_in_with_each_mechanism_and_source(tmp_path: Path) -> None:
    mongosh = shutil.which("mongosh") or str(node_modules("mongosh") / ".bin" / "mongosh")
    certificates = tmp_path / "tls"
    script = (
        "const who = db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers;"
        "let refused; try { db.getSiblingDB('other').c.findOne(); } catch (error) { refused = error.code; }"
        "print(EJSON.stringify([who, db.c.insertOne({}).acknowledged, refused]));"
    )
    with login_server(certificates) as (server, _):
        certificate = ["--tlsCertificateKeyFile", str(certificates / "client.pem")]
        for user, source, mechanism, more in (
            ("ann", "admin", "SCRAM-SHA-1", []), ("bob", "shop", "SCRAM-SHA-256", []),
            (SUBJECT, "$external", "MONGODB-X509", certificate),
        ):  # fmt: skip
            login = [] if more else ["-u", user, "-p", PASSWORD]
            run = subprocess.run(
                [mongosh, "--quiet", "--norc", f"mongodb://{server.address}/shop", "--tls", "--tlsCAFile",
                 str(certificates / "ca.pem"), *login, *more, "--authenticationDatabase", source,
                 "--authenticationMechanism", mechanism, "--eval", script],
                env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert run.returncode == 0, run.stdout + run.stderr
            assert json.loads(run.stdout.strip().splitlines()[-1]) == [[{"user": user, "db": source}], True, 13]
