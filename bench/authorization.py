"""What `--auth` adds to a command: the same commands in one process, with a user and without, in turn.

    python bench/authorization.py [--blocks 60]

Two servers of `load.py --auth` differ by some percent whatever they run, as any two processes do. Here one engine takes
turns, and the least of many short blocks counts, since other work can only add. Measured is the CPU time of what the
process does for a command without its socket and without the disk.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

from bson import ObjectId

from headrace.auth.names import UserName
from headrace.dispatch.request import ClientInfo
from headrace.testing.driven import DrivenServer

COUNT = 400
"""Commands of a block."""
DOCUMENTS = 1000
TEXT = "x" * 250

ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "ping": lambda: {"ping": 1},
    "find by _id": lambda: {"find": "c", "filter": {"_id": random.randrange(DOCUMENTS)}, "limit": 1},
    "update by _id": lambda: {
        "update": "c",
        "updates": [{"q": {"_id": random.randrange(DOCUMENTS)}, "u": {"$inc": {"n": 1}}}],
    },
    "insert": lambda: {"insert": "d", "documents": [{"_id": ObjectId(), "text": TEXT}]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--blocks", type=int, default=60, help="of 400 commands, with and without (default: 60)")
    blocks = parser.parse_args().blocks
    with DrivenServer() as server:
        server.must("t", {"insert": "c", "documents": [{"_id": key, "text": TEXT} for key in range(DOCUMENTS)]})
        server.must("admin", {"createUser": "load", "pwd": "x", "roles": ["readWriteAnyDatabase"]})
        user = ClientInfo(2, "127.0.0.1:2", ("127.0.0.1", 27017))
        server.engine.access.log_in(user, UserName("load", "admin"))
        clients = {False: server.client, True: user}
        print(f"{'µs of CPU':16}{'without':>10}{'with':>10}{'more':>10}")
        for name, body in ROWS.items():
            least = dict.fromkeys(clients, float("inf"))
            for number in range(2 * blocks):
                authorizes = number % 4 in (1, 2)  # each as often behind the other
                server.client = clients[authorizes]
                server.engine.set_authorization(authorizes)
                least[authorizes] = min(least[authorizes], _block(server, body))
            print(f"{name:16}{least[False]:10.2f}{least[True]:10.2f}{least[True] - least[False]:10.2f}", flush=True)


def _block(server: DrivenServer, body: Callable[[], dict[str, Any]]) -> float:
    """Microseconds for each of `COUNT` commands."""
    requests = [server.request("t", body()) for _ in range(COUNT)]
    began = time.thread_time()
    for request in requests:
        server.answer(request)
    return (time.thread_time() - began) / COUNT * 1e6


if __name__ == "__main__":
    main()
