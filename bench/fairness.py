"""What other clients notice of an attack: their waits, the server's memory, and how the attack was answered.

    python bench/fairness.py --class applications     what applications do: a minute
    python bench/fairness.py --class extremes         what hostile clients may do: ten minutes
    python bench/fairness.py                          both; a table in Markdown
    python bench/fairness.py --only regex unwind      those whose name contains one of these
    python bench/fairness.py --seconds 5 --write bench/attacks.md
    python bench/fairness.py --memoryLimit 512M       the peak memory of a server with that limit, and the answers

Each attack has a server process of its own. Beside it one client pings, one inserts and one watches (`honest.py`), and
one pings a second server that does nothing else: what that one waits is the machine's, and is taken off. The last line
says how many keep the bound of their class for pings and inserts, and the exit status is 1 where one does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from attacks import ALL, APPLICATIONS, EXTREMES
from attacks.attacker import ANSWER_SECONDS_MAX, Attack, Attacker
from honest import KINDS, HonestClient, Latency, lower_priority
from target import StartedServer, Target

CLASSES = {"applications": APPLICATIONS, "extremes": EXTREMES}
PERCENTILE_99_MS_MAX = {"applications": 20.0, "extremes": 250.0}
WORST_MS_MAX = {"applications": float("inf"), "extremes": 500.0}
BEGIN, END = "<!-- bench/fairness.py: begin -->", "<!-- bench/fairness.py: end -->"


@dataclass(frozen=True, slots=True)
class Result:
    """What one attack did. Times are in milliseconds, memory in MiB that the process has for itself."""

    attack: str
    latency: dict[str, Latency]
    """By kind of client; `idle` is the ping to the server that does nothing else."""
    memory: tuple[float, float, float]
    """Before, at most, after."""
    peak: float
    """VmHWM: the most that was resident, with pages of the data file."""
    answers: dict[str, int]
    alive: bool

    def wait(self, kind: str) -> tuple[float, float]:
        """(worst, 99th percentile) of a kind of client, less the idle server's."""
        one, idle = self.latency[kind], self.latency["idle"]
        return max(0.0, one.worst - idle.worst), max(0.0, one.percentile_99 - idle.percentile_99)

    def keeps_bound(self) -> bool:
        """Whether pings and inserts wait no longer than others may make them."""
        name = "applications" if self.attack in {attack.name for attack in APPLICATIONS} else "extremes"
        waits = [self.wait(kind) for kind in ("ping", "insert")]
        return self.alive and all(
            worst <= WORST_MS_MAX[name] and percentile <= PERCENTILE_99_MS_MAX[name] for worst, percentile in waits
        )

    def row(self) -> str:
        """The line of the table."""
        waits = [f"{worst:.0f} / {most:.0f}" for worst, most in map(self.wait, KINDS)]
        memory = " / ".join(f"{size:.0f}" for size in self.memory)
        return f"| {self.attack} | {' | '.join(waits)} | {memory} | {self._outcome()} |"

    def memory_row(self) -> str:
        """The line of the table of a server with a memory limit."""
        return f"| {self.attack} | {self.peak:.0f} | {self.memory[1]:.0f} | {self._outcome()} |"

    def _outcome(self) -> str:
        answers = ", ".join(f"{code} × {count:,}" for code, count in sorted(self.answers.items()))
        return answers if self.alive else f"{answers} **the server has ended**"


HEAD = (
    "| Attack | ping: worst / 99 % | insert | event | memory: before / at most / after | answers |\n"
    "|---|---|---|---|---|---|"
)
MEMORY_HEAD = "| Attack | VmHWM | without pages of the data file | answers |\n|---|---|---|---|"


