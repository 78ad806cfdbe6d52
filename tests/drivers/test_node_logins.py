"""The Node.js driver logs in with each mechanism, and with the database of the user as `authSource`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest

from tests.drivers.login_server import IN_SHOP, PASSWORD, SUBJECT, login_server
from tests.node import node_modules

pytestmark = [pytest.mark.network, pytest.mark.process]

SCRIPT: Final = """
const { MongoClient } = require(process.argv[2]);
async function logIn(uri) {
  const client = new MongoClient(uri, { serverSelectionTimeoutMS: 5000 });
  try {
    const status = await client.db('shop').command({ connectionStatus: 1 });
    const inserted = await client.db('shop').collection('c').insertOne({});
    const refused = await client.db('other').collection('c').findOne().then(() => null, (error) => error.code);
    return [status.authInfo.authenticatedUsers, inserted.acknowledged, refused];
  } catch (error) {
    return error.code ?? String(error);
  } finally {
    await client.close();
  }
}
(async () => {
  const answers = {};
  for (const [name, uri] of Object.entries(JSON.parse(process.argv[3]))) answers[name] = await logIn(uri);
  console.log(JSON.stringify(answers));
})();
"""


def logins(uris: dict[str, str], folder: Path) -> dict[str, Any]:
    """What the driver was answered with each URI, by name."""
    driver = node_modules("mongodb") / "mongodb"
    script = folder / "log_in.js"
    script.write_text(SCRIPT)
    line = ["node", str(script), str(driver), json.dumps(uris)]
    run = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    answers: dict[str, Any] = json.loads(run.stdout)
    return answers


def test_the_driver_logs_in_with_each_mechanism_and_source(tmp_path: Path) -> None:
    certificates = tmp_path / "tls"
    with login_server(certificates) as (server, root):
        for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
            root["shop"].command("createUser", f"only {mechanism}", pwd=PASSWORD, roles=IN_SHOP, mechanisms=[mechanism])
        trust = {"tls": "true", "tlsCAFile": str(certificates / "ca.pem")}
        with_certificate = {"tlsCertificateKeyFile": str(certificates / "client.pem")}

        def uri(user: str, password: str = PASSWORD, path: str = "", **options: str) -> str:
            login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
            return f"mongodb://{login}{server.address}/{path}?{urlencode(trust | options)}"

        x509 = with_certificate | {"authMechanism": "MONGODB-X509", "authSource": "$external"}
        ann, bob, certified = (
            [[{"user": user, "db": db}], True, 13]
            for user, db in (("ann", "admin"), ("bob", "shop"), (SUBJECT, "$external"))
        )
        only = {
            mechanism: [[{"user": f"only {mechanism}", "db": "shop"}], True, 13]
            for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256")
        }
        wanted = {
            "negotiated": (uri("ann"), ann),
            "SCRAM-SHA-1": (uri("ann", authMechanism="SCRAM-SHA-1"), ann),
            "SCRAM-SHA-256": (uri("ann", authMechanism="SCRAM-SHA-256"), ann),
            "source": (uri("bob", authSource="shop"), bob),
            "source of the path": (uri("bob", path="shop"), bob),
            "source before path": (uri("ann", path="shop", authSource="admin"), ann),
            "wrong source": (uri("bob", authSource="admin"), 18),
            "wrong password": (uri("ann", "wrong"), 18),
            "nobody": (uri("nobody"), 18),
            "only SCRAM-SHA-1": (uri("only SCRAM-SHA-1", authSource="shop"), only["SCRAM-SHA-1"]),
            "only SCRAM-SHA-256": (uri("only SCRAM-SHA-256", authSource="shop"), only["SCRAM-SHA-256"]),
            "not its mechanism": (uri("only SCRAM-SHA-256", authSource="shop", authMechanism="SCRAM-SHA-1"), 18),
            "MONGODB-X509": (uri("", **x509), certified),
            "MONGODB-X509 without a certificate": (uri("", authMechanism="MONGODB-X509"), 18),
        }
        answers = logins({name: uri for name, (uri, _) in wanted.items()}, tmp_path)
    assert answers == {name: answer for name, (_, answer) in wanted.items()}
