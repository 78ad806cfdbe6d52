"""Drivers monitor the server by a streaming hello, and by polling, and never drop the connections of their pool."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

import pymongo
import pytest
from pymongo import monitoring

import headrace
from tests.node import node_modules

pytestmark = pytest.mark.process

HEARTBEATS: Final = 8
"""Heartbeats that each part of the Node.js script waits for."""
SCRIPT: Final = """
const { MongoClient } = require(process.argv[2]);
const [uri, heartbeats, frequency, mode] = process.argv.slice(3);
(async () => {
  const options = { heartbeatFrequencyMS: Number(frequency), serverMonitoringMode: mode, maxPoolSize: 5 };
  const client = new MongoClient(uri, options);
  const counts = { cleared: 0, failed: 0, awaited: 0, polled: 0, operations: 0, closed: 0 };
  client.on('connectionPoolCleared', () => { counts.cleared += 1; });
  client.on('connectionClosed', () => { counts.closed += 1; });
  client.on('serverHeartbeatFailed', () => { counts.failed += 1; });
  let wake = () => {};
  client.on('serverHeartbeatSucceeded', (event) => { counts[event.awaited ? 'awaited' : 'polled'] += 1; wake(); });
  const beats = () => counts.awaited + counts.polled;
  const until = async (count) => { while (beats() < count) await new Promise((resolve) => { wake = resolve; }); };
  await client.connect();
  const collection = client.db('t').collection('c');
  await collection.insertOne({ n: 0 });
  await until(Number(heartbeats));                     // idle
  let ends = false;
  const busy = async () => {
    while (!ends) {
      await collection.updateOne({}, { $inc: { n: 1 } });
      await collection.aggregate([{ $match: {} }]).toArray();
      counts.operations += 2;
    }
  };
  const workers = [busy(), busy(), busy()];
  await until(2 * Number(heartbeats));
  ends = true;
  await Promise.all(workers);
  counts.closed_in_use = counts.closed;
  delete counts.closed;
  await client.close();
  console.log(JSON.stringify(counts));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def counted(server: headrace.Server, folder: Path, mode: str, heartbeats: int, frequency_ms: int) -> dict[str, int]:
    """Return the counts of the Node.js driver, first idle and then busy, for this number of heartbeats each."""
    driver = node_modules("mongodb") / "mongodb"
    script = folder / "monitor.js"
    script.write_text(SCRIPT)
    line = ["node", str(script), str(driver), server.uri, str(heartbeats), str(frequency_ms), mode]
    seconds = 2 * heartbeats * frequency_ms / 1000
    run = subprocess.run(line, capture_output=True, text=True, timeout=seconds + 60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    counts: dict[str, int] = json.loads(run.stdout)
    return counts


@pytest.mark.network
@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_the_node_driver_keeps_its_pool_idle_and_busy(tmp_path: Path, mode: str) -> None:
    with headrace.Server() as server:
        counts = counted(server, tmp_path, mode, HEARTBEATS, 500)
    assert (counts["cleared"], counts["failed"], counts["closed_in_use"]) == (0, 0, 0), counts
    assert counts["operations"] > 100
    if mode == "stream":
        assert counts["awaited"] >= 2 * HEARTBEATS and counts["polled"] <= 1, counts
    else:
        assert counts["awaited"] == 0, counts


class Heartbeats(monitoring.ServerHeartbeatListener):
    """The heartbeats of pymongo's monitor."""

    def __init__(self, wanted_count: int) -> None:
        self._wanted_count = wanted_count
        self.enough = threading.Event()
        self.awaited: list[bool] = []
        self.failures: list[Any] = []

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        pass

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        self.awaited.append(event.awaited)
        if len(self.awaited) >= self._wanted_count:
            self.enough.set()

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        self.failures.append(event)
        self.enough.set()


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_pymongo_monitors_by_a_stream_and_by_polling(mode: str) -> None:
    heartbeats = Heartbeats(5)
    with (
        headrace.Server() as server,
        pymongo.MongoClient[dict[str, Any]](
            server.uri, heartbeatFrequencyMS=500, serverMonitoringMode=mode, event_listeners=[heartbeats]
        ) as client,
    ):
        pool_before = client.admin.command("hello")["connectionId"]
        assert heartbeats.enough.wait(60)
        assert client.admin.command("hello")["connectionId"] == pool_before
        assert not heartbeats.failures
    assert heartbeats.awaited[:5] == [False, *[mode == "stream"] * 4]