def main() -> int:
    arguments = _arguments()
    attacks = ALL if arguments.kind is None else CLASSES[arguments.kind]
    wanted = [attack for attack in attacks if _wanted(attack, arguments.only)]
    if not wanted:
        print("no attack has such a name; there are: " + "; ".join(attack.name for attack in ALL), file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(attack.name for attack in wanted))
        return 0
    rows, exceeded = [], []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and clients end, too
    limit = arguments.memory_limit
    head, flags = (HEAD, ()) if limit is None else (MEMORY_HEAD, ("--memoryLimit", limit))
    print(head)
    with StartedServer(arguments.directory) as idle:
        for attack in wanted:
            result = measure(attack, idle, arguments.seconds, arguments.directory, flags)
            rows.append(result.row() if limit is None else result.memory_row())
            print(rows[-1], flush=True)
            if not result.keeps_bound():
                exceeded.append(attack.name)
            for kind, latency in result.latency.items():
                if latency.failure:
                    print(f"{kind}: {latency.failure}", file=sys.stderr)
    if arguments.write is not None:
        _write(arguments.write, head, rows)
    print(f"\n{len(wanted) - len(exceeded)} of {len(wanted)} keep their bound")
    for name in exceeded:
        print(f"exceeded: {name}")
    return 1 if exceeded else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="TEXT", help="attacks whose name contains one of these")
    add("--class", dest="kind", choices=sorted(CLASSES), help="only what applications do, or only extremes")
    add("--seconds", type=float, default=3.0, help="how long each goes on (default: 3)")
    add("--list", action="store_true", help="print the names only")
    add("--write", type=Path, metavar="FILE", help="put the table into this page, between its marks")
    add("--memoryLimit", dest="memory_limit", metavar="BYTES", help="of the servers; the table has their peak memory")
    add("--directory", type=Path, help="where the servers have their data (default: the temporary directory)")
    return parser.parse_args()


def _wanted(attack: Attack, words: list[str]) -> bool:
    return not words or any(word.lower() in attack.name.lower() for word in words)


def _write(page: Path, head: str, rows: list[str]) -> None:
    text = page.read_text("utf-8")
    table = f"{BEGIN}\n\n{head}\n" + "\n".join(rows) + f"\n\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, text, flags=re.DOTALL), "utf-8")


def measure(
    attack: Attack, idle: Target, seconds: float, directory: Path | None = None, flags: Sequence[str] = ()
) -> Result:
    """Run one attack on a server of its own. `flags`: more of its command line."""
    with StartedServer(directory, (*attack.flags, *flags)) as target:
        if attack.prepare is not None:
            attack.prepare(Attacker(target.address, float("inf")))
        clients = {kind: HonestClient(kind, target) for kind in KINDS}
        clients["idle"] = HonestClient("ping", idle)
        for client in clients.values():
            client.wait_until_ready()
        before = most = memory_of(target)
        attackers = [AttackingProcess(attack, target, seconds) for _ in range(attack.processes)]
        for client in clients.values():
            client.start()
        for attacker in attackers:
            attacker.start()
        deadline = time.monotonic() + seconds + ANSWER_SECONDS_MAX
        while any(attacker.runs for attacker in attackers) and time.monotonic() < deadline:
            most = max(most, memory_of(target))
            time.sleep(0.02)
        answers = sum((attacker.stop() for attacker in attackers), Counter())
        time.sleep(0.5)
        latency = {kind: client.stop() for kind, client in clients.items()}
        after = memory_of(target)
        peak = memory_of(target, "VmHWM")
        return Result(attack.name, latency, (before, most, after), peak, answers, is_alive(target))


def memory_of(target: Target, name: str = "RssAnon") -> float:
    """A line of the process's status in MiB. `RssAnon` is the memory that the process has for itself: not the pages of
    the data file, which the system takes back.
    """
    try:
        status = Path(f"/proc/{target.pid}/status").read_text()
    except OSError:
        return float("nan")
    matched = re.search(rf"{name}:\s+(\d+) kB", status)
    return int(matched[1]) / 1024 if matched else float("nan")


def is_alive(target: Target) -> bool:
    """Whether the server still answers."""
    try:
        target.connect().close()
    except (OSError, RuntimeError):
        return False
    return True


class AttackingProcess:
    """An attack in a process of its own, of low priority."""

    def __init__(self, attack: Attack, target: Target, seconds: float) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_attack, args=(attack, target, seconds, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def start(self) -> None:
        """Let it begin."""
        self._ours.send("start")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self._ours.poll() and self._process.is_alive()

    def stop(self) -> Counter[str]:
        """Its answers."""
        answers: Counter[str] = Counter({"no answer": 1})
        try:
            if self._ours.poll(1.0):
                answers = self._ours.recv()
        except EOFError:
            answers = Counter({"the attacker failed": 1})
        self._process.kill()
        self._process.join()
        self._ours.close()
        return answers


def _attack(attack: Attack, target: Target, seconds: float, pipe: Connection) -> None:
    lower_priority()
    pipe.recv()
    attacker = Attacker(target.address, seconds)
    try:
        attack.run(attacker)
    except (ConnectionError, TimeoutError) as error:
        attacker.answers["no answer" if isinstance(error, TimeoutError) else "closed"] += 1
    pipe.send(attacker.answers)
    pipe.close()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
