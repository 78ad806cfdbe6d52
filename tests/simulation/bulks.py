"""bulkWrite over several collections: its changes are divided among its operations, each of which is explained alone.

A bulkWrite has one update and one delete of each collection at most, so that a change belongs to one operation only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulation.language import Document, query_of, upserted
from tests.simulation.model import Event, Finding, State, applied
from tests.simulation.world import COMMIT_FAILED, Pending, WriteTurn

TOTALS: Final = ("nDeleted", "nErrors", "nInserted", "nMatched", "nModified", "nUpserted")


def body_of(op: Document) -> Document:
    """The command that a client sends for a bulkWrite."""
    ops = []
    for one in op["ops"]:
        number = op["namespaces"].index(one["ns"])
        if one["do"] == "insert":
            ops.append({"insert": number, "document": one["documents"][0]})
            continue
        condition, collation = query_of(one)
        made = {one["do"]: number, "filter": condition, "multi": one["multi"], **collation}
        if one["do"] == "update":
            made |= {"updateMods": one["change"], "upsert": one.get("upsert", False)}
        ops.append(made)
    return {
        "bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": name} for name in op["namespaces"]], "ordered": op["ordered"],
        "errorsOnly": op["errors_only"],
    }  # fmt: skip


class Part:
    """One operation, the changes that it has made, the turns in which it may have run, and its reply."""

    def __init__(self, op: Document, index: int, reply: Document) -> None:
        self.op = op
        self.index = index
        self.events: list[tuple[int, Event]] = []
        """Each with the number of its turn."""
        self.reply = reply

    def takes(self, event: Event) -> bool:
        """Whether an event may be of this operation."""
        op, kind = self.op, event.kind
        if event.namespace != op["ns"] or (self.events and not op.get("multi")):
            return False
        if op["do"] == "insert":
            return kind == "insert" and event.after == op["documents"][0] and "writeErrors" not in self.reply
        if kind == "insert":
            if self.reply["ok"] == 1.0 and not self.reply.get("upserted"):
                return False
            wanted = upserted(op["filter"], op["change"]) if op.get("upsert") else {}
            return bool(op.get("upsert")) and {**wanted, "_id": event.key} == event.after
        return kind == "delete" if op["do"] == "delete" else kind in ("replace", "update")


def parts_of(op: Document, pending: Pending, reply: Document) -> list[Part]:
    """The operations with their changes and replies. Raises `Finding` where a change is of none."""
    results = {item["idx"]: item for item in reply.get("cursor", {}).get("firstBatch", ())}
    parts = [Part(one, index, _reply_of(results.get(index), reply)) for index, one in enumerate(op["ops"])]
    failed = [index for index, item in results.items() if item["ok"] != 1.0]
    end = failed[0] if op["ordered"] and failed else len(parts) - 1
    at = 0
    for number, turn in enumerate(pending.turns):
        for event in turn.events:
            if event.kind == "create":
                continue
            while at <= end and not parts[at].takes(event):
                at += 1
            if at > end:
                raise Finding("bulk", f"{op} has made {event}, of none of its operations: {reply}")
            parts[at].events.append((number, event))
    if reply["ok"] == 1.0:
        _check_results(op, parts[: end + 1], results, reply)
    return parts[: end + 1]


def _reply_of(result: Document | None, reply: Document) -> Document:
    """The reply of an operation as if it had been a command."""
    if reply["ok"] != 1.0:
        return {"ok": 0.0, "code": COMMIT_FAILED}
    if result is None:  # errorsOnly
        return {"ok": 1.0}
    if result["ok"] != 1.0:
        return {"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [{"index": 0, "code": result["code"]}]}
    return {**result, "upserted": [result["upserted"]] if "upserted" in result else []}


def _check_results(op: Document, parts: list[Part], results: dict[int, Document], reply: Document) -> None:
    events = [event for part in parts for _, event in part.events]
    errors = sum(item["ok"] != 1.0 for item in results.values())
    inserted = sum(part.op["do"] == "insert" for part in parts for _ in part.events)
    kinds = [event.kind for event in events]
    made = {
        "nDeleted": kinds.count("delete"), "nErrors": errors, "nInserted": inserted,
        "nModified": kinds.count("update") + kinds.count("replace"), "nUpserted": kinds.count("insert") - inserted,
    }  # fmt: skip
    is_partial = any(part.events and "writeErrors" in part.reply for part in parts)
    if not is_partial and any(reply[name] != number for name, number in made.items()):
        raise Finding("bulk", f"{op} has made {events} and was answered {reply}")
    wanted = range(len(parts)) if not op["errors_only"] else [part.index for part in parts if part.index in results]
    if list(results) != list(wanted) or (op["errors_only"] and errors != len(results)):
        raise Finding("bulk", f"{op} was answered {reply}, without the results of its operations")


def turns_of(parts: list[Part], at: int, pending: Pending) -> tuple[list[WriteTurn], list[State]]:
    """The turns in which an operation may have run, and the other states that it may have seen in them."""
    before = [number for part in parts[:at] for number, _ in part.events]
    after = [number for part in parts[at + 1 :] for number, _ in part.events]
    first, last = max(before, default=0), min(after, default=len(pending.turns) - 1)
    events = [event for _, event in parts[at].events]
    earlier = [event for part in parts[:at] for number, event in part.events if number == first]
    if first == last:
        turn = pending.turns[first]
        created = [event for event in turn.events if event.kind == "create"]
        start = applied(turn.before, [*created, *earlier])
        return [WriteTurn(start, applied(start, events), events, turn.since)], []
    turns = [
        replace(turn, events=[event for at_turn, event in parts[at].events if at_turn == number])
        for number, turn in enumerate(pending.turns[first : last + 1], first)
    ]
    seen = [turn.before for turn in turns]
    for state, turn in zip(list(seen), pending.turns[first : last + 1]):
        seen += [applied(state, turn.events[:count]) for count in range(1, len(turn.events))]
    return turns, seen
