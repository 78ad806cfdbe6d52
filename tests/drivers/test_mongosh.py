"""mongosh finds an initiated set of one member, shows databases, writes, and watches.

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
from tests.node import node_modules

pytestmark = pytest.mark.network

SCRIPT = """
const told = {};
const tell = (name, ask) => { try { told[name] = ask(); } catch (error) { told[name] = {code: error.code}; } };
tell('initiate', () => rs.initiate());
tell('status', () => { const all = rs.status(); return [all.set, all.myState, all.members.map(m => m.stateStr)]; });
tell('conf', () => { const all = rs.conf(); return [all._id, all.members.length, all.members[0].host]; });
tell('before', () => db.getMongo().getDBNames());
tell('insert', () => db.orders.insertOne({_id: 1, item: 'ice'}).acknowledged);
tell('after', () => db.getMongo().getDBNames());
tell('watch', () => {
  const stream = db.orders.watch([], {startAtOperationTime: db.hello().lastWrite.opTime.ts});
  db.orders.updateOne({_id: 1}, {$set: {qty: 5}});
  const seen = [];
  while (seen.length < 2) { const change = stream.tryNext(); if (change) seen.push(change.operationType); }
  stream.close();
  return seen;
});
tell('collections', () => db.getCollectionNames());
print(EJSON.stringify(told));
"""


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """What mongosh heard from a new server."""
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


def test_it_finds_a_set_that_is_initiated_and_can_be_watched(told: dict[str, Any]) -> None:
    assert told["initiate"] == {"code": 23}
    assert told["status"] == ["rs0", 1, ["PRIMARY"]]
    assert told["conf"] == ["rs0", 1, told["address"]]
    assert "shop" not in told["before"] and "shop" in told["after"]
    assert told["insert"] is True
    assert told["watch"] == ["insert", "update"]
    assert told["collections"] == ["orders"]
